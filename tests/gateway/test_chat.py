"""`chat.*`, through a socket."""

from __future__ import annotations

import base64
import json
import uuid

import pytest
from msgspec import Raw

from backchannel.gateway.methods.history import fit

from .client import Client
from .conftest import MakeWorld, World

pytestmark = pytest.mark.anyio


async def chat(client: Client, key: str, text: str) -> str:
    run = await client.ask("chat.send", sessionKey=key, message=text)
    await client.ask("agent.wait", runId=run["runId"])
    return str(run["runId"])


async def test_a_message_makes_its_session_and_is_answered(client: Client) -> None:
    await chat(client, "agent:echo:main", "hi")
    history = await client.ask("chat.history", sessionKey="agent:echo:main")
    assert [(m["role"], m["content"][0]["text"]) for m in history["messages"]] == [
        ("user", "hi"),
        ("assistant", "echo hi"),
    ]
    assert history["messages"][0]["provenance"]["kind"] == "external_user"
    assert history["pending"] == [] and history["hasMore"] is False
    assert history["sessionKey"] == "agent:echo:main" and history["sessionId"]


async def test_what_waits_is_shown_as_pending(client: Client, world: World) -> None:
    await client.ask("chat.send", sessionKey="agent:held:main", message="first")
    await client.ask("chat.send", sessionKey="agent:held:main", message="second")
    await client.ask("chat.inject", sessionKey="agent:held:main", message="a note")
    history = await client.ask("chat.history", sessionKey="agent:held:main")
    assert [m["content"][0]["text"] for m in history["messages"]] == ["first"]
    assert [m["content"][0]["text"] for m in history["pending"]] == ["second", "a note"]
    world.release.set()


async def test_a_repeated_message_hears_how_the_first_ended(client: Client) -> None:
    asked = {"sessionKey": "agent:echo:main", "message": "hi", "idempotencyKey": "k1"}
    first = await client.ask("chat.send", **asked)
    assert first["status"] == "started"
    await client.ask("agent.wait", runId="k1")
    assert await client.ask("chat.send", **asked) == {"runId": "k1", "status": "ok"}


async def test_a_message_for_a_transcript_that_was_reset_is_refused(client: Client) -> None:
    await chat(client, "agent:echo:main", "hi")
    old = (await client.ask("chat.history", sessionKey="agent:echo:main"))["sessionId"]
    await client.ask("sessions.reset", key="agent:echo:main")
    asked = {"sessionKey": "agent:echo:main", "message": "hi", "sessionId": old}
    assert (await client.refused("chat.send", asked))["details"]["code"] == "session_id_replaced"
    error = await client.refused("chat.history", {"sessionKey": old})
    assert error["details"]["code"] == "session_id_replaced"
    assert "agent:echo:main" in error["message"]


async def test_a_session_id_names_its_session(client: Client) -> None:
    await chat(client, "agent:echo:main", "hi")
    session_id = (await client.ask("chat.history", sessionKey="agent:echo:main"))["sessionId"]
    history = await client.ask("chat.history", sessionKey=session_id)
    assert history["sessionKey"] == "agent:echo:main"


async def test_history_pages_backwards_and_forwards(client: Client) -> None:
    for n in range(3):
        await chat(client, "agent:echo:main", str(n))
    ids = [m["id"] for m in (await client.ask("chat.history", sessionKey="agent:echo:main"))["messages"]]
    newest = await client.ask("chat.history", sessionKey="agent:echo:main", limit=2)
    assert [m["id"] for m in newest["messages"]] == ids[4:] and newest["hasMore"] is True
    older = await client.ask("chat.history", sessionKey="agent:echo:main", before=ids[4], limit=100)
    assert [m["id"] for m in older["messages"]] == ids[:4] and older["hasMore"] is False
    newer = await client.ask("chat.history", sessionKey="agent:echo:main", after=ids[1], limit=2)
    assert [m["id"] for m in newer["messages"]] == ids[2:4] and newer["hasMore"] is True


