"""Slots: the work of this process, the work that waits for it, and ending one."""

from __future__ import annotations

import msgspec

from backchannel.core.text import made_visible, one_line, quoted
from backchannel.errors import SlotNotFound
from backchannel.gateway.calls import Call, method
from backchannel.gateway.parts import GatewayParts
from backchannel.wire.frames import IdParams, NoParams, TokenScope
from backchannel.wire.rows import SlotUse
from backchannel.wire.state_answers import SlotEnded, SlotsListed

_WHAT_SHOWN = 120
_MOST_LISTED = 500


@method("slots.list", TokenScope.READ)
async def slots_list(call: Call, params: NoParams) -> SlotsListed:
    """Lists the work that has a slot of this gateway, then the work that waits for one, longest first."""
    gates = call.parts.gates
    uses = gates.uses()
    shown = [_shown(use, call.parts) for use in uses[:_MOST_LISTED]]
    return SlotsListed(kinds=gates.counts(), slots=shown, has_more=len(uses) > _MOST_LISTED)


def _shown(use: SlotUse, parts: GatewayParts) -> SlotUse:
    """Show a piece of work: keys as operators write them, commands on one line without secrets."""
    what = one_line(made_visible(parts.secrets.hide(use.what)), _WHAT_SHOWN)
    return msgspec.structs.replace(use, session_key=parts.rows.key(use.session_key), what=what)


@method("slots.end", TokenScope.ADMIN)
async def slots_end(call: Call, params: IdParams) -> SlotEnded:
    """Ends a piece of work that has a slot or waits for one: a command and its children, a call, a run."""
    if not await call.parts.gates.end(params.id):
        raise SlotNotFound(f"no call in this gateway has the id {quoted(params.id, 64)} (slots.list shows them)")
    return SlotEnded(ok=True, id=params.id)
