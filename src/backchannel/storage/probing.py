"""The probe of `/readyz`: a commit of the size that accepting a message takes."""

from __future__ import annotations

import asyncio
import os
from base64 import b64encode
from collections.abc import Callable
from typing import Any

from backchannel.errors import Unavailable
from backchannel.storage.views.troubles import PROBE_BYTES, probe

_PROBE_LIMIT_S = 5.0
"""How long a commit may take for the gateway to count as one that can accept messages."""


async def try_commit(write: Callable[..., asyncio.Future[Any]]) -> None:
    """Write a text that no database can compress, and that is another one each time.

    Raises:
        Unavailable: it was refused, for instance because the disk is full, or it waits, for instance for a standby.
    """
    body = b64encode(os.urandom(PROBE_BYTES * 3 // 4)).decode()
    try:
        await asyncio.wait_for(write(probe, body), _PROBE_LIMIT_S)
    except TimeoutError:
        raise Unavailable(f"the database has made no commit within {_PROBE_LIMIT_S:g} s") from None