async def test_an_unknown_message_to_page_from_is_not_found(client: Client) -> None:
    await chat(client, "agent:echo:main", "hi")
    error = await client.refused("chat.history", {"sessionKey": "agent:echo:main", "before": "nothing"})
    assert error["code"] == "NOT_FOUND"


async def test_a_main_session_that_nobody_spoke_to_has_an_empty_history(client: Client) -> None:
    history = await client.ask("chat.history", sessionKey="main")
    assert history.pop("defaults")["model"] == "builtin/demo"
    assert history == {"sessionKey": "agent:main:main", "messages": [], "pending": [], "hasMore": False}


@pytest.mark.parametrize("key", ["cron:never", "agent:echo:unheard-of", "agent:main:direct:somebody"])
async def test_a_key_that_no_session_has_yet_has_an_empty_history_and_makes_none(client: Client, key: str) -> None:
    history = await client.ask("chat.history", sessionKey=key)
    assert (history["messages"], history["pending"], history["hasMore"]) == ([], [], False)
    assert "sessionId" not in history and history["sessionKey"].endswith(key)
    assert (await client.ask("sessions.list"))["count"] == 0
    assert (await client.refused("chat.search", {"sessionKey": key, "query": "x"}))["details"]["code"] == (
        "session_not_found"
    )


async def test_who_opens_a_session_before_its_first_message_hears_what_is_said(client: Client, world: World) -> None:
    await client.ask("chat.history", sessionKey="agent:echo:to-come")
    async with world.client() as other:
        run = await other.ask("chat.send", sessionKey="agent:echo:to-come", message="hi")
        assert (await client.said(runId=run["runId"]))["state"] == "final"


@pytest.mark.parametrize("method", ["chat.history", "chat.startup"])
@pytest.mark.parametrize(
    ("key", "code"),
    [
        ("agent:nobody:main", "unknown_agent"),
        ("agent:nobody:beside", "unknown_agent"),
        ("unknown", "invalid_session_key"),
        ("agent::main", "invalid_session_key"),
        (str(uuid.UUID(int=7)), "session_not_found"),
    ],
)
async def test_what_no_message_can_make_has_no_history(client: Client, method: str, key: str, code: str) -> None:
    assert (await client.refused(method, {"sessionKey": key}))["details"]["code"] == code


async def test_a_long_history_stays_within_a_frame(make_world: MakeWorld) -> None:
    config = {"gateway": {"limits": {"frameBytes": 20_000}}}
    async with make_world(config) as world, world.client() as client:
        for n in range(4):
            await chat(client, "agent:echo:main", f"{n}" * 4000)
        history = await client.ask("chat.history", sessionKey="agent:echo:main")
        assert len(json.dumps(history)) < 22_000
        assert history["hasMore"] is True
        oldest = history["messages"][0]["id"]
        rest = await client.ask("chat.history", sessionKey="agent:echo:main", before=oldest)
        assert len(history["messages"]) + len(rest["messages"]) == 8


async def test_of_very_many_messages_that_wait_the_first_are_shown_and_the_rest_counted(make_world: MakeWorld) -> None:
    async with make_world() as world, world.client() as client:
        await client.ask("chat.send", sessionKey="agent:held:main", message="hold")
        for n in range(130):
            await world.gateway.submit("agent:held:main", f"message {n}")
        history = await client.ask("chat.history", sessionKey="agent:held:main")
        assert len(history["pending"]) == 100
        assert history["pending"][0]["content"][0]["text"] == "message 0"
        assert history["pendingLeftOut"] == 30


