"""Ids: finding a whole id by its beginning."""

from __future__ import annotations

from backchannel.core.short_ids import IdKind, choose_id, parse_written_id
from backchannel.gateway.calls import Call, method
from backchannel.wire.answers import IdFound
from backchannel.wire.frames import TokenScope
from backchannel.wire.shapes import Params


class IdsResolveParams(Params, frozen=True, kw_only=True):
    kind: IdKind
    id: str


@method("ids.resolve", TokenScope.READ)
async def ids_resolve(call: Call, params: IdsResolveParams) -> IdFound:
    """Finds the whole id by its beginning, of at least 4 characters; `…` stands for a part left out before its end.

    All other methods take whole ids, so that `order-1` of a program never means `order-10`.
    """
    written = parse_written_id(params.id)
    if params.kind is IdKind.SLOT:
        found = [use.id for use in call.parts.gates.uses() if use.id and written.fits(use.id)]
    else:
        found = await call.parts.store.matching_ids(params.kind, written)
    return IdFound(kind=params.kind.value, id=choose_id(params.kind, written, found))
