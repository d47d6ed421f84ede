"""The gateway object, which puts all parts together.

    gateway = Gateway.open({"agents": {"list": [{"id": "main"}]}})
    async with gateway:
        print(await gateway.ask("main", "hello"))

Register agents and tools before entering the gateway: entering resumes the unfinished work of an earlier process.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
import weakref
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar

import structlog

from backchannel.agents.demo import DemoModel
from backchannel.agents.gates import Gates
from backchannel.agents.models import Models
from backchannel.agents.registry import AgentFunction, Agents
from backchannel.agents.sandbox.sandboxes import Sandboxes
from backchannel.agents.toolset import ToolEffects, ToolFunction, Tools, tool_from
from backchannel.channels.files import ReceivedFiles
from backchannel.channels.inbound import Inbound
from backchannel.channels.registry import ChannelKeeper, close_channels, configured_channels
from backchannel.config.defaults import default_model, needs_default_model, with_default_model
from backchannel.config.load import config_from
from backchannel.config.schema import DEMO_MODEL, Config
from backchannel.core.caller_keys import CallerKeys
from backchannel.core.contracts import Clock, Effects, Model
from backchannel.core.delivery.channels import Channel
from backchannel.core.facts import MessageAppended, SessionChanged
from backchannel.core.keys import SessionKey
from backchannel.core.messages import Provenance, ProvenanceKind, text_content
from backchannel.core.runs import Run, RunRequest, RunState
from backchannel.core.secrets.known import KnownSecrets
from backchannel.errors import GatewayError, InvalidRequest, Unavailable
from backchannel.gateway.addressing import address_by_name, main_of
from backchannel.gateway.cache_watch import CacheWatch
from backchannel.gateway.logs import mask_default_logs, secrets_of
from backchannel.gateway.parts import GatewayParts
from backchannel.runtime.clocks import SystemClock
from backchannel.runtime.cluster.lease import member_of
from backchannel.runtime.events import Event
from backchannel.runtime.guard import SendGuard
from backchannel.runtime.outbox import ChannelOutlets
from backchannel.runtime.runtime import Runtime
from backchannel.runtime.spending import check_prices
from backchannel.runtime.supervisor import Supervisor
from backchannel.storage.driver import Faults
from backchannel.storage.files.folder import StateFolder
from backchannel.storage.store import Store
from backchannel.tools.base import Caller, Parts
from backchannel.tools.commands import ChatCommands
from backchannel.tools.registry import SessionTools, agent_tools
from backchannel.tools.rows import Rows
from backchannel.triggers.checks import JobChecks
from backchannel.triggers.cron import CronJobs
from backchannel.workspace.tools import WorkspaceTools

if TYPE_CHECKING:
    from backchannel.agents.mcp.servers import McpServers

log = structlog.get_logger(__name__)
_CACHE_MS = {"5m": 5 * 60_000, "1h": 60 * 60_000, "off": None}
F = TypeVar("F", bound=Callable[..., Any])
Tool = TypeVar("Tool", bound=ToolFunction)


class RunFailed(GatewayError):
    """A run did not end with `ok`; `run` is the ended run."""

    code = "run_failed"

    def __init__(self, run: Run) -> None:
        ended = f"run {run.id} ended as {run.state}: {run.error or 'no reason given'}"
        goes_on = f"run {run.id} is still {run.state}: the wait ended first, and the run goes on"
        super().__init__(ended if run.is_finished else goes_on, runId=run.id)
        self.run = run


def _mcp_servers(config: Config, clock: Clock, sandboxes: Sandboxes, gates: Gates) -> McpServers | None:
    if not config.mcp.servers:
        return None
    from backchannel.agents.mcp.servers import McpServers  # with the client of the SDK, which takes a second to import

    return McpServers(config, clock, sandboxes, gates)


class Gateway:
    """Agents, their sessions and everything around them, in this process."""

    complete: ClassVar[Callable[[Mapping[str, Any] | None, Path | None], Config] | None] = None
    """Completes the configuration of `open` while a command serves the program, with the command's options."""

    def __init__(self, config: Config, *, clock: Clock | None = None, faults: Faults | None = None) -> None:
        if needs_default_model(config):
            config = with_default_model(config, default_model(os.environ))
        secrets = secrets_of(config)
        mask_default_logs(secrets)
        self._secrets = KnownSecrets(secrets)
        self.config = config
        self.clock = clock or SystemClock()
        self.scheme = config.key_scheme
        self.agents = Agents(config)
        self.models = Models(config.models.providers, cache=config.models.cache, timeouts=config.models.timeouts)
        self.models.register(DemoModel())
        self.sandboxes = Sandboxes(self.agents, self.scheme, config.state_dir)
        self.toolset = Tools(self.agents, self.scheme, config.tools.subagents.tools, self.sandboxes)
        self.gates = Gates(self.agents.count, self.clock)
        self.workspace = WorkspaceTools(config, self.agents, self.sandboxes, self.gates, self.clock)
        self.toolset.add_source(self.workspace)
        self.mcp_servers = _mcp_servers(config, self.clock, self.sandboxes, self.gates)
        if self.mcp_servers is not None:
            self.toolset.add_source(self.mcp_servers)
        self.channels = configured_channels(config.channels, self.clock)
        self.failed: asyncio.Future[BaseException] | None = None
        """Done when the database can no longer be trusted; the process must then end."""
        self._faults = faults
        self._parts: GatewayParts | None = None
        """Made when the gateway is entered; kept after it is left."""
        self._exits = AsyncExitStack()

    @classmethod
    def open(cls, config: Config | Mapping[str, Any] | None = None, *, state: Path | str | None = None) -> Self:
        """Make a gateway to be entered with `async with`.

        `config` has the names of the configuration file. Without `state` everything is in a temporary folder, which is
        removed with the process.

        Raises:
            ConfigError: something in the configuration is wrong.
        """
        if isinstance(config, Config):
            return cls(config)
        if cls.complete is not None:
            return cls(cls.complete(config, None if state is None else Path(state)))
        folder = Path(state) if state is not None else Path(tempfile.mkdtemp(prefix="backchannel-"))
        gateway = cls(config_from(config or {}, os.environ, state=folder))
        if state is None:
            weakref.finalize(gateway, shutil.rmtree, folder, ignore_errors=True)
        return gateway

    async def __aenter__(self) -> Self:
        self.failed = asyncio.get_running_loop().create_future()
        async with AsyncExitStack() as exits:
            folder = StateFolder.hold(self.config.state_dir)
            exits.callback(folder.release)
            guard = SendGuard(self.config.session.send_policy, self.scheme)
            check_prices(self.config, self.agents, self.models)
            store = await Store.open(
                folder,
                self.scheme,
                self.clock,
                url=self.config.database_url,
                on_fatal=self._fatal,
                faults=self._faults,
                writes_files=self.config.writes_transcript_files,
                member=member_of(self.config, self.agents),
                lease_s=self.config.cluster.lease_seconds,
                locks_rows=self.config.cluster.locks == "rows",
                outlets=ChannelOutlets(self.channels, guard),
                rules=self.config.session_rules,
            )
            exits.push_async_callback(self._close_store, store)
            exits.push_async_callback(self.models.close)
            exits.push_async_callback(close_channels, self.channels)
            exits.push_async_callback(self.workspace.close)
            await asyncio.to_thread(self.sandboxes.problems)  # found out here, and not while a run waits
            parts = self._parts = await self._put_together(store, guard)
            exits.push_async_callback(parts.supervisor.close)
            parts.runtime.hub.listen(self._on_event, SessionChanged, elsewhere=True)
            self._add_session_tools(parts)
            await parts.cron.sync()  # before the timers start: a job that was taken out fires no more
            await parts.supervisor.start()
            preparing = asyncio.create_task(self.models.prepare(self.agents.models()), name="preparing models")
            exits.callback(preparing.cancel)
            self._exits = exits.pop_all()
        return self

    async def _put_together(self, store: Store, guard: SendGuard) -> GatewayParts:
        last_model = None
        if needs_default_model(self.config):
            last_model = await store.remember_default_model(self.config.default_model.ref, DEMO_MODEL.ref)
        runtime = Runtime(
            self.config, store, self.agents, self.models, self.toolset, self.clock, self.channels, self.gates, guard
        )
        parts = Parts(
            self.config,
            store,
            self.agents,
            self.models,
            self.scheme,
            self.clock,
            runtime.exchanges,
            guard,
            runtime.retries,
        )
        commands = ChatCommands(parts)
        files = ReceivedFiles(runtime.media, self.toolset, self.workspace, self.clock)
        inbound = Inbound(parts, runtime, self.channels, commands, files)
        keeper = ChannelKeeper(self.channels, inbound.taker, self.clock, runtime.duties)
        caches = CacheWatch(_CACHE_MS[self.config.models.cache])
        runtime.hub.listen(caches.on_message, MessageAppended)
        checks = JobChecks(parts, runtime, self.workspace.commands, self._secrets)
        servers = [] if self.mcp_servers is None else [self.mcp_servers]
        return GatewayParts(
            **{field.name: getattr(parts, field.name) for field in fields(parts)},
            runtime=runtime,
            toolset=self.toolset,
            mcp_servers=self.mcp_servers,
            sandboxes=self.sandboxes,
            gates=self.gates,
            channels=self.channels,
            keeper=keeper,
            supervisor=Supervisor([*servers, runtime, keeper, checks], self.clock),
            commands=commands,
            inbound=inbound,
            cron=CronJobs(parts, self.channels, checks),
            rows=Rows(parts),
            caches=caches,
            secrets=self._secrets,
            last_model=last_model,
        )

    async def __aexit__(self, *_: object) -> None:
        await self._exits.aclose()

    @property
    def parts(self) -> GatewayParts:
        """The parts for the doors.

        Raises:
            Unavailable: the gateway has not been entered.
        """
        if self._parts is None:
            raise Unavailable("the gateway is not running: enter it first, with `async with gateway`")
        return self._parts

    @property
    def store(self) -> Store:
        return self.parts.store

    @property
    def runtime(self) -> Runtime:
        return self.parts.runtime

    @property
    def inbound(self) -> Inbound:
        return self.parts.inbound

    @property
    def commands(self) -> ChatCommands:
        return self.parts.commands

    @property
    def cron(self) -> CronJobs:
        return self.parts.cron

    def _add_session_tools(self, parts: Parts) -> None:
        known = {tool.name for tool in self.toolset.all()}
        for tool in agent_tools(parts):
            if tool.name not in known:  # a gateway may be entered again, and a program may bring its own
                self.toolset.register(tool)

    def _on_event(self, event: Event) -> None:
        if isinstance(event, SessionChanged) and event.reason == "delete":
            self.workspace.end_session(event.key)

    def _fatal(self, cause: BaseException) -> None:
        log.critical("the database failed in a commit: stopping, the next start reads what is true", error=str(cause))
        if self.failed is not None and not self.failed.done():
            self.failed.set_result(cause)

    async def _close_store(self, store: Store) -> None:
        if self.failed is not None and self.failed.done():
            await store.abandon()
        else:
            await store.close()

    def agent(self, name: str) -> Callable[[F], F]:
        """Make an `async def` an agent: it gets the run's context and returns its reply.

        Raises:
            TypeError: it is no `async def`, or the name is missing.
            ValueError: another function is the agent of this name.
        """
        if not isinstance(name, str):
            raise TypeError('an agent needs a name: write @gateway.agent("clerk"), not @gateway.agent alone')

        def register(function: F) -> F:
            self.add_agent(name, function)
            return function

        return register

    def add_agent(self, name: str, function: AgentFunction) -> None:
        self.agents.register(name, function)
        if self._parts is not None:
            self._parts.runtime.agent_added(name)

    def tool(
        self,
        function: None = None,
        /,
        *,
        effects: ToolEffects = "outside",
        name: str | None = None,
        description: str | None = None,
    ) -> Callable[[Tool], Tool]:
        """Make an `async def` a tool of the agents.

        `effects` says whether a call may be repeated after a crash: `"none"` (it is) or `"outside"` (it is not, and the
        model is told).

        Raises:
            TypeError: it is no `async def`, or the parentheses are missing.
            ValueError: `effects` is another word, or a tool has this name.
        """
        if function is not None:
            raise TypeError('write @gateway.tool(effects="none"), or @gateway.tool(), not @gateway.tool alone')
        if effects not in ("none", "outside"):
            raise ValueError(f'effects: got {effects!r}, expected "none" or "outside"')

        def register(function: Tool) -> Tool:
            self.toolset.register(tool_from(function, name=name, description=description, effects=Effects(effects)))
            return function

        return register

    def add_model(self, model: Model) -> None:
        """Register a model of your own under its ref."""
        self.models.register(model)

    def add_channel(self, channel: Channel) -> None:
        """Register a channel of your own under its name, for outbound and inbound messages.

        Raises:
            ValueError: it cannot have this name.
        """
        self.channels.add(channel)
        if self._parts is not None:
            self._parts.keeper.add(channel)

    def tools(self, caller: str | None = None) -> SessionTools:
        """Give the session tools as plain async methods, called as a session or as the operator.

        Raises:
            InvalidSessionKey, UnknownAgent
        """
        return SessionTools(self.parts, Caller(None if caller is None else self.key(caller)))

    async def ask(self, session: str, text: str, *, timeout_s: float = 600, run_id: str | None = None) -> str:
        """Send a message to a session and wait for the reply. `session` is what `submit` takes.

        Raises:
            RunFailed: the run ended otherwise than ok, or goes on after the wait.
        """
        run = await self.submit(session, text, run_id=run_id)
        ended = await self.runtime.wait(run.id, timeout_s)
        if ended.state is not RunState.OK:
            raise RunFailed(ended)
        return ended.reply or ""

    async def submit(self, session: str, text: str, *, run_id: str | None = None) -> Run:
        """Send a message to a session; it is stored when this returns.

        `session` names it as on the command line: a key, a session id, a label, or an agent for its main session.

        Raises:
            InvalidSessionKey, SessionNotFound, UnknownAgent: it names none.
        """
        runtime = self.runtime
        if not text:
            raise InvalidRequest("the message is empty: pass some text")
        at = await address_by_name(self.parts, session, run_id)
        request = RunRequest(
            key=at.key,
            content=text_content(text),
            provenance=Provenance(kind=ProvenanceKind.EXTERNAL_USER, source_channel="python"),
            id=run_id,
            digest=f"python {at.key} {text}",
            expected_session_id=at.session_id,
        )
        return (await runtime.submit(request)).run

    def key(self, written: str) -> SessionKey:
        """Read a session key as the operator writes it: `main`, an agent for its main session, or a full or bare key.

        Raises:
            InvalidSessionKey, UnknownAgent
        """
        read = CallerKeys(self.scheme, None).read(written)
        key = read.key if read.is_explicit else main_of(self.scheme, self.agents, written) or read.key
        self.agents.get(key.agent)
        return key
