"""Pictures that people sent: kept once, shown to models that see, and never a reason for a run to fail."""

from __future__ import annotations

import base64
import os
import sqlite3
from pathlib import Path

import pytest
from msgspec.structs import replace

from backchannel.agents.scripted import ScriptedModel
from backchannel.core.contracts import ModelFailed, ModelRequest
from backchannel.core.cut import MOST_PICTURE_BYTES
from backchannel.core.delivery.received import MAX_IMAGE_BYTES
from backchannel.core.messages import ImageBlock, Message, TextBlock, text_content
from backchannel.core.requests import MOST_PICTURES_SHOWN
from backchannel.errors import StorageFull, Unavailable
from backchannel.gateway.app import Gateway
from backchannel.storage.files.media import MediaFolder
from tests.support.clocks import StageClock
from tests.support.gateways import CONFIG, MAIN, echo, ended, request, running
from tests.support.stub_provider import Fault, StubProvider

pytestmark = pytest.mark.anyio

PNG = b"\x89PNG\r\n\x1a\n" + b"a picture"
ABSENT = f"{'0' * 64}.png"


async def ask(gateway: Gateway, text: str, *files: str) -> str:
    """Send a message that refers to kept pictures."""
    images = (ImageBlock(mime_type="image/png", file=file) for file in files)
    content = (*text_content(text), *images)
    run = (await gateway.runtime.submit(replace(request(MAIN, text), content=content))).run
    return (await ended(gateway, run.id, timeout_s=60)).reply or ""  # the first of a provider imports its library


def images_in(asked: ModelRequest) -> list[bytes]:
    return [
        base64.b64decode(block.data or "")
        for message in asked.messages
        for block in message.content
        if isinstance(block, ImageBlock)
    ]


def lines_in(message: Message) -> list[str]:
    return [block.text for block in message.content if isinstance(block, TextBlock)]


def test_a_picture_is_kept_once_where_nobody_else_can_read_it(tmp_path: Path) -> None:
    folder = MediaFolder(tmp_path / "state" / "media")
    name = folder.store(PNG, "image/png")
    assert folder.store(PNG, "image/png") == name
    assert [file.name for file in folder.path.iterdir()] == [name]
    assert folder.load(name, len(PNG)) == PNG
    assert folder.path.stat().st_mode & 0o777 == 0o700
    assert (folder.path / name).stat().st_mode & 0o777 == 0o600


def test_what_a_killed_process_left_half_written_is_written_anew(tmp_path: Path) -> None:
    folder = MediaFolder(tmp_path)
    name = folder.store(PNG, "image/png")
    (tmp_path / f"{name}.part").write_bytes(b"half")
    (tmp_path / name).write_bytes(b"")  # a power cut that kept the name and lost the content
    assert folder.store(PNG, "image/png") == name
    assert folder.load(name, 100) == PNG
    assert [file.name for file in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize("name", ["../secret.png", "/etc/passwd", "a.png", f"{'0' * 64}.svg", f"../{'0' * 64}.png", ""])
def test_only_names_of_pictures_are_opened(tmp_path: Path, name: str) -> None:
    (tmp_path / "secret.png").write_bytes(PNG)
    assert MediaFolder(tmp_path / "media").load(name, 100) is None


def test_no_link_is_followed(tmp_path: Path) -> None:
    folder = MediaFolder(tmp_path)
    (tmp_path / "secret").write_bytes(PNG)
    (tmp_path / ABSENT).symlink_to(tmp_path / "secret")
    assert folder.load(ABSENT, 100) is None


def test_a_folder_that_cannot_be_written_and_a_full_disk_are_said_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(Unavailable, match="cannot be written"):
        MediaFolder(tmp_path / "file" / "media").store(PNG, "image/png")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StorageFull):
        MediaFolder(tmp_path / "media").store(PNG, "image/png")


async def test_a_model_that_sees_is_given_the_content_and_no_message_has_it(tmp_path: Path) -> None:
    model = ScriptedModel(replies=echo)
    name = MediaFolder(tmp_path / "media").store(PNG, "image/png")
    async with running(tmp_path, model) as gateway:
        await ask(gateway, "what is this?", name)
        await ask(gateway, "and now?")
    assert [images_in(asked) for asked in model.requests] == [[PNG], [PNG]]
    with sqlite3.connect(tmp_path / "backchannel.db") as database:
        stored = "".join(str(row) for row in database.execute("SELECT * FROM messages"))
    assert name in stored and base64.b64encode(PNG).decode() not in stored


async def test_a_model_that_cannot_see_is_told_in_a_line(tmp_path: Path) -> None:
    model = ScriptedModel(replies=echo, sees_images=False)
    name = MediaFolder(tmp_path / "media").store(PNG, "image/png")
    async with running(tmp_path, model) as gateway:
        await ask(gateway, "what is this?", name)
    assert model.requests[0].messages[0].text == "what is this?\n(an image, which this model cannot see)"


