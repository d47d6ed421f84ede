"""`sessions_history`: the messages of one session, bounded however long it is."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any, ClassVar

import msgspec
from msgspec import Meta

from backchannel.core.excerpts import condense, present, read_piece
from backchannel.core.messages import Message, encode_message, text_content
from backchannel.core.secrets.redaction import redact_message
from backchannel.errors import InvalidRequest, NotFound
from backchannel.tools.base import Caller, SessionTool, off_loop
from backchannel.tools.targets import REFUSALS, RefusedAnswer, Target, find_target, owns
from backchannel.wire.shapes import Answer, Params

_MOST_MESSAGES = 1000
_MOST_BYTES = 80 * 1024
_FRAME_BYTES = 4096
"""What an answer has off_loops its messages, rather too much than too little."""
_CHUNK = 100


class HistoryParams(Params, frozen=True, kw_only=True):
    session_key: Annotated[
        str, Meta(description="Which session: a `key` or `sessionId` from sessions_list, `main`, or `current`.")
    ]
    limit: Annotated[int, Meta(ge=1, description=f"How many messages at most (up to {_MOST_MESSAGES}).")] = 200
    include_tools: Annotated[bool, Meta(description="Also return the results of tools.")] = False
    before: Annotated[str | None, Meta(description="Only messages before the one with this id, to page backwards.")] = (
        None
    )
    message_id: Annotated[str | None, Meta(description="Read this one message, in pieces if it is long.")] = None
    offset: Annotated[
        Annotated[int, Meta(ge=0)] | None, Meta(description="With messageId: the character to read on from.")
    ] = None


class History(Answer, frozen=True, kw_only=True, omit_defaults=False):
    session_key: str
    session_id: str
    messages: list[Message]
    has_more: bool
    truncated: bool | msgspec.UnsetType = msgspec.UNSET
    redacted: bool | msgspec.UnsetType = msgspec.UNSET
    archived: bool | msgspec.UnsetType = msgspec.UNSET
    next_offset: int | msgspec.UnsetType = msgspec.UNSET


class SessionsHistory(SessionTool):
    """Reads a session."""

    name = "sessions_history"
    description = (
        "Read what was said in a session, oldest first. Long texts are cut and say how to read on; what looks like a "
        "credential is replaced by [redacted]. With `hasMore`, pass the `id` of the oldest message you got as `before` "
        "to read further back. A hit of sessions_search is read with its `messageId`, or as `before` what led to it."
    )
    params = HistoryParams
    rules: ClassVar[Mapping[str, Any]] = {
        "if": {"required": ["offset"], "properties": {"offset": {"type": "integer"}}},
        "then": {"required": ["messageId"], "properties": {"messageId": {"type": "string"}}},
    }
    scope = "read"
    outcomes = (
        (
            "found",
            "`{sessionKey, sessionId, messages: [message], hasMore, truncated?, redacted?, archived?}`, oldest first; "
            "`truncated` is `true` when older messages were dropped to keep the answer under 80 KiB, `archived` for a "
            "sub-agent of yours that has been archived",
        ),
        ("with `messageId`", "the same, with a piece of that one message as text; `nextOffset` is where to read on"),
        *REFUSALS,
        (
            "`before` or `messageId` is in no transcript of the session that you may read",
            '`{status: "error", error, sessionKey}`',
        ),
    )
    examples = (
        ("the last ten messages of a job", {"sessionKey": "cron:nightly", "limit": 10}),
        ("those before a message", {"sessionKey": "main", "before": "01a1de768219ccf8"}),
        ("more of a long message", {"sessionKey": "main", "messageId": "01a1de768219ccf8", "offset": 4000}),
    )

    async def run(self, caller: Caller, params: HistoryParams) -> History | RefusedAnswer:
        if params.offset is not None and params.message_id is None:
            raise InvalidRequest(f"{self.name}: offset: it needs messageId", param="offset")
        named = params.message_id or params.before
        target = await find_target(
            self._parts, caller, params.session_key, archived_children=True, archived_own=named is not None
        )
        if isinstance(target, RefusedAnswer):
            return target
        try:
            if named is not None and owns(self._parts.viewer(caller), target):
                target = await self._with_transcript(target, named)
            if params.message_id is not None:
                return await self._piece(target, params.message_id, params.offset or 0)
            return await self._page(target, params)
        except NotFound as error:
            return RefusedAnswer(status="error", error=error.message, session_key=target.shown)

    async def _with_transcript(self, target: Target, message_id: str) -> Target:
        """Turn to the transcript that has a message, as `sessions_search` finds it: a reset may have replaced it.

        Raises:
            NotFound: no transcript of this session has it.
        """
        session_id = await self._parts.store.transcript_with(target.session.session_id, message_id)
        return dataclasses.replace(target, session=msgspec.structs.replace(target.session, session_id=session_id))

    async def _page(self, target: Target, params: HistoryParams) -> History:
        limit = min(params.limit, _MOST_MESSAGES)
        session_id = target.session.session_id
        taken: list[Message] = []
        room, redacted, before, has_more = _MOST_BYTES - _FRAME_BYTES, False, params.before, True
        while has_more and len(taken) < limit:
            page = await self._parts.store.history(
                session_id, limit=min(_CHUNK, limit - len(taken)), before=before, with_tools=params.include_tools
            )
            has_more = page.has_more
            for message in reversed(page.messages):
                shown, hidden = await _fitting(message, room, is_newest=not taken)
                if shown is None:
                    return _answer(target, taken, has_more=True, truncated=True, redacted=redacted)
                taken.append(shown)
                redacted |= hidden
                room -= len(encode_message(shown)) + 1
                before = message.id
        return _answer(target, taken, has_more=has_more, truncated=False, redacted=redacted)

    async def _piece(self, target: Target, message_id: str, offset: int) -> History:
        message = await self._parts.store.message_in(target.session.session_id, message_id)
        redacted, hidden = await _redacted(message)
        piece = read_piece(redacted, offset)
        shown = msgspec.structs.replace(redacted, content=text_content(piece.text), label=None)
        return History(
            session_key=target.shown,
            session_id=target.session.session_id,
            messages=[shown],
            has_more=piece.next_offset is not None,
            redacted=hidden or msgspec.UNSET,
            archived=target.is_archived or msgspec.UNSET,
            next_offset=msgspec.UNSET if piece.next_offset is None else piece.next_offset,
        )


async def _fitting(message: Message, room: int, *, is_newest: bool) -> tuple[Message | None, bool]:
    """Make a message fit into what is left of the answer; the newest always does."""
    shown, hidden = present(message)
    if len(encode_message(shown)) + 1 <= room:
        return shown, hidden
    return (condense((await _redacted(message))[0]), hidden) if is_newest else (None, False)


async def _redacted(message: Message) -> tuple[Message, bool]:
    return await off_loop(len(encode_message(message)), partial(redact_message, message))


def _answer(target: Target, taken: list[Message], *, has_more: bool, truncated: bool, redacted: bool) -> History:
    return History(
        session_key=target.shown,
        session_id=target.session.session_id,
        messages=taken[::-1],
        has_more=has_more,
        truncated=truncated or msgspec.UNSET,
        redacted=redacted or msgspec.UNSET,
        archived=target.is_archived or msgspec.UNSET,
    )
