"""The tools of a workspace on a state folder of their own, called as a run calls them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from backchannel.agents.gates import Gates
from backchannel.agents.registry import Agents
from backchannel.agents.sandbox.sandboxes import Sandboxes
from backchannel.config import config_from
from backchannel.core.contracts import ToolContext, ToolOutput
from backchannel.core.keys import SessionKey
from backchannel.core.messages import text_of
from backchannel.errors import InvalidRequest
from backchannel.runtime.clocks import SystemClock
from backchannel.workspace.tools import WorkspaceTools

MAIN = "agent:main:main"


class WorkspaceSession:
    """One session with all tools of the workspace."""

    def __init__(self, tools: WorkspaceTools, root: Path, key: str = MAIN) -> None:
        self.tools = tools
        self.root = root
        self._key = key

    def of(self, key: str) -> WorkspaceSession:
        """Give the tools as another session has them."""
        return WorkspaceSession(self.tools, self.root, key)

    async def output(self, tool: str, **arguments: Any) -> ToolOutput:
        agent_id = SessionKey.stored(self._key).agent
        context = ToolContext(call_id="c", run_id="r", session_key=self._key, agent_id=agent_id)
        return await self.tools.tools()[tool].call(context, arguments)

    async def __call__(self, tool: str, **arguments: Any) -> str:
        return text_of((await self.output(tool, **arguments)).content)

    async def refusal(self, tool: str, **arguments: Any) -> str:
        with pytest.raises(InvalidRequest) as refused:
            await self.output(tool, **arguments)
        return refused.value.message


@asynccontextmanager
async def opened(state: Path, **settings: Any) -> AsyncIterator[WorkspaceSession]:
    """Open the tools of the agent `main`, and close them."""
    config = config_from({"agents": {"list": [{"id": "main", **settings}, {"id": "other"}]}}, {}, state=state)
    agents = Agents(config)
    sandboxes = Sandboxes(agents, config.key_scheme, state)
    clock = SystemClock()
    tools = WorkspaceTools(config, agents, sandboxes, Gates(agents.count, clock), clock)
    try:
        yield WorkspaceSession(tools, sandboxes.workspace("main"))
    finally:
        await tools.close()
