"""File descriptors: how many connections may have, so that enough are left for what runs need.

A run needs some for its model's provider, its deliveries and the transcript. Where connections take them all, accepted
runs fail with "too many open files".
"""

from __future__ import annotations

import resource
from contextlib import suppress

_RESERVE = 256
_MAC_LIMIT = 10_240
"""What macOS permits where it says that there is no limit."""


def raise_limit() -> int:
    """Let this process open as many files as the system permits; returns how many."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    for wanted in (hard, _MAC_LIMIT):
        if wanted == soft:
            break
        with suppress(ValueError, OSError):  # not permitted after all: it stays as it was
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            break
    return limit()


def limit() -> int:
    """Tell how many files this process may open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 2**31 if soft == resource.RLIM_INFINITY else soft


def for_connections(descriptors: int) -> int:
    """Tell how many of them connections may have; the rest is the reserve, half of them where there are few."""
    return max(1, descriptors - min(max(_RESERVE, descriptors // 8), descriptors // 2))
