"""New ids. Those with large indexes begin with the time, so that inserts stay at one end of the index."""

from __future__ import annotations

import random
import time
import uuid


def new_id() -> str:
    """Make an id for a run, message or delivery: sortable by time, the rest random. It is not a secret."""
    return f"{time.time_ns() // 1_000_000:012x}{random.getrandbits(80):020x}"


def new_session_id() -> str:
    return str(uuid.uuid4())
