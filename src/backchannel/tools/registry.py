"""The list of session tools, and the one way to call them."""

from __future__ import annotations

from typing import Any

import msgspec

from backchannel.core.contracts import Effects, Tool, ToolContext, ToolOutput
from backchannel.core.keys import SessionKey
from backchannel.core.messages import text_content
from backchannel.core.text import nearest, quoted
from backchannel.errors import UnknownTool
from backchannel.tools.agents import AgentsList
from backchannel.tools.base import Caller, Parts, SessionTool
from backchannel.tools.history import SessionsHistory
from backchannel.tools.listing import SessionsList
from backchannel.tools.search import SessionsSearch
from backchannel.tools.send import SessionsSend
from backchannel.tools.spawn import SessionsSpawn
from backchannel.tools.status import SessionStatusTool
from backchannel.wire.shapes import Answer, plain

SESSION_TOOLS: tuple[type[SessionTool], ...] = (
    SessionsList,
    SessionsHistory,
    SessionsSend,
    SessionsSpawn,
    AgentsList,
    SessionsSearch,
    SessionStatusTool,
)


def find_tool(name: str) -> type[SessionTool]:
    """Look a session tool up.

    Raises:
        UnknownTool: the message names the nearest, and all there are.
    """
    by_name = {tool.name: tool for tool in SESSION_TOOLS}
    if name not in by_name:
        close = nearest(name[:64], by_name)
        hint = f"did you mean {close}? " if close else ""
        raise UnknownTool(
            f"there is no session tool {quoted(name, 64)}: {hint}the session tools are {', '.join(by_name)}",
            tool=name[:64],
        )
    return by_name[name]


async def invoke(parts: Parts, caller: Caller, name: str, arguments: Any) -> Answer:
    """Call a session tool, whatever the door.

    Raises:
        UnknownTool: there is none of this name.
        InvalidRequest: the arguments do not fit.
    """
    return await find_tool(name)(parts).invoke(caller, arguments)


def agent_tools(parts: Parts) -> list[Tool]:
    """Make the session tools fit for agents; the caller is the session that the run is in."""
    return [_agent_tool(tool(parts)) for tool in SESSION_TOOLS]


def _agent_tool(tool: SessionTool) -> Tool:
    async def call(context: ToolContext, arguments: dict[str, Any]) -> ToolOutput:
        caller = Caller(SessionKey.stored(context.session_key), context.call_id, run_id=context.run_id)
        answer = await tool.invoke(caller, arguments)
        return ToolOutput(text_content(msgspec.json.encode(answer).decode()))

    return Tool(
        name=tool.name,
        description=tool.description,
        parameters=tool.schema(),
        effects=Effects.SESSION,
        call=call,
    )


class SessionTools:
    """The session tools as plain async methods, for one caller."""

    def __init__(self, parts: Parts, caller: Caller) -> None:
        self._parts = parts
        self._caller = caller

    async def call(self, name: str, **arguments: Any) -> dict[str, Any]:
        """Call a tool with arguments named as in its description; returns its result as a plain dict."""
        return plain(await invoke(self._parts, self._caller, name, arguments))

    async def sessions_list(self, **arguments: Any) -> dict[str, Any]:
        """List the sessions that the caller may see."""
        return await self.call(SessionsList.name, **arguments)

    async def sessions_history(self, sessionKey: str, **arguments: Any) -> dict[str, Any]:  # noqa: N803 - the wire's name
        """Read what was said in a session."""
        return await self.call(SessionsHistory.name, sessionKey=sessionKey, **arguments)

    async def sessions_send(self, **arguments: Any) -> dict[str, Any]:
        """Send a message to a session and, by default, wait for its reply."""
        return await self.call(SessionsSend.name, **arguments)

    async def sessions_spawn(self, **arguments: Any) -> dict[str, Any]:
        """Start a sub-agent on a task; its result comes back by itself."""
        return await self.call(SessionsSpawn.name, **arguments)

    async def agents_list(self) -> dict[str, Any]:
        """List the agents under which the caller may spawn."""
        return await self.call(AgentsList.name)

    async def sessions_search(self, query: str, **arguments: Any) -> dict[str, Any]:
        """Find what was said, in the sessions that the caller may see."""
        return await self.call(SessionsSearch.name, query=query, **arguments)

    async def session_status(self, **arguments: Any) -> dict[str, Any]:
        """See how a session is doing."""
        return await self.call(SessionStatusTool.name, **arguments)
