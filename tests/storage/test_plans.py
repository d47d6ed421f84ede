"""The queries of the hot path find their rows by an index, however much there is."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from backchannel.config.schema_doors import CronJob
from backchannel.core.delivery.channels import ChannelSettings, InboundEvent
from backchannel.core.delivery.delivery import DeliveryLane, DeliveryState, Post
from backchannel.core.flows.exchange_values import Change, ExchangePlace, ExchangeState
from backchannel.core.flows.spawn_values import SpawnAsk, SpawnRules
from backchannel.core.full_text.queries import SearchWanted, parse_query
from backchannel.core.keys import ChatType, SessionKey
from backchannel.core.policy.inbound import AdmissionRules, Arrival, MessageRoute, Verdict
from backchannel.core.policy.pairing import PairingState
from backchannel.core.policy.send_policy import Destination, SendPolicySettings
from backchannel.core.policy.visibility import VisibleScope
from backchannel.core.records import ExportPlace, McpCall
from backchannel.core.runs import Fence, FlowCall, Join, RunKind, RunState
from backchannel.core.sessions import Address, Page, SessionFilter, SessionPatch
from backchannel.core.short_ids import IdKind, parse_written_id
from backchannel.storage.full_text import FullText
from backchannel.storage.groups import UnitTx
from backchannel.storage.reactions import REACTIONS
from backchannel.storage.sqlite.file import SqliteDatabase
from backchannel.storage.sqlite.full_text import SqliteFullText
from backchannel.storage.tx import Row, Tx, UnitContext
from backchannel.storage.units import (
    archiving,
    chats,
    deliveries,
    devices,
    drafts,
    idempotency,
    inbound,
    inbox,
    messages,
    own_posts,
    pairing,
    recovery,
    runs,
    search_index,
    sending,
    sessions,
    steps,
    timers,
    tokens,
)
from backchannel.storage.units.flows import exchanges, interruption, spawns
from backchannel.storage.units.flows.interruption import InterruptionRest
from backchannel.storage.units.jobs import cron
from backchannel.storage.views import (
    contexts,
    exchange_lists,
    exports,
    families,
    lookups,
    run_lists,
    searching,
    shown,
    timeline,
)
from tests.storage.support import CRON, MAIN, SCHEME, note, request

pytestmark = pytest.mark.sqlite_only
REST = msgspec.json.encode(InterruptionRest(str(MAIN), Change.DELETE, 9, 9, None)).decode()
STOP_REST = msgspec.json.encode(InterruptionRest(str(MAIN), Change.STOP, 9, 9, None)).decode()
POST = Post(session_key=str(MAIN), address=Address(channel="desk", to="C"), text="hello")
STRANGER = InboundEvent(
    channel="desk", chat_type=ChatType.DIRECT, chat_id="C", sender_id="eve", message_id="1", text="hello"
)
MCP_CALL = McpCall(id="c", token_id="operator", session_key=None, version="1", message="{}", created_at=1)
AFTER = Page(5, "agent:main:x")
SPAWN = SpawnAsk(
    call=FlowCall(flow_id="s", run_id="k", digest="d"),
    requester=MAIN,
    child=SessionKey.subagent("main", "s"),
    task="dig",
    rules=SpawnRules(wakes=True),
    max_children=9,
    model="builtin/demo",
    label="digger",
)


class ExplainingTx(UnitTx):
    """A transaction that takes down how SQLite finds the rows of each statement."""

    full_text: FullText = SqliteFullText()

    def __init__(self, connection: sqlite3.Connection) -> None:
        super().__init__(UnitContext(scheme=SCHEME, number=1, reactions=REACTIONS), now=1)
        self._connection = connection
        self.plans: list[str] = []

    @property
    def shared_now(self) -> int:
        return 0

    def _execute(self, sql: str, values: tuple[Any, ...]) -> sqlite3.Cursor:
        steps = self._connection.execute(f"EXPLAIN QUERY PLAN {sql}", values).fetchall()
        self.plans += [f"{detail} [{sql}]" for *_, detail in steps]
        return self._connection.execute(sql, values)

    def one(self, sql: str, *values: Any) -> Row | None:
        row: Row | None = self._execute(sql, values).fetchone()
        return row

    def all(self, sql: str, *values: Any) -> list[Row]:
        return self._execute(sql, values).fetchall()

    def run(self, sql: str, *values: Any) -> None:
        self._execute(sql, values)


@pytest.fixture
def tx(tmp_path: Path) -> Iterator[ExplainingTx]:
    """A database with a session that runs, one that waits, and an archived one."""
    SqliteDatabase(tmp_path / "test.db").prepare()
    with closing(sqlite3.connect(tmp_path / "test.db", isolation_level=None)) as connection:
        tx = ExplainingTx(connection)
        fill(tx)
        yield tx


def fill(tx: Tx) -> None:
    """Write what the units of `HOT` are about."""
    runs.accept(tx, request(id="r", digest="of r"), start=True)
    for key in (CRON, MAIN):
        runs.accept(tx, request(key=key), start=True)
    sessions.patch(tx, SessionKey.of("main", "old"), SessionPatch(label="old"))
    sessions.archive(tx, sessions.need(tx, "agent:main:old"))
    cron.add(tx, CronJob(id="j", schedule="every 1m", message="x"))


Read = Callable[[ExplainingTx], Any]


def listing(after: Page | None = None, **wanted: Any) -> Read:
    return partial(sessions.page, wanted=SessionFilter(**wanted), after=after, limit=200, offset=0)


def history(**more: Any) -> Read:
    defaults: dict[str, Any] = {"session_id": "s", "limit": 50, "before": None, "after": None, "with_tools": False}
    return partial(messages.history, **{**defaults, **more})


WORD = parse_query("x")
HOT: dict[str, Read] = {
    "list": listing(),
    "list after": listing(AFTER),
    "list of an agent": listing(agent_id="main"),
    "list of an agent and kinds": listing(agent_id="main", kinds=("cron", "hook")),
    "list of an agent and kinds after": listing(AFTER, agent_id="main", kinds=("cron", "hook")),
    "list of kinds since": listing(kinds=("main",), updated_since=3),
    "list since after": listing(AFTER, updated_since=3),
    "list of the archived after": listing(AFTER, archived=True),
    "search": listing(search="x"),
    "session": partial(sessions.find, key=str(MAIN)),
    "session with its runs": partial(shown.session_seen, key=str(MAIN)),
    "runs that are not over": partial(shown.live_runs, keys=[str(MAIN)]),
    "session by id": partial(sessions.by_id, session_id="s"),
    "history": history(),
    "history with tools": history(with_tools=True),
    "search in transcripts": partial(searching.search, wanted=SearchWanted(query=WORD), below=9, limit=9),
    "search in a transcript": partial(searching.search_transcript, session_id="s", query=WORD, before=None, limit=9),
    "messages to index": partial(search_index.waiting, limit=9),
    "context": lambda tx: contexts.from_cut(tx, sessions.need(tx, str(MAIN)).session_id, max_bytes=1),
    "context since": partial(contexts.lines_between, session_id="s", low=3, high=9),
    "transcript file": partial(messages.read_from, session_id="s", seq=5, limit=9),
    "export": partial(exports.listed_after, after="agent:", limit=9),
    "export of an agent": partial(exports.listed_after, after="", limit=9, agent_id="main"),
    "export of some": partial(exports.listed_after, after="", limit=9, keys=[str(MAIN), str(CRON)]),
    "transcript": partial(exports.read, session_id="s", place=ExportPlace(0), until=9, size=9),
    "part of a message": partial(exports.read, session_id="s", place=ExportPlace(0, 5), until=9, size=9),
    "pending": partial(inbox.pending, key=str(MAIN), limit=9),
    "run": partial(runs.find, run_id="r"),
    "runs": partial(run_lists.page, session_key=None, states=(), limit=9, before=None),
    "runs of a session": partial(run_lists.page, session_key=str(MAIN), states=(RunState.OK,), limit=9, before=5),
    "how many runs": partial(run_lists.count_of, keys=[str(MAIN)], states=(RunState.OK,), kind=RunKind.CRON),
    "what a run did": partial(timeline.timeline, run_id="r"),
    "a model that is asked again": partial(steps.note_retry, fence=Fence("r", 1), why="busy", wait_ms=1),
    "open calls": partial(steps.open_calls, run_id="r"),
    "call": partial(steps.find_call, call_id="c"),
    "exchanges": partial(exchange_lists.page, limit=9),
    "exchanges after": partial(exchange_lists.page, after=ExchangePlace(5, "x"), limit=9),
    "open exchanges": partial(exchange_lists.page, states=(ExchangeState.TURN,), limit=9),
    "what a call has sent": partial(exchanges.repeat, call_id="c"),
    "what a call has started": partial(spawns.describe_call, call_id="c"),
    "spawn": partial(spawns.open_, ask=SPAWN, limits=SPAWN.rules),
    "whose run": partial(lookups.is_own_run, run_id="r", key=str(MAIN)),
    "timers": partial(timers.due, limit=9),
    "next timer": timers.next_due,
    "firing": partial(cron.fire, job_id="j"),
    "token": partial(tokens.by_digest, digest="d"),
    "the token of a device": partial(devices.by_digest, digest="d"),
    "what a device has of a token": partial(devices.of_device, device_id="d", parent="p"),
    "a call by MCP is kept": partial(idempotency.keep_mcp_call, call=MCP_CALL),
    "a call by MCP is found": partial(idempotency.find_mcp_call, call_id="c"),
    "accept": partial(runs.accept, request=request(id="k", digest="d"), start=True),
    "accept and join": partial(runs.accept, request=request(join=Join(digest="d", ended_since=1)), start=True),
    "a session whose time is over": partial(archiving.look_at_expired, key=str(CRON)),
    "accept and start": partial(runs.accept, request=request(key=SessionKey.of("main", "new")), start=True),
    "note": partial(inbox.add_note, key=SessionKey.of("main", "new"), note=note("x")),
    "patch": partial(sessions.patch, key=MAIN, change=SessionPatch(label="x"), expected_session_id=None),
    "delivery": partial(deliveries.find, delivery_id="d"),
    "deliveries": partial(deliveries.page, session_key=None, state=None, limit=9, before=5),
    "deliveries, the oldest first": partial(deliveries.oldest, state=DeliveryState.FAILED, limit=9, after=5),
    "deliveries of a session": partial(deliveries.page, session_key=str(MAIN), state=None, limit=9, before=5),
    "deliveries in a state": partial(
        deliveries.page, session_key=None, state=DeliveryState.FAILED, limit=9, before=None
    ),
    "post": partial(deliveries.post, text=POST),
    "claim": partial(sending.claim, lane=DeliveryLane("desk", "default", "C", None)),
    "a draft": partial(drafts.open_, fence=Fence("shown", 1), text="begun"),
    "a draft that was posted": partial(drafts.shown, run_id="shown", message_id="m1"),
    "a draft that is lost": partial(drafts.lose, run_id="shown"),
    "a chat that moved": partial(chats.move, channel="desk", account_id="default", chat_id="C", to="N"),
    "where a chat comes from": partial(chats.home, channel="desk", account_id="default", chat_id="C"),
    "a post that may be ours": partial(own_posts.is_own, id=STRANGER.identity, twins=[STRANGER.identity]),
    "retries that are due": partial(sending.lanes_due),
    "the next retry": partial(sending.next_due),
    "what was being sent": sending.any_sending,
    "abort": partial(runs.request_abort, key=str(MAIN), run_id=None),
    "interrupt": partial(interruption.due, ref=REST),
    "interrupt by a stop": partial(interruption.due, ref=STOP_REST),
    "what is known of a stranger": partial(pairing.look_up, event=STRANGER),
    "who waits to be let in": partial(pairing.page, state=PairingState.PENDING, limit=9),
    "who waits to be let in, counted": pairing.count_pending,
    "a stranger whose code is void": partial(pairing.remove_void, channel="desk"),
    "whose code it is": partial(pairing.with_codes),
    "flush": partial(inbox.due, key=str(MAIN)),
}

ONCE: dict[str, Read] = {
    "enter": partial(recovery.enter),
    "interrupted": recovery.interrupted,
    "sessions with a queue": run_lists.sessions_with_queue,
    "counts": run_lists.counts,
}


@pytest.mark.parametrize("read", HOT.values(), ids=HOT)
def test_a_hot_query_walks_no_table_and_sorts_nothing(tx: ExplainingTx, read: Read) -> None:
    tx.plans.clear()
    read(tx)
    assert tx.plans
    for plan in tx.plans:
        assert "TEMP B-TREE" not in plan
        assert not plan.startswith("SCAN") or _walks_in_order(plan)


def _walks_in_order(plan: str) -> bool:
    """Whether the rows are walked in the order of the list, and only until the page is full."""
    ordered = (
        "SCAN sessions USING INDEX sessions_recent ",
        "SCAN runs [",
        "SCAN messages USING INDEX",
        "SCAN deliveries [",
        "SCAN w VIRTUAL TABLE INDEX",
        "SCAN u [",
        "SCAN counted [",
        "SCAN exchanges USING COVERING INDEX exchanges_recent ",
        "SCAN exchanges USING INDEX exchanges_recent_open ",
    )
    is_given = plan.startswith("SCAN wanted ") or "CONSTANT ROWS" in plan
    return is_given or (plan.startswith(ordered) and "LIMIT ?" in plan)


@pytest.mark.parametrize(
    "read",
    [
        partial(families.branch, key=str(MAIN), limit=9),
        partial(families.newest_trees, agent_id=None, limit=9),
        partial(families.newest_trees, agent_id="main", limit=9),
    ],
)
def test_trees_are_grown_from_the_sessions_that_they_show(tx: ExplainingTx, read: Read) -> None:
    tx.plans.clear()
    read(tx)
    assert [plan for plan in tx.plans if "sessions_children (spawned_by=?)" in plan]
    assert not [plan for plan in tx.plans if plan.startswith("SCAN") and not _walks_in_order(plan)]


@pytest.mark.parametrize("after", [None, ExchangePlace(5, "x")])
def test_the_exchanges_of_a_session_are_found_on_either_side(tx: ExplainingTx, after: ExchangePlace | None) -> None:
    tx.plans.clear()
    exchange_lists.page(tx, session_key=str(MAIN), after=after, limit=9)
    searches = [plan for plan in tx.plans if plan.startswith("SEARCH exchanges USING")]
    for side in ("requester", "target"):
        assert [plan for plan in searches if f"exchanges_recent_of_{side} ({side}_key=?" in plan]
    assert not [plan for plan in tx.plans if plan.startswith("SCAN exchanges")]


def test_a_map_is_made_of_the_newest_flows(tx: ExplainingTx) -> None:
    tx.plans.clear()
    exchange_lists.talk_map(tx, 5)
    for index in ("exchanges_recent (created_at>?)", "spawns_recent (created_at>?)", "runs_exchange (exchange_id=?)"):
        assert [plan for plan in tx.plans if index in plan], index
    assert not [plan for plan in tx.plans if plan.startswith(("SCAN runs", "SCAN exchanges", "SCAN spawns"))]


@pytest.mark.parametrize("agent_id", [None, "main"])
def test_a_label_is_found_by_index(tx: ExplainingTx, agent_id: str | None) -> None:
    tx.plans.clear()
    sessions.labelled(tx, "x", agent_id)
    assert tx.plans[0].startswith("SEARCH sessions USING INDEX sessions_label (label=?")


def test_a_page_deep_in_the_list_is_entered_at_its_place(tx: ExplainingTx) -> None:
    for wanted in ({}, {"agent_id": "main"}, {"archived": True}):
        tx.plans.clear()
        listing(AFTER, **wanted)(tx)
        assert "updated_at<?" in tx.plans[0]


def test_the_next_run_of_a_session_is_found_without_reading_those_that_ended(tx: ExplainingTx) -> None:
    tx.run("UPDATE sessions SET running_run = NULL WHERE key = ?", str(MAIN))
    tx.plans.clear()
    assert runs.start_next(tx, str(MAIN)) is not None
    assert [plan for plan in tx.plans if "runs_live (session_key=?)" in plan]
    assert not [plan for plan in tx.plans if "SCAN" in plan or "runs_session" in plan]


@pytest.mark.parametrize("read", ONCE.values(), ids=ONCE)
def test_a_start_reads_only_the_runs_that_live(tx: ExplainingTx, read: Read) -> None:
    tx.plans.clear()
    read(tx)
    for plan in tx.plans:
        assert not plan.startswith("SCAN runs") or "USING INDEX runs_live" in plan


def test_the_last_messages_of_many_sessions_are_found_by_index(tx: ExplainingTx) -> None:
    tx.plans.clear()
    messages.last_of_each(tx, ["a", "b"], 3, with_tools=False)
    assert not [plan for plan in tx.plans if plan.startswith("SCAN messages")]
    searches = [plan for plan in tx.plans if plan.startswith("SEARCH messages USING INDEX")]
    assert len(searches) == 2 and "(session_id=? AND seq>?)" in searches[0] and "(session_id=?)" in searches[1]


def test_the_first_message_of_many_sessions_is_found_by_index(tx: ExplainingTx) -> None:
    tx.plans.clear()
    shown.first_said(tx, ["a", "b"])
    assert not [plan for plan in tx.plans if plan.startswith("SCAN messages")]
    searches = [plan for plan in tx.plans if plan.startswith("SEARCH messages USING INDEX")]
    assert len(searches) == 2 and "(session_id=? AND seq=?)" in searches[0]
    assert "(session_id=? AND seq<?)" in searches[1]


@pytest.mark.parametrize("after", [None, AFTER])
def test_a_list_of_all_sessions_takes_the_newest_of_those_that_are_archived_and_those_that_are_not(
    tx: ExplainingTx, after: Page | None
) -> None:
    tx.plans.clear()
    listing(after, archived=None)(tx)
    ways = [plan for plan in tx.plans if " sessions USING INDEX sessions_" in plan]
    assert len(ways) == 2 and "sessions_recent " in ways[0] and "sessions_archived " in ways[1]
    assert [plan for plan in tx.plans if plan.startswith("SEARCH sessions") and "(key=?)" in plan]


TREE = VisibleScope(key=str(MAIN), spawned_by=str(MAIN))
AGENT = VisibleScope(key=str(MAIN), spawned_by=str(MAIN), agent_ids=("main",))
ALL = VisibleScope(key=str(MAIN), spawned_by=str(MAIN), agent_ids=("main", "ops"))
OWN, CHILDREN, OF_AGENT = "(key=?)", "sessions_children (spawned_by=?", "sessions_recent_of_agent (agent_id=?"


@pytest.mark.parametrize("after", [None, AFTER])
@pytest.mark.parametrize(
    ("scope", "branches"),
    [
        (VisibleScope(key=str(MAIN)), [OWN]),
        (TREE, [OWN, CHILDREN]),
        (AGENT, [OWN, CHILDREN, OF_AGENT]),
        (ALL, [OWN, CHILDREN, OF_AGENT, OF_AGENT]),
    ],
)
def test_a_list_of_what_a_session_sees_looks_at_nothing_else(
    tx: ExplainingTx, scope: VisibleScope, branches: list[str], after: Page | None
) -> None:
    tx.plans.clear()
    listing(after, visible=scope)(tx)
    assert not [plan for plan in tx.plans if plan.startswith("SCAN sessions")]
    searches = [plan for plan in tx.plans if plan.startswith("SEARCH sessions USING INDEX")]
    # First the rows that are shown, by their keys; then each branch that they come from.
    assert [branch in plan for branch, plan in zip([OWN, *branches], searches, strict=True)] == [True] * len(searches)
    if after is not None:
        assert all("updated_at<?" in plan for plan in searches if OF_AGENT in plan)


def test_the_agents_that_have_sessions_are_found_by_jumping(tx: ExplainingTx) -> None:
    tx.plans.clear()
    sessions.agents_with_sessions(tx)
    assert not [plan for plan in tx.plans if plan.startswith("SCAN sessions")]
    assert [plan for plan in tx.plans if "sessions_recent_of_agent (agent_id>?)" in plan]


@pytest.mark.parametrize("verdict", [Verdict.ANSWER, Verdict.RECORD])
@pytest.mark.parametrize("key", [MAIN, SessionKey.parse("agent:main:desk:group:new")], ids=["known", "new"])
def test_a_message_from_a_chat_reads_its_session_once(tx: ExplainingTx, verdict: Verdict, key: SessionKey) -> None:
    policy = SendPolicySettings(default="allow" if verdict is Verdict.ANSWER else "deny")
    settings = ChannelSettings(allow_from=("*",))
    routed = MessageRoute(key, Address(channel="desk", to="C"), Destination(key), display_name=None)
    tx.plans.clear()
    rules = AdmissionRules(settings=settings, policy=policy, destination=routed.destination)
    taken = inbound.take(tx, Arrival(event=STRANGER, routed=routed, rules=rules), start=True)
    assert taken.outcome.verdict is verdict
    reads = [plan for plan in tx.plans if plan.startswith("SEARCH sessions") and "[SELECT" in plan]
    assert len(reads) == 1


@pytest.mark.parametrize("kind", IdKind)
@pytest.mark.parametrize("written", ["1c9b", "agent:main…x"])
def test_the_beginning_of_an_id_is_looked_for_in_a_range_of_its_index(
    tx: ExplainingTx, kind: IdKind, written: str
) -> None:
    tx.plans.clear()
    lookups.matching(tx, kind, parse_written_id(written))
    assert not [plan for plan in tx.plans if plan.startswith("SCAN sessions")]
    assert ">? AND " in tx.plans[1] and "TEMP B-TREE" not in tx.plans[1]
