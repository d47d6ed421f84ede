"""A gateway in a process of its own, made to be killed: `python -m tests.support.mortal <state> <life>`.

It sends itself messages, on a few sessions, and says what it was told: a line `accepted <run> <session>` once a
message is acknowledged, a line `commit` for each change of a run. Models and tools take a few milliseconds, so
that there is always something at work.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from backchannel.agents.scripted import Reply, Scripted, ScriptedModel, call
from backchannel.config.load import config_from
from backchannel.core.contracts import Clock, ModelRequest, ToolContext
from backchannel.core.facts import RunChanged
from backchannel.core.messages import Role
from backchannel.gateway.app import Gateway
from backchannel.runtime.events import Event
from tests.support.databases import with_database

CONFIG: dict[str, object] = {"agents": {"list": [{"id": "main", "model": "scripted/test"}]}}
SESSIONS = 4
PER_LIFE = 12
PACE_S = 0.004


async def reply(request: ModelRequest) -> Scripted:
    await asyncio.sleep(PACE_S)
    last = request.messages[-1]
    if last.role is Role.TOOL_RESULT or "tools" not in last.text:
        return Reply(text=("it is ", "done"))
    return Reply(text="calling", calls=(call("post"), call("look"), call("post")))


def open_mortal(state: Path, clock: Clock | None = None) -> tuple[Gateway, ScriptedModel]:
    """Make the gateway; what its tool does to the outside is in `posted.log`, a line a call."""
    gateway = Gateway(config_from(with_database(CONFIG, state), os.environ, state=state), clock=clock)
    model = ScriptedModel(replies=reply)
    gateway.add_model(model)

    @gateway.tool(effects="outside")
    async def post(context: ToolContext) -> str:
        with (state / "posted.log").open("a") as posted:
            posted.write(f"{context.call_id}\n")
        await asyncio.sleep(PACE_S)
        return "posted"

    @gateway.tool(effects="none")
    async def look() -> str:
        await asyncio.sleep(PACE_S)
        return "seen"

    return gateway, model


def say(line: str) -> None:
    print(line, flush=True)


async def live(state: Path, life: str) -> None:
    gateway, model = open_mortal(state)

    def hear(event: Event) -> None:
        if isinstance(event, RunChanged):
            say("commit")
        for problem in model.refused:
            say(f"refused {problem}")

    async with gateway:
        gateway.runtime.hub.listen(hear)
        say("ready")
        for n in range(PER_LIFE):
            session = f"agent:main:s{n % SESSIONS}"
            text = "use your tools" if n % 3 == 0 else "just talk"
            run = await gateway.submit(session, f"{life}-{n}: {text}", run_id=f"{life}-{n}")
            say(f"accepted {run.id} {session}")
            await asyncio.sleep(PACE_S)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(live(Path(sys.argv[1]), sys.argv[2]))
