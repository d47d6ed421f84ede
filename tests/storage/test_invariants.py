"""Whatever happens in whatever order, the rows agree with each other and the files with the rows."""

from __future__ import annotations

import random
from collections import Counter
from contextlib import suppress

import pytest

from backchannel.core.keys import SessionKey
from backchannel.core.messages import Message, Role, decode_message
from backchannel.core.runs import RunStarted, RunState
from backchannel.core.sessions import SessionPatch
from backchannel.errors import FenceLost, GatewayError, StopRequested
from tests.storage.support import ABORTED, CRON, FAILED, MAIN, Host, accept, note, partial_reply, result_of, step

pytestmark = pytest.mark.anyio

KEYS = (MAIN, CRON, SessionKey.of("main", "project"))


class Mischief:
    """Does something at random, as doors, lanes and crashes do, with the runs that this process holds."""

    def __init__(self, host: Host, seed: int) -> None:
        self._host = host
        self._random = random.Random(seed)
        self._held: dict[str, RunStarted] = {}
        self._count = 0
        self.accepted: list[str] = []

    async def act(self) -> None:
        actions = [self.send] * 6 + [self.start] * 4 + [self.step] * 10 + [self.answer_call] * 10
        actions += [self.leave_note] * 3 + [self.abort, self.fail, self.reset, self.delete, self.retry, self.patch]
        actions += [self.crash]
        self._host.clock.tick(self._random.choice((0, 0, 1, -1)))
        with suppress(GatewayError, FenceLost, StopRequested):
            await self._random.choice(actions)()

    @property
    def _key(self) -> SessionKey:
        return self._random.choice(KEYS)

    def _text(self) -> str:
        self._count += 1
        return f"text {self._count}"

    def _one(self) -> RunStarted:
        if not self._held:
            raise FenceLost("nobody")
        return self._random.choice(list(self._held.values()))

    def _hold(self, started: RunStarted | None) -> None:
        if started is not None:
            self._held[started.run.id] = started

    async def send(self) -> None:
        text = self._text()
        accepted = await accept(self._host.store, text, self._key)
        self.accepted.append(accepted.run.id)
        self._hold(accepted.started)

    async def start(self) -> None:
        self._hold(await self._host.store.start_next(str(self._key)))

    async def leave_note(self) -> None:
        await self._host.store.add_note(self._key, note(self._text(), self._host.clock.ms))

    async def step(self) -> None:
        held = self._one()
        if await self._host.store.open_calls(held.run.id):
            return
        run = await self._host.store.run(held.run.id)
        assert run is not None
        calls = ["tool"] * self._random.choice((0, 1, 3))
        await self._host.store.commit_reply(held.fence, step(held, self._text(), calls, number=run.step))

    async def answer_call(self) -> None:
        held = self._one()
        if calls := await self._host.store.open_calls(held.run.id):
            call = self._random.choice(calls)
            await self._host.store.start_call(held.fence, call.id)
            await self._host.store.commit_result(held.fence, result_of(call), 1)

    async def fail(self) -> None:
        held = self._one()
        run = await self._host.store.run(held.run.id)
        assert run is not None
        outcome = ABORTED if run.abort_requested else FAILED
        reply = None if await self._host.store.open_calls(run.id) else partial_reply(held, self._text())
        await self._host.store.finish_run(held.fence, outcome, reply=reply, at_step=run.step, ran_ms=1)
        del self._held[held.run.id]

    async def abort(self) -> None:
        run_id = self._random.choice([None, *self.accepted])
        await self._host.store.request_abort(str(self._key), run_id)

    async def reset(self) -> None:
        await self._host.store.reset_session(self._key)

    async def delete(self) -> None:
        await self._host.store.delete_session(self._key)

    async def retry(self) -> None:
        if self.accepted:
            await self._host.store.retry_run(self._random.choice(self.accepted))

    async def patch(self) -> None:
        await self._host.store.patch_session(self._key, SessionPatch(label=self._random.choice(("a", "b", None))))

    async def crash(self) -> None:
        store = await self._host.restart(clean=self._random.random() < 0.5)
        self._held.clear()
        for entry in await store.interrupted_runs():
            self._hold(await store.resume_run(entry.run_id))


