"""Control words are meant for the gateway: no door shows one to a person."""

from __future__ import annotations

from pathlib import Path

import pytest

from backchannel.agents.scripted import ScriptedModel
from backchannel.cli.conversation import ReplyView
from tests.tools.door import doors
from tests.tools.shelf import Shelf

pytestmark = pytest.mark.anyio

CONFIG = {"agents": {"list": [{"id": "main", "model": "scripted/test"}]}}


@pytest.mark.parametrize("word", ["NO_REPLY", "REPLY_SKIP\n"])
async def test_neither_agent_nor_chat_send_shows_a_control_word(tmp_path: Path, word: str) -> None:
    model = ScriptedModel(replies=lambda request: word)
    async with doors(Shelf(tmp_path / "state"), CONFIG, model) as at:
        answers = await at.client.begin("agent", {"sessionKey": "main", "message": "hello"})
        assert (await at.client.take(answers))["status"] == "accepted"
        ended = await at.client.take(answers)
        assert (ended["status"], ended["result"]["payloads"]) == ("ok", [])
        run = await at.client.ask("chat.send", sessionKey="main", message="hello")
        final = await at.client.event("chat", runId=run["runId"], state="final")
        assert final["message"]["content"] == []
        assert [event for event in at.client.seen("chat") if event["state"] == "delta"] == []


def test_the_reply_that_a_terminal_shows_is_never_a_control_word(capsys: pytest.CaptureFixture[str]) -> None:
    for reply in ("NO_REPLY", " ANNOUNCE_SKIP\n", "REPLY_SKIP"):
        ReplyView("r", is_live=False).end(reply)
    assert capsys.readouterr().out == ""
    ReplyView("r", is_live=False).end("NO_REPLY is a word")
    assert capsys.readouterr().out == "NO_REPLY is a word\n"
