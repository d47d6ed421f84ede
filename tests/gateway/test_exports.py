"""Sessions and transcripts as they are stored, through a socket."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import websockets

from backchannel.gateway.ws.connections import Limits
from backchannel.openclaw.entries import KeyReader

from .client import Client
from .conftest import MakeWorld

pytestmark = pytest.mark.anyio

ECHO = "agent:echo:main"


async def exported(client: Client, **params: Any) -> list[dict[str, Any]]:
    """Ask for every page."""
    found: list[dict[str, Any]] = []
    after: str | None = ""
    while after is not None:
        page = await client.ask("sessions.export", **params, after=after)
        found += page["sessions"]
        after = page.get("next")
    return found


async def read(client: Client, session_id: str, **params: Any) -> tuple[list[dict[str, Any]], int]:
    """Read a transcript as a client does; returns its messages, and the number of pages."""
    messages: list[dict[str, Any]] = []
    parts, pages, place = "", 0, {"from": 0}
    while True:
        page = await client.ask("transcripts.read", sessionId=session_id, **params, **place)
        pages += 1
        messages += page["lines"]
        parts += page.get("part", "")
        if parts and "offset" not in page:
            messages.append(json.loads(parts))
            parts = ""
        if "next" not in page:
            return messages, pages
        place = {"from": page["next"], "offset": page.get("offset", 0)}


async def test_a_session_is_told_with_its_own_choices_and_not_with_those_in_force(client: Client) -> None:
    await client.run(message="hi", agentId="speaker")
    await client.run(message="hi", agentId="echo")
    await client.ask("sessions.patch", key=ECHO, model="test/speaker", label="lab")
    echo, speaker = await exported(client)

    assert (echo["key"], echo["agentId"], echo["length"]) == (ECHO, "echo", 2)
    assert (echo["entry"]["providerOverride"], echo["entry"]["modelOverride"]) == ("test", "speaker")
    assert echo["entry"]["label"] == "lab"
    assert "modelOverride" not in speaker["entry"]
    assert (speaker["entry"]["inputTokens"], speaker["entry"]["outputTokens"]) == (10, 3)
    assert echo["entry"]["sessionId"] == echo["sessionId"] == echo["header"]["id"]
    assert (echo["header"]["type"], echo["header"]["version"]) == ("session", 3)


async def test_sessions_come_page_by_page_in_the_order_of_their_keys(client: Client) -> None:
    keys = sorted(f"agent:{agent}:{name}" for agent in ("echo", "main") for name in ("cron:a", "cron:b", "main"))
    for key in keys:
        await client.ask("sessions.patch", key=key)

    for limit in (1, 2, 6, 1000):
        assert [one["key"] for one in await exported(client, limit=limit)] == keys
    assert [one["key"] for one in await exported(client, agentId="Echo", limit=2)] == keys[:3]
    assert await exported(client, agentId="nobody") == []
    named = await exported(client, keys=["main", "cron:a", "agent:main:cron:a", ECHO], limit=1)
    assert [one["key"] for one in named] == ["agent:echo:main", "agent:main:cron:a", "agent:main:main"]
    assert [one["key"] for one in await exported(client, keys=["main", ECHO], agentId="echo")] == [ECHO]
    by_id = await exported(client, keys=[named[0]["sessionId"]])
    assert by_id == named[:1]


async def test_archived_sessions_come_only_when_asked_for_and_a_page_of_others_has_a_next(client: Client) -> None:
    for name in "abc":
        await client.ask("sessions.patch", key=f"cron:{name}")
    for name in "ab":
        await client.ask("sessions.delete", key=f"cron:{name}")

    page = await client.ask("sessions.export", limit=2)
    assert page == {"sessions": [], "next": "agent:main:cron:b"}
    assert [one["key"] for one in await exported(client, limit=2)] == ["agent:main:cron:c"]
    assert len(await exported(client, archived=True)) == 3
    assert await exported(client, keys=["cron:a"]) == []
    (archived,) = await exported(client, keys=["cron:a"], archived=True)
    assert archived["entry"]["archivedAt"] > 0


async def test_a_name_that_no_session_has_is_refused(client: Client) -> None:
    error = await client.refused("sessions.export", {"keys": ["cron:none"]})
    assert error["details"]["code"] == "session_not_found"
    assert "cron:none" in error["message"]
    for keys in ([], ["main"] * 101, "main"):
        assert (await client.refused("sessions.export", {"keys": keys}))["details"]["code"] == "bad_params"


async def test_a_transcript_is_read_as_it_is_stored_up_to_the_length_that_was_told(client: Client) -> None:
    await client.run(message="one", agentId="echo")
    (listed,) = await exported(client)
    await client.run(message="two", agentId="echo")
    history = (await client.ask("chat.history", sessionKey=ECHO))["messages"]
    for message in history:
        del message["__openclaw"]  # where it stands is told, not stored

    assert await read(client, listed["sessionId"], until=listed["length"]) == (history[:2], 1)
    assert (await read(client, listed["sessionId"]))[0] == history
    assert (await client.ask("transcripts.read", sessionId=listed["sessionId"], **{"from": 1, "until": 2})) == {
        "lines": history[1:2]
    }


async def test_a_transcript_that_a_reset_or_a_deletion_has_closed_can_be_read_on(client: Client) -> None:
    await client.run(message="one", agentId="echo")
    (listed,) = await exported(client)
    await client.ask("sessions.reset", key=ECHO)
    assert len((await read(client, listed["sessionId"], until=listed["length"]))[0]) == 2
    (new,) = await exported(client)
    assert new["sessionId"] != listed["sessionId"] and new["length"] == 0
    assert await client.ask("transcripts.read", sessionId=new["sessionId"], until=0) == {"lines": []}

    await client.run(message="one", sessionKey="agent:echo:cron:x")
    (gone,) = await exported(client, keys=["agent:echo:cron:x"])
    await client.ask("sessions.delete", key="agent:echo:cron:x")
    assert len((await read(client, gone["sessionId"], until=gone["length"]))[0]) == 2


async def test_an_id_that_is_no_transcripts_is_refused(client: Client) -> None:
    for session_id in ("nothing", "", "\x00", "agent:echo:main"):
        error = await client.refused("transcripts.read", {"sessionId": session_id})
        assert error["details"]["code"] == "session_not_found"


@pytest.mark.parametrize(
    "given",
    [{"from": -1}, {"until": -1}, {"offset": -1}, {"from": 2**53 + 1}, {"from": "0"}, {"start": 0}, {"limit": 5}],
)
async def test_a_place_that_cannot_be_is_refused(client: Client, given: dict[str, Any]) -> None:
    error = await client.refused("transcripts.read", {"sessionId": "x", **given})
    assert error["details"]["code"] == "bad_params"
    assert next(iter(given)) in error["message"]


async def test_no_page_is_larger_than_a_frame_whatever_a_message_holds(make_world: MakeWorld) -> None:
    limit = 20_000
    texts = ['"\\' * 4000, "🦀" * 4000, "\x01\x7f" * 1500, "short", "ü" * 8000]
    async with make_world(limits=Limits(frame_bytes=limit)) as world:
        for text in texts:
            await world.gateway.ask(ECHO, text)
        client = Client(await websockets.connect(world.url, compression=None, max_size=limit))  # closes if more comes
        await client.connect()
        (listed,) = await exported(client)
        messages, pages = await read(client, listed["sessionId"], until=listed["length"])
        await client.close()
    assert [message["content"][0]["text"] for message in messages if message["role"] == "user"] == texts
    assert pages > 10


async def test_under_a_global_scope_the_one_session_is_told_as_main_and_read_back_as_it(make_world: MakeWorld) -> None:
    async with make_world({"session": {"scope": "global"}}) as world, world.client() as client:
        await client.run(message="hi", agentId="echo")
        spawned = await client.ask("tools.invoke", tool="sessions_spawn", args={"task": "dig"}, sessionKey=ECHO)
        listed, child = await exported(client)
        assert listed["key"] == ECHO and "global" not in str([listed, child])
        assert (child["key"], child["entry"]["spawnedBy"]) == (spawned["result"]["childSessionKey"], ECHO)
        read_back = KeyReader(world.gateway.scheme, "echo").read(listed["key"], channel=None, chat_type=None)
        assert str(read_back.key) == "agent:echo:global"
        assert [found["sessionId"] for found in await exported(client, keys=[ECHO])] == [listed["sessionId"]]
        assert len((await read(client, listed["sessionId"], until=2))[0]) == 2


async def test_a_main_session_from_before_the_global_scope_has_an_entry_of_its_own(make_world: MakeWorld) -> None:
    async with make_world() as world, world.client() as client:
        await client.run(message="hi", agentId="echo")
    async with make_world({"session": {"scope": "global"}}) as world, world.client() as client:
        await client.run(message="hi again", agentId="echo")
        keys = [listed["key"] for listed in await exported(client)]
        assert keys[0] == ECHO and keys[1].startswith("agent:echo:imported:") and len(keys) == 2


async def test_a_session_that_nobody_can_address_is_not_exported(make_world: MakeWorld) -> None:
    async with make_world({"session": {"scope": "global"}}) as world, world.client() as client:
        await client.run(message="hi", agentId="echo")
        (hidden,) = await exported(client)
    async with make_world() as world, world.client() as client:
        assert await exported(client) == []
        await client.refused("transcripts.read", {"sessionId": hidden["sessionId"]})


async def test_transcripts_of_sessions_that_have_ended_are_listed_and_written_anew(
    client: Client, tmp_path: Path
) -> None:
    key = "agent:echo:hook:short"
    await client.run(message="one", sessionKey=key)
    first = (await exported(client, keys=[key]))[0]["sessionId"]
    await client.ask("sessions.reset", key=key)
    await client.run(message="two", sessionKey=key)
    second = (await exported(client, keys=[key]))[0]["sessionId"]
    await client.ask("sessions.delete", key=key)
    await client.ask("transcripts.rebuild", key=first)  # whatever waited to be written is written by now

    listed = (await client.ask("transcripts.list", limit=1000))["transcripts"]
    reasons = {entry["sessionId"]: entry.get("endReason") for entry in listed if entry["key"] == key}
    assert reasons == {first: "reset", second: "deleted"}

    folder = tmp_path / "state" / "agents" / "echo" / "sessions"
    old = folder / f"{first}.jsonl"
    (archived,) = folder.glob(f"{second}.jsonl.deleted.*")
    for name, file in ((first, old), (second, archived), (key, archived)):
        before = file.read_bytes()
        file.unlink()
        rebuilt = await client.ask("transcripts.rebuild", key=name)
        assert (rebuilt["key"], rebuilt["lines"], file.read_bytes()) == (key, 2, before)


async def test_transcripts_are_listed_page_by_page_each_once(client: Client) -> None:
    for name in ("a", "b", "c"):
        await client.run(message="hi", sessionKey=f"agent:echo:hook:{name}")
    found, cursor = [], ""
    while True:
        page = await client.ask("transcripts.list", limit=2, cursor=cursor)
        found += [entry["key"] for entry in page["transcripts"]]
        if "nextCursor" not in page:
            break
        cursor = page["nextCursor"]
    assert sorted(found) == [f"agent:echo:hook:{name}" for name in ("a", "b", "c")]


async def test_a_transcript_that_never_was_cannot_be_written_anew(client: Client) -> None:
    error = await client.refused("transcripts.rebuild", {"key": "0f3f2a8e-0000-4000-8000-000000000000"})
    assert error["details"]["code"] == "session_not_found"
