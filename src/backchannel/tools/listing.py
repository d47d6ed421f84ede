"""`sessions_list`: the sessions that the caller may see, newest first."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from backchannel.core.cutting import present_line
from backchannel.core.keys import MAX_KEY_LENGTH, SessionKey
from backchannel.core.sessions import Page, Session, SessionFilter
from backchannel.core.shapes import Answer, Params
from backchannel.core.visibility import is_restricted, scope
from backchannel.tools.base import Caller, SessionTool, off_loop, read_cursor, write_cursor
from backchannel.tools.rows import Row, Rows

MOST_ROWS = 200
MOST_MESSAGES = 20


class ListParams(Params, frozen=True, kw_only=True):
    kinds: Annotated[
        list[Literal["main", "group", "cron", "hook", "node", "other"]] | None,
        Meta(description="Only sessions of these kinds. Sub-agents and custom sessions are `other`."),
    ] = None
    limit: Annotated[int, Meta(ge=1, description=f"How many rows at most (up to {MOST_ROWS}).")] = 50
    active_minutes: Annotated[
        Annotated[int, Meta(ge=1)] | None, Meta(description="Only sessions that changed within so many minutes.")
    ] = None
    message_limit: Annotated[
        int, Meta(ge=0, description=f"Also return the last so many messages of each session (up to {MOST_MESSAGES}).")
    ] = 0
    label: Annotated[str | None, Meta(description="Only the sessions with exactly this label.")] = None
    search: Annotated[
        Annotated[str, Meta(max_length=MAX_KEY_LENGTH)] | None,
        Meta(description="Only sessions with this text in key, label or display name."),
    ] = None
    cursor: Annotated[str | None, Meta(description="`nextCursor` of the answer before, to read on.")] = None


class ListView(Answer, frozen=True, kw_only=True, omit_defaults=False):
    """How far the caller sees."""

    mode: str
    restricted: bool


class SessionsListed(Answer, frozen=True, kw_only=True, omit_defaults=False):
    count: int
    sessions: list[Row]
    visibility: ListView
    redacted: bool | msgspec.UnsetType = msgspec.UNSET
    next_cursor: str | msgspec.UnsetType = msgspec.UNSET


class SessionsList(SessionTool):
    """Lists sessions."""

    name = "sessions_list"
    description = (
        "List the sessions (conversations) that you may see, the most recently active first. Each row has the `key` "
        "that other session tools take. Use `search`, `label` or `kinds` to narrow it down, and `messageLimit` to see "
        "the last messages of each. `visibility.restricted` says that there may be sessions you cannot see."
    )
    params = ListParams
    scope = "read"
    outcomes = (
        (
            "always",
            "`{count, sessions: [row], visibility {mode, restricted}, nextCursor?, redacted?}`; `nextCursor` is there "
            "when there are more rows, `redacted` is `true` when something in a message was hidden",
        ),
    )
    examples = (
        ("what happened in groups during the last hour", {"kinds": ["group"], "activeMinutes": 60, "messageLimit": 3}),
        ("the session with a label", {"label": "release notes"}),
    )

    async def run(self, caller: Caller, params: ListParams) -> SessionsListed:
        viewer = self._parts.viewer(caller)
        agents = () if caller.key is None else await self._agents()
        limit = min(params.limit, MOST_ROWS)
        kinds = tuple(sorted(set(params.kinds or ())))
        query = [str(caller.key), kinds, params.active_minutes, params.label, params.search]
        after = None if params.cursor is None else read_cursor(params.cursor, query, Page)
        wanted = SessionFilter(
            kinds=kinds,
            label=params.label,
            search=params.search,
            updated_since=self._since(params.active_minutes),
            visible=None if caller.key is None else scope(viewer, agents),
        )
        found = await self._parts.store.sessions(wanted, after=after, limit=limit + 1)
        page = found[:limit]
        listed = [session for session in page if self._parts.scheme.is_listed(SessionKey.stored(session.key))]
        rows, redacted = await self._rows(caller, listed, min(params.message_limit, MOST_MESSAGES))
        return SessionsListed(
            count=len(rows),
            sessions=rows,
            visibility=ListView(mode=viewer.mode.value, restricted=is_restricted(viewer, agents)),
            redacted=redacted or msgspec.UNSET,
            next_cursor=write_cursor(query, Page(page[-1].updated_at, page[-1].key))
            if page != found
            else msgspec.UNSET,
        )

    def _since(self, active_minutes: int | None) -> int | None:
        return None if active_minutes is None else max(0, self._parts.clock.now_ms() - active_minutes * 60_000)

    async def _agents(self) -> set[str]:
        return {*self._parts.agents.ids(), *await self._parts.store.agents_with_sessions()}

    async def _rows(self, caller: Caller, sessions: list[Session], message_limit: int) -> tuple[list[Row], bool]:
        rows = Rows(self._parts, caller.key)
        if not message_limit:
            return [rows.row(session) for session in sessions], False
        ids = [session.session_id for session in sessions]
        last = await self._parts.store.last_lines(ids, message_limit, with_tools=False)
        shown = await off_loop(sum(len(line) for lines in last.values() for line in lines), partial(_present, last))
        listed = [rows.row(session, messages=_messages(shown.get(session.session_id, []))) for session in sessions]
        return listed, any(hidden for messages in shown.values() for _, hidden in messages)


def _present(last: dict[str, list[str]]) -> dict[str, list[tuple[msgspec.Raw, bool]]]:
    return {session_id: [present_line(line) for line in lines] for session_id, lines in last.items()}


def _messages(shown: list[tuple[msgspec.Raw, bool]]) -> list[msgspec.Raw]:
    return [message for message, _ in shown]
