"""A gateway in a process of its own, made to be killed: `python -m tests.cluster.member <folder> <url> <life> <lease>`.

It sends messages to sessions that all gateways share, and posts to a wall, some messages under keys that the others use
at the same moment. It says what it is going to ask for, a line `asked …`, and what it was told: `accepted <run>
<session>` once a message is acknowledged. What it hears on its standard input, it asks for as well. Its agents ask each
other, start sub-agents and use a tool with outside effects, whose calls are in `posted.log`, a line each; the wall is
`wall.log`. It goes on until it is told to stop, or killed; the life `last` sends nothing.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from backchannel.agents.scripted import Reply, Scripted, ScriptedModel, call
from backchannel.config.load import config_from
from backchannel.core.contracts import ModelRequest, ToolContext
from backchannel.core.delivery.channels import Channel, ChannelSettings, OutboundPart, Sent
from backchannel.core.delivery.delivery import Post
from backchannel.core.flows.spawn_texts import SPAWN_ANNOUNCE_LINE
from backchannel.core.messages import Role
from backchannel.core.sessions import Address
from backchannel.errors import Unavailable
from backchannel.gateway.app import Gateway
from tests.support.clocks import AheadClock
from tests.support.gateways import live_runs

AGENTS = ("a", "b", "c")
SESSIONS = 100
"""Of each agent."""
PACE_S = 0.01
REST_LIMIT_S = 120.0
AHEAD = "TEST_CLOCK_AHEAD_S"
"""The variable that says how far the clock of this machine is ahead."""
AT_REST = "last"
"""The name of one that sends nothing, and ends when everything is done."""
TEXTS = ("just talk", "ask another", "tell another", "start a helper", "use your tool")


async def reply(request: ModelRequest) -> Scripted:
    await asyncio.sleep(PACE_S)
    last = request.messages[-1]
    if "You are a sub-agent" in request.system:
        return "the hole is dug" if SPAWN_ANNOUNCE_LINE in last.text else "dug"
    if last.role is Role.TOOL_RESULT:
        return "I see."
    if "[Agent-to-agent" in last.text:
        return "ANNOUNCE_SKIP" if "announce step" in last.text else "fine"
    target = f"agent:{random.choice(AGENTS)}:s{random.randrange(SESSIONS)}"
    if "ask another" in last.text:
        return Reply(text="asking", calls=(call("sessions_send", sessionKey=target, message="?", timeoutSeconds=3),))
    if "tell another" in last.text:
        return Reply(text="telling", calls=(call("sessions_send", sessionKey=target, message="!", timeoutSeconds=0),))
    if "start a helper" in last.text:
        return Reply(text="starting", calls=(call("sessions_spawn", task="dig"),))
    if "use your tool" in last.text:
        return Reply(text="posting", calls=(call("post"), call("post")))
    return "hello"


def settings(url: str, lease_s: float) -> dict[str, object]:
    return {
        "agents": {
            "list": [{"id": name, "model": "scripted/test"} for name in AGENTS],
            "defaults": {"maxConcurrent": 16},
        },
        "tools": {"sessions": {"visibility": "all"}, "agentToAgent": {"enabled": True}},
        "session": {"agentToAgent": {"maxPingPongTurns": 1}},
        "database": {"url": url},
        "cluster": {"leaseSeconds": lease_s},
    }


class Asked(NamedTuple):
    """What a client asks for, under a key of its own: a message, or a post."""

    key: str
    session: str
    text: str
    is_post: bool = False


class Wall(Channel):
    """A platform that takes no keys: what is sent twice is there twice."""

    name = "wall"
    takes_key = False
    max_text_length = 1000
    settings = ChannelSettings(allow_from=("*",))

    def __init__(self, path: Path) -> None:
        self._path = path

    async def send(self, part: OutboundPart) -> Sent:
        _append(self._path, part.text)
        await asyncio.sleep(PACE_S)
        return Sent(part.key)


def _append(path: Path, line: str) -> None:
    with path.open("a") as file:
        file.write(f"{line}\n")


def open_member(folder: Path, url: str, name: str, lease_s: float) -> Gateway:
    clock = AheadClock(float(os.environ.get(AHEAD, 0)))
    gateway = Gateway(config_from(settings(url, lease_s), os.environ, state=folder / name), clock=clock)
    gateway.add_model(ScriptedModel(replies=reply))
    gateway.add_channel(Wall(folder / "wall.log"))

    @gateway.tool(effects="outside")
    async def post(context: ToolContext) -> str:
        _append(folder / "posted.log", context.call_id)
        await asyncio.sleep(PACE_S)
        return "posted"

    return gateway


async def talk(
    gateway: Gateway,
    life: str,
    on_accepted: Callable[[str, str], None],
    on_asked: Callable[[Asked], None] = lambda asked: None,
) -> None:
    """Ask for one thing after the other."""
    for n in itertools.count():
        asked = _next(life, n)
        on_asked(asked)
        await do(gateway, asked)
        if not asked.is_post:
            on_accepted(asked.key, asked.session)
        await asyncio.sleep(PACE_S * 3)


def _next(life: str, n: int) -> Asked:
    if n % 5 == 0:  # the others ask for the same now
        now = f"shared-{int(time.time() * 2)}"
        return Asked(now, f"agent:{AGENTS[0]}:s0", f"{now}: just talk")
    if n % 5 == 1:
        return Asked(f"{life}-{n}", "", f"{life}-{n}: look here", is_post=True)
    session = f"agent:{random.choice(AGENTS)}:s{random.randrange(SESSIONS)}"
    return Asked(f"{life}-{n}", session, f"{life}-{n}: {random.choice(TEXTS)}")


async def do(gateway: Gateway, asked: Asked) -> None:
    """Ask for something until it is acknowledged, each time under the same key."""
    while True:
        try:
            if asked.is_post:
                address = Address(channel="wall", to="everybody")
                post = Post(session_key=f"agent:{AGENTS[0]}:main", address=address, text=asked.text)
                await gateway.store.post(post, idempotency_key=asked.key, digest=asked.text)
            else:
                await gateway.submit(asked.session, asked.text, run_id=asked.key)
        except Unavailable:
            await asyncio.sleep(0.1)
        else:
            return


async def come_to_rest(gateway: Gateway) -> None:
    """Let all that is left be finished."""
    async with asyncio.timeout(REST_LIMIT_S):
        while live := await live_runs(gateway):
            await gateway.runtime.wait(live[0].id, 5)
        while await gateway.store.lanes_in_line():  # noqa: ASYNC110 - the gateway that is watched sends them
            await asyncio.sleep(0.05)


def say_asked(asked: Asked) -> None:
    print(json.dumps(["asked", *asked]), flush=True)


def say_accepted(run_id: str, session: str) -> None:
    print(json.dumps(["accepted", run_id, session]), flush=True)


async def live(folder: Path, url: str, name: str, life: str, lease_s: float) -> None:
    async with open_member(folder, url, name, lease_s) as gateway:
        print(json.dumps(["ready", gateway.store.number]), flush=True)
        if life == AT_REST:
            await come_to_rest(gateway)
            return
        talking = asyncio.create_task(talk(gateway, life, say_accepted, say_asked))
        while line := await asyncio.to_thread(sys.stdin.readline):
            asked = Asked(*json.loads(line))
            await do(gateway, asked)
            if not asked.is_post:
                say_accepted(asked.key, asked.session)
        talking.cancel()


if __name__ == "__main__":
    asyncio.run(live(Path(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4], float(sys.argv[5])))
