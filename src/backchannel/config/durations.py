"""Lengths of time as people write them: `30s`, `10m`, `24h`, `1d`."""

from __future__ import annotations

UNIT_MS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
DURATION = r"^[1-9][0-9]{0,5}[smhd]$"
"""A pattern: a whole number and a unit."""


def parse_duration(text: str) -> int:
    """Read a text that fits `DURATION`, in milliseconds."""
    return int(text[:-1]) * UNIT_MS[text[-1]]
