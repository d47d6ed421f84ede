"""Files that people send: what is kept of them, what is told of them, and what is not let in."""

from __future__ import annotations

from pathlib import Path

import pytest

from backchannel.agents.scripted import ScriptedModel
from backchannel.core.channels import (
    Channel,
    ChannelSettings,
    FileKind,
    InboundEvent,
    IncomingFile,
    OutboundPart,
    Sent,
)
from backchannel.core.keys import ChatType
from tests.support.gateways import echo, running, settled, texts_of

pytestmark = pytest.mark.anyio


class Album(Channel):
    """A platform on which Ann, and nobody else, is known."""

    name = "album"
    settings = ChannelSettings(allow_from=("ann",))

    async def send(self, part: OutboundPart) -> Sent:
        return Sent()


def said(text: str = "", *, message_id: str = "1", sender_id: str = "ann") -> InboundEvent:
    return InboundEvent(chat_type=ChatType.DIRECT, chat_id="C", sender_id=sender_id, message_id=message_id, text=text)


class Sending:
    """A file as a platform offers it; counts how often it was fetched."""

    def __init__(self, *answers: bytes | Exception) -> None:
        self.answers = list(answers)
        self.fetched = 0

    async def fetch(self) -> bytes:
        self.fetched += 1
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def file(
        self, kind: FileKind = FileKind.FILE, name: str | None = "report.pdf", mime_type: str | None = None
    ) -> IncomingFile:
        return IncomingFile(kind, name, None, mime_type, self.fetch)


async def test_a_message_of_files_alone_is_answered_and_one_of_nothing_is_not(tmp_path: Path) -> None:
    async with running(tmp_path, ScriptedModel(replies=echo), equip=lambda g: g.add_channel(Album())) as gateway:
        answer = await gateway.inbound.receive("album", said(), [Sending(b"%PDF").file()])
        nothing = await gateway.inbound.receive("album", said(message_id="2"))
        await settled(gateway)
        assert await texts_of(gateway) == ["[file report.pdf]", "re: [file report.pdf]"]
    assert (answer.verdict, nothing.verdict) == ("answer", "ignore")
    assert nothing.reason == "there is neither a text nor a file in it"
