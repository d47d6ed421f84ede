"""Messages from outside killed at every commit: one and its answer in parts, at every send too, and a stranger's."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from typing import Any

import pytest

from backchannel.agents.scripted import ScriptedModel
from backchannel.core.contracts import ModelRequest
from backchannel.core.pairing import APPROVED_TEXT, code_text
from backchannel.gateway.app import Gateway
from tests.conftest import CRASH_POINTS
from tests.support.far_end import FarEnd, event, signed
from tests.support.kill import kill_at_every_commit, kill_at_every_send
from tests.support.resting import at_rest

pytestmark = pytest.mark.anyio
ANSWER = "the first line\nthe second line\nthe third line"


class AnsweredInParts:
    """Somebody writes, and somebody else a command; the far end posts both until they are taken."""

    def __init__(self, far_end: FarEnd) -> None:
        self.far_end = far_end
        far_end.messages.clear()
        far_end.posts.clear()
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
        far_end.messages.clear()
        far_end.posts.clear()

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


def _config(far_end: FarEnd) -> dict[str, object]:
    channels = {"desk": far_end.settings(maxTextLength=20)}
    return {"agents": {"list": [{"id": "main", "model": "scripted/test"}]}, "channels": channels}


async def test_nothing_is_lost_or_posted_twice_wherever_a_commit_is_cut(
    record_property: Callable[[str, object], None],
) -> None:
    async with FarEnd() as far_end:
        points = await kill_at_every_commit(lambda: AnsweredInParts(far_end), _config(far_end))
    record_property(CRASH_POINTS, ("AnsweredInParts, at commits", points))
    assert points >= 16


async def test_nothing_is_lost_or_posted_twice_wherever_a_send_is_cut(
    record_property: Callable[[str, object], None],
) -> None:
    async with FarEnd() as far_end:
        points = await kill_at_every_send(lambda: AnsweredInParts(far_end), far_end, "desk", _config(far_end))
    record_property(CRASH_POINTS, ("AnsweredInParts, at sends", points))
    assert points >= 9
