"""Chat commands over the bridge: who may use them, what they answer, and that no model ever hears of them."""

from __future__ import annotations

import asyncio
import itertools
import json
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest

from backchannel.agents.registry import FunctionContext
from backchannel.agents.scripted import Reply, Scripted, ScriptedModel
from backchannel.core.contracts import ModelRequest, Price
from backchannel.core.delivery.delivery import DeliveryState
from backchannel.core.messages import Usage
from backchannel.core.runs import RunState
from backchannel.core.sessions import Session
from tests.channels.desk import ChannelDesk, desk
from tests.gateway.client import connected
from tests.support.far_end import FarEnd, Message
from tests.support.gateways import CONFIG, MAIN, ended, live_runs, session_of, stored, texts_of

pytestmark = pytest.mark.anyio

DENY: dict[str, Any] = {"sendPolicy": {"rules": [{"match": {"channel": "desk"}, "action": "deny"}]}}
GROUP: dict[str, Any] = {"chatType": "group", "chatId": "G1"}
GROUP_KEY = "agent:main:desk:group:g1"


class Chat:
    """A gateway behind a bridge, and the people who write to it: ann may use commands, olga owns the channel."""

    def __init__(self, world: ChannelDesk, far_end: FarEnd, model: ScriptedModel, state: Path) -> None:
        self.world, self.gateway, self.far_end, self.model = world, world.gateway, far_end, model
        self._state = state
        self._ids = itertools.count(1)

    async def says(self, text: str, **changed: Any) -> dict[str, Any]:
        """Write a message of its own; returns what the far end hears at once."""
        return await self.world.say(**{"text": text, "messageId": f"m{next(self._ids)}", **changed})

    async def asks(self, text: str, **changed: Any) -> str:
        """Write something that is answered; returns the answer."""
        return (await self.hears(text, **changed)).text

    async def hears(self, text: str, **changed: Any) -> Message:
        count = len(self.far_end.messages)
        await self.says(text, **changed)
        return (await self.far_end.took(count + 1))[count]

    async def session(self, key: str = MAIN) -> Session | None:
        return await self.gateway.store.session(key)

    def written(self) -> str:
        """All that is kept of conversations: transcripts, notes, messages that wait."""
        with closing(sqlite3.connect(self._state / "backchannel.db")) as database:
            rows = database.execute(
                "SELECT body FROM messages UNION ALL SELECT body FROM inbox "
                "UNION ALL SELECT message FROM runs WHERE message IS NOT NULL"
            )
            return "\n".join(body for (body,) in rows)

    def read_by_models(self) -> str:
        """All that a model was ever sent."""
        asked = self.model.requests
        return "\n".join(f"{request.system}\n{[message.text for message in request.messages]}" for request in asked)


class Held:
    """A model that answers nothing before it is let go."""

    def __init__(self) -> None:
        self.release = asyncio.Event()
        self.reached = asyncio.Event()

    def __call__(self, request: ModelRequest) -> Scripted:
        return Reply(text=f"re: {request.messages[-1].text}", gate=self.release, reached=self.reached)


def echo(request: ModelRequest) -> Scripted:
    return Reply(text=f"re: {request.messages[-1].text}", usage=Usage(input=1200, output=400))


@asynccontextmanager
async def chat(state: Path, replies: Any = echo, price: Price | None = None, **config: Any) -> AsyncIterator[Chat]:
    model = ScriptedModel(replies=replies, price=price)
    settings = {"allowFrom": ["ann"], "owners": ["olga"], **config.pop("channel", {})}
    async with FarEnd() as far_end:
        async with desk(state, {"desk": far_end.settings(**settings)}, model=model, **config) as world:
            yield Chat(world, far_end, model, state)
        assert set(far_end.counts.values()) <= {1}
    assert not model.refused, model.refused


# What is a command