async def test_waiting_messages_are_read_page_by_page_each_once(make_world: MakeWorld) -> None:
    async with make_world() as world, world.client() as client:
        key = "agent:held:main"
        await client.ask("chat.send", sessionKey=key, message="hold")
        for n in range(230):
            await world.gateway.submit(key, f"message {n}")
            if n % 100 == 50:
                await client.ask("chat.inject", sessionKey=key, message=f"note {n}")
        seen: list[str] = []
        left: list[int | None] = []
        cursor: dict[str, str] = {}
        while True:
            page = await client.ask("chat.history", sessionKey=key, limit=1, **cursor)
            seen += [message["content"][0]["text"] for message in page["pending"]]
            left.append(page.get("pendingLeftOut"))
            if "pendingNext" not in page:
                break
            cursor = {"pendingCursor": page["pendingNext"]}
        of_another = {"sessionKey": "agent:echo:main", "pendingCursor": cursor["pendingCursor"]}
        await client.ask("chat.send", sessionKey="agent:echo:main", message="hi")
        refused = await client.refused("chat.history", of_another)
    assert left == [132, 32, None]
    assert [text for text in seen if text.startswith("message")] == [f"message {n}" for n in range(230)]
    assert [text for text in seen if text.startswith("note")] == ["note 50", "note 150"]
    assert refused["details"]["code"] == "bad_params"


def test_one_message_is_always_shown_however_large() -> None:
    first, second = Raw(b'"1"' + b" " * 100), Raw(b'"2"')
    assert fit([first, second], 10) == ([first], True)
    assert fit([first], 10) == ([first], False)


async def test_a_message_has_its_place_in_the_transcript_whatever_page_it_is_read_with(client: Client) -> None:
    first, second = [await chat(client, "agent:echo:main", text) for text in ("a", "b")]
    whole = (await client.ask("chat.history", sessionKey="agent:echo:main"))["messages"]
    assert [message["__openclaw"] for message in whole] == [
        {"id": whole[0]["id"], "seq": 1, "idempotencyKey": f"{first}:user"},
        {"id": whole[1]["id"], "seq": 2, "runId": first},
        {"id": whole[2]["id"], "seq": 3, "idempotencyKey": f"{second}:user"},
        {"id": whole[3]["id"], "seq": 4, "runId": second},
    ]
    for page in ({"limit": 2}, {"before": whole[3]["id"], "limit": 2}, {"after": whole[0]["id"]}):
        read = (await client.ask("chat.history", sessionKey="agent:echo:main", **page))["messages"]
        assert len(read) > 1 and all(message in whole for message in read)


async def test_a_running_run_is_aborted(client: Client) -> None:
    run = await client.ask("chat.send", sessionKey="agent:held:main", message="hi")
    answer = await client.ask("chat.abort", sessionKey="agent:held:main")
    assert answer == {"ok": True, "aborted": True, "runIds": [run["runId"]]}
    assert (await client.ask("agent.wait", runId=run["runId"]))["status"] == "aborted"
    assert (await client.event("chat", runId=run["runId"], state="aborted"))["stopReason"] == "aborted"
    row = (await client.ask("sessions.describe", key="agent:held:main"))["session"]
    assert row["abortedLastRun"] is True


async def test_a_queued_run_is_aborted_by_its_id_and_leaves_the_running_one(client: Client, world: World) -> None:
    first = await client.ask("chat.send", sessionKey="agent:held:main", message="a")
    second = await client.ask("chat.send", sessionKey="agent:held:main", message="b")
    answer = await client.ask("chat.abort", sessionKey="agent:held:main", runId=second["runId"])
    assert answer["runIds"] == [second["runId"]]
    world.release.set()
    assert (await client.ask("agent.wait", runId=first["runId"]))["status"] == "ok"
    assert (await client.ask("agent.wait", runId=second["runId"]))["status"] == "aborted"


async def test_aborting_an_idle_session_does_nothing_and_says_so(client: Client) -> None:
    await chat(client, "agent:echo:main", "hi")
    assert await client.ask("chat.abort", sessionKey="agent:echo:main") == {"ok": True, "aborted": False, "runIds": []}


