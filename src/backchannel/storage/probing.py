"""The probe of `/readyz`: a commit of the size that accepting a message takes."""

from __future__ import annotations

import asyncio
import os
from base64 import b64encode
from collections.abc import Callable
from typing import Any

from backchannel.errors import Unavailable
from backchannel.storage.tables import PROBE
from backchannel.storage.tx import Tx

PROBE_BYTES = 65_536
"""As much as accepting a short message takes: some 16 pages in the log of the database."""
_PROBE_LIMIT_S = 5.0
"""How long a commit may take if the gateway is to count as ready."""


def probe(tx: Tx, body: str) -> None:
    """Write as much as accepting a message takes; the same `body` twice would write nothing."""
    tx.insert(PROBE, PROBE.or_replace, id=1, body=body)


async def try_commit(write: Callable[..., asyncio.Future[Any]]) -> None:
    """Commit a random text, which no database can compress.

    Raises:
        Unavailable: it was refused, for instance because the disk is full, or it waits, for instance for a standby.
    """
    body = b64encode(os.urandom(PROBE_BYTES * 3 // 4)).decode()
    try:
        await asyncio.wait_for(write(probe, body), _PROBE_LIMIT_S)
    except TimeoutError:
        raise Unavailable(f"the database has made no commit within {_PROBE_LIMIT_S:g} s") from None
