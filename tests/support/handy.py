"""A gateway whose agent runs commands, in a process of its own, made to be killed.

`python -m tests.support.handy <state> <sandbox mode> <command> [background]`: the model asks for the command once, and
the gateway lives until it is killed.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

from backchannel.agents.scripted import Scripted, ScriptedModel, call
from backchannel.config.load import config_from
from backchannel.core.contracts import ModelRequest
from backchannel.core.messages import Role
from backchannel.gateway.app import Gateway

RUN_ID = "handy"


def open_handy(state: Path, mode: str, command: str = "true", *, background: bool = False) -> Gateway:
    """Make the gateway; it replies to `list` with its background commands, and else with the result of the command."""
    config: dict[str, Any] = {
        "agents": {"list": [{"id": "main", "model": "scripted/test", "sandbox": {"mode": mode}}]},
        "tools": {"allow": ["group:fs", "group:exec"]},
    }
    gateway = Gateway(config_from(config, {}, state=state))

    def reply(request: ModelRequest) -> Scripted:
        last = request.messages[-1]
        if last.role is Role.TOOL_RESULT:
            return last.text
        if last.text == "list":
            return [call("process", action="list")]
        return [call("exec", command=command, background=background)]

    gateway.add_model(ScriptedModel(replies=reply))
    return gateway


async def live(state: Path, mode: str, command: str, background: bool) -> None:
    async with open_handy(state, mode, command, background=background) as gateway:
        await gateway.submit("main", "go", run_id=RUN_ID)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(live(Path(sys.argv[1]), sys.argv[2], sys.argv[3], background=len(sys.argv) > 4))
