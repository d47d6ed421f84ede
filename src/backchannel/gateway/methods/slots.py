"""Slots: what works in this process and what waits for its turn, and ending one of them."""

from __future__ import annotations

from typing import Any

import msgspec

from backchannel.core.text import made_visible, one_line, quoted
from backchannel.errors import SlotNotFound
from backchannel.gateway.parts import GatewayParts
from backchannel.gateway.ws.connections import Call, Method
from backchannel.wire.answers import SlotEnded, SlotsListed
from backchannel.wire.frames import NoParams, TokenScope
from backchannel.wire.rows import SlotUse
from backchannel.wire.shapes import Params

_WHAT_SHOWN = 120
_MOST_LISTED = 500


class SlotsEndParams(Params, frozen=True, kw_only=True):
    id: str


async def slots_list(call: Call, params: NoParams) -> SlotsListed:
    """Lists the work that has a slot of this gateway, then what waits for one, the longest first."""
    gates = call.parts.gates
    uses = gates.uses()
    shown = [_shown(use, call.parts) for use in uses[:_MOST_LISTED]]
    return SlotsListed(kinds=gates.counts(), slots=shown, has_more=len(uses) > _MOST_LISTED)


def _shown(use: SlotUse, parts: GatewayParts) -> SlotUse:
    """Show a piece of work to whoever may read: keys as they are written, commands on one line without secrets."""
    what = one_line(made_visible(parts.secrets.hide(use.what)), _WHAT_SHOWN)
    return msgspec.structs.replace(use, session_key=parts.rows.key(use.session_key), what=what)


async def slots_end(call: Call, params: SlotsEndParams) -> SlotEnded:
    """Ends a piece of work that has a slot or waits for one: a command with all that it started, a call, a run."""
    if not await call.parts.gates.end(params.id):
        raise SlotNotFound(
            f"nothing at work in this gateway has the id {quoted(params.id, 64)} (slots.list shows what there is)"
        )
    return SlotEnded(ok=True, id=params.id)


METHODS: tuple[Method[Any], ...] = (
    Method(
        "slots.list",
        NoParams,
        TokenScope.READ,
        slots_list,
        "`{kinds: [{kind, limit, own, used, waiting}], slots: [{id?, kind, agentId, sessionKey, what, since?, runId?, "
        "isWaiting?}], hasMore?}`; `own` is kept for each agent",
    ),
    Method("slots.end", SlotsEndParams, TokenScope.ADMIN, slots_end, "`{ok, id}`"),
)
