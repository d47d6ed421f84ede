"""A gateway in a process of its own, made to be killed: `python -m tests.cluster.member <folder> <url> <life> <lease>`.

It sends messages to sessions that all gateways share, and says what it was told: a line `accepted <run> <session>` once
a message is acknowledged. Its agents ask each other, start sub-agents and use a tool with outside effects, whose calls
are in `posted.log`, a line each. It goes on until it is told to stop, or killed; the life `last` sends nothing.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
from collections.abc import Callable
from pathlib import Path

from backchannel.agents.scripted import Reply, Scripted, ScriptedModel, call
from backchannel.config.load import config_from
from backchannel.core.contracts import ModelRequest, ToolContext
from backchannel.core.messages import Role
from backchannel.core.spawn_texts import ANNOUNCE_LINE
from backchannel.errors import Unavailable
from backchannel.gateway.app import Gateway
from tests.support.gateways import live_runs

AGENTS = ("a", "b", "c")
SESSIONS = 8
PACE_S = 0.01
REST_LIMIT_S = 120.0
AT_REST = "last"
"""The name of one that sends nothing, and ends when everything is done."""
TEXTS = ("just talk", "ask another", "tell another", "start a helper", "use your tool")


async def reply(request: ModelRequest) -> Scripted:
    await asyncio.sleep(PACE_S)
    last = request.messages[-1]
    if "You are a sub-agent" in request.system:
        return "the hole is dug" if ANNOUNCE_LINE in last.text else "dug"
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


def open_member(folder: Path, url: str, name: str, lease_s: float) -> Gateway:
    gateway = Gateway(config_from(settings(url, lease_s), os.environ, state=folder / name))
    gateway.add_model(ScriptedModel(replies=reply))

    @gateway.tool(effects="outside")
    async def post(context: ToolContext) -> str:
        with (folder / "posted.log").open("a") as posted:
            posted.write(f"{context.call_id}\n")
        await asyncio.sleep(PACE_S)
        return "posted"

    return gateway


async def talk(gateway: Gateway, life: str, on_accepted: Callable[[str, str], None]) -> None:
    """Send messages, one after the other; one that was refused is sent again under the same id."""
    n = 0
    while True:
        n += 1
        session = f"agent:{random.choice(AGENTS)}:s{random.randrange(SESSIONS)}"
        text = f"{life}-{n}: {random.choice(TEXTS)}"
        while True:
            try:
                run = await gateway.submit(session, text, run_id=f"{life}-{n}")
                break
            except Unavailable:
                await asyncio.sleep(0.1)
        on_accepted(run.id, session)
        await asyncio.sleep(PACE_S * 3)


async def come_to_rest(gateway: Gateway) -> None:
    """Let all that is left be finished."""
    async with asyncio.timeout(REST_LIMIT_S):
        while live := await live_runs(gateway):
            await gateway.runtime.wait(live[0].id, 5)
        while await gateway.store.lanes_in_line():  # noqa: ASYNC110 - the gateway that is watched sends them
            await asyncio.sleep(0.05)


def say_accepted(run_id: str, session: str) -> None:
    print(json.dumps(["accepted", run_id, session]), flush=True)


async def live(folder: Path, url: str, name: str, life: str, lease_s: float) -> None:
    async with open_member(folder, url, name, lease_s) as gateway:
        print(json.dumps(["ready", gateway.store.number]), flush=True)
        if life == AT_REST:
            await come_to_rest(gateway)
            return
        talking = asyncio.create_task(talk(gateway, life, say_accepted))
        await asyncio.to_thread(sys.stdin.readline)
        talking.cancel()


if __name__ == "__main__":
    asyncio.run(live(Path(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4], float(sys.argv[5])))
