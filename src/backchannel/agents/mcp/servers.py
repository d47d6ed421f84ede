"""MCP servers as a source of tools, and the calls of those tools.

A server is started when a run begins whose agent may have one of its tools, by `tools.allow`. Once found, its tools
stay listed while the server is down; calls then say so.

A server that is a program runs on this machine for sessions that are not sandboxed, and once more in each sandbox whose
sessions need it. One at an address is outside of every sandbox; which sessions have it is decided with all other tools.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import mcp_types
import msgspec
import structlog
from mcp import MCPError
from mcp.client._transport import TransportStreams
from pydantic import ValidationError

from backchannel.agents.gates import Gate, Gates
from backchannel.agents.mcp.keeping import CallAnswer, CallLost, ServerDown, SupervisedServer
from backchannel.agents.mcp.listing import ListedTool, listed
from backchannel.agents.mcp.pipes import ServerEnded, program_transport
from backchannel.agents.mcp.results import output_of
from backchannel.agents.mcp.web import HttpAnswers, web_transport
from backchannel.agents.programs import Program, environment
from backchannel.agents.sandbox.sandboxes import Sandbox, Sandboxes
from backchannel.config.schema import Config
from backchannel.config.schema_agents import McpServerSettings
from backchannel.core.contracts import Clock, Effects, Tool, ToolContext, ToolOutput
from backchannel.core.keys import SessionKey
from backchannel.core.mcp_names import MCP_SEPARATOR, servers_named
from backchannel.core.messages import TextBlock, text_content
from backchannel.core.secrets.known import KnownSecrets, secrets_in
from backchannel.core.supervision import ServiceHealth
from backchannel.core.text import clean_name
from backchannel.errors import EndedByOperator
from backchannel.service import Service

log = structlog.get_logger(__name__)

MOST_AT_ONCE, MOST_OF_SESSION = 64, 16
"""How many calls of one server may be under way, in all and of one session."""
_LOOKED_THROUGH = 20_000
"""In how many characters of what a server says went wrong secrets are sought; far fewer are shown."""
UNKNOWN_EFFECT = "Whether the call had its effect is not known: check before you repeat it."


class McpServers(Service):
    """The configured servers. Nothing is started before it is needed; `close` ends all of them."""

    name = "mcp"

    def __init__(self, config: Config, clock: Clock, sandboxes: Sandboxes, gates: Gates) -> None:
        base = config.file.parent if config.file is not None else None
        self._servers = {
            name: McpServer(
                name,
                settings,
                base,
                clock,
                sandboxes,
                gates.gate(f"mcp:{name}", MOST_AT_ONCE, of_session=MOST_OF_SESSION),
            )
            for name, settings in config.mcp.servers.items()
            if settings.enabled
        }
        self._names = tuple(self._servers)

    async def ready(self, allowed: Sequence[str], session_key: str) -> None:
        """Start the servers of which these words may name a tool, and wait for those that come up soon."""
        if names := servers_named(tuple(allowed), self._names):
            await asyncio.gather(*(self._servers[name].ready(session_key) for name in names))

    def tools(self, session_key: str | None = None) -> Mapping[str, Tool]:
        """Name the tools that are known to a session, or at all, also of servers that are down."""
        known: dict[str, Tool] = {}
        for server in self._servers.values():
            known |= server.tools(session_key)
        return known

    def why_unknown(self, name: str, allowed: Sequence[str], session_key: str) -> str | None:
        """Say what the server is at whose tool is not known; None if these words name no server of this name."""
        server = name.partition(MCP_SEPARATOR)[0]
        if server not in servers_named(tuple(allowed), self._names):
            return None
        return self._servers[server].why_unknown(session_key)

    @property
    def up(self) -> int:
        """How many servers can be asked now; one that runs in several places counts in each."""
        return sum(server.up for server in self._servers.values())

    def down(self) -> dict[str, str]:
        """Name the servers that are needed and cannot be asked, each with the reason."""
        return {place: why for server in self._servers.values() for place, why in server.down().items()}

    def health(self) -> Mapping[str, ServiceHealth]:
        """Describe the servers that were needed; one that runs in several places is down if it is in one."""
        found = [(f"mcp:{each.name}", health) for each in self._servers.values() for health in each.health()]
        return dict(sorted(found, key=lambda pair: not pair[1].is_up))

    async def close(self) -> None:
        """End all servers; they are started again if they are needed again."""
        await asyncio.gather(*(server.close() for server in self._servers.values()))


class McpServer:
    """One configured server, wherever it runs."""

    def __init__(
        self, name: str, settings: McpServerSettings, base: Path | None, clock: Clock, sandboxes: Sandboxes, gate: Gate
    ) -> None:
        self.name = name
        self._gate = gate
        self._listed: dict[Sandbox | None, Mapping[str, Tool]] = {}
        """The tools in each place: what a server finds in one sandbox is nothing to sessions elsewhere."""
        self._settings = settings
        self._base = base
        self._clock = clock
        self._sandboxes = sandboxes
        self._secrets = KnownSecrets(secrets_in(settings))
        self._told: set[str] = set()
        self._answers = HttpAnswers()
        self._kept: dict[Sandbox | None, SupervisedServer] = {}

    def health(self) -> list[ServiceHealth]:
        """Describe the server in each place where it was needed."""
        return [kept.health for kept in self._kept.values()]

    @property
    def up(self) -> int:
        return sum(kept.is_up for kept in self._kept.values())

    def down(self) -> dict[str, str]:
        problems = {kept.name: kept.problem for kept in self._kept.values()}
        return {place: problem for place, problem in problems.items() if problem is not None}

    def tools(self, session_key: str | None) -> Mapping[str, Tool]:
        """Name the tools that were found where a session's server runs, or anywhere."""
        if session_key is None:
            return {name: tool for tools in self._listed.values() for name, tool in tools.items()}
        sandbox = self._sandbox(session_key)
        if sandbox is not None and sandbox.problem is not None:
            sandbox = None  # such a session has none, and is told why not
        return self._listed.get(sandbox, {})

    def _sandbox(self, session_key: str) -> Sandbox | None:
        """Give the sandbox that a session's server runs in; one at an address runs in none."""
        if self._settings.url is not None:
            return None
        return self._sandboxes.of(SessionKey.stored(session_key).agent, session_key)

    def why_unknown(self, session_key: str) -> str:
        try:
            return f"the MCP server {self.name} {self._for(session_key).condition}"
        except ServerDown as down:
            return f"the MCP server {self.name} is down: {down}"

    async def ready(self, session_key: str) -> None:
        with suppress(ServerDown):
            await self._for(session_key).settled()

    async def close(self) -> None:
        await asyncio.gather(*(kept.close() for kept in self._kept.values()))

    def _for(self, session_key: str) -> SupervisedServer:
        """Give the server that a session speaks to.

        Raises:
            ServerDown: it may have none.
        """
        sandbox = self._sandboxes.of(SessionKey.stored(session_key).agent, session_key)
        if sandbox is not None and self._settings.url is not None:
            if not sandbox.rules.network:
                raise ServerDown("the session's sandbox has no network (sandbox.network)")
            sandbox = None
        if sandbox is not None and (problem := sandbox.problem) is not None:
            raise ServerDown(f"the session runs sandboxed (sandbox.mode), and there is no sandbox here: {problem}")
        if sandbox not in self._kept:
            place = self.name if sandbox is None else f"{self.name} in the sandbox on {sandbox.workspace}"
            transport = partial(self._transport, sandbox)
            on_listed = partial(self._on_listed, sandbox)
            self._kept[sandbox] = SupervisedServer(place, transport, self._clock, on_listed, self._hide, self._refusal)
        return self._kept[sandbox]

    def _transport(self, sandbox: Sandbox | None) -> AbstractAsyncContextManager[TransportStreams]:
        if self._settings.url is not None:
            return web_transport(self._settings, self._answers)
        program = self._program()
        if sandbox is not None:
            if problem := sandbox.why_unseen(program.argv[0]):
                raise ServerEnded(f"it cannot be started: {problem}")
            program = sandbox.wrap(program)
        return program_transport(program, self.name, self._hide)

    def _program(self) -> Program:
        settings = self._settings
        assert settings.command is not None
        cwd = None if settings.cwd is None else Path(settings.cwd).expanduser()
        if cwd is not None and self._base is not None:
            cwd = self._base / cwd
        return Program((settings.command, *settings.args), cwd, environment(settings.env))

    def _refusal(self) -> str | None:
        """Say what an HTTP server answered last; the SDK does not tell it."""
        status = self._answers.refused
        return None if status is None else f"HTTP {status}"

    def _on_listed(self, sandbox: Sandbox | None, tools: Sequence[mcp_types.Tool]) -> None:
        found = listed(self.name, self._settings, tools, self._note)
        self._listed[sandbox] = {name: self._tool(tool) for name, tool in found.items()}

    def _note(self, text: str) -> None:
        """Log what had to be changed, once."""
        if text not in self._told:
            self._told.add(text)
            log.warning("an MCP server is used with a change", server=self.name, why=text)

    def _tool(self, tool: ListedTool) -> Tool:
        return Tool(
            name=tool.name,
            description=tool.description,
            parameters=tool.parameters,
            effects=tool.effects,
            call=partial(self._call, tool),
            group=f"mcp:{self.name}",
            is_opt_in=True,
            keeps_to_sandbox=True,
            needs_network=self._settings.url is not None,
            keeps_time=True,
        )

    async def _call(self, tool: ListedTool, context: ToolContext, arguments: dict[str, Any]) -> ToolOutput:
        limit_s = self._settings.timeout_seconds
        try:
            async with self._gate.slot(context.agent_id, context.session_key, tool.name, context.run_id):
                answer = await self._answer(self._for(context.session_key), tool, arguments, limit_s)
        except EndedByOperator as ended:
            return _error(
                f"The operator ended the call. {UNKNOWN_EFFECT}"
                if ended.had_begun
                else "The operator ended the call before it had begun."
            )
        except ServerDown as down:
            return _error(f"The MCP server {self.name} is down: {down}.")
        except CallLost as lost:
            return _error(f"The MCP server {self.name} was lost during the call: {lost}. {UNKNOWN_EFFECT}")
        except ValidationError:
            return _error(f"The MCP server {self.name} answered what is no result. {UNKNOWN_EFFECT}")
        except MCPError as error:
            if error.code == mcp_types.REQUEST_TIMEOUT:
                return _error(f"The call took longer than {limit_s:g} s and was cancelled. {UNKNOWN_EFFECT}")
            return _error(clean_name(self._hide(error.message), limit=2_000) or f"error {error.code}")
        if isinstance(answer, mcp_types.InputRequiredResult):
            return _error("The tool asks a person for something in between, and nobody can be asked here.")
        return self._shown(output_of(answer))

    def _hide(self, text: str) -> str:
        """Hide secrets in what a server says went wrong; megabytes of it would take seconds."""
        return self._secrets.hide(text[:_LOOKED_THROUGH])

    def _shown(self, output: ToolOutput) -> ToolOutput:
        """Hide the server's secrets in an error: it may repeat how the server was started, or what it was sent."""
        if not output.is_error:
            return output
        blocks = tuple(
            TextBlock(text=self._secrets.mask(block.text)) if isinstance(block, TextBlock) else block
            for block in output.content
        )
        return msgspec.structs.replace(output, content=blocks)

    async def _answer(
        self, kept: SupervisedServer, tool: ListedTool, arguments: dict[str, Any], limit_s: float
    ) -> CallAnswer:
        """Ask the server; once more if the first call did not reach it, or did no harm."""
        try:
            return await kept.call(tool.own_name, arguments, limit_s)
        except CallLost as lost:
            if not lost.is_unsent and tool.effects is not Effects.NONE:
                raise
            return await kept.call(tool.own_name, arguments, limit_s)


def _error(text: str) -> ToolOutput:
    return ToolOutput(text_content(text), is_error=True)
