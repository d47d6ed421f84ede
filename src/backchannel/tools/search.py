"""`sessions_search`: finds what was said, in the sessions that the caller may see."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from backchannel.core.caller_keys import CallerKeys
from backchannel.core.full_text.matches import Match
from backchannel.core.full_text.queries import LONGEST_QUERY, SearchPlace, SearchQuery, SearchWanted, parse_query
from backchannel.core.full_text.ranking import search_text, snippet
from backchannel.core.keys import SessionKey
from backchannel.core.messages import encode_message
from backchannel.core.policy.visibility import is_restricted, scope
from backchannel.core.secrets.credentials import REDACTED
from backchannel.core.secrets.redaction import redact_message
from backchannel.core.text import shown_name
from backchannel.tools.base import Caller, SessionTool, off_loop, read_cursor, write_cursor
from backchannel.tools.listing import ListView, active_since
from backchannel.tools.targets import REFUSALS, RefusedAnswer, find_target
from backchannel.wire.shapes import Answer, Params

_MOST_HITS = 50
_MOST_ROUNDS = 5
"""How often more is read when hits were dropped, so that a call stays short."""
STILL_INDEXING = "older messages are still being indexed: search again later to find all"


class MessageSearchParams(Params, frozen=True, kw_only=True):
    query: Annotated[
        str,
        Meta(
            min_length=1,
            max_length=LONGEST_QUERY,
            description='Words that a message must all have; "a phrase" in quotes; `word*` for its beginning.',
        ),
    ]
    session_key: Annotated[
        str | None, Meta(description="Only this session: a `key` from sessions_list, `main`, or `current`.")
    ] = None
    kinds: Annotated[
        list[Literal["main", "group", "cron", "hook", "node", "other"]] | None,
        Meta(description="Only sessions of these kinds. Sub-agents and custom sessions are `other`."),
    ] = None
    since: Annotated[
        Annotated[int, Meta(ge=1)] | None, Meta(description="Only messages of the last so many minutes.")
    ] = None
    include_tools: Annotated[bool, Meta(description="Also search calls of tools and their results.")] = False
    limit: Annotated[int, Meta(ge=1, description=f"How many hits at most (up to {_MOST_HITS}).")] = 20
    cursor: Annotated[str | None, Meta(description="`nextCursor` of the answer before, to read on.")] = None


class SearchHit(Answer, frozen=True, kw_only=True):
    session_key: str
    message_id: str
    role: str
    timestamp: int
    snippet: str
    label: str | None = None
    display_name: str | None = None


class SearchHits(Answer, frozen=True, kw_only=True, omit_defaults=False):
    count: int
    hits: list[SearchHit]
    visibility: ListView
    redacted: bool | msgspec.UnsetType = msgspec.UNSET
    note: str | msgspec.UnsetType = msgspec.UNSET
    next_cursor: str | msgspec.UnsetType = msgspec.UNSET


class SessionsSearch(SessionTool):
    """Searches sessions."""

    name = "sessions_search"
    description = (
        "Find what was said before, in the sessions that you may see: the best matches first, each with a snippet. "
        "All words must be in a message; case and accents do not matter. Your own session is searched from its "
        "beginning, also what you no longer have in view. To read a hit, call sessions_history with its `sessionKey` "
        "and `messageId`."
    )
    params = MessageSearchParams
    scope = "read"
    outcomes = (
        (
            "always",
            "`{count, hits: [{sessionKey, messageId, role, timestamp, snippet, label?, displayName?}], "
            "visibility {mode, restricted}, nextCursor?, redacted?, note?}`, best first; `redacted` is `true` when "
            "something in a snippet was hidden, `note` says that older messages are still being indexed",
        ),
        *REFUSALS,
    )
    examples = (
        ("a decision, wherever it was made", {"query": 'deploy "release notes"'}),
        ("errors of a job in the last day", {"query": "timeout*", "sessionKey": "cron:nightly", "since": 1440}),
    )

    async def run(self, caller: Caller, params: MessageSearchParams) -> SearchHits | RefusedAnswer:
        query = parse_query(params.query)
        viewer = self._parts.viewer(caller)
        agents = () if caller.key is None else await self._agents()
        keys = None
        if params.session_key is not None:
            target = await find_target(
                self._parts, caller, params.session_key, archived_children=True, archived_own=True
            )
            if isinstance(target, RefusedAnswer):
                return target
            keys = (str(target.key),)
        wanted = SearchWanted(
            query=query,
            with_tools=params.include_tools,
            visible=None if caller.key is None else scope(viewer, agents),
            keys=keys,
            kinds=tuple(sorted(set(params.kinds or ()))),
        )
        view = ListView(mode=viewer.mode.value, restricted=is_restricted(viewer, agents))
        return await self._search(caller, params, wanted, view)

    async def _agents(self) -> set[str]:
        return {*self._parts.agents.ids(), *await self._parts.store.agents_with_sessions()}

    async def _search(
        self, caller: Caller, params: MessageSearchParams, wanted: SearchWanted, view: ListView
    ) -> SearchHits:
        asked = [str(caller.key), params.query, wanted.keys, wanted.kinds, params.since, params.include_tools]
        now, limit = self._parts.clock.now_ms(), min(params.limit, _MOST_HITS)
        start = SearchPlace(now=now) if params.cursor is None else read_cursor(params.cursor, asked, SearchPlace)
        place: SearchPlace | None = start
        hits: list[SearchHit] = []
        is_redacted, is_complete = False, True
        for _ in range(_MOST_ROUNDS):
            if place is None or len(hits) == limit:
                break
            page = await self._parts.store.search_ranked(
                wanted, place=place, since=active_since(start.now, params.since), limit=limit - len(hits)
            )
            place, is_complete = page.next, is_complete and page.is_complete
            for each in page.found:
                shown, hidden = await self._show(caller, each.match, wanted)
                hits += [] if shown is None else [shown]
                is_redacted |= hidden and shown is not None
        return SearchHits(
            count=len(hits),
            hits=hits,
            visibility=view,
            redacted=is_redacted or msgspec.UNSET,
            note=msgspec.UNSET if is_complete else STILL_INDEXING,
            next_cursor=msgspec.UNSET if place is None else write_cursor(asked, place),
        )

    async def _show(self, caller: Caller, match: Match, wanted: SearchWanted) -> tuple[SearchHit | None, bool]:
        """Show a match. One that only a credential has is none: else the search would tell what is hidden."""
        if not self._parts.scheme.lists(match.key):
            return None, False
        cut = partial(_redacted_snippet, match, wanted.query, with_tools=wanted.with_tools)
        text, hidden = await off_loop(len(encode_message(match.message)), cut)
        if text is None:
            return None, False
        shown = SearchHit(
            session_key=CallerKeys(self._parts.scheme, caller.key).show(SessionKey.stored(match.key)),
            message_id=match.message.id,
            role=match.message.role.value,
            timestamp=match.message.timestamp,
            snippet=text,
            label=shown_name(match.label),
            display_name=shown_name(match.display_name),
        )
        return shown, hidden


def _redacted_snippet(match: Match, query: SearchQuery, *, with_tools: bool) -> tuple[str | None, bool]:
    """Cut the snippet out of the redacted message; tells whether a credential was hidden in it."""
    redacted, _ = redact_message(match.message)
    text = snippet(search_text(redacted).text(with_tools=with_tools), query)
    return text, text is not None and REDACTED in text
