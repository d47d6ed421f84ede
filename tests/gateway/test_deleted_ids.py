"""The id of a deleted session, whose key lives anew, never leads to what lives there; nor does one of a reset."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from backchannel.gateway.table import METHODS

from .client import OPERATOR, Client
from .conftest import MakeWorld, World

pytestmark = pytest.mark.anyio

KEY = "agent:held:project"
ID = "<the old id>"
HOOK_TOKEN = "the-hook-token-of-the-tests"
CONFIG = {"hooks": {"enabled": True, "token": HOOK_TOKEN}, "gateway": {"http": {"chatCompletions": True}}}
NOT_FOUND = "session_not_found"
_TALK = {"channel": "webchat", "to": "ann", "message": "x"}


@dataclass(frozen=True)
class Twice:
    """A session that was deleted, and the one that is at work under its key now."""

    client: Client
    world: World
    old_id: str
    new: dict[str, Any]

    async def seen(self) -> list[Any]:
        """Read all that could have changed."""
        return [
            (await self.client.ask("sessions.list", archived="all"))["sessions"],
            await self.client.ask("runs.list"),
            await self.client.ask("sessions.get", key=KEY),
            await self.client.ask("agent.wait", runId=self.new["runId"], timeoutMs=0),
            await self.client.ask("chat.history", sessionKey=KEY),
            await self.client.ask("tokens.list"),
        ]

    def named(self, given: Any) -> Any:
        return json.loads(json.dumps(given).replace(ID, self.old_id))


@pytest.fixture
async def twice(make_world: MakeWorld, anyio_backend: str) -> AsyncIterator[Twice]:
    async with make_world(CONFIG) as world, world.client() as client:
        world.release.set()
        old = await client.ask("sessions.create", key=KEY, message="old words")
        await client.ask("agent.wait", runId=old["runId"])
        await client.ask("sessions.delete", key=KEY)
        world.release.clear()
        new = await client.ask("sessions.create", key=KEY, message="new words", label="the new one")
        await client.ask("sessions.patch", key=KEY, thinkingLevel="high", verboseLevel="on")
        yield Twice(client, world, old["sessionId"], new)


CASES: list[tuple[str, dict[str, Any], str | None]] = [
    ("agent", {"sessionId": ID, "message": "x"}, NOT_FOUND),
    ("agent", {"sessionKey": ID, "message": "x"}, NOT_FOUND),
    ("agent", {"sessionKey": KEY, "sessionId": ID, "message": "x"}, "session_id_replaced"),
    ("agent", {"sessionKey": KEY, "expectedExistingSessionId": ID, "message": "x"}, "session_id_replaced"),
    ("runs.list", {"sessionKey": ID}, NOT_FOUND),
    ("exchanges.list", {"sessionKey": ID}, NOT_FOUND),
    ("chat.send", {"sessionKey": ID, "message": "x"}, NOT_FOUND),
    ("chat.send", {"sessionKey": ID, "message": "/stop"}, NOT_FOUND),
    ("chat.send", {"sessionKey": KEY, "sessionId": ID, "message": "x"}, "session_id_replaced"),
    ("chat.send", {"sessionKey": KEY, "sessionId": ID, "message": "/stop"}, "session_id_replaced"),
    ("chat.abort", {"sessionKey": ID}, NOT_FOUND),
    ("chat.inject", {"sessionKey": ID, "message": "x"}, NOT_FOUND),
    ("chat.history", {"sessionKey": ID}, None),
    ("chat.startup", {"sessionKey": ID}, None),
    ("chat.search", {"sessionKey": ID, "query": "words"}, None),
    ("sessions.get", {"key": ID}, None),
    ("sessions.list", {"spawnedBy": ID}, None),
    ("sessions.resolve", {"key": ID}, NOT_FOUND),
    ("sessions.resolve", {"sessionId": ID}, NOT_FOUND),
    ("sessions.reset", {"key": ID}, NOT_FOUND),
    ("sessions.compact", {"key": ID}, NOT_FOUND),
    ("sessions.delete", {"key": ID}, None),
    ("sessions.describe", {"key": ID}, None),
    ("sessions.preview", {"keys": [ID]}, None),
    ("sessions.messages.subscribe", {"key": ID}, NOT_FOUND),
    ("sessions.messages.unsubscribe", {"key": ID}, NOT_FOUND),
    ("sessions.patch", {"key": ID, "label": "hit"}, NOT_FOUND),
    ("sessions.patch", {"key": ID, "archived": True}, NOT_FOUND),
    ("sessions.patch", {"key": KEY, "expectedSessionId": ID, "label": "hit"}, "session_id_replaced"),
    ("sessions.create", {"key": ID, "label": "hit"}, NOT_FOUND),
    ("sessions.create", {"key": ID, "message": "x"}, NOT_FOUND),
    ("sessions.send", {"key": ID, "message": "x"}, NOT_FOUND),
    ("sessions.abort", {"key": ID}, NOT_FOUND),
    ("sessions.tree", {"key": ID}, NOT_FOUND),
    ("sessions.export", {"keys": [ID]}, NOT_FOUND),
    ("sessions.usage", {"key": ID}, NOT_FOUND),
    ("sessions.usage.timeseries", {"key": ID}, NOT_FOUND),
    ("transcripts.read", {"sessionId": ID}, None),
    ("transcripts.rebuild", {"key": ID}, None),
    ("send", {"sessionKey": ID, **_TALK}, NOT_FOUND),
    ("message.action", {"sessionKey": ID, "channel": "webchat", "action": "send", "params": _TALK}, NOT_FOUND),
    ("deliveries.list", {"sessionKey": ID}, NOT_FOUND),
    ("approvals.list", {"sessionKey": ID}, NOT_FOUND),
    ("cron.add", {"id": "j", "schedule": "every 1h", "message": "x", "sessionTarget": ID}, "bad_params"),
    ("cron.add", {"id": "j", "schedule": "every 1h", "message": "x", "sessionTarget": f"session:{ID}"}, "bad_params"),
    ("tokens.create", {"sessionKey": ID}, NOT_FOUND),
    ("tools.invoke", {"tool": "sessions_list", "sessionKey": ID}, "forbidden"),
    ("tools.invoke", {"tool": "sessions_send", "args": {"sessionKey": ID, "message": "x"}}, None),
    ("tools.invoke", {"tool": "sessions_history", "args": {"sessionKey": ID}}, None),
    ("tools.invoke", {"tool": "session_status", "args": {"sessionKey": ID}}, None),
    ("policy.explain", {"target": ID}, NOT_FOUND),
    ("policy.explain", {"target": "main", "caller": ID}, "forbidden"),
    ("node.message", {"sessionKey": ID, "message": "x"}, "forbidden"),
    ("node.history", {"sessionKey": ID}, "forbidden"),
    ("agent.identity.get", {"sessionKey": ID}, NOT_FOUND),
    ("agents.files.list", {"sessionKey": ID}, NOT_FOUND),
    ("tools.catalog", {"sessionKey": ID}, NOT_FOUND),
    ("tools.effective", {"sessionKey": ID}, NOT_FOUND),
    ("wake", {"sessionKey": ID, "text": "x"}, NOT_FOUND),
]


@pytest.mark.parametrize(("method", "given", "code"), CASES)
async def test_no_method_reaches_the_new_session_by_the_old_id(
    twice: Twice, method: str, given: dict[str, Any], code: str | None
) -> None:
    before = await twice.seen()
    if code is None:
        check_old(twice, await twice.client.ask(method, **twice.named(given)))
    else:
        assert (await twice.client.refused(method, twice.named(given)))["details"]["code"] == code
    assert await twice.seen() == before


def check_old(twice: Twice, answer: Any) -> None:
    """See that an answer has nothing of the new session."""
    shown = json.dumps(answer)
    for word in ("new words", "the new one", twice.new["sessionId"], twice.new["runId"]):
        assert word not in shown


def test_every_method_that_takes_a_key_or_an_id_is_among_them() -> None:
    names = {"key", "keys", "session_key", "session_id", "session_target", "spawned_by", "target", "caller"}
    taking = {name for name, method in METHODS.items() if names & set(method.params.__struct_fields__)}
    assert taking == {method for method, _, _ in CASES}


@pytest.mark.parametrize("method", ["chat.history", "chat.startup"])
async def test_what_was_said_in_the_deleted_session_is_read_by_its_id_and_nothing_else(
    twice: Twice, method: str
) -> None:
    async with twice.world.client() as reader:
        opened = await reader.ask(method, sessionKey=twice.old_id.upper())
        assert (opened["sessionKey"], opened["sessionId"], opened["totalMessages"]) == (KEY, twice.old_id, 2)
        said = [message["content"][0]["text"] for message in opened["messages"]]
        assert said == ["old words", "released old words"]
        assert opened.keys().isdisjoint({"sessionInfo", "inFlightRun", "thinkingLevel", "verboseLevel"})
        twice.world.release.set()
        await twice.client.said(runId=twice.new["runId"], state="final")
        await reader.ask("health")
        assert reader.seen("chat") == [], "what happens in the new one is not told"


@pytest.mark.parametrize(
    ("path", "headers", "body", "status"),
    [
        ("/tools/invoke", {}, {"tool": "sessions_list", "sessionKey": ID}, 403),
        ("/tools/invoke", {}, {"tool": "sessions_send", "args": {"sessionKey": ID, "message": "x"}}, 200),
        ("/tools/invoke", {}, {"tool": "sessions_history", "args": {"sessionKey": ID}}, 200),
        ("/mcp", {"x-backchannel-session": ID}, {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}, 403),
        ("/hooks/agent", {"authorization": f"Bearer {HOOK_TOKEN}"}, {"sessionKey": ID, "message": "x"}, 400),
    ],
)
async def test_no_other_door_reaches_the_new_session_by_the_old_id(
    twice: Twice, path: str, headers: dict[str, str], body: dict[str, Any], status: int
) -> None:
    before = await twice.seen()
    async with httpx.AsyncClient(base_url=twice.world.at.url, trust_env=False, timeout=20) as http:
        given = {"authorization": f"Bearer {OPERATOR}"} | twice.named(headers)
        answer = await http.post(path, json=twice.named(body), headers=given)
    assert answer.status_code == status, answer.text
    check_old(twice, answer.text)
    assert await twice.seen() == before


async def test_an_openai_client_that_names_a_session_by_the_old_id_has_one_of_its_own(twice: Twice) -> None:
    async with httpx.AsyncClient(base_url=twice.world.at.url, trust_env=False, timeout=20) as http:
        headers = {"authorization": f"Bearer {OPERATOR}", "x-backchannel-session": twice.old_id}
        asked = {"model": "echo", "messages": [{"role": "user", "content": "x"}]}
        answer = await http.post("/v1/chat/completions", json=asked, headers=headers)
    assert answer.headers["x-backchannel-session"] == f"agent:echo:openai:{twice.old_id}"
    assert [
        message["content"][0]["text"] for message in (await twice.client.ask("sessions.get", key=KEY))["messages"]
    ] == ["new words"]


@pytest.mark.parametrize("change", ["sessions.reset", "sessions.delete"])
@pytest.mark.parametrize(
    ("method", "given"),
    [
        ("agent", {"sessionId": ID}),
        ("agent", {"sessionKey": ID}),
        ("chat.send", {"sessionKey": ID}),
        ("sessions.send", {"key": ID}),
        ("sessions.create", {"key": ID, "label": "kept"}),
    ],
)
@pytest.mark.parametrize("message", ["hi", "/status"])
async def test_a_request_by_an_id_that_comes_again_hears_what_became_of_the_first(
    client: Client, world: World, method: str, given: dict[str, str], change: str, message: str
) -> None:
    made = await client.ask("sessions.create", key="agent:echo:project")
    asked = json.loads(json.dumps(given).replace(ID, made["sessionId"])) | {"message": message, "idempotencyKey": "k"}
    first = await client.ask(method, **asked)
    if message == "hi" or method == "agent":
        await client.ask("agent.wait", runId="k")
    await client.ask(change, key="agent:echo:project")
    await client.ask("chat.send", sessionKey="agent:echo:project", message="what lives there now", idempotencyKey="l")
    await client.ask("agent.wait", runId="l")
    runs = await client.ask("runs.list")

    async with world.client() as another:
        again = await another.ask(method, **asked)
        assert await client.ask("runs.list") == runs
        if method != "agent":  # what happens in the session now is not meant for who names it by an old id
            await client.ask("chat.send", sessionKey="agent:echo:project", message="later", idempotencyKey="m")
            await client.ask("agent.wait", runId="m")
            await another.ask("health")
            assert {event["runId"] for event in another.seen("chat")} <= {first["runId"]}

    assert [again.get(name) for name in ("runId", "acceptedAt", "reply")] == [
        first.get(name) for name in ("runId", "acceptedAt", "reply")
    ]
    for other in ({"message": "other"}, {"idempotencyKey": "other"}):
        code = (await client.refused(method, {**asked, **other}))["details"]["code"]
        replaced = "session_id_replaced" if change == "sessions.reset" else NOT_FOUND
        assert code == ("idempotency_conflict" if "message" in other else replaced)
