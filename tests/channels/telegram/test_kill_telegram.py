"""A message to a bot and its answer that grows, and an announce, killed at every commit and every call of Telegram."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from functools import partial
from typing import Any

import pytest

from backchannel.agents.scripted import Scripted, ScriptedModel, call
from backchannel.channels.telegram.channel import TelegramChannel
from backchannel.core.contracts import ModelEvent, ModelReply, ModelRequest, TextDelta
from backchannel.core.messages import Role, Usage, text_content
from backchannel.gateway.app import Gateway
from backchannel.runtime import asking
from tests.conftest import CRASH_POINTS
from tests.support.kill import kill_at_every_call, kill_at_every_commit
from tests.support.resting import at_rest
from tests.support.servers import Break
from tests.support.telegram import Telegram

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(180)]

ONE_PIECE = ("The answer is 42.",)
PIECES = ("It is **long**", " and grows", "\nand comes in two")
EXPECTED = ("It is long and grows", "and comes in two")
NEWS = "The news of the day."
AGENTS = {"list": [{"id": "main", "model": "scripted/test"}, {"id": "writer", "model": "scripted/test"}]}


class Typist:
    """A model that waits after each piece of its reply until people see it, or have had the time to."""

    ref, context_window, price = "scripted/test", 100_000, None

    def __init__(self, telegram: Telegram, pieces: tuple[str, ...], patience_s: float) -> None:
        self._telegram = telegram
        self._pieces = pieces
        self._patience_s = patience_s

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        text = ""
        for piece in self._pieces:
            text += piece
            yield TextDelta(piece)
            shown = text.splitlines()[0].replace("*", "")
            with suppress(TimeoutError):
                await self._telegram.until(partial(self._is_seen, shown), self._patience_s)
        yield ModelReply(content=text_content(text), usage=Usage(), model=self.ref)

    def _is_seen(self, text: str) -> bool:
        return text in self._telegram.texts


class Grown:
    """Ann writes once, which Telegram keeps until it is acknowledged, and sees the answer grow."""

    pieces: tuple[str, ...] = PIECES
    expected: tuple[str, ...] = EXPECTED

    def __init__(self, telegram: Telegram) -> None:
        self.platform = telegram
        self.lives = 0
        telegram.forget()
        telegram.say("hello")

    def equip(self, gateway: Gateway) -> None:
        self.lives += 1  # after a crash a draft may never be shown again
        gateway.add_model(Typist(self.platform, self.pieces, patience_s=5 if self.lives == 1 else 0.1))

    async def drive(self, gateway: Gateway) -> None:
        await self.platform.drained(20)
        await at_rest(gateway)

    def check(self, database: sqlite3.Connection) -> None:
        (run,) = database.execute("SELECT state, reply FROM runs").fetchall()
        assert tuple(run) == ("ok", "".join(self.pieces)), "the message was taken twice, or not answered"
        assert not database.execute("SELECT * FROM drafts").fetchall(), "a draft that is never removed"
        self.check_seen(self.expected, {state for (state,) in database.execute("SELECT state FROM deliveries")})

    def check_seen(self, expected: tuple[str, ...], states: set[str]) -> None:
        texts = self.platform.texts
        assert all(texts.count(text) <= 1 for text in expected), f"seen twice: {texts}"
        if states == {"sent"}:
            assert [text for text in texts if text in expected] == list(expected), f"not what was said: {texts}"
        else:
            assert "uncertain" in states and states <= {"sent", "uncertain"}, states
        left = [text for text in texts if text not in expected]
        assert len(left) <= 1, f"more than the one draft whose answer was lost: {texts}"


class InOnePiece(Grown):
    """The answer is there at once: its first draft says all."""

    pieces = ONE_PIECE
    expected = ONE_PIECE


class DraftLost(InOnePiece):
    """So it is, and Telegram's answer to the draft is lost."""

    def __init__(self, telegram: Telegram) -> None:
        super().__init__(telegram)
        telegram.then("sendMessage", Break())


class Announced(Grown):
    """Another agent asks the one whom Ann has written to; what comes of it is announced to her."""

    def __init__(self, telegram: Telegram) -> None:
        super().__init__(telegram)
        self.model = ScriptedModel(replies=self.reply)

    def reply(self, request: ModelRequest) -> Scripted:
        last = request.messages[-1]
        if "announce step" in last.text:
            return NEWS
        if last.text == "go":
            return [call("sessions_send", sessionKey="agent:writer:main", message="ask", timeoutSeconds=30)]
        return "done" if last.role is Role.TOOL_RESULT else "a reply"

    def equip(self, gateway: Gateway) -> None:
        gateway.add_model(self.model)

    async def drive(self, gateway: Gateway) -> None:
        await super().drive(gateway)
        await gateway.ask("main", "go", run_id="go")
        await at_rest(gateway)

    def check(self, database: sqlite3.Connection) -> None:
        assert not self.model.refused, self.model.refused
        assert [state for (state,) in database.execute("SELECT state FROM exchanges")] == ["done"]
        rows = database.execute("SELECT state FROM deliveries WHERE exchange_id IS NOT NULL").fetchall()
        assert len(rows) == 1, "announced once"
        self.check_seen(("a reply", NEWS), {state for (state,) in database.execute("SELECT state FROM deliveries")})


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every piece of a reply is shown at once."""
    monkeypatch.setattr(asking, "DELTA_INTERVAL_S", 0.0)
    monkeypatch.setattr(TelegramChannel, "draft_interval_s", 0.0)


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(("flow", "calls"), [(Grown, 12), (InOnePiece, 6), (DraftLost, 2), (Announced, 6)])
async def test_everything_is_taken_and_seen_once_wherever_the_process_dies(
    flow: type[Grown], calls: int, record_property: Callable[[str, object], None]
) -> None:
    async with Telegram() as telegram:
        config: dict[str, Any] = {
            "agents": AGENTS,
            "session": {"agentToAgent": {"maxPingPongTurns": 0}},
            "tools": {"sessions": {"visibility": "all"}, "agentToAgent": {"enabled": True}},
            "channels": {"telegram": telegram.settings(maxTextLength=30)},
            "bindings": [{"match": {"channel": "telegram"}, "agentId": "writer"}],
        }
        points = await kill_at_every_commit(lambda: flow(telegram), config)
        record_property(CRASH_POINTS, (f"{flow.__name__} on Telegram, at commits", points))
        sends = await kill_at_every_call(lambda: flow(telegram), config)
        record_property(CRASH_POINTS, (f"{flow.__name__} on Telegram, at calls", sends))
    assert points >= 10 and sends >= calls
