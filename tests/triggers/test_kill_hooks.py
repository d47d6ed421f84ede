"""A hook whose reply is delivered, and a wake, killed at every commit and at every send."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable

import httpx
import pytest

from backchannel.agents.scripted import ScriptedModel
from backchannel.core.contracts import ModelRequest
from backchannel.errors import Unavailable
from backchannel.gateway.app import Gateway
from backchannel.gateway.http import Web
from tests.conftest import CRASH_POINTS
from tests.support.far_end import FarEnd
from tests.support.kill import cut_commits, cut_sends
from tests.support.resting import at_rest

pytestmark = pytest.mark.anyio
TOKEN = "the-hook-token-of-the-tests"
HOOK = {"message": "the build failed", "deliver": True, "channel": "desk", "to": "C-1", "idempotencyKey": "b-17"}
WAKE = {"text": "a build failed", "idempotencyKey": "w-17"}


class PostedTwice:
    """A program posts a hook and a wake, and posts both again for as long as it has no answer."""

    def __init__(self, far_end: FarEnd) -> None:
        self.far_end = far_end
        far_end.messages.clear()
        far_end.posts.clear()
        self.model = ScriptedModel(replies=self.reply)

    def reply(self, request: ModelRequest) -> str:
        return "I will look"

    def equip(self, gateway: Gateway) -> None:
        gateway.add_model(self.model)

    async def drive(self, gateway: Gateway) -> None:
        transport = httpx.ASGITransport(Web(gateway.parts, "the-operator-token-of-the-tests"))
        headers = {"Authorization": f"Bearer {TOKEN}"}
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1", headers=headers) as http:
            for path, body, status in (("agent", HOOK, 202), ("wake", WAKE, 200)):
                answers = [await http.post(f"/hooks/{path}", json=body) for _ in range(2)]
                if any(answer.status_code == 503 for answer in answers):
                    raise Unavailable("the process is dead")
                assert [answer.status_code for answer in answers] == [status] * 2
                assert answers[0].json() == answers[1].json()
        await at_rest(gateway)

    def check(self, database: sqlite3.Connection) -> None:
        assert not self.model.refused, self.model.refused
        runs = database.execute("SELECT id, kind, state, reply FROM runs").fetchall()
        assert runs == [("hook/b-17", "hook", "ok", "I will look")]
        assert database.execute("SELECT state, run_id, target FROM deliveries").fetchall() == [
            ("sent", "hook/b-17", "C-1")
        ]
        assert [message.text for message in self.far_end.messages] == ["I will look"]
        notes = database.execute("SELECT body FROM messages WHERE role = 'system'").fetchall()
        assert len(notes) == 1 and "a build failed" in notes[0][0]
        assert database.execute("SELECT count(*) FROM sessions WHERE kind = 'hook'").fetchall() == [(1,)]


def _config(far_end: FarEnd) -> dict[str, object]:
    return {
        "agents": {"list": [{"id": "main", "model": "scripted/test"}]},
        "channels": {"desk": far_end.settings()},
        "hooks": {"enabled": True, "token": TOKEN, "allowDeliver": ["desk"]},
    }


async def test_a_hook_runs_once_and_is_answered_once_wherever_a_commit_is_cut(
    record_property: Callable[[str, object], None],
) -> None:
    points = await cut_commits(PostedTwice, _config)
    record_property(CRASH_POINTS, ("PostedTwice, at commits", points))
    assert points >= 12


async def test_a_hook_runs_once_and_is_answered_once_wherever_a_send_is_cut(
    record_property: Callable[[str, object], None],
) -> None:
    points = await cut_sends(PostedTwice, _config)
    record_property(CRASH_POINTS, ("PostedTwice, at sends", points))
    assert points >= 3