WRITINGS = [
    ("/help", "/send on|off|inherit: "),
    ("/STATUS", "Status: idle"),
    ("  /status \n", "Status: idle"),
    ("/status:", "Status: idle"),
    ("/Status@helper", "Status: idle"),
    ("/status@helper:", "Status: idle"),
    ("/stop", "Nothing is running here."),
    ("/new", "Started a new conversation; the old one is kept."),
    ("/reset", "Started a new conversation; the old one is kept."),
    ("/Send: OFF", "From now on what this session says is held back"),
    ("/send@helper on", "From now on what this session says goes out"),
    ("/send inherit", "From now on this session follows the rules"),
    ("/model: scripted/test", "This session uses scripted/test from its next run on."),
    ("/model DEFAULT", "This session uses its agent's own model again, scripted/test."),
    ("/subagents list", "This session has started no sub-agents."),
    ("/subagents INFO 1", "This session has started no sub-agents."),
    ("/subagents log 1", "This session has started no sub-agents."),
    ("/subagents stop all", "No sub-agent is running here."),
    ("/send", "/send needs more (write /send on|off|inherit)"),
    ("/send sideways", "/send does not know 'sideways' (write /send on|off|inherit)"),
    ("/new now", "/new does not know 'now' (write /new)"),
    ("/stop: all of it", "/stop does not know 'all of it' (write /stop)"),
    (
        "/model",
        "This session uses scripted/test.\n"
        "Choose another with `/model <provider>/<model>`, of any provider that has a key; known here:\n"
        "- builtin/demo\n- scripted/test",
    ),
    ("/model a b", "/model does not know 'a b' (write /model list|default|<ref>)"),
    ("/subagents", "This session has started no sub-agents."),
    ("/subagents info", "/subagents info needs more: <child> (write /subagents list|info <child>|"),
    ("/subagents kill 1", "/subagents does not know 'kill 1'"),
]


async def test_every_form_is_answered_and_nothing_of_it_reaches_a_model_or_a_transcript(tmp_path: Path) -> None:
    async with chat(tmp_path) as room:
        await room.asks("good morning")
        for text, answer in WRITINGS:
            said = await room.asks(text, senderId="olga")
            assert said.startswith(answer), f"{text!r} is answered with {said!r}"
        assert await room.asks("good night") == "re: good night"
        told = [*(text.strip() for text, _ in WRITINGS), *room.far_end.texts[1:-1]]
        for kept in (room.written(), room.read_by_models()):
            assert [text for text in told if text in kept] == []
        assert len(room.model.requests) == 2
        runs = await room.gateway.store.runs(limit=100)
        assert [run.kind.value for run in runs] == ["message", "message"]


@pytest.mark.parametrize(
    "text", ["/status\nplease", "please /status", "/status\u2028now", "/nonsense", "//status", "/stop/now", "`/stop`"]
)
async def test_what_is_not_only_a_command_is_ordinary_text(tmp_path: Path, text: str) -> None:
    async with chat(tmp_path) as room:
        assert await room.asks(text) == f"re: {text}"


async def test_another_bots_command_in_a_group_is_ordinary_text(tmp_path: Path) -> None:
    async with chat(tmp_path) as room:
        assert (await room.says("/new@other_bot", **GROUP))["verdict"] == "record"
        assert (await room.says("/new@us", **GROUP, mentioned=True))["verdict"] == "command"
        assert (await room.says("/new", **GROUP))["verdict"] == "command"


async def test_a_command_of_another_bot_is_ordinary_text(tmp_path: Path) -> None:
    async with chat(tmp_path, channel={"allowBots": True, "allowFrom": ["*"], "owners": ["robot"]}) as room:
        for text in ("/new", "/send off", "/stop"):
            assert await room.asks(text, senderId="robot", senderIsBot=True) == f"re: {text}"
        session = await session_of(room.gateway)
        assert session.send_policy is None
        assert len(await texts_of(room.gateway)) == 6


async def test_a_command_that_comes_again_is_carried_out_and_answered_once(tmp_path: Path) -> None:
    async with chat(tmp_path) as room:
        await room.asks("hello")
        first = await room.says("/new", messageId="again")
        after = await session_of(room.gateway)
        assert await room.says("/new", messageId="again") == first | {"repeat": True}
        assert await room.says("/stop", messageId="again") == first | {"repeat": True}
        assert (await session_of(room.gateway)).session_id == after.session_id
        await room.asks("/status")
        assert len(room.far_end.messages) == 3


# Who may


async def test_send_is_refused_to_a_merely_authorised_sender_with_why_and_nothing_changes(tmp_path: Path) -> None:
    async with chat(tmp_path) as room:
        await room.asks("hello")
        before = await session_of(room.gateway)
        for text in ("/send off", "/send", "/SEND: on", "/send sideways"):
            answer = await room.asks(text)
            assert answer.startswith("/send is for owners only") and "channels.<name>.owners" in answer
        assert await session_of(room.gateway) == before
        assert "/send" not in await room.asks("/help")
        await room.asks("/send off", senderId="olga")
        assert (await session_of(room.gateway)).send_policy == "deny"


