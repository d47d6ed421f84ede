"""A conversation that calls every method that OpenClaw's gateway has too, as its clients do, and keeps all frames."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from backchannel.agents.scripted import Reply, Scripted, ScriptedModel, call
from backchannel.core.contracts import ModelFailed, ModelRequest, ToolContext
from backchannel.core.messages import Role
from backchannel.gateway.app import Gateway
from tests.support.device import Device

from .client import Client, opened
from .conftest import World

SPEAKER, MAIN, HELD, BROKEN = (f"agent:{agent}:main" for agent in ("speaker", "main", "held", "broken"))
DELETED, GROUP, QUEUED = (f"agent:speaker:{rest}" for rest in ("deleted", "desk:group:room", "queued"))
LATE, NOBODY = "agent:held:late", "agent:main:nobody"
BUSY = {"id": "busy", "model": "scripted/busy"}
ASKED = {"tool": "post", "ask": "always"}
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

JOBS: tuple[dict[str, Any], ...] = (
    {"name": "morning", "schedule": {"kind": "cron", "expr": "0 9 * * *", "tz": "Europe/Berlin"}},
    {"name": "some day", "schedule": {"kind": "at", "at": "2099-01-01T00:00:00Z"}},
    {"name": "told", "delivery": {"mode": "announce", "channel": "desk", "to": "room"}},
    {"name": "broken", "agentId": "broken"},
)
"""What is different in further jobs."""

PLAIN: tuple[tuple[str, dict[str, Any]], ...] = (
    ("health", {}),
    ("status", {"includeChannelSummary": False, "includeCliProjection": True}),
    ("agents.list", {}),
    ("agents.files.list", {"agentId": "main"}),
    ("agent.identity.get", {"agentId": "main"}),
    ("models.list", {"agentId": "main"}),
    ("models.list", {"agentId": "main", "view": "all"}),
    ("models.authStatus", {}),
    ("commands.list", {"agentId": "main"}),
    ("chat.metadata", {"agentId": "main"}),
    ("channels.status", {"probe": False}),
    ("config.get", {}),
    ("diagnostics.stability", {"limit": 25}),
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
    ("artifacts.list", {"sessionKey": SPEAKER}),
    ("channels.pairing.list", {}),
    ("config.schema", {}),
    ("exec.approvals.get", {}),
    ("sessions.companion.state", {"sessionKey": SPEAKER}),
    ("sessions.usage", {"range": "7d", "agentScope": "all", "groupBy": "family"}),
    ("sessions.usage.timeseries", {"key": SPEAKER}),
    ("sessions.usage.logs", {"key": SPEAKER}),
    ("skills.proposals.list", {}),
    ("skills.search", {"limit": 20}),
    ("system.info", {}),
    ("wake", {"mode": "now", "text": "good morning"}),
    ("cron.status", {}),
    ("wizard.start", {"flow": "channels", "channel": "discord"}),
)
"""What only shows."""


def equip(gateway: Gateway) -> None:
    """Give a gateway the model of the busy agent, and a tool that has to be allowed."""

    @gateway.tool(effects="none")
    async def post(text: str, context: ToolContext) -> str:
        return "posted"

    asked: list[ModelRequest] = []

    def reply(request: ModelRequest) -> Scripted:
        asked.append(request)
        if len(asked) == 1:
            return ModelFailed("too many requests", retryable=True)
        if request.messages[-1].role is Role.TOOL_RESULT:
            return "so be it"
        return Reply(thinking="may I?", calls=(call("post", text="one"), call("post", text="two")))

    gateway.add_model(ScriptedModel("scripted/busy", replies=reply))


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
        return (await self._taken(queue, method, params)).get("payload", {})

    async def run(self, **params: Any) -> None:
        """Call `agent`, and keep both of its answers: that it was accepted, and how it ended."""
        queue = await self._client.begin("agent", params)
        for _ in range(2):
            await self._taken(queue, "agent", params)

    async def _taken(self, queue: asyncio.Queue[dict[str, Any]], method: str, params: dict[str, Any]) -> dict[str, Any]:
        async with asyncio.timeout(20):
            frame = await queue.get()
        self.exchanged.append(Exchanged(method, params, frame))
        return frame

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
        await self.run(message="hello, all", sessionKey=GROUP, idempotencyKey="run-7")
        await self.hold()
        release.set()
        args = {"sessionKey": SPEAKER, "message": "what do you see?", "timeoutSeconds": 5}
        await self.call("tools.invoke", tool="sessions_send", args=args, sessionKey=MAIN)
        await self.call("chat.inject", sessionKey=SPEAKER, message="a note", label="note")
        await self.call("send", channel="desk", to="room", message="hello", idempotencyKey="send-1")
        sent = {"to": "desk:room", "message": "hello again"}
        await self.call("message.action", channel="desk", action="send", params=sent, idempotencyKey="send-2")

    async def hold(self) -> None:
        """Let a run take too long, and one work while another waits, which is aborted."""
        await self.call("chat.send", sessionKey=LATE, message="wait", timeoutMs=50, idempotencyKey="run-8")
        await self._client.event("chat", runId="run-8", state="error")
        await self.call("chat.send", sessionKey=HELD, message="wait", idempotencyKey="run-4")
        await self._client.event("agent", runId="run-4", stream="lifecycle")
        await self.call("chat.send", sessionKey=QUEUED, message="and then?", idempotencyKey="run-9")
        await self.call("sessions.list", limit=50)
        await self.call("chat.startup", sessionKey=HELD)
        await self.call("chat.abort", sessionKey=HELD, runId="run-4", preserveSideRuns=True)
        await self._client.event("chat", runId="run-4", state="aborted")
        await self._client.event("chat", runId="run-9", state="final")

    async def allow(self) -> None:
        """Let an agent ask twice for what has to be allowed, and answer it in both ways."""
        await self.call("chat.send", sessionKey="agent:busy:main", message="go", idempotencyKey="run-10")
        async with asyncio.timeout(20), self._client.came:
            await self._client.came.wait_for(lambda: len(self._client.seen("plugin.approval.requested")) == 2)
        one, two = (each["id"] for each in self._client.seen("plugin.approval.requested"))
        await self.call("plugin.approval.list")
        await self.call("approval.get", id=one)
        await self.call("approval.resolve", id=one, kind="plugin", decision="deny")
        await self.call("approval.get", id=one)
        await self.call("plugin.approval.resolve", id=two, decision="allow-once")
        await self._client.event("chat", runId="run-10", state="final")

    async def look(self) -> None:
        """Read what there is of sessions."""
        for archived in (False, "all"):
            await self.call("sessions.list", limit=50, includeDerivedTitles=True, archived=archived)
        await self.call("sessions.describe", key=SPEAKER)
        await self.call("sessions.describe", key=NOBODY)
        await self.call("sessions.preview", keys=[SPEAKER, NOBODY], limit=3)
        await self.call("sessions.resolve", key=SPEAKER)
        await self.call("sessions.resolve", key=NOBODY, allowMissing=True)
        await self.call("sessions.get", key=SPEAKER, limit=20)
        await self.call("sessions.compact", key=SPEAKER, maxLines=10)
        await self.call("sessions.search", query="one two", limit=25)
        await self.call("chat.history", sessionKey=SPEAKER, limit=50)
        await self.call("chat.startup", sessionKey=SPEAKER, limit=50, maxBytes=100_000)
        await self.call("chat.startup", shortId="abcdef12")
        for method, params in PLAIN:
            await self.call(method, **params)
        for method in ("channels.pairing.approve", "channels.pairing.dismiss"):  # `test_pairing.py` has one who waits
            await self.call(method, channel="desk", accountId="default", requestId="none")

    async def change(self) -> None:
        """Make, change and remove sessions."""
        made = await self.call("sessions.create", agentId="speaker", label="a new one")
        key = made.get("key", SPEAKER)
        await self.call("sessions.send", key=key, message="first", idempotencyKey="run-5")
        await self.call("sessions.abort", key=key)
        await self.call("sessions.create", agentId="speaker", message="hello", idempotencyKey="made-1")
        await self.call("sessions.patch", key=SPEAKER, label="renamed", thinkingLevel="low", pinned=True)
        await self.call("sessions.reset", key=SPEAKER, reason="new")
        await self.call("agent", message="to be deleted", sessionKey=DELETED, idempotencyKey="run-6")
        await self.call("agent.wait", runId="run-6", timeoutMs=10_000)
        for _ in range(2):
            await self.call("sessions.delete", key=DELETED)
        await self.call("sessions.patch", key=GROUP, archived=True)
        await self.call("sessions.list", limit=50, archived="all")
        await self.call("sessions.messages.unsubscribe", key=SPEAKER)

    async def plan(self) -> None:
        """Make, run, change and remove jobs."""
        job = await self.call("cron.add", **JOB)
        id = job["id"]
        ids = [id, *[(await self.call("cron.add", **JOB | different))["id"] for different in JOBS]]
        await self.call("cron.get", id=id)
        await self.call("cron.update", id=id, patch={"enabled": False})
        for each in (id, ids[-1]):
            fired = await self.call("cron.run", id=each, mode="force")
            await self.call("agent.wait", runId=fired["runId"], timeoutMs=10_000)
        await self.call("cron.list", includeDisabled=True, limit=50, offset=0)
        for each in ids:
            await self.call("cron.runs", id=each, limit=20)
            await self.call("cron.remove", id=each)

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
            for shows in ("node.list", "system-presence"):
                await self.call(shows)
            await self.call("node.describe", nodeId="lamp")
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
        await scenario.allow()
        await scenario.look()
        await scenario.change()
        await scenario.plan()
        await scenario.pair(world.url, token)
        await scenario.publish(world.url, token)
        await client.event("tick")
        yield scenario
