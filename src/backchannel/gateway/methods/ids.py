"""Ids as people write them, for the programs that people type at."""

from __future__ import annotations

from typing import Any

from backchannel.core.shapes import Answer, Params
from backchannel.core.short_ids import IdKind, choose_id, parse_written_id
from backchannel.gateway.connections import Call, Method
from backchannel.gateway.protocol import Scope


class IdsResolveParams(Params, frozen=True, kw_only=True):
    kind: IdKind
    id: str


class IdFound(Answer, frozen=True, kw_only=True):
    kind: str
    id: str


async def ids_resolve(call: Call, params: IdsResolveParams) -> IdFound:
    """Finds the whole id by its beginning, of at least 4 characters; `…` stands for what is left out before its end.

    Every other method takes whole ids only, so that a program's `order-1` never means `order-10`.
    """
    written = parse_written_id(params.id)
    found = await call.parts.store.matching_ids(params.kind, written)
    return IdFound(kind=params.kind.value, id=choose_id(params.kind, written, found))


METHODS: tuple[Method[Any], ...] = (Method("ids.resolve", IdsResolveParams, Scope.READ, ids_resolve, "`{kind, id}`"),)
