"""Messages from outside killed at every commit: one and its answer in parts, at every send too, and a stranger's."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any

import pytest

from backchannel.agents.scripted import ScriptedModel, call
from backchannel.core.contracts import ModelEvent, ModelReply, ModelRequest, TextDelta
from backchannel.core.delivery.channels import ChannelSilent
from backchannel.core.messages import Role, ToolCallBlock, Usage, text_content
from backchannel.core.policy.pairing import APPROVED_TEXT, code_text
from backchannel.gateway.app import Gateway
from backchannel.runtime import asking
from tests.conftest import CRASH_POINTS
from tests.support.far_end import FarEnd, event, signed
from tests.support.gateways import CONFIG
from tests.support.kill import cut_commits, cut_sends, kill_at_every_call, kill_at_every_commit
from tests.support.platform import Answer, FrozenChannel, Platform, PlatformChannel, said
from tests.support.resting import at_rest

pytestmark = pytest.mark.anyio
ANSWER = "the first line\nthe second line\nthe third line"


class AnsweredInParts:
    """Somebody writes, and somebody else a command; the far end posts both until they are taken."""

    def __init__(self, far_end: FarEnd) -> None:
        self.far_end = far_end
        far_end.clear()
        self.model = ScriptedModel(replies=self.reply)

    def reply(self, request: ModelRequest) -> str:
        return ANSWER

    def equip(self, gateway: Gateway) -> None:
        gateway.add_model(self.model)

    async def drive(self, gateway: Gateway) -> None:
        for posted in (event(threadId="T"), event(messageId="in-2", text="/new nonsense", chatId="Chat-2")):
            body, headers = signed(posted)
            await gateway.inbound.post("desk", body, headers)
        await at_rest(gateway)

    def check(self, database: sqlite3.Connection) -> None:
        assert not self.model.refused, self.model.refused
        assert database.execute("SELECT state, reply FROM runs").fetchall() == [("ok", ANSWER)]
        receipts = database.execute("SELECT id, state, run_id, target, thread_id FROM deliveries").fetchall()
        assert sorted((row[1], row[3], row[4]) for row in receipts) == [
            ("sent", "Chat-1", "T"),
            ("sent", "Chat-2", None),
        ]
        assert set(self.far_end.counts.values()) == {1}, f"a key was taken twice: {self.far_end.counts}"
        told = {message.key: message for message in self.far_end.messages}
        parts = database.execute("SELECT delivery_id, n, text, state, message_id FROM delivery_parts").fetchall()
        assert {f"{id_}/{n}" for id_, n, *_ in parts} == set(told)
        for id_, n, text, state, message_id in parts:
            taken = told[f"{id_}/{n}"]
            assert (state, message_id, text) == ("sent", taken.message_id, taken.text), (
                "a receipt does not tell the truth"
            )
        answer = [message.text for message in self.far_end.messages if message.to == "Chat-1"]
        assert answer == ANSWER.splitlines(), f"out of order: {answer}"
        ids = database.execute("SELECT message_id, outcome FROM inbound_ids ORDER BY 1").fetchall()
        assert [(id_, json.loads(outcome)["verdict"]) for id_, outcome in ids] == [
            ("in-1", "answer"),
            ("in-2", "command"),
        ]


class LetIn:
    """A stranger is sent a code, and the owner lets them in; both are posted until they are taken."""

    def __init__(self, far_end: FarEnd) -> None:
        self.far_end = far_end
        far_end.clear()

    def equip(self, gateway: Gateway) -> None:
        gateway.add_model(ScriptedModel(replies=["nobody is answered here"]))

    async def drive(self, gateway: Gateway) -> None:
        await self._post(gateway, senderId="eve", chatId="Eve", messageId="1")
        await at_rest(gateway)
        (pairing,) = await gateway.store.pairings(limit=9)
        await self._post(
            gateway, senderId="olga", chatId="Olga", messageId="2", text=f"/pairing approve {pairing.code}"
        )
        await at_rest(gateway)

    async def _post(self, gateway: Gateway, **changed: Any) -> None:
        body, headers = signed(event(**changed))
        await gateway.inbound.post("desk", body, headers)

    def check(self, database: sqlite3.Connection) -> None:
        ((code, state),) = database.execute("SELECT code, state FROM pairings").fetchall()
        assert state == "approved"
        assert database.execute("SELECT count(*) FROM runs").fetchall() == [(0,)]
        assert set(self.far_end.counts.values()) == {1}, f"a key was taken twice: {self.far_end.counts}"
        read = [message.text for message in self.far_end.messages if message.to == "Eve"]
        assert read == [code_text(code), APPROVED_TEXT], "another code was sent, or something twice"
        assert len([message for message in self.far_end.messages if message.to == "Olga"]) == 1
        assert database.execute("SELECT state, count(*) FROM deliveries GROUP BY 1").fetchall() == [("sent", 3)]


async def test_a_stranger_is_sent_one_code_and_let_in_once_wherever_a_commit_is_cut(
    record_property: Callable[[str, object], None],
) -> None:
    async with FarEnd() as far_end:
        channels = {"desk": far_end.settings(allowFrom=[], owners=["olga"], pairing=True)}
        config = {**_config(far_end), "channels": channels, "session": {"dmScope": "per-peer"}}
        points = await kill_at_every_commit(lambda: LetIn(far_end), config)
    record_property(CRASH_POINTS, ("LetIn, at commits", points))
    assert points >= 16


class Pressed:
    """An owner is asked in the chat, and presses a button; both are posted until they are taken."""

    def __init__(self, far_end: FarEnd) -> None:
        self.far_end = far_end
        far_end.clear()
        self.model = ScriptedModel(replies=self.reply)

    def reply(self, request: ModelRequest) -> str | list[ToolCallBlock]:
        return "so it is" if request.messages[-1].role is Role.TOOL_RESULT else [call("sessions_list")]

    def equip(self, gateway: Gateway) -> None:
        gateway.add_model(self.model)

    async def drive(self, gateway: Gateway) -> None:
        changed = asyncio.Event()
        unlisten = gateway.runtime.hub.listen(lambda _: changed.set())
        await self._post(gateway, event())
        while not (asked := await gateway.store.approvals(limit=9)):
            changed.clear()
            await changed.wait()
        unlisten()
        await self._post(gateway, event(messageId="p-1", text="", button=f"/approve {asked[0].id}"))
        await at_rest(gateway)

    async def _post(self, gateway: Gateway, posted: dict[str, Any]) -> None:
        body, headers = signed(posted)
        await gateway.inbound.post("desk", body, headers)

    def check(self, database: sqlite3.Connection) -> None:
        assert database.execute("SELECT state FROM approvals").fetchall() == [("approved",)]
        assert database.execute("SELECT state, count(*) FROM deliveries GROUP BY 1").fetchall() == [("sent", 3)]
        question, answer = self.far_end.messages
        assert "is approved by desk ann" in question.text and not question.buttons, question
        assert answer.text == "so it is"


async def test_a_press_of_a_button_counts_once_wherever_a_commit_or_a_send_is_cut(
    record_property: Callable[[str, object], None],
) -> None:
    def config(far_end: FarEnd) -> dict[str, object]:
        channels = {"desk": far_end.settings(owners=["ann"], buttons=True)}
        tools = {"approval": [{"tool": "sessions_list", "ask": "always"}]}
        return {**_config(far_end), "channels": channels, "tools": tools}

    points = await cut_commits(Pressed, config)
    record_property(CRASH_POINTS, ("Pressed, at commits", points))
    sends = await cut_sends(Pressed, config)
    record_property(CRASH_POINTS, ("Pressed, at sends", sends))
    assert points >= 16 and sends >= 9


class FileSent(AnsweredInParts):
    """Somebody asks for a file, and gets the reply and the file."""

    def reply(self, request: ModelRequest) -> Any:
        return "here it is" if request.messages[-1].role is Role.TOOL_RESULT else [call("attach", path="a.txt")]

    def equip(self, gateway: Gateway) -> None:
        super().equip(gateway)
        workspace = gateway.config.state_dir / "agents" / "main" / "workspace"
        workspace.mkdir(parents=True, exist_ok=True)
        (workspace / "a.txt").write_bytes(b"the file")

    async def drive(self, gateway: Gateway) -> None:
        body, headers = signed(event())
        await gateway.inbound.post("desk", body, headers)
        await at_rest(gateway)

    def check(self, database: sqlite3.Connection) -> None:
        text, file = self.far_end.messages
        assert (text.text, file.file) == ("here it is", ("a.txt", "text/plain", b"the file"))
        assert set(self.far_end.counts.values()) == {1}, f"a key was taken twice: {self.far_end.counts}"
        assert database.execute("SELECT state FROM delivery_parts").fetchall() == [("sent",), ("sent",)]
        assert database.execute("SELECT count(*) FROM attachments").fetchall() == [(1,)]


async def test_a_file_arrives_once_wherever_a_commit_or_a_send_is_cut(
    record_property: Callable[[str, object], None],
) -> None:
    def config(far_end: FarEnd) -> dict[str, object]:
        channels = {"desk": far_end.settings(files=True)}
        return {**_config(far_end), "channels": channels, "tools": {"allow": ["attach"]}}

    points = await cut_commits(FileSent, config)
    record_property(CRASH_POINTS, ("FileSent, at commits", points))
    sends = await cut_sends(FileSent, config)
    record_property(CRASH_POINTS, ("FileSent, at sends", sends))
    assert points >= 14 and sends >= 6


class Typist:
    """A model that waits after each piece of its reply until the platform shows it, or has had its time to."""

    ref, context_window, price = "scripted/test", 100_000, None

    def __init__(self, platform: Platform, *replies: tuple[str, ...]) -> None:
        self._platform = platform
        self._replies = replies

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        step = sum(message.role is Role.ASSISTANT for message in request.messages)
        pieces, text = self._replies[step], ""
        for piece in pieces:
            text += piece
            yield TextDelta(piece)
            if text != "NO_REPLY":
                await self._seen(text.splitlines()[0])
        is_last = step == len(self._replies) - 1
        content = text_content(text) if is_last else (*text_content(text), call("sessions_list"))
        yield ModelReply(content=content, usage=Usage(), model=self.ref)

    async def _seen(self, line: str) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(0.15):
                while not any(text.startswith(line) for text in self._platform.texts()):
                    self._platform.called.clear()
                    await self._platform.called.wait()


class Streamed:
    """Somebody writes in a group, and sees the answer grow; the rest of it comes in a second message."""

    replies: tuple[tuple[str, ...], ...] = (("a lot", " that grows", "\nand what is left"),)
    expected: tuple[str, ...] = ("a lot that grows", "and what is left")

    def __init__(self) -> None:
        self.platform = Platform()

    def equip(self, gateway: Gateway) -> None:
        gateway.add_model(Typist(self.platform, *self.replies))
        gateway.add_channel(PlatformChannel(self.platform, max_text_length=20, show_typing=_no_typing))

    async def drive(self, gateway: Gateway) -> None:
        await gateway.inbound.receive("chat", said("hello", "1"))
        await at_rest(gateway)

    def check(self, database: sqlite3.Connection) -> None:
        platform = self.platform
        assert platform.posts(drafts=True) <= 1, f"a second draft: {platform.calls}"
        assert not database.execute("SELECT * FROM drafts").fetchall(), "a draft that is never removed"
        doubts = "SELECT text FROM delivery_parts WHERE state = 'uncertain' AND draft_id IS NOT NULL"
        assert not database.execute(doubts).fetchall(), "an edit may be repeated, and leaves no doubt"
        texts = platform.texts()
        assert all(texts.count(text) <= 1 for text in self.expected), f"read twice: {texts}"
        finals = [seen.text for seen in platform.seen.values() if not seen.is_draft]
        states = {state for (state,) in database.execute("SELECT state FROM deliveries")}
        if states <= {"sent"}:
            assert tuple(finals) == self.expected, f"not what was said: {finals}"
        else:
            assert states == {"uncertain"} and len(finals) == len(set(finals)), f"{states}: {finals}"


class InOnePiece(Streamed):
    """The answer is there at once: its first draft says all."""

    replies = (("the answer is 42.",),)
    expected = ("the answer is 42.",)


class DraftLost(InOnePiece):
    """So it is, and the platform's answer to the draft is lost."""

    def __init__(self) -> None:
        super().__init__()
        self.platform.then(Answer(ChannelSilent("no answer"), takes=True))

    def check(self, database: sqlite3.Connection) -> None:
        super().check(database)
        (state,) = database.execute("SELECT state FROM deliveries").fetchone()
        drafts = [seen for seen in self.platform.seen.values() if seen.is_draft]
        assert state == "uncertain" or not drafts, f"{state}: {drafts}"