async def test_a_stranger_hears_nothing_changes_nothing_and_leaves_nothing(tmp_path: Path) -> None:
    held = Held()
    async with chat(tmp_path, held) as room:
        said = await room.says("think for ever", **GROUP, mentioned=True)
        await held.reached.wait()
        before, kept = await room.session(GROUP_KEY), room.written()
        for text, _ in WRITINGS:
            for place in ({}, GROUP, {**GROUP, "mentioned": True}):
                answer = await room.says(text, senderId="eve", **place)
                assert answer["verdict"] == "ignore" and not {"command", "runId"} & set(answer)
        assert await room.session(GROUP_KEY) == before and await room.session() is None
        assert room.written() == kept
        assert await room.world.receipts() == [] and room.far_end.posts == []
        held.release.set()
        assert (await ended(room.gateway, said["runId"])).state is RunState.OK


async def test_in_a_group_a_command_needs_no_mention_and_is_answered_there(tmp_path: Path) -> None:
    async with chat(tmp_path) as room:
        answer = await room.hears("/status", **GROUP, threadId="T1", accountId="work")
        assert (answer.to, answer.thread_id, answer.account_id) == ("G1", "T1", "work")
        assert answer.text.startswith("Status: idle")
        await room.asks("/send off", **GROUP, senderId="olga")
        assert (await session_of(room.gateway, GROUP_KEY)).send_policy == "deny"
        assert await room.session() is None


async def test_commands_and_their_answers_pass_a_policy_that_denies(tmp_path: Path) -> None:
    async with chat(tmp_path, session=DENY) as room:
        assert (await room.says("hello"))["verdict"] == "record"
        assert "off: session.sendPolicy.rules[0]" in await room.asks("/status")
        await room.asks("/send on", senderId="olga")
        assert (await room.asks("hello again")).endswith("hello again")
        await room.asks("/send off", senderId="olga")
        assert (await room.says("are you there?"))["verdict"] == "record"
        assert "Sending: off, set for this session" in await room.asks("/status")
        states = {receipt.delivery.state for receipt in await room.world.receipts()}
        assert states <= {DeliveryState.SENT, DeliveryState.SENDING}


async def test_a_policy_that_only_looks_does_not_count_commands(tmp_path: Path) -> None:
    shadow = {"sendPolicy": {**DENY["sendPolicy"], "shadow": True}}
    async with chat(tmp_path, session=shadow) as room:
        await room.asks("/status")
        await room.says("/status", senderId="eve")
        assert room.gateway.runtime.guard.shadowed == 0


# At once


async def test_commands_do_not_wait_for_a_lane_or_a_slot(tmp_path: Path) -> None:
    held = Held()
    agents = {**CONFIG["agents"], "defaults": {"maxConcurrent": 1}}
    async with chat(tmp_path, held, agents=agents) as room:
        said = await room.says("think for ever")
        await held.reached.wait()
        waiting = [await room.says("and then this", messageId=f"w{n}") for n in range(2)]
        elsewhere = await room.says("no slot is left", **GROUP, mentioned=True)
        status = await room.asks("/status")
        assert status.startswith("Status: running for ") and "s, 2 messages waiting\n" in status
        assert (await room.asks("/status", **GROUP)).startswith("Status: queued, 1 message waiting")
        assert await room.asks("/stop") == "Stopped 1 run."
        assert (await ended(room.gateway, said["runId"])).state is RunState.ABORTED
        held.release.set()
        for run in (*waiting, elsewhere):
            assert (await ended(room.gateway, run["runId"])).state is RunState.OK
        assert "/status" not in room.written() + room.read_by_models()


async def test_what_was_asked_to_stop_is_not_counted_again(tmp_path: Path) -> None:
    stuck, let_go = asyncio.Event(), asyncio.Event()
    async with chat(tmp_path) as room:

        @room.gateway.agent("main")
        async def main(context: FunctionContext) -> str:
            try:
                stuck.set()
                await asyncio.Event().wait()
            finally:
                await let_go.wait()
            return "never"

        await room.says("hello")
        await stuck.wait()
        assert await room.asks("/stop") == "Stopped 1 run."
        assert await room.asks("/stop") == "Nothing is running here."
        assert len(await live_runs(room.gateway)) == 1
        let_go.set()


async def test_new_aborts_what_runs_and_keeps_what_waits(tmp_path: Path) -> None:
    held = Held()
    async with chat(tmp_path, held) as room:
        said = await room.says("think for ever")
        await held.reached.wait()
        waiting = await room.says("this stays")
        old = await session_of(room.gateway)
        assert (await room.asks("/new")).startswith("Started a new conversation")
        held.release.set()
        assert (await ended(room.gateway, said["runId"])).state is RunState.ABORTED
        assert (await ended(room.gateway, waiting["runId"])).state is RunState.OK
        assert (await stored(room.gateway, said["runId"])).session_id == old.session_id
        assert await texts_of(room.gateway) == ["this stays", "re: this stays"]
        assert (await session_of(room.gateway)).address == old.address


# Models, status