def check_rows(host: Host, accepted: list[str]) -> None:
    live = Counter(host.rows("SELECT session_key, state FROM runs WHERE state IN ('queued', 'running')"))
    for key, queued, running, archived_at, session_id in host.rows(
        "SELECT key, queued, running_run, archived_at, session_id FROM sessions"
    ):
        assert queued == live[key, "queued"]
        assert (running is not None) == live[key, "running"] <= 1
        if archived_at is not None:
            assert (queued, running) == (0, None)
        ((ended_at,),) = host.rows("SELECT ended_at FROM session_ids WHERE session_id = ?", session_id)
        assert (ended_at is not None) == (archived_at is not None)
    for session_id, next_seq in host.rows("SELECT session_id, next_seq FROM session_ids"):
        seqs = host.rows("SELECT seq FROM messages WHERE session_id = ? ORDER BY seq", session_id)
        assert [seq for (seq,) in seqs] == list(range(next_seq))
    assert [run_id for (run_id,) in host.rows("SELECT id FROM runs ORDER BY position")] == accepted
    open_calls = "SELECT 1 FROM tool_calls JOIN runs ON runs.id = run_id WHERE runs.state <> 'running'"
    assert host.rows(f"{open_calls} AND tool_calls.state <> 'done'") == []


def check_transcripts(host: Host) -> None:
    runs = dict(host.rows("SELECT id, state FROM runs"))
    spoken = set()
    for (session_id,) in host.rows("SELECT session_id FROM session_ids"):
        bodies = host.rows("SELECT body FROM messages WHERE session_id = ? ORDER BY seq", session_id)
        messages = [decode_message(body) for (body,) in bodies]
        check_calls(messages, runs)
        spoken |= {message.run_id for message in messages}
    for run_id, state, started_at in host.rows("SELECT id, state, started_at FROM runs"):
        assert (started_at is None) == (run_id not in spoken), state


def check_calls(messages: list[Message], runs: dict[str, str]) -> None:
    """Check that results, and nothing else, follow each reply with calls until each has one."""
    waiting: set[str] = set()
    asker = ""
    for message in messages:
        if message.role is Role.TOOL_RESULT:
            assert message.tool_call_id in waiting
            waiting.remove(message.tool_call_id)
            continue
        assert not waiting
        waiting = {call.id for call in message.tool_calls}
        asker = message.run_id or ""
    assert not waiting or runs[asker] == RunState.RUNNING


def check_files(host: Host) -> None:
    for session_id, key, reason in host.rows("SELECT session_id, key, end_reason FROM session_ids"):
        bodies = host.rows("SELECT body FROM messages WHERE session_id = ? ORDER BY seq", session_id)
        folder = host.path / "agents" / SessionKey.stored(key).agent / "sessions"
        pattern = f"{session_id}.jsonl.deleted.*" if reason == "deleted" else f"{session_id}.jsonl"
        files = list(folder.glob(pattern))
        assert len(files) == bool(bodies)
        for file in files:
            assert file.read_text().split("\n") == [*(body for (body,) in bodies), ""]


@pytest.mark.parametrize("seed", range(12))
async def test_rows_transcripts_and_files_agree_after_anything(host: Host, seed: int) -> None:
    mischief = Mischief(host, seed)
    for _ in range(8):
        for _ in range(25):
            await mischief.act()
        check_rows(host, mischief.accepted)
        check_transcripts(host)
    await host.stop()
    check_files(host)


async def test_what_is_archived_is_never_written_again(host: Host) -> None:
    mischief = Mischief(host, 99)
    closed: dict[str, int] = {}
    for _ in range(40):
        for _ in range(10):
            await mischief.act()
        now = dict(host.rows("SELECT session_id, next_seq FROM session_ids WHERE end_reason = 'deleted'"))
        assert closed.items() <= now.items()
        closed = now
    assert closed
