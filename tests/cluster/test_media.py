"""A picture that came in by one gateway is seen by the model of another."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from backchannel.agents.scripted import ScriptedModel
from backchannel.core.delivery.received import MAX_IMAGE_BYTES
from backchannel.runtime.pictures import GONE
from backchannel.storage.files.media import PART_BYTES
from tests.cluster.gateways import execute, gateways
from tests.runtime.test_pictures import ask, images_in, lines_in

pytestmark = pytest.mark.anyio
PNG = b"\x89PNG\r\n\x1a\n"


async def test_a_picture_of_any_size_is_shown_by_a_gateway_that_it_did_not_come_to(tmp_path: Path, url: str) -> None:
    model = ScriptedModel(replies=["a", "b", "c"])
    small, large = PNG + b"small", PNG + bytes(3 * PART_BYTES)
    async with gateways(tmp_path, url, model) as (one, other):
        names = [await one.runtime.media.store(content, "image/png") for content in (small, large)]
        await ask(other, "look", *names)
        assert images_in(model.requests[-1]) == [small, large]
        assert [(tmp_path / "g1" / "media" / name).exists() for name in names] == [True, True]
        execute(url, "DELETE FROM media")
        await ask(other, "again")  # from its own folder by now
        assert images_in(model.requests[-1]) == [small, large]


async def test_a_picture_is_written_to_the_database_once_and_completed_after_a_crash(tmp_path: Path, url: str) -> None:
    content = PNG + bytes(2 * PART_BYTES)
    async with gateways(tmp_path, url, ScriptedModel(replies=[])) as (one, other):
        name = await one.runtime.media.store(content, "image/png")
        execute(url, "DELETE FROM media WHERE part = 1")
        assert await other.runtime.media.load(name, MAX_IMAGE_BYTES) is None
        assert await one.runtime.media.store(content, "image/png") == name
        await one.runtime.media.store(content, "image/png")
        assert await other.runtime.media.load(name, MAX_IMAGE_BYTES) == content
    assert execute(url, "SELECT count(*), sum(length(content)) FROM media") == [(3, len(content))]


async def test_what_is_not_the_picture_of_its_name_is_not_shown(tmp_path: Path, url: str) -> None:
    model = ScriptedModel(replies=["a"])
    name = f"{hashlib.sha256(PNG).hexdigest()}.png"
    async with gateways(tmp_path, url, model) as (_, other):
        execute(url, "INSERT INTO media VALUES (%s, 0, 1, %s)", name, b"something else")
        await ask(other, "look", name)
    assert GONE in lines_in(model.requests[0].messages[-1])
