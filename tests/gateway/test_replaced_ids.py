"""A request by an id reaches no other session than that one, also when another comes between it and its commit."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import pytest

from backchannel.agents.registry import FunctionContext
from backchannel.core.delivery.channels import Channel, OutboundPart, Sent
from backchannel.core.keys import SessionKey
from backchannel.core.sessions import NewSession, SessionPatch
from backchannel.gateway.app import Gateway
from backchannel.gateway.server import listening
from backchannel.storage.sqlite.driver import SqliteDriver
from tests.support.gateways import running
from tests.support.mcp_caller import until

from .client import OPERATOR, Client, connected

pytestmark = pytest.mark.anyio

KEY = SessionKey.parse("agent:held:project")
ID = "<the old id>"
CONFIG = {"agents": {"list": [{"id": "main"}, {"id": "held"}]}, "gateway": {"port": 0}}


class TakingChannel(Channel):
    """A channel that takes everything."""

    name = "desk"

    async def send(self, part: OutboundPart) -> Sent:
        return Sent()


class Disk:
    """While it is held, no commit returns."""

    def __init__(self) -> None:
        self.goes_on = threading.Event()
        self.goes_on.set()

    def before_commit(self, number: int) -> None:
        self.goes_on.wait(60)

    def after_commit(self, number: int) -> None: ...


class Race:
    """A gateway whose next commit waits, and a client."""

    def __init__(self, gateway: Gateway, client: Client, disk: Disk) -> None:
        self.gateway = gateway
        self.client = client
        self.disk = disk

    async def replaced_before(self, unit: str, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """Send a request whose session is deleted, and made anew, after it was looked up and before its commit."""
        self.disk.goes_on.clear()
        store, driver = self.gateway.store, cast(SqliteDriver, self.gateway.store.driver)
        deleted, made = store.delete_session(KEY), store.make_session(KEY, NewSession(settings=SessionPatch()))
        await until(lambda: not driver._waiting)  # they are in the commit that is held
        queue = await self.client.begin(method, params)
        await until(lambda: unit in [waiting.name for waiting in driver._waiting])
        self.disk.goes_on.set()
        await asyncio.gather(deleted, made)
        async with asyncio.timeout(20):
            return await queue.get()

    async def seen(self) -> list[Any]:
        """Read all that could have been changed in what lives under the key now."""
        ask = self.client.ask
        return [
            (await ask("sessions.describe", key=str(KEY)))["session"],
            await ask("runs.list", sessionKey=str(KEY)),
            await ask("chat.history", sessionKey=str(KEY)),
            await ask("deliveries.list"),
            await ask("exchanges.list"),
        ]


@pytest.fixture
async def race(tmp_path: Path, anyio_backend: str) -> AsyncIterator[Race]:
    def equip(gateway: Gateway) -> None:
        @gateway.agent("held")
        async def held(context: FunctionContext) -> str:
            return f"answered {context.text}"

        gateway.add_channel(TakingChannel())

    disk = Disk()
    async with (
        running(tmp_path, config=CONFIG, equip=equip, faults=disk) as gateway,
        listening(gateway, OPERATOR) as at,
        connected(at.websocket_url) as client,
    ):
        try:
            yield Race(gateway, client, disk)
        finally:
            disk.goes_on.set()


@pytest.mark.parametrize(
    ("method", "given", "unit"),
    [
        ("agent", {"sessionId": ID, "message": "x"}, "runs.accept"),
        ("chat.send", {"sessionKey": ID, "message": "x"}, "runs.accept"),
        ("chat.send", {"sessionKey": ID, "message": "/send off"}, "commands.carry_out_once"),
        ("chat.abort", {"sessionKey": ID}, "runs.request_abort"),
        ("chat.inject", {"sessionKey": ID, "message": "x"}, "inbox.add_once"),
        ("wake", {"sessionKey": ID, "text": "x"}, "inbox.add_once"),
        ("send", {"sessionKey": ID, "channel": "desk", "to": "ann", "message": "x"}, "deliveries.post_once"),
        ("sessions.create", {"key": ID, "label": "hit"}, "sessions.make"),
        ("sessions.send", {"key": ID, "message": "x"}, "runs.accept"),
        ("sessions.abort", {"key": ID}, "runs.request_abort"),
        ("sessions.reset", {"key": ID}, "commands.reset"),
        ("sessions.delete", {"key": ID}, "commands.delete"),
        ("sessions.patch", {"key": ID, "label": "hit"}, "sessions.patch"),
        ("sessions.patch", {"key": ID, "archived": True}, "sessions.patch"),
    ],
)
async def test_a_session_made_anew_before_the_commit_is_not_touched(
    race: Race, method: str, given: dict[str, Any], unit: str
) -> None:
    made = await race.client.ask("sessions.create", key=str(KEY))
    params = {name: made["sessionId"] if value == ID else value for name, value in given.items()}

    answer = await race.replaced_before(unit, method, params)

    assert (answer["ok"], answer["error"]["details"]["code"]) == (False, "session_id_replaced")
    now, runs, history, *others = await race.seen()
    assert (now["sessionId"] != made["sessionId"], now.get("label"), now.get("sendPolicy")) == (True, None, None)
    assert (runs["count"], history["messages"], [other["count"] for other in others]) == (0, [], [0, 0])


async def test_a_message_of_a_tool_does_not_reach_a_session_made_anew_before_its_commit(race: Race) -> None:
    made = await race.client.ask("sessions.create", key=str(KEY))
    args = {"sessionKey": made["sessionId"], "message": "x", "timeoutSeconds": 0}

    answer = await race.replaced_before("exchanges.open_", "tools.invoke", {"tool": "sessions_send", "args": args})

    assert answer["payload"]["result"]["status"] == "error"
    assert (await race.seen())[-1]["count"] == 0


async def test_by_its_key_a_request_reaches_what_lives_there_at_its_commit(race: Race) -> None:
    made = await race.client.ask("sessions.create", key=str(KEY))

    answer = await race.replaced_before("sessions.patch", "sessions.patch", {"key": str(KEY), "label": "by its key"})

    entry = answer["payload"]["entry"]
    assert (entry["label"], entry["sessionId"] != made["sessionId"]) == ("by its key", True)
