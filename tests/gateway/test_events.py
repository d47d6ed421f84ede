"""The readers of each event, with plain values and through a socket."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from backchannel.core.excerpts import TEXT_LIMIT
from backchannel.core.facts import MessageAppended, RunChanged, SessionChanged
from backchannel.core.messages import Message, Role, encode_message, text_content
from backchannel.core.runs import Run, RunKind, RunState
from backchannel.gateway.events.audiences import MAX_WATCHED
from backchannel.gateway.events.subscriptions import Subscriptions, lifecycle_of
from backchannel.runtime.clocks import SystemClock
from backchannel.runtime.events import Event, ReplyGrew, ThinkingGrew, ToolEnded, ToolStarted
from backchannel.wire.frames import number_event

from .client import Client
from .conftest import World

KEY = "agent:main:main"


def run(**changed: Any) -> Run:
    values: dict[str, Any] = dict.fromkeys(Run.__struct_fields__)
    values |= {"id": "r1", "session_key": KEY, "kind": RunKind.MESSAGE, "state": RunState.RUNNING, "started_at": 5}
    return Run(**{**values, **changed})


def ended(**changed: Any) -> Run:
    return run(**{"state": RunState.OK, "ended_at": 9, "reply": "done", **changed})


class Listener:
    is_for_people = False

    def __init__(self) -> None:
        self.frames: list[dict[str, Any]] = []
        self.droppable: list[bool] = []

    def send_event(self, head: str, *, droppable: bool) -> None:
        self.frames.append(json.loads(number_event(head, len(self.frames) + 1)))
        self.droppable.append(droppable)

    @property
    def names(self) -> list[str]:
        return [frame["event"] for frame in self.frames]

    def payloads(self, name: str) -> list[dict[str, Any]]:
        return [frame["payload"] for frame in self.frames if frame["event"] == name]


@pytest.fixture
def desk() -> Subscriptions:
    return Subscriptions(SystemClock())


@pytest.fixture
def listener() -> Listener:
    return Listener()


EVERYTHING: list[Event] = [
    RunChanged(run(state=RunState.QUEUED)),
    RunChanged(run()),
    ThinkingGrew(run(), "hm"),
    ReplyGrew(run(), "do", "do"),
    ToolStarted(run(), "c1", "look", {"at": 1}),
    ToolEnded(run(), "c1", "look", False, text_content("seen " * 1000)),
    ReplyGrew(run(), "done", "ne"),
    RunChanged(run(step=1)),
    RunChanged(ended()),
    SessionChanged(KEY, "run"),
]


def test_who_asked_for_nothing_gets_nothing(desk: Subscriptions, listener: Listener) -> None:
    desk.watch(listener, "agent:main:other")
    for event in EVERYTHING:
        desk.publish(event)
    assert listener.frames == []


def test_a_watched_session_tells_its_runs_from_start_to_end(desk: Subscriptions, listener: Listener) -> None:
    desk.watch(listener, KEY)
    for event in EVERYTHING:
        desk.publish(event)
    streams = [(p["stream"], p["data"].get("phase")) for p in listener.payloads("agent")]
    assert streams == [
        ("lifecycle", "start"),
        ("thinking", None),
        ("assistant", None),
        ("tool", "start"),
        ("tool", "result"),
        ("assistant", None),
        ("lifecycle", "end"),
    ]
    assert [p["state"] for p in listener.payloads("chat")] == ["delta", "delta", "final"]
    assert "sessions.changed" not in listener.names


def test_a_delta_carries_the_whole_text_and_what_is_new(desk: Subscriptions, listener: Listener) -> None:
    desk.watch(listener, KEY)
    desk.publish(ReplyGrew(run(), "one two", " two"))
    (delta,) = listener.payloads("chat")
    assert delta["deltaText"] == " two"
    assert delta["message"]["content"] == [{"type": "text", "text": "one two"}]
    assert delta["message"]["role"] == "assistant" and delta["message"]["timestamp"] > 0
    assert listener.droppable == [True, True]


def said(text: str, stop_reason: str | None = "toolUse", **more: Any) -> MessageAppended:
    fields: dict[str, Any] = {"role": Role.ASSISTANT, "run_id": "r1", "stop_reason": stop_reason, **more}
    message = Message(id="m1", content=text_content(text), timestamp=1, **fields)
    return MessageAppended(KEY, "s1", 4, message, encode_message(message))


def texts(listener: Listener) -> list[str]:
    return [payload["message"]["content"][0]["text"] for payload in listener.payloads("chat")]


IN_TWO_PARTS: tuple[Event, ...] = (
    RunChanged(run()),
    ReplyGrew(run(), "Let me look.", "Let me look."),
    said("Let me look."),
    ReplyGrew(run(), "do", "do"),
    ReplyGrew(run(), "done", "ne"),
    said("done", "stop"),
    RunChanged(ended()),
)
"""A run that says something before it calls a tool."""


def test_what_a_run_said_before_it_called_a_tool_stays_above_its_reply(desk: Subscriptions, listener: Listener) -> None:
    desk.watch(listener, KEY)
    for event in IN_TWO_PARTS:
        desk.publish(event)
    whole = "Let me look.\n\ndone"
    assert texts(listener) == ["Let me look.", "Let me look.\n\ndo", whole, whole]
    assert "".join(payload.get("deltaText", "") for payload in listener.payloads("chat")) == whole
    growing = [payload["data"]["text"] for payload in listener.payloads("agent") if payload["stream"] == "assistant"]
    assert growing == ["Let me look.", "do", "done"]


def test_who_reads_the_transcript_is_told_of_each_part_alone(desk: Subscriptions, listener: Listener) -> None:
    other = Listener()
    desk.subscribe(other)
    desk.watch_messages(listener, KEY)
    for event in IN_TWO_PARTS:
        desk.publish(event)
    assert texts(listener) == ["Let me look.", "do", "done", "done"]
    assert texts(other)[-1] == "Let me look.\n\ndone"
    told = listener.payloads("chat")
    assert [(payload.get("deltaText"), payload.get("replace")) for payload in told] == [
        ("Let me look.", None),
        ("do", True),
        ("ne", None),
        (None, None),
    ]
    assert [payload["seq"] for payload in told] == [payload["seq"] for payload in other.payloads("chat")]
    rows = [payload["message"]["content"][0]["text"] for payload in listener.payloads("session.message")]
    assert rows == ["Let me look.", "done"]


@pytest.mark.parametrize("messages", [["", "done"], ["NO_REPLY", "done"], []])
def test_a_message_that_says_nothing_to_people_leaves_no_gap(
    desk: Subscriptions, listener: Listener, messages: list[str]
) -> None:
    desk.watch(listener, KEY)
    desk.publish(RunChanged(run()))
    for text in messages:
        desk.publish(said(text))
    desk.publish(RunChanged(ended()))
    assert texts(listener) == ["done"]


def test_whoever_comes_in_the_middle_of_a_run_is_given_what_it_is_saying(
    desk: Subscriptions, listener: Listener
) -> None:
    assert desk.saying_now("r1") == ""
    desk.watch(listener, KEY)
    for event, text in (
        (ReplyGrew(run(), "Let me", "Let me"), "Let me"),
        (said("Let me look."), ""),
        (ReplyGrew(run(), "do", "do"), "do"),
        (RunChanged(ended()), ""),
    ):
        desk.publish(event)
        assert desk.saying_now("r1") == text


def test_runs_that_end_while_a_session_is_read_are_known(desk: Subscriptions) -> None:
    with desk.hearing_ends(KEY) as first, desk.hearing_ends(KEY) as second, desk.hearing_ends("agent:main:b") as other:
        desk.publish(RunChanged(run()))
        assert first == set()
        desk.publish(RunChanged(ended()))
        assert (first, second, other) == ({"r1"}, {"r1"}, set())
    desk.publish(RunChanged(ended(id="r2")))
    assert first == {"r1"}


def test_each_run_numbers_its_events(desk: Subscriptions, listener: Listener) -> None:
    desk.watch(listener, KEY)
    for event in EVERYTHING:
        desk.publish(event)
    seqs = [frame["payload"]["seq"] for frame in listener.frames]
    assert seqs == list(range(1, len(seqs) + 1))


@pytest.mark.parametrize(
    ("last", "state", "phase"),
    [
        (ended(), "final", "end"),
        (ended(state=RunState.ABORTED, reply="par"), "aborted", "end"),
        (ended(state=RunState.ERROR, error="no"), "error", "error"),
        (ended(state=RunState.TIMEOUT, reply=None), "error", "error"),
    ],
)
def test_every_end_has_its_word(desk: Subscriptions, listener: Listener, last: Run, state: str, phase: str) -> None:
    desk.watch(listener, KEY)
    desk.publish(RunChanged(last))
    (chat,), (agent,) = listener.payloads("chat"), listener.payloads("agent")
    assert chat["state"] == state
    assert agent["data"]["phase"] == phase and agent["data"]["status"] == last.state
    assert ("errorMessage" in chat) == (state == "error")
    assert ("message" in chat) == (last.reply is not None)
    assert listener.droppable == [False, False]


@pytest.mark.anyio
@pytest.mark.parametrize("kind", [RunKind.PRIMARY, RunKind.TURN, RunKind.ANNOUNCE, RunKind.CHILD])
async def test_internal_runs_are_marked_and_send_of_chat_events_only_an_empty_end(
    desk: Subscriptions, listener: Listener, kind: RunKind
) -> None:
    desk.subscribe(listener)
    internal = run(kind=kind)
    told: list[Event] = [RunChanged(internal), ReplyGrew(internal, "a", "a"), RunChanged(ended(kind=kind))]
    for event in told:
        desk.publish(event)
    await asyncio.sleep(0)  # what the same commit tells of the run's delivery would have come before this
    assert listener.names == ["agent", "agent", "agent", "chat"]
    assert all(payload["data"]["backchannel"] == {"internal": True} for payload in listener.payloads("agent"))
    (end,) = listener.payloads("chat")
    assert end == {"runId": "r1", "sessionKey": KEY, "agentId": "main", "seq": 4, "state": "final"}


def test_whoever_started_a_run_hears_of_its_start_too(desk: Subscriptions, listener: Listener) -> None:
    desk.follow(listener, run())
    desk.publish(RunChanged(ended()))
    assert listener.names == ["agent", "agent", "chat"]
    desk.publish(RunChanged(run(id="r2")))
    assert len(listener.frames) == 3


def test_whoever_watches_already_is_told_once(desk: Subscriptions, listener: Listener) -> None:
    desk.watch(listener, KEY)
    desk.subscribe(listener)
    desk.publish(RunChanged(run()))
    desk.follow(listener, run())
    desk.publish(RunChanged(ended()))
    assert listener.names == ["agent", "agent", "chat"]


def test_a_run_that_is_retried_starts_again(desk: Subscriptions, listener: Listener) -> None:
    desk.watch(listener, KEY)
    for changed in (run(), ended(state=RunState.ERROR), run(state=RunState.QUEUED), run(), ended()):
        desk.publish(RunChanged(changed))
    phases = [payload["data"]["phase"] for payload in listener.payloads("agent")]
    assert phases == ["start", "error", "start", "end"]


@pytest.mark.anyio
async def test_the_end_of_an_internal_run_stays_behind_its_other_events_while_a_request_is_unanswered(
    desk: Subscriptions, listener: Listener
) -> None:
    desk.watch(listener, KEY)
    with desk.answering(listener, KEY):
        for event in (RunChanged(run(kind=RunKind.ANNOUNCE)), RunChanged(ended(kind=RunKind.ANNOUNCE))):
            desk.publish(event)
        await asyncio.sleep(0)
        assert listener.frames == []
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert [frame["payload"]["seq"] for frame in listener.frames] == [1, 2, 3]
    assert listener.names == ["agent", "agent", "chat"]


@pytest.mark.anyio
@pytest.mark.parametrize(("is_following", "told"), [(True, ["final"]), (False, [])])
async def test_who_looks_at_a_run_that_has_just_ended_hears_its_end_only_as_its_follower(
    desk: Subscriptions, listener: Listener, is_following: bool, told: list[str]
) -> None:
    async def look() -> Run:
        return ended()

    if is_following:
        desk.follow(listener, run())
    assert (await desk.follow_unless_ended(listener, "r1", look)).is_finished
    desk.publish(RunChanged(ended()))
    assert [payload["state"] for payload in listener.payloads("chat")] == told


@pytest.mark.anyio
async def test_all_sessions_and_their_changes_after_subscribing(desk: Subscriptions, listener: Listener) -> None:
    desk.subscribe(listener)
    desk.publish(RunChanged(run()))
    desk.publish(SessionChanged(KEY, "patch"))
    desk.publish(SessionChanged(KEY, "run"))
    await asyncio.sleep(0)  # its row is read first
    assert listener.names == ["agent", "sessions.changed", "sessions.changed"]
    assert [payload["reason"] for payload in listener.payloads("sessions.changed")] == ["patch", "run"]
    desk.unsubscribe(listener)
    desk.publish(SessionChanged(KEY, "patch"))
    await asyncio.sleep(0)
    assert len(listener.frames) == 3


def test_messages_of_a_session_after_subscribing_to_them(desk: Subscriptions, listener: Listener) -> None:
    message = Message(id="m1", role=Role.USER, content=text_content("hi"), timestamp=1)
    fact = MessageAppended(KEY, "s1", 4, message, encode_message(message))
    desk.watch(listener, KEY)
    desk.publish(fact)
    desk.watch_messages(listener, KEY)
    desk.publish(fact)
    assert listener.payloads("session.message") == [
        {
            "sessionKey": KEY,
            "agentId": "main",
            "sessionId": "s1",
            "messageId": "m1",
            "messageSeq": 5,
            "message": {**json.loads(encode_message(message)), "__openclaw": {"id": "m1", "seq": 5}},
        }
    ]
    desk.unwatch_messages(listener, KEY)
    desk.publish(fact)
    assert len(listener.frames) == 1
    desk.subscribe(listener)
    desk.publish(fact)
    assert len(listener.frames) == 2


def test_what_a_tool_returned_is_shown_cut(desk: Subscriptions, listener: Listener) -> None:
    desk.watch(listener, KEY)
    desk.publish(ToolEnded(run(), "c1", "look", False, text_content("x" * 10_000)))
    desk.publish(ToolEnded(run(), "c2", "look", True))  # on another gateway: what it returned is not known here
    known, unknown = (payload["data"] for payload in listener.payloads("agent"))
    assert known["isError"] is False and unknown["isError"] is True
    assert len(known["result"]["content"][0]["text"]) == TEXT_LIMIT
    assert "result" not in unknown


def test_the_end_of_a_run_says_why_its_model_stopped(desk: Subscriptions, listener: Listener) -> None:
    desk.watch(listener, KEY)
    desk.publish(RunChanged(run()))
    desk.publish(said("", "length"))
    desk.publish(RunChanged(ended()))
    (final,) = listener.payloads("chat")
    assert (final["agentId"], final["stopReason"]) == ("main", "length")


def test_results_of_tools_are_told_as_messages_only_to_those_who_read_the_transcript(
    desk: Subscriptions, listener: Listener
) -> None:
    desk.subscribe(listener)
    result = said("seen", role=Role.TOOL_RESULT, stop_reason=None, tool_call_id="c1", tool_name="look", is_error=False)
    desk.publish(result)
    assert listener.frames == []
    desk.watch_messages(listener, KEY)
    desk.publish(result)
    assert listener.names == ["session.message"]


def test_a_connection_that_left_is_forgotten(desk: Subscriptions, listener: Listener) -> None:
    desk.subscribe(listener)
    desk.watch_messages(listener, KEY)
    desk.follow(listener, run(id="r9"))
    told = len(listener.frames)
    desk.leave(listener)
    for event in EVERYTHING:
        desk.publish(event)
    assert len(listener.frames) == told


def test_the_session_watched_longest_gives_way(desk: Subscriptions, listener: Listener) -> None:
    for n in range(MAX_WATCHED + 1):
        desk.watch(listener, f"agent:main:cron:{n}")
    desk.publish(RunChanged(run(session_key="agent:main:cron:0")))
    assert listener.frames == []
    desk.publish(RunChanged(run(session_key="agent:main:cron:1")))
    assert len(listener.frames) == 1


def test_a_lifecycle_event_says_when(desk: Subscriptions) -> None:
    assert lifecycle_of(run()) == {"phase": "start", "startedAt": 5}
    assert lifecycle_of(ended(state=RunState.ABORTED)) == {
        "phase": "end",
        "aborted": True,
        "status": "aborted",
        "startedAt": 5,
        "endedAt": 9,
    }


@pytest.mark.anyio
class TestThroughASocket:
    async def test_chat_send_gives_deltas_and_a_final_event(self, client: Client) -> None:
        sent = await client.ask("chat.send", sessionKey="agent:speaker:main", message="hi")
        final = await client.event("chat", runId=sent["runId"], state="final")
        assert final["message"]["content"] == [{"type": "text", "text": "one two three"}]
        assert (final["agentId"], final["stopReason"]) == ("speaker", "stop")
        deltas = [payload for payload in client.seen("chat") if payload["state"] == "delta"]
        assert "".join(delta["deltaText"] for delta in deltas) == "one two three"
        assert deltas[-1]["message"]["content"][0]["text"] == "one two three"

    async def test_a_connection_numbers_its_events_without_gaps(self, client: Client) -> None:
        await client.ask("sessions.subscribe")
        await client.run(message="hi", agentId="speaker")
        await client.event("chat", state="final")
        assert [frame["seq"] for frame in client.events] == list(range(1, len(client.events) + 1))

    async def test_other_connections_hear_of_it_only_when_they_ask(self, client: Client, world: World) -> None:
        async with world.client() as watcher, world.client() as stranger, world.client() as overseer:
            assert (await watcher.ask("chat.history", sessionKey="agent:echo:main"))["messages"] == []
            await overseer.ask("sessions.subscribe")
            answer = await watcher.ask("sessions.messages.subscribe", key="agent:echo:main")
            assert answer == {"subscribed": True, "key": "agent:echo:main"}
            await client.run(message="hi", agentId="echo")
            await watcher.event("chat", state="final")
            await overseer.event("chat", state="final")
            texts = [p["message"]["content"][0]["text"] for p in watcher.seen("session.message")]
            assert texts == ["hi", "echo hi"]
            assert overseer.seen("sessions.changed") and not watcher.seen("sessions.changed")
            await stranger.ask("health")
            assert [frame["event"] for frame in stranger.events] == ["connect.challenge"]

    async def test_whoever_started_a_run_gets_its_events(self, client: Client) -> None:
        ended_ = await client.run(message="hi", agentId="echo")
        phases = [p["data"]["phase"] for p in client.seen("agent") if p["runId"] == ended_["runId"]]
        assert phases == ["start", "end"]
        assert [p["state"] for p in client.seen("chat")] == ["final"]