async def test_pictures_that_are_not_shown_push_nothing_out_of_a_small_window(tmp_path: Path) -> None:
    model = ScriptedModel(replies=echo, sees_images=False, context_window=8_000)
    name = MediaFolder(tmp_path / "media").store(PNG, "image/png")
    async with running(tmp_path, model) as gateway:
        await ask(gateway, "my cat is called Minka")
        for _ in range(6):
            await ask(gateway, "look", name)
    assert "Minka" in model.requests[-1].messages[0].text


async def test_a_picture_that_is_gone_is_a_line_and_no_failed_run(tmp_path: Path) -> None:
    model = ScriptedModel(replies=echo)
    async with running(tmp_path, model) as gateway:
        assert await ask(gateway, "look", ABSENT, "../../etc/passwd") != ""
    assert lines_in(model.requests[0].messages[0]) == ["look", *["(an image that is no longer there)"] * 2]


async def test_the_newest_pictures_are_shown_and_there_is_a_line_for_each_of_the_others(tmp_path: Path) -> None:
    model, folder = ScriptedModel(replies=echo), MediaFolder(tmp_path / "media")
    many = [folder.store(PNG + bytes([n]), "image/png") for n in range(MOST_PICTURES_SHOWN + 3)]
    large = [folder.store(PNG + bytes([n]) * (MOST_PICTURE_BYTES // 2 - 100), "image/png") for n in range(3)]
    largest = folder.store(PNG + bytes(MAX_IMAGE_BYTES - len(PNG)), "image/png")
    async with running(tmp_path, model) as gateway:
        await ask(gateway, "see these", *many)
        await ask(gateway, "and these", *large)
        await ask(gateway, "and this", *large, largest)
    first, second, third = model.requests
    assert images_in(first) == [PNG + bytes([n]) for n in range(3, MOST_PICTURES_SHOWN + 3)]
    assert [len(image) for image in images_in(second)] == [MOST_PICTURE_BYTES // 2 - 100 + len(PNG)] * 2
    assert "\n".join(lines_in(second.messages[-1])).count("which is not shown again") == 1
    assert [len(image) for image in images_in(third)] == [MAX_IMAGE_BYTES]


@pytest.mark.parametrize("retryable", [False, True])
async def test_a_picture_that_a_provider_refuses_leaves_the_session_usable(tmp_path: Path, retryable: bool) -> None:
    def choosy(asked: ModelRequest) -> str:
        if images_in(asked):
            raise ModelFailed("Could not process image", retryable=retryable)
        return f"re: {asked.messages[-1].text}"

    model = ScriptedModel(replies=choosy)
    name = MediaFolder(tmp_path / "media").store(PNG, "image/png")
    async with running(tmp_path, model, clock=StageClock()) as gateway:
        line = "(an image, which this model cannot see)" if retryable else "(an image, which is not shown again)"
        assert await ask(gateway, "look", name) == f"re: look\n{line}"
        assert await ask(gateway, "hello?") == "re: hello?"


@pytest.mark.parametrize("vision", [True, False, None])
async def test_what_the_configuration_says_of_a_model_decides_whether_it_is_shown_pictures(
    tmp_path: Path, vision: bool | None
) -> None:
    name = MediaFolder(tmp_path / "media").store(PNG, "image/png")
    async with StubProvider() as stub:
        own = {"id": "some-model"} | ({} if vision is None else {"vision": vision})
        provider = {"api": "openai", "baseUrl": stub.base_url, "models": [own]}
        config = {
            **CONFIG,
            "agents": {"defaults": {"model": "acme/some-model"}},
            "models": {"providers": {"acme": provider}},
        }
        async with running(tmp_path, config=config) as gateway:
            assert await ask(gateway, "look", name) == "ok"
        sent = str(stub.requests[0].messages)
    assert (base64.b64encode(PNG).decode() in sent) is (vision is not False)
    assert ("which this model cannot see" in sent) is (vision is False)


async def test_a_provider_that_answers_400_to_a_picture_is_asked_without_it(tmp_path: Path) -> None:
    name = MediaFolder(tmp_path / "media").store(PNG, "image/png")
    async with StubProvider() as stub:
        stub.then(Fault(400, message="Could not process image"))
        provider = {"api": "openai", "baseUrl": stub.base_url}
        config = {
            **CONFIG,
            "agents": {"defaults": {"model": "acme/some-model"}},
            "models": {"providers": {"acme": provider}},
        }
        async with running(tmp_path, config=config) as gateway:
            assert await ask(gateway, "look", name) == "ok"
        assert [base64.b64encode(PNG).decode() in str(asked.messages) for asked in stub.requests] == [True, False]
