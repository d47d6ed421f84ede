"""A gateway with the OpenAI-style door, in a process of its own: `python -m tests.support.slow_door <state> <pace>`.

With the pace `never` its model never answers; with `at-once` it does. It says `asked` each time that its model is
asked, and `port <number>` once it listens, in whichever order that happens.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from backchannel.agents.scripted import ScriptedModel
from backchannel.config.load import config_from
from backchannel.core.contracts import ModelRequest
from backchannel.gateway.app import Gateway
from backchannel.gateway.server import listening

TOKEN = "the-token-of-the-slow-door"
CONFIG: dict[str, object] = {
    "agents": {"list": [{"id": "main", "model": "scripted/test"}]},
    "gateway": {"port": 0, "auth": {"token": TOKEN}, "http": {"chatCompletions": True}},
}


async def live(state: Path, pace: str) -> None:
    gateway = Gateway(config_from(CONFIG, {}, state=state))

    async def reply(request: ModelRequest) -> str:
        print("asked", flush=True)
        if pace == "never":
            await asyncio.Event().wait()
        return f"you said: {request.messages[-1].text}"

    gateway.add_model(ScriptedModel(replies=reply))
    async with gateway, listening(gateway, TOKEN) as at:
        print(f"port {at.port}", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(live(Path(sys.argv[1]), sys.argv[2]))