class Unsaid(Streamed):
    """The answer grows, and turns out to be none."""

    replies = (("let me look",), ("NO_REPLY",))
    expected = ()


class Uneditable(Streamed):
    """The answer grows, and has to be posted anew in the end."""

    def __init__(self) -> None:
        super().__init__()
        self.channel = FrozenChannel(self.platform, max_text_length=20, show_typing=_no_typing)

    def equip(self, gateway: Gateway) -> None:
        gateway.add_model(Typist(self.platform, *self.replies))
        gateway.add_channel(self.channel)

    def check(self, database: sqlite3.Connection) -> None:
        super().check(database)
        left = [seen.text for seen in self.platform.seen.values() if seen.is_draft]
        assert not (left and self.channel.refused), f"a draft that was to be edited is left: {left}"


def _no_typing(*chat: object) -> None:
    """A sign of typing is no call that could be lost."""


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every piece of a reply is told at once."""
    monkeypatch.setattr(asking, "DELTA_INTERVAL_S", 0.0)


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    ("flow", "commits", "calls"),
    [(Streamed, 12, 12), (InOnePiece, 12, 6), (DraftLost, 8, 2), (Unsaid, 12, 6), (Uneditable, 12, 4)],
)
async def test_a_reply_that_grows_is_seen_once_wherever_the_process_dies(
    flow: type[Streamed], commits: int, calls: int, record_property: Callable[[str, object], None]
) -> None:
    points = await kill_at_every_commit(flow, CONFIG)
    record_property(CRASH_POINTS, (f"{flow.__name__}, at commits", points))
    sends = await kill_at_every_call(flow, CONFIG)
    record_property(CRASH_POINTS, (f"{flow.__name__}, at calls", sends))
    assert points >= commits and sends >= calls


def _config(far_end: FarEnd) -> dict[str, object]:
    channels = {"desk": far_end.settings(maxTextLength=20)}
    return {"agents": {"list": [{"id": "main", "model": "scripted/test"}]}, "channels": channels}


async def test_nothing_is_lost_or_posted_twice_wherever_a_commit_is_cut(
    record_property: Callable[[str, object], None],
) -> None:
    points = await cut_commits(AnsweredInParts, _config)
    record_property(CRASH_POINTS, ("AnsweredInParts, at commits", points))
    assert points >= 16


async def test_nothing_is_lost_or_posted_twice_wherever_a_send_is_cut(
    record_property: Callable[[str, object], None],
) -> None:
    points = await cut_sends(AnsweredInParts, _config)
    record_property(CRASH_POINTS, ("AnsweredInParts, at sends", points))
    assert points >= 9
