"""The length of a text for Telegram, in units of UTF-16.

It is apart from the rest, so that no extra is needed to know it.
"""

from __future__ import annotations

MAX_UNITS = 4096
"""How long a message may be, without its markup."""


def text_units(text: str) -> int:
    """Measure a text as Telegram does."""
    return len(text.encode("utf-16-le", "surrogatepass")) // 2
