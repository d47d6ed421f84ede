"""A decision and its reason: the result of every rule of the gateway.

Errors, logs and `backchannel policy explain` all show the reason, so it is a sentence for people. It names the
setting that decided and, when the answer is no, the value that would allow it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Decision:
    """Whether something is allowed, and why."""

    allowed: bool
    reason: str
    rule: str | None = None
    """The setting that decided, such as `tools.sessions.visibility`; None when no setting had a say."""

    def __bool__(self) -> bool:
        # Every decision would be true as an object: `if sees(...)` would always allow.
        raise TypeError("ask for `decision.allowed`")


def quote(value: str | bool | tuple[str, ...] | None) -> str:
    """Show a setting's value as it stands in the configuration."""
    return json.dumps(value, ensure_ascii=False)