@pytest.mark.parametrize("key", ["agent:echo:main", "agent:echo:never"])
async def test_aborting_a_session_that_nobody_has_used_says_that_nothing_was_at_work(client: Client, key: str) -> None:
    assert await client.ask("chat.abort", sessionKey=key) == {"ok": True, "aborted": False, "runIds": []}
    answer = await client.ask("sessions.abort", key=key)
    assert answer == {"ok": True, "abortedRunId": None, "status": "no-active-run"}
    for method, params in (("chat.abort", {"sessionKey": key}), ("sessions.abort", {"key": key})):
        error = await client.refused(method, {**params, "runId": "no"})
        assert error["details"]["code"] == "run_not_found"
    assert (await client.ask("sessions.list"))["count"] == 0


@pytest.mark.parametrize("key", ["agent:nobody:main", "no-such-label", "5a1c3c6e-8c79-4b57-9a3c-b0a3c3f2ad11"])
async def test_aborting_what_names_no_session_is_refused(client: Client, key: str) -> None:
    for method, params in (("chat.abort", {"sessionKey": key}), ("sessions.abort", {"key": key})):
        assert (await client.refused(method, params))["details"]["code"] in ("unknown_agent", "session_not_found")


async def test_a_run_of_another_session_cannot_be_aborted_through_this_one(client: Client) -> None:
    await chat(client, "agent:echo:main", "hi")
    run = await client.ask("chat.send", sessionKey="agent:held:main", message="hi")
    error = await client.refused("chat.abort", {"sessionKey": "agent:echo:main", "runId": run["runId"]})
    assert error["details"]["code"] == "run_not_found"
    assert (await client.ask("agent.wait", runId=run["runId"], timeoutMs=0))["running"] is True


async def test_a_note_enters_an_idle_session_at_once_and_starts_no_run(client: Client) -> None:
    answer = await client.ask("chat.inject", sessionKey="agent:echo:main", message="a note", label="me")
    messages = (await client.ask("chat.history", sessionKey="agent:echo:main"))["messages"]
    assert [(m["id"], m["label"]) for m in messages] == [(answer["messageId"], "me")]
    assert messages[0]["command"] is True, "OpenClaw's clients show no other notes"
    assert (await client.ask("runs.list"))["count"] == 0


PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n" + bytes(20)).decode()


async def test_images_come_with_a_message_or_alone(client: Client) -> None:
    for text, content in (("see", PNG), ("", f"data:image/jpeg;base64,{PNG}"), ("/status", PNG)):
        image = {"type": "image", "mimeType": "image/jpeg", "fileName": "a.jpg", "content": content}
        run = await client.ask("chat.send", sessionKey="agent:echo:main", message=text, attachments=[image])
        assert (await client.ask("agent.wait", runId=run["runId"]))["status"] == "ok"
    said = (await client.ask("chat.history", sessionKey="agent:echo:main"))["messages"][::2]
    shown = {"type": "image", "mimeType": "image/png", "data": PNG}  # its content says what it is
    texts = [[{"type": "text", "text": text}] if text else [] for text in ("see", "", "/status")]
    assert [message["content"] for message in said] == [[*text, shown] for text in texts]


@pytest.mark.parametrize("content", [base64.b64encode(b"%PDF-1.7").decode(), "no base64", ""])
async def test_a_file_that_is_no_image_is_refused_with_its_message(client: Client, content: str) -> None:
    sent = {"sessionKey": "agent:echo:main", "message": "see", "attachments": [{"content": content}]}
    error = await client.refused("chat.send", sent)
    assert (error["code"], error["details"]["param"]) == ("INVALID_REQUEST", "attachments")
    assert (await client.ask("runs.list"))["count"] == 0


async def test_another_image_under_the_same_key_is_another_request(client: Client) -> None:
    sent = {"sessionKey": "agent:echo:main", "message": "see", "idempotencyKey": "once"}
    first = await client.ask("chat.send", **sent, attachments=[{"content": PNG}])
    assert (await client.ask("chat.send", **sent, attachments=[{"content": PNG}]))["runId"] == first["runId"]
    await client.refused("chat.send", {**sent, "attachments": []})
