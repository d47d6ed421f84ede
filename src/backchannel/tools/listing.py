"""`sessions_list`: the sessions that the caller may see, newest first."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Literal, NamedTuple

import msgspec
from msgspec import Meta

from backchannel.core.excerpts import present_line
from backchannel.core.keys import MAX_KEY_LENGTH
from backchannel.core.policy.visibility import is_restricted, scope
from backchannel.core.sessions import Page, Session, SessionFilter
from backchannel.tools.base import Caller, Parts, SessionTool, off_loop, read_cursor, write_cursor
from backchannel.tools.rows import Rows
from backchannel.wire.rows import Row
from backchannel.wire.shapes import Answer, Params

MOST_ROWS = 200
_MOST_MESSAGES = 20


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
        int, Meta(ge=0, description=f"Also return the last so many messages of each session (up to {_MOST_MESSAGES}).")
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


class ListedSessions(Answer, frozen=True, kw_only=True, omit_defaults=False):
    count: int
    sessions: list[Row]
    visibility: ListView
    redacted: bool | msgspec.UnsetType = msgspec.UNSET
    next_cursor: str | msgspec.UnsetType = msgspec.UNSET


class SessionPage(NamedTuple):
    """Some of a list of sessions, and the cursor that goes on after them; None when there are no more."""

    sessions: list[Session]
    next_cursor: str | None


async def read_page(
    parts: Parts, wanted: SessionFilter, query: object, cursor: str | None, limit: int, offset: int = 0
) -> SessionPage:
    """Read a page of sessions, newest first, for every door; `query` is what its cursors are bound to.

    Sessions that the configured scope does not list are left out, so a page can be short and have a cursor.

    Raises:
        InvalidRequest: the cursor is none, or one of another query.
    """
    after = None if cursor is None else read_cursor(cursor, query, Page)
    is_short = wanted.is_plain and limit <= MOST_ROWS and not offset
    read = parts.store.newest_sessions if is_short else parts.store.sessions
    found = await read(wanted, after=after, limit=limit + 1, offset=offset)
    page = found[:limit]
    return SessionPage(
        [session for session in page if parts.scheme.lists(session.key)],
        write_cursor(query, Page(page[-1].updated_at, page[-1].key)) if len(found) > limit else None,
    )


def active_since(now_ms: int, minutes: int | None) -> int | None:
    """Tell since when a session must have changed that changed within so many minutes."""
    return None if minutes is None else max(0, now_ms - minutes * 60_000)


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

    async def run(self, caller: Caller, params: ListParams) -> ListedSessions:
        viewer = self._parts.viewer(caller)
        agents = () if caller.key is None else await self._agents()
        limit = min(params.limit, MOST_ROWS)
        kinds = tuple(sorted(set(params.kinds or ())))
        query = [str(caller.key), kinds, params.active_minutes, params.label, params.search]
        wanted = SessionFilter(
            kinds=kinds,
            label=params.label,
            search=params.search,
            updated_since=active_since(self._parts.clock.now_ms(), params.active_minutes),
            visible=None if caller.key is None else scope(viewer, agents),
        )
        page = await read_page(self._parts, wanted, query, params.cursor, limit)
        rows, redacted = await self._rows(caller, page.sessions, min(params.message_limit, _MOST_MESSAGES))
        return ListedSessions(
            count=len(rows),
            sessions=rows,
            visibility=ListView(mode=viewer.mode.value, restricted=is_restricted(viewer, agents)),
            redacted=redacted or msgspec.UNSET,
            next_cursor=page.next_cursor or msgspec.UNSET,
        )

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
