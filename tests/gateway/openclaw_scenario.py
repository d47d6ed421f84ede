"""A conversation that calls every method that OpenClaw's gateway has too, as its clients do, and keeps all frames."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from tests.support.device import Device

from .client import Client, opened
from .conftest import World

SPEAKER, MAIN, HELD, BROKEN = (f"agent:{agent}:main" for agent in ("speaker", "main", "held", "broken"))
DELETED = "agent:speaker:deleted"
CONNECT = {
    "minProtocol": 4,
    "maxProtocol": 4,
    "client": {"id": "cli", "version": "2026.9.6", "platform": "linux", "mode": "cli"},
    "role": "operator",
    "scopes": ["operator.admin"],
}
NODE = {"id": "node-host", "version": "2026.9.6", "platform": "linux", "mode": "node"}
JOB = {
    "name": "nightly",
    "schedule": {"kind": "every", "everyMs": 3_600_000},
    "sessionTarget": "isolated",
    "wakeMode": "now",
    "payload": {"kind": "agentTurn", "message": "look around"},
    "agentId": "speaker",
    "enabled": True,
}

PLAIN: tuple[tuple[str, dict[str, Any]], ...] = (
    ("health", {}),
    ("status", {"includeChannelSummary": False, "includeCliProjection": True}),
    ("agents.list", {}),
    ("agents.files.list", {"agentId": "main"}),
    ("agent.identity.get", {"agentId": "main"}),
    ("models.list", {"agentId": "main"}),
    ("models.authStatus", {}),
    ("commands.list", {"agentId": "main"}),
    ("chat.metadata", {"agentId": "main"}),
    ("channels.status", {"probe": False}),
    ("config.get", {}),
    ("environments.list", {}),
    ("exec.approval.list", {}),
    ("exec.approval.grants.list", {}),
    ("last-heartbeat", {}),
    ("logs.tail", {"limit": 20}),
    ("node.list", {}),
    ("node.pair.list", {}),
    ("plugin.approval.list", {}),
    ("openclaw.approval.list", {}),
    ("approval.history", {"limit": 50}),
    ("plugins.list", {}),
    ("plugins.uiDescriptors", {}),
    ("progressCard.get", {"sessionKey": SPEAKER}),
    ("projects.list", {}),
    ("question.list", {}),
    ("skills.status", {}),
    ("sessions.branches.list", {"sessionKey": SPEAKER}),
    ("sessions.observer.visibility", {"visible": True}),
    ("skills.library.list", {"scope": "all"}),
    ("system-presence", {}),
    ("talk.catalog", {}),
    ("tasks.list", {}),
    ("tools.catalog", {}),
    ("tools.effective", {"sessionKey": SPEAKER}),
    ("update.status", {}),
    ("usage.cost", {"days": 7, "agentScope": "all"}),
    ("usage.status", {}),
    ("worktrees.list", {}),
    ("wake", {"mode": "now", "text": "good morning"}),
    ("cron.status", {}),
)
"""What only shows."""


@dataclass(frozen=True, slots=True)
class Exchanged:
    """A request and what it was answered with."""

    method: str
    params: dict[str, Any]
    frame: dict[str, Any]


class Scenario:
    """One operator, and what was said."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.exchanged: list[Exchanged] = []

    @property
    def events(self) -> list[dict[str, Any]]:
        return self._client.events

    async def call(self, method: str, **params: Any) -> Any:
        """Call a method, and keep what it answers."""
        queue = await self._client.begin(method, params)
        async with asyncio.timeout(10):
            frame = await queue.get()
        self.exchanged.append(Exchanged(method, params, frame))
        return frame.get("payload", {})

    async def connect(self, token: str) -> None:
        await self.call("connect", **CONNECT, auth={"token": token})
        await self.call("sessions.subscribe")
        for key in (SPEAKER, HELD, BROKEN):
            await self.call("sessions.messages.subscribe", key=key)

    async def talk(self, release: asyncio.Event) -> None:
        """Send messages that are answered, fail and are aborted, and one from an agent to another."""
        accepted = await self.call("agent", message="speak", sessionKey=SPEAKER, idempotencyKey="run-1")
        await self.call("agent.wait", runId=accepted["runId"], timeoutMs=10_000)
        await self.call("agent.wait", runId="nowhere", timeoutMs=0)
        await self.call("chat.send", sessionKey=SPEAKER, message="again", idempotencyKey="run-2")
        await self._client.event("chat", runId="run-2", state="final")
        await self.call("chat.send", sessionKey=BROKEN, message="break", idempotencyKey="run-3")
        await self._client.event("chat", runId="run-3", state="error")
        await self.call("chat.send", sessionKey=HELD, message="wait", idempotencyKey="run-4")
        await self.call("chat.abort", sessionKey=HELD, runId="run-4", preserveSideRuns=True)
        await self._client.event("chat", runId="run-4", state="aborted")
        release.set()
        args = {"sessionKey": SPEAKER, "message": "what do you see?", "timeoutSeconds": 5}
        await self.call("tools.invoke", tool="sessions_send", args=args, sessionKey=MAIN)
        await self.call("chat.inject", sessionKey=SPEAKER, message="a note", label="note")
        await self.call("send", channel="desk", to="room", message="hello", idempotencyKey="send-1")
        sent = {"to": "desk:room", "message": "hello again"}
        await self.call("message.action", channel="desk", action="send", params=sent, idempotencyKey="send-2")

    async def look(self) -> None:
        """Read what there is of sessions."""
        for archived in (False, "all"):
            await self.call("sessions.list", limit=50, includeDerivedTitles=True, archived=archived)
        await self.call("sessions.describe", key=SPEAKER)
        await self.call("sessions.describe", key="agent:main:nobody")
        await self.call("sessions.preview", keys=[SPEAKER, "agent:main:nobody"], limit=3)
        await self.call("sessions.resolve", key=SPEAKER)
        await self.call("sessions.get", key=SPEAKER, limit=20)
        await self.call("chat.history", sessionKey=SPEAKER, limit=50)
        await self.call("chat.startup", sessionKey=SPEAKER, limit=50, maxBytes=100_000)
        for method, params in PLAIN:
            await self.call(method, **params)
        await self.call("approval.get", id="nowhere")
        await self.call("approval.resolve", id="nowhere", kind="plugin", decision="deny")
        await self.call("plugin.approval.resolve", id="nowhere", decision="deny")

    async def change(self) -> None:
        """Make, change and remove sessions and jobs."""
        made = await self.call("sessions.create", agentId="speaker", label="a new one")
        key = made.get("key", SPEAKER)
        await self.call("sessions.send", key=key, message="first", idempotencyKey="run-5")
        await self.call("sessions.abort", key=key)
        await self.call("sessions.patch", key=SPEAKER, label="renamed", thinkingLevel="low", pinned=True)
        await self.call("sessions.reset", key=SPEAKER, reason="new")
        await self.call("agent", message="to be deleted", sessionKey=DELETED, idempotencyKey="run-6")
        await self.call("agent.wait", runId="run-6", timeoutMs=10_000)
        for _ in range(2):
            await self.call("sessions.delete", key=DELETED)
        await self.call("sessions.messages.unsubscribe", key=SPEAKER)

        job = await self.call("cron.add", **JOB)
        id = job.get("id", job.get("job", {}).get("id", "nightly"))
        await self.call("cron.get", id=id)
        await self.call("cron.update", id=id, patch={"enabled": False})
        await self.call("cron.run", id=id, mode="force")
        await self.call("cron.list", includeDisabled=True, limit=50, offset=0)
        await self.call("cron.runs", id=id, limit=20)
        await self.call("cron.remove", id=id)

    async def pair(self, url: str, token: str) -> None:
        """Log in as a page that stays logged in, see it in the list, and end that in both ways."""
        device = Device()
        for method in ("device.pair.remove", "device.token.revoke"):
            async with opened(url, origin=url.replace("ws:", "http:").removesuffix("/ws")) as client:
                page = Scenario(client)
                page.exchanged = self.exchanged
                await page.call("connect", **device.connect(await client.event("connect.challenge"), token))
            await self.call("device.pair.list")
            await self.call(method, deviceId=device.id, **({"role": "operator"} if "token" in method else {}))

    async def publish(self, url: str, token: str) -> None:
        """Connect as a node, and tell what it has, as OpenClaw's does."""
        async with opened(url) as client:
            node = Scenario(client)
            node.exchanged = self.exchanged
            asked = {**CONNECT, "role": "node", "scopes": [], "auth": {"token": token}}
            await node.call("connect", **asked | {"client": {**NODE, "instanceId": "lamp"}})
            await node.call("node.event", event="node.host.stats", payloadJSON="{}")
            await node.call("node.pluginTools.update", tools=[])
            await node.call("node.skills.update", skills=[])
            await node.call("node.runnerInventory.update")


@asynccontextmanager
async def played(world: World, token: str) -> AsyncIterator[Scenario]:
    """Play it to its end; the connection stays open, so that what the gateway says when it stops is heard too."""
    async with opened(world.url) as client:
        scenario = Scenario(client)
        await scenario.connect(token)
        await scenario.talk(world.release)
        await scenario.look()
        await scenario.change()
        await scenario.pair(world.url, token)
        await scenario.publish(world.url, token)
        await client.event("tick")
        yield scenario
