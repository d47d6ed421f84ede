"""Configurations of older generations.

None are read yet: `modernise` changes nothing and warns of nothing, and an old name is an unknown
setting like any other. Renames belong here, so that the schema knows one name for each setting.
"""

from __future__ import annotations

from typing import Any

from backchannel.config.findings import Finding


def modernise(raw: dict[str, Any]) -> tuple[dict[str, Any], list[Finding]]:
    """Rewrite older names to today's, with a warning for each. There are no renames yet."""
    return raw, []
