"""What a call starts, named after the call, so that the same call finds it again."""

from __future__ import annotations

import hashlib

import msgspec

from backchannel.core.runs import FlowCall
from backchannel.storage.ids import new_id
from backchannel.tools.parts import Caller


def name_flow(caller: Caller, tool: str, first_run: str, *asked: object) -> FlowCall:
    """Name what a call of a tool starts, and its first run.

    From outside, the call's idempotency key is the id of that run, and stands for all that was `asked`.
    """
    key = caller.call_id or new_id()
    in_run = caller.run_id is not None
    # A program chooses its keys, and the id of a call can be guessed: the one must never stand for the other.
    place = "run" if in_run else "key"
    flow_id = hashlib.sha256(f"{tool} {caller.key} {place} {key}".encode()).hexdigest()[:32]
    has_key = caller.call_id is not None and not in_run
    return FlowCall(
        flow_id=flow_id,
        run_id=key if has_key else f"{flow_id}/{first_run}",
        call_id=caller.call_id if in_run else None,
        calling_run=caller.run_id,
        digest=hash_request(caller.token_id, tool, str(caller.key), *asked) if has_key else None,
    )


def hash_request(token_id: str | None, method: str, *parts: object) -> str:
    """Hash a request, so that its repetition can be told from another one under the same key."""
    return hashlib.sha256(msgspec.json.encode([token_id, method, *parts])).hexdigest()