async def test_a_model_is_used_from_the_next_run_on_and_shown_until_the_agents_own_is_chosen_again(
    tmp_path: Path,
) -> None:
    other = ScriptedModel("scripted/Other", replies=lambda request: "the other speaks")
    async with chat(tmp_path) as room:
        room.gateway.add_model(other)
        assert await room.asks("/model scripted/Other") == "This session uses scripted/Other from its next run on."
        assert await room.asks("who speaks?") == "the other speaks"
        assert "\nModel: scripted/Other\n" in await room.asks("/status")
        assert await model_listed(room) == "scripted/Other"
        await room.asks("/new")
        assert await room.asks("who speaks?") == "the other speaks"
        await room.asks("/model default")
        assert await room.asks("and now?") == "re: and now?"
        assert "\nModel: scripted/test\n" in await room.asks("/status")
        assert await model_listed(room) == "scripted/test"


async def model_listed(room: Chat) -> str:
    (row,) = (await room.gateway.tools("main").sessions_list())["sessions"]
    return str(row["model"])


@pytest.mark.parametrize(
    ("ref", "hint"),
    [
        ("nobody/knows", "known are "),
        ("scripted/tset", "did you mean test?"),
        ("scripted", "expected provider/model, such as "),
        ("groq/llama", "set GROQ_API_KEY"),
    ],
)
async def test_a_model_that_cannot_be_used_is_answered_with_what_would_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ref: str, hint: str
) -> None:
    monkeypatch.delenv("GROQ_API_KEY", raising=False)
    async with chat(tmp_path) as room:
        await room.asks("hello")
        before = await session_of(room.gateway)
        answer = await room.asks(f"/model {ref}")
        assert ref in answer and hint in answer
        assert await session_of(room.gateway) == before


@pytest.mark.parametrize(("ref", "is_sure"), [("ollama/nosuch", False), ("own/nosuch", False), ("scripted/test", True)])
async def test_a_model_of_which_nobody_knows_whether_it_is_there_is_answered_so(
    tmp_path: Path, ref: str, is_sure: bool
) -> None:
    own = {"own": {"api": "openai", "baseUrl": "http://127.0.0.1:1/v1"}}
    async with chat(tmp_path, models={"providers": own}) as room:
        answer = await room.asks(f"/model {ref}")
    assert answer.startswith(f"This session uses {ref} from its next run on.")
    assert ("is not known here" not in answer) is is_sure


async def test_a_function_agent_says_that_it_asks_no_model(tmp_path: Path) -> None:
    async with chat(tmp_path) as room:

        @room.gateway.agent("main")
        async def main(context: FunctionContext) -> str:
            return "a function"

        assert await room.asks("/model scripted/test") == "The agent 'main' is a function and asks no model."
        assert await room.session() is None
        assert "Model" not in await room.asks("/status")


async def test_the_status_tells_what_people_want_to_know(tmp_path: Path) -> None:
    async with chat(tmp_path, price=Price(10.0, 20.0)) as room:
        assert await room.asks("/status") == "Status: idle\nModel: scripted/test"
        await room.asks("hello")
        assert (await room.asks("/status")).splitlines() == [
            "Status: idle",
            "Model: scripted/test",
            "Context: 1.6k of 100.0k tokens",
            "Tokens: 1.6k (in 1.2k / out 0.4k), $0.02",
            "Sending: on",
        ]
        await room.asks("/new")
        status = await room.asks("/status")
        assert "Context" not in status and "Tokens: 1.6k" in status


async def test_the_status_tells_how_much_of_the_last_request_came_from_the_cache(tmp_path: Path) -> None:
    replies = [
        Reply(text="one", usage=Usage(input=9, cache_write=91)),
        Reply(text="two", usage=Usage(input=8, cache_read=92)),
    ]
    async with chat(tmp_path, replies) as room:
        await room.asks("hello")
        assert "Cache: 0% of the last request was read from it" in (await room.asks("/status")).splitlines()
        await room.asks("and now?")
        assert "Cache: 92% of the last request was read from it" in (await room.asks("/status")).splitlines()


async def test_what_waits_and_what_is_read_never_shows_a_command(tmp_path: Path) -> None:
    held = Held()
    async with chat(tmp_path, held) as room, connected(room.world.url) as client:
        await room.says("think")
        await held.reached.wait()
        await room.says("this waits")
        await room.asks("/status")
        await room.asks("/model scripted/test")
        history = await client.ask("chat.history", sessionKey="main")
        assert [message["content"][0]["text"] for message in history["pending"]] == ["this waits"]
        assert "/" not in json.dumps([message["content"] for message in history["messages"]])
        held.release.set()
        await room.far_end.took(4)
