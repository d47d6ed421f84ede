"""Files that agents send with their reply, on every platform that takes them."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest

from backchannel.agents.scripted import Scripted, ScriptedModel, call
from backchannel.core.delivery.attached import MAX_FILE_BYTES, content_type
from backchannel.core.delivery.delivery import DeliveryState, Receipt
from tests.channels.desk import ChannelDesk, desk
from tests.channels.worlds import WORLDS, FileWorld, PigeonWorld
from tests.gateway.client import OPERATOR
from tests.support.clocks import StageClock
from tests.support.gateways import session_of
from tests.support.resting import at_rest

pytestmark = pytest.mark.anyio
S = DeliveryState
PNG = b"\x89PNG\r\n\x1a\n" + b"\0" * 40
REPORT = b"the report\n" * 100
TOOLS: dict[str, Any] = {"tools": {"allow": ["group:fs", "group:sessions"]}}


@pytest.fixture(params=[world for world in WORLDS if issubclass(world, FileWorld)], ids=attrgetter("name"))
async def world(request: pytest.FixtureRequest) -> AsyncIterator[FileWorld]:
    async with request.param.opened() as world:
        world.take_files()
        yield world


def _workspace(state: Path, **files: bytes) -> None:
    folder = state / "agents" / "main" / "workspace"
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name.replace("_", ".")).write_bytes(content)


def _sending(*calls: dict[str, str], reply: str = "here it is") -> ScriptedModel:
    return ScriptedModel(replies=[[call("attach", **each) for each in calls], reply])


async def _answered(at: ChannelDesk, world: Any, state: DeliveryState = S.SENT) -> Receipt:
    await world.say(at.gateway, "go", "1")
    receipt = await at.becomes(state)
    await at_rest(at.gateway)
    return await at.gateway.store.receipt(receipt.delivery.id)


async def test_a_file_is_sent_after_the_reply_as_it_was_when_the_agent_said_so(
    world: FileWorld, tmp_path: Path
) -> None:
    _workspace(tmp_path, report_txt=REPORT, photo_png=PNG)
    calls = {"path": "report.txt", "caption": "the numbers"}, {"path": "photo.png"}

    def reply(request: Any) -> Scripted:
        if request.messages[-1].role == "user":
            return [call("attach", **each) for each in calls]
        _workspace(tmp_path, report_txt=b"changed since")
        return "here it is"

    async with desk(tmp_path, world.settings, model=ScriptedModel(replies=reply), **TOOLS) as at:
        receipt = await _answered(at, world)
    assert world.texts[0] == "here it is" and "the numbers" in world.texts[1]
    assert world.files == [("report.txt", REPORT), ("photo.png", PNG)]
    assert [(part.n, part.state) for part in receipt.parts] == [(1, S.SENT), (2, S.SENT), (3, S.SENT)]
    assert all(part.message_id for part in receipt.parts), "each has a receipt of its own"


async def test_a_reply_of_files_alone_is_sent_too(world: FileWorld, tmp_path: Path) -> None:
    _workspace(tmp_path, report_txt=REPORT)
    async with desk(tmp_path, world.settings, model=_sending({"path": "report.txt"}, reply="NO_REPLY"), **TOOLS) as at:
        await _answered(at, world)
    assert world.files == [("report.txt", REPORT)] and len(world.texts) == 1


async def test_a_file_that_is_refused_becomes_a_line_with_a_key_of_its_own(world: FileWorld, tmp_path: Path) -> None:
    _workspace(tmp_path, report_txt=REPORT)
    world.refuse_files()
    async with desk(tmp_path, world.settings, model=_sending({"path": "report.txt"}), **TOOLS) as at:
        receipt = await _answered(at, world)
    assert world.files == [] and "[file report.txt, 2 KB: not sent" in world.texts[1]
    assert receipt.parts[1].key == f"{receipt.delivery.id}/2/instead"


async def test_a_file_that_may_have_arrived_is_sent_again_only_by_key(world: FileWorld, tmp_path: Path) -> None:
    _workspace(tmp_path, report_txt=REPORT)
    world.lose_file()
    model = _sending({"path": "report.txt"})
    async with desk(tmp_path, world.settings, model=model, clock=StageClock(), **TOOLS) as at:
        await _answered(at, world, S.SENT if world.takes_key else S.UNCERTAIN)
    assert world.files == [("report.txt", REPORT)]


async def test_a_chat_that_takes_no_file_gets_a_line_and_the_door_gives_it_to_a_reader(tmp_path: Path) -> None:
    world = PigeonWorld()
    _workspace(tmp_path, report_txt=REPORT)
    async with desk(tmp_path, {}, *world.own, model=_sending({"path": "report.txt"}), **TOOLS) as at:
        await _answered(at, world)
        history = await at.gateway.store.receipts(limit=9)
        (message,) = [each for each in await _messages(at) if each.attached is not None]
        copy = message.attached
        assert copy is not None and (copy.name, copy.mime_type, copy.size) == ("report.txt", "text/plain", 1100)
        address = f"/media/{copy.file}/{copy.name}"
        assert (await at.http.get(address)).status_code == 401
        given = await at.http.get(address, headers={"Authorization": f"Bearer {OPERATOR}"})
        assert given.content == REPORT and "attachment" in given.headers["content-disposition"]
        missing = await at.http.get("/media/..%2Fx/y", headers={"Authorization": f"Bearer {OPERATOR}"})
        assert missing.status_code == 404
    assert len(history) == 1 and world.texts == [
        "here it is",
        "[file report.txt, 2 KB: not sent, this chat takes no files]",
    ]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_of_the_openai_door_gets_a_link_that_needs_the_token(tmp_path: Path, stream: bool) -> None:
    _workspace(tmp_path, report_txt=REPORT)
    door = {"port": 0, "http": {"chatCompletions": True}}
    asked = {"model": "main", "messages": [{"role": "user", "content": "go"}], "stream": stream}
    async with desk(tmp_path, {}, model=_sending({"path": "report.txt"}), gateway=door, **TOOLS) as at:
        headers = {"Authorization": f"Bearer {OPERATOR}"}
        answer = await at.http.post("/v1/chat/completions", json=asked, headers=headers)
        (link,) = re.findall(r"\[report\.txt\]\((/media/\w+\.bin/report\.txt)\)", answer.text)
        assert "here it is" in answer.text
        assert (await at.http.get(link)).status_code == 401
        assert (await at.http.get(link, headers=headers)).content == REPORT


async def _messages(at: ChannelDesk) -> list[Any]:
    session_id = (await session_of(at.gateway)).session_id
    page = await at.gateway.store.history(session_id, limit=50, before=None, after=None, with_tools=True)
    return list(page.messages)


@pytest.mark.parametrize(
    ("path", "problem"),
    [("gone.txt", "gone.txt"), ("../token", "leads out"), ("empty.txt", "is empty"), ("large.bin", "more than 20 MB")],
)
async def test_a_file_that_cannot_be_taken_is_an_error_for_the_model(tmp_path: Path, path: str, problem: str) -> None:
    world = PigeonWorld()
    _workspace(tmp_path, empty_txt=b"", large_bin=b"x" * (MAX_FILE_BYTES + 1))
    model = _sending({"path": path})
    async with desk(tmp_path, {}, *world.own, model=model, **TOOLS) as at:
        await _answered(at, world)
        (result,) = [each for each in await _messages(at) if each.role == "toolResult"]
    assert result.is_error and result.attached is None and problem in result.text
    assert world.texts == ["here it is"]


def test_the_type_of_a_file_is_that_of_its_content() -> None:
    known = {PNG: "image/png", b"%PDF-1.7": "application/pdf", b"PK\x03\x04": "application/zip", b"a,b": "text/plain"}
    assert {content: content_type(content) for content in known} == known
    assert content_type(b"\xff\xfe\0") == content_type(b"a\0b") == "application/octet-stream"
