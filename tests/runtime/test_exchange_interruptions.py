"""An open exchange whose session is stopped, reset or deleted, or whose run is aborted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from backchannel.agents.scripted import Reply
from backchannel.core.commands.commands import Command, CommandName, Rank
from backchannel.core.sessions import Address, write_address
from tests.support.gateways import session_of, settled
from tests.support.talks import Talk, config, send, talking
from tests.tools.shelf import Shelf

pytestmark = pytest.mark.anyio

AB = config("a", "b")
# Not the main sessions, which cannot be deleted.
ASKER, ASKED = "agent:a:asker", "agent:b:asked"
WEBCHAT = write_address(Address(channel="webchat"))
STEPS = {"primary": ("b", "request"), "turn 1": ("a", "turn"), "turn 2": ("b", "turn"), "announce": ("b", "announce")}


class Held:
    """An exchange that stands still in one of its steps."""

    def __init__(self, talk: Talk, gate: asyncio.Event, asking: str) -> None:
        self.talk = talk
        self.gate = gate
        self.asking = asking

    async def change(self, what: str, key: str) -> None:
        gateway = self.talk.gateway
        match what:
            case "reset":
                await gateway.store.reset_session(gateway.key(key))
            case "stop":
                command = Command(CommandName.STOP)
                await gateway.store.carry_out(command, gateway.key(key), Rank.OWNER, None)
            case "delete":
                await gateway.runtime.delete(gateway.key(key))
            case "abort":
                await gateway.runtime.abort(key, None)

    async def over(self) -> dict[str, Any]:
        self.gate.set()
        async with asyncio.timeout(20):
            await settled(self.talk.gateway)
        exchange = self.talk.exchange()
        assert exchange["state"] == "done"
        assert not self.talk.rows("SELECT * FROM waits")
        return exchange

    def kinds(self) -> list[tuple[str, str]]:
        return [(kind, state) for _, kind, state in self.talk.runs() if kind != "message"]

    @property
    def receipt(self) -> str:
        ((state, _),) = self.talk.receipts()
        return state

    async def notes(self) -> list[str]:
        return [message.text for message in await self.talk.said_to(ASKER) if message.text.startswith(("[Late", "[No"))]


@asynccontextmanager
async def held(tmp_path: Path, step: str, *, waiting: bool = True) -> AsyncIterator[Held]:
    """Open an exchange between two side sessions, and let it come to a step."""
    shelf = Shelf(tmp_path / "state")
    shelf.session(ASKER, "hello")
    shelf.session(ASKED, "hello", delivery_context=WEBCHAT)
    gate, reached = asyncio.Event(), asyncio.Event()
    says: dict[str, dict[str, Any]] = {
        "a": {"person": send(ASKED, timeoutSeconds=30 if waiting else 0), "turn": ["more?", "REPLY_SKIP"]},
        "b": {"request": "fine", "turn": "more", "announce": "we talked"},
    }
    name, part = STEPS[step]
    before = says[name][part]
    text = before if isinstance(before, str) else before[0]
    says[name][part] = [Reply(text=text, gate=gate, reached=reached), "afterwards"]
    async with talking(shelf.state, AB, a=says["a"], b=says["b"]) as talk:
        run = await talk.gateway.submit(ASKER, "ask b")
        async with asyncio.timeout(20):
            await reached.wait()
        try:
            yield Held(talk, gate, run.id)
        finally:
            gate.set()


# The caller no longer waits, because its run was stopped


@pytest.mark.parametrize("what", ["abort", "stop", "reset"])
async def test_a_caller_that_is_stopped_while_it_waits_still_gets_the_reply(tmp_path: Path, what: str) -> None:
    async with held(tmp_path, "primary") as exchange:
        await exchange.change(what, ASKER)
        body = await exchange.over()
        talk = exchange.talk
        assert (await talk.gateway.store.run(exchange.asking)).state == "aborted"  # type: ignore[union-attr]
        assert exchange.receipt == "sent"
        if what == "abort":  # only that run was stopped: the exchange goes on as ever
            assert exchange.kinds()[:2] == [("primary", "ok"), ("turn", "ok")]
            assert "no longer waiting for" in talk.players["a"].prompts("turn")[0]
            assert await exchange.notes() == []
        else:
            assert exchange.kinds() == [("primary", "ok"), ("announce", "ok")]
            (note,) = await exchange.notes()
            assert "\nfine\n" in note
        assert body["has_reply"] is True


async def test_a_caller_that_times_out_while_it_waits_still_gets_the_reply(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path / "state")
    gate = asyncio.Event()
    settings = config("a", "b", defaults={"timeoutSeconds": 1})
    a = {"person": send(timeoutSeconds=20)}
    b = {"request": [Reply(text="fine", gate=gate)]}
    async with talking(shelf.state, settings, a=a, b=b) as talk:
        run = await talk.gateway.submit("agent:a:main", "ask b")
        waited = await talk.gateway.runtime.wait(run.id, 20)
        assert waited.state == "timeout"
        await settled(talk.gateway)
        # Both had a second, and the target began a moment later: whether it failed too or not, the caller is told.
        told = [message.text for message in await talk.said_to("agent:a:main")][1:]
        assert len(told) == 1
        assert told[0].startswith("[No reply from") or "no longer waiting for" in told[0]


# The requester changes


@pytest.mark.parametrize("what", ["stop", "reset"])
@pytest.mark.parametrize("step", ["turn 1", "turn 2"])
async def test_a_requester_that_is_stopped_or_reset_ends_the_turns_and_the_announce_runs(
    tmp_path: Path, step: str, what: str
) -> None:
    async with held(tmp_path, step) as exchange:
        await exchange.change(what, ASKER)
        body = await exchange.over()
        spoken = ("turn", "aborted") if step == "turn 1" else ("turn", "ok")
        assert exchange.kinds()[-2:] == [spoken, ("announce", "ok")]
        assert exchange.receipt == "sent"
        assert body["loop_end"] == f"the requester was {'stopped' if what == 'stop' else 'reset'}"


@pytest.mark.parametrize("step", STEPS)
async def test_a_requester_that_is_deleted_ends_the_turns_and_the_announce_runs(tmp_path: Path, step: str) -> None:
    async with held(tmp_path, step) as exchange:
        await exchange.change("delete", ASKER)
        await exchange.over()
        assert exchange.receipt == "sent"
        assert exchange.kinds()[0] == ("primary", "ok")
        assert exchange.kinds()[-1] == ("announce", "ok")
        assert (await session_of(exchange.talk.gateway, ASKER)).archived_at is not None
        assert await exchange.notes() == []


@pytest.mark.parametrize("what", ["stop", "reset"])
async def test_an_announce_does_not_mind_what_happens_to_the_requester(tmp_path: Path, what: str) -> None:
    async with held(tmp_path, "announce") as exchange:
        await exchange.change(what, ASKER)
        await exchange.over()
        assert exchange.receipt == "sent"


# The target changes


@pytest.mark.parametrize("what", ["stop", "reset", "delete", "abort"])
async def test_a_target_that_is_stopped_in_the_primary_run_is_an_error_for_the_caller(
    tmp_path: Path, what: str
) -> None:
    async with held(tmp_path, "primary") as exchange:
        await exchange.change(what, ASKED)
        await exchange.over()
        assert exchange.kinds() == [("primary", "aborted")]
        assert exchange.receipt == "cancelled"
        (result,) = await exchange.talk.results(ASKER)
        assert result["status"] == "error"
        assert "aborted" in result["error"]
        assert result.keys() == {"runId", "status", "error", "sessionKey"}
        assert await exchange.notes() == []


@pytest.mark.parametrize("what", ["stop", "reset", "delete"])
async def test_a_caller_that_did_not_wait_is_told_that_no_reply_will_come(tmp_path: Path, what: str) -> None:
    async with held(tmp_path, "primary", waiting=False) as exchange:
        await exchange.change(what, ASKED)
        await exchange.over()
        (note,) = await exchange.notes()
        assert note.startswith("[No reply from")


@pytest.mark.parametrize("what", ["stop", "reset"])
async def test_a_primary_run_still_queued_is_cancelled_when_its_target_is_stopped_or_reset(
    tmp_path: Path, what: str
) -> None:
    shelf = Shelf(tmp_path / "state")
    shelf.session(ASKED, "hello", delivery_context=WEBCHAT)
    gate, reached = asyncio.Event(), asyncio.Event()
    b = {"person": [Reply(text="busy", gate=gate, reached=reached), "after"], "request": "fine"}
    async with talking(shelf.state, AB, b=b) as talk:
        await talk.gateway.submit(ASKED, "work")
        await talk.gateway.submit(ASKED, "more work")
        async with asyncio.timeout(20):
            await reached.wait()
        await talk.gateway.tools().sessions_send(sessionKey=ASKED, message="hello", timeoutSeconds=0)
        await Held(talk, gate, "").change(what, ASKED)
        await settled(talk.gateway)
        assert talk.runs() == [
            (ASKED, "message", "aborted"),
            (ASKED, "message", "ok"),
            (ASKED, "primary", "aborted"),
        ]
        assert [state for state, _ in talk.receipts()] == ["cancelled"]


@pytest.mark.parametrize("what", ["stop", "reset"])
@pytest.mark.parametrize("step", ["turn 1", "turn 2"])
async def test_a_target_that_is_stopped_or_reset_later_ends_the_turns_and_the_announce_runs(
    tmp_path: Path, step: str, what: str
) -> None:
    async with held(tmp_path, step) as exchange:
        await exchange.change(what, ASKED)
        await exchange.over()
        assert exchange.kinds()[-2] == ("turn", "ok" if step == "turn 1" else "aborted")
        assert exchange.kinds()[-1] == ("announce", "ok")
        assert exchange.receipt == "sent"


async def test_a_target_that_is_reset_in_its_announce_is_asked_again(tmp_path: Path) -> None:
    async with held(tmp_path, "announce") as exchange:
        await exchange.change("reset", ASKED)
        await exchange.over()
        assert exchange.kinds()[-2:] == [("announce", "aborted"), ("announce", "ok")]
        assert exchange.talk.rows("SELECT state, text FROM deliveries") == [("sent", "afterwards")]


@pytest.mark.parametrize("what", ["stop", "abort"])
async def test_an_announce_that_is_stopped_has_failed(tmp_path: Path, what: str) -> None:
    async with held(tmp_path, "announce") as exchange:
        await exchange.change(what, ASKED)
        await exchange.over()
        assert exchange.kinds()[-1] == ("announce", "aborted")
        assert exchange.receipt == "failed"


@pytest.mark.parametrize("step", ["turn 1", "turn 2", "announce"])
async def test_a_target_that_is_deleted_cancels_the_receipt(tmp_path: Path, step: str) -> None:
    async with held(tmp_path, step) as exchange:
        await exchange.change("delete", ASKED)
        await exchange.over()
        assert exchange.receipt == "cancelled"
        assert exchange.talk.rows("SELECT text FROM deliveries") == [(None,)]
        assert (await session_of(exchange.talk.gateway, ASKED)).archived_at is not None


@pytest.mark.parametrize(("step", "key"), [("turn 1", ASKER), ("turn 2", ASKED)])
async def test_an_aborted_turn_is_a_failed_turn(tmp_path: Path, step: str, key: str) -> None:
    async with held(tmp_path, step) as exchange:
        await exchange.change("abort", key)
        body = await exchange.over()
        assert body["loop_end"] == f"{step} ended as aborted"
        assert exchange.kinds()[-2:] == [("turn", "aborted"), ("announce", "ok")]
        assert exchange.receipt == "sent"


async def test_a_session_that_is_being_deleted_cannot_be_sent_to(tmp_path: Path) -> None:
    async with held(tmp_path, "primary") as exchange:
        talk = exchange.talk
        talk.execute("UPDATE sessions SET deleting = 1 WHERE key = ?", ASKED)
        before = talk.counts()
        result = await talk.gateway.tools().sessions_send(sessionKey=ASKED, message="hello")
        assert result["status"] == "error"
        assert talk.counts() == before
        talk.execute("UPDATE sessions SET deleting = 0 WHERE key = ?", ASKED)
        await exchange.over()
