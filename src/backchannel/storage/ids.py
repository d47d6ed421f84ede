"""New ids. Times lead those that are indexed in bulk, so that inserts stay at one end of the index."""

from __future__ import annotations

import os
import time
import uuid


def new_id() -> str:
    """Make an id for a run, message or delivery: sortable by time, unguessable in the rest."""
    return f"{time.time_ns() // 1_000_000:012x}{os.urandom(10).hex()}"


def new_session_id() -> str:
    return str(uuid.uuid4())
