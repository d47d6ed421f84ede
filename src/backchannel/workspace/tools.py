"""The tools of the workspace, as agents have them: `group:fs` and `group:exec`.

None is on unless `tools.allow` names it. In a sandboxed session they run inside the sandbox, so such a session may have
them all.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta

from backchannel.agents.gates import BACKGROUND, EXEC, Gates
from backchannel.agents.registry import Agents
from backchannel.agents.sandbox.sandboxes import Sandboxes
from backchannel.config.schema import Config
from backchannel.config.schema_agents import LONGEST_BACKGROUND_S
from backchannel.core.contracts import Clock, Effects, Tool, ToolContext, ToolOutput
from backchannel.core.delivery.attached import MAX_FILE_BYTES
from backchannel.core.delivery.outgoing import TakenFile
from backchannel.core.delivery.received import shown_size
from backchannel.core.keys import SessionKey
from backchannel.core.messages import text_content
from backchannel.errors import InvalidRequest
from backchannel.wire.shapes import Params, bad_params, params_schema
from backchannel.workspace import background, commands
from backchannel.workspace.background import Background
from backchannel.workspace.beneath import Place
from backchannel.workspace.commands import LONGEST_LIMIT_S, USUAL_LIMIT_S, ShellCommands
from backchannel.workspace.files import MOST_LINES, edit_text, list_folder, read_text, read_whole, write_text
from backchannel.workspace.receiving import put_received
from backchannel.workspace.room import Rooms
from backchannel.workspace.searching import search

FILES, COMMANDS = "fs", "exec"
NAMES = ("read", "write", "edit", "list", "search", "attach", "exec", "process")
_P = TypeVar("_P", bound=Params)
_PATH = "Relative to the workspace."


class ReadParams(Params, frozen=True, kw_only=True):
    path: Annotated[str, Meta(min_length=1, description=_PATH)]
    offset: Annotated[int, Meta(ge=1, description="The line to begin with, counted from 1.")] = 1
    limit: Annotated[int, Meta(ge=1, le=MOST_LINES, description="How many lines at most.")] = MOST_LINES


class WriteParams(Params, frozen=True, kw_only=True):
    path: Annotated[str, Meta(min_length=1, description=f"{_PATH} Folders on the way are made.")]
    content: Annotated[str, Meta(description="The whole file.")]


class EditParams(Params, frozen=True, kw_only=True):
    path: Annotated[str, Meta(min_length=1, description=_PATH)]
    old_text: Annotated[str, Meta(description="The text to replace, exactly as it stands in the file, and only once.")]
    new_text: Annotated[str, Meta(description="What to put in its place.")]


class ListFolderParams(Params, frozen=True, kw_only=True):
    path: Annotated[str, Meta(description=f"A folder. {_PATH}")] = "."


class SearchParams(Params, frozen=True, kw_only=True):
    pattern: Annotated[str, Meta(min_length=1, max_length=1000, description="A regular expression for one line.")]
    path: Annotated[str, Meta(description=f"The file or folder to search. {_PATH}")] = "."


class AttachParams(Params, frozen=True, kw_only=True):
    path: Annotated[str, Meta(min_length=1, description=f"The file. {_PATH}")]
    caption: Annotated[
        Annotated[str, Meta(max_length=1000)] | None, Meta(description="A text that is shown with it.")
    ] = None


class ExecParams(Params, frozen=True, kw_only=True):
    command: Annotated[str, Meta(min_length=1, description="A shell command. Its standard input is empty.")]
    timeout_seconds: Annotated[
        Annotated[float, Meta(gt=0)] | None,
        Meta(
            description=f"When it is stopped; {USUAL_LIMIT_S:g} if left out, at most {LONGEST_LIMIT_S:g}. "
            f"In the background: at most {LONGEST_BACKGROUND_S}."
        ),
    ] = None
    background: Annotated[
        bool, Meta(description="Let it go on by itself; the result is an id for the tool `process`.")
    ] = False


class ProcessParams(Params, frozen=True, kw_only=True):
    action: Annotated[Literal["list", "poll", "kill"], Meta(description="What to do.")]
    id: Annotated[str | None, Meta(description="Which background command; needed for poll and kill.")] = None


class WorkspaceTools:
    """The tools, and what stands behind them; a source of tools, so that a program may bring its own of a name."""

    def __init__(self, config: Config, agents: Agents, sandboxes: Sandboxes, gates: Gates, clock: Clock) -> None:
        self._background_s = config.tools.exec.background_seconds
        at_once = gates.gate(EXEC, commands.MOST_AT_ONCE, of_session=commands.MOST_OF_SESSION)
        self.commands = ShellCommands(agents, sandboxes, at_once)
        beside = gates.gate(BACKGROUND, background.MOST_AT_ONCE, of_session=background.MOST_OF_SESSION)
        self.background = Background(self.commands, beside, config.state_dir / "processes", clock)
        self._writing = threading.Lock()
        """Calls of one reply run side by side: two edits of one file must not lose one another."""
        self._rooms = Rooms()
        self._ending: set[asyncio.Task[None]] = set()
        self._tools = {tool.name: tool for tool in self._all()}

    async def ready(self, allowed: Sequence[str], session_key: str) -> None:
        """Do nothing: they are always known."""

    def tools(self, session_key: str | None = None) -> Mapping[str, Tool]:
        return self._tools

    def why_unknown(self, name: str, allowed: Sequence[str], session_key: str) -> str | None:
        """Know of no tool that is not known."""

    def is_used_by(self, tools: Mapping[str, Tool], key: SessionKey) -> bool:
        """Whether a session that has these tools can reach its workspace with one of them."""
        is_reached = any(tool.group in (FILES, COMMANDS) for tool in tools.values())
        return is_reached and self.commands.place_of(key.agent, str(key)).is_readable

    async def receive(self, key: SessionKey, name: str, content: bytes) -> str:
        """Put a file that somebody sent where a session can read it; returns its path there.

        That is the workspace, or the folder of outputs where the session may not write into its workspace.

        Raises:
            InvalidRequest, OSError: it cannot be put there.
        """
        place = self.commands.place_of(key.agent, str(key))
        if place.is_writable or place.outputs is None:
            return await asyncio.to_thread(self._alone, put_received, place, name, content)
        path = await asyncio.to_thread(self._alone, put_received, place.outputs, name, content)
        return f"{place.outputs.shown}/{path}"

    def end_session(self, session_key: str) -> None:
        """End the background commands of a session that was deleted, and delete its outputs."""
        ending = asyncio.create_task(self._end_session(session_key))
        self._ending.add(ending)
        ending.add_done_callback(self._ending.discard)

    async def _end_session(self, session_key: str) -> None:
        await self.background.end_session(session_key)
        await asyncio.to_thread(self.commands.forget_outputs, session_key)

    async def close(self) -> None:
        """End all commands."""
        await self.background.close()
        await asyncio.gather(*self._ending, return_exceptions=True)

    def _all(self) -> list[Tool]:
        return [
            _tool("read", ReadParams, self._read, group=FILES, description="Read a text file of your workspace."),
            _tool(
                "write",
                WriteParams,
                self._write,
                group=FILES,
                description="Write a whole file.",
                effects=Effects.OUTSIDE,
            ),
            _tool(
                "edit",
                EditParams,
                self._edit,
                group=FILES,
                description="Replace one place in a text file. The old text must stand there exactly once.",
                effects=Effects.OUTSIDE,
            ),
            _tool("list", ListFolderParams, self._list, group=FILES, description="List a folder of your workspace."),
            _tool(
                "search",
                SearchParams,
                self._search,
                group=FILES,
                description="Search the files of your workspace for a regular expression. Hidden files are left out.",
            ),
            _tool(
                "attach",
                AttachParams,
                self._attach,
                group=FILES,
                description="Send a file of your workspace with your reply, as it is now; at most "
                f"{shown_size(MAX_FILE_BYTES)}.",
            ),
            _tool(
                "exec",
                ExecParams,
                self._exec,
                group=COMMANDS,
                description="Run a shell command in your workspace. What it leaves running when it ends is stopped; "
                f"with `background` it goes on by itself, for {self._background_s:g} s or `timeoutSeconds`.",
                effects=Effects.OUTSIDE,
                keeps_time=True,
            ),
            _tool(
                "process",
                ProcessParams,
                self._process,
                group=COMMANDS,
                description="List the commands that you started in the background, read what one has written since "
                "you last asked, or kill it.",
                effects=Effects.OUTSIDE,
            ),
        ]

    async def _read(self, context: ToolContext, params: ReadParams) -> str:
        place = self.commands.place(context)
        return await asyncio.to_thread(read_text, place, params.path, params.offset, params.limit)

    async def _write(self, context: ToolContext, params: WriteParams) -> str:
        place = self.commands.place(context)
        return await asyncio.to_thread(self._alone, write_text, place, params.path, params.content)

    async def _edit(self, context: ToolContext, params: EditParams) -> str:
        place = self.commands.place(context)
        return await asyncio.to_thread(self._alone, edit_text, place, params.path, params.old_text, params.new_text)

    def _alone(self, change: Callable[..., str], place: Place, *arguments: Any) -> str:
        self._rooms.check(place)
        with self._writing:
            return change(place, *arguments)

    async def _list(self, context: ToolContext, params: ListFolderParams) -> str:
        return await asyncio.to_thread(list_folder, self.commands.place(context), params.path)

    async def _search(self, context: ToolContext, params: SearchParams) -> str:
        return await search(self.commands.place(context), params.pattern, params.path)

    async def _attach(self, context: ToolContext, params: AttachParams) -> ToolOutput:
        content = await asyncio.to_thread(read_whole, self.commands.place(context), params.path, MAX_FILE_BYTES)
        taken = TakenFile(name=params.path, content=content, caption=params.caption)
        told = f"[{params.path}, {shown_size(len(content))}: sent with your reply]"
        return ToolOutput(text_content(told), attached=taken)

    async def _exec(self, context: ToolContext, params: ExecParams) -> str | ToolOutput:
        if params.background:
            limit_s = params.timeout_seconds or self._background_s
            if limit_s > LONGEST_BACKGROUND_S:
                raise InvalidRequest(f"timeoutSeconds: at most {LONGEST_BACKGROUND_S} in the background")
            id = await self.background.start(context, params.command, limit_s)
            return (
                f"[started in the background with the id {id}; it is stopped after {limit_s:g} s; "
                'process, action "poll", tells how it is doing]'
            )
        limit_s = params.timeout_seconds or USUAL_LIMIT_S
        if limit_s > LONGEST_LIMIT_S:
            raise InvalidRequest(
                f"timeoutSeconds: at most {LONGEST_LIMIT_S:g}; what takes longer can go on in the background"
            )
        return await self.commands.run(context, params.command, limit_s)

    async def _process(self, context: ToolContext, params: ProcessParams) -> str:
        if params.action == "list":
            return await self.background.listed(context.session_key)
        if params.id is None:
            raise InvalidRequest(f"id: {params.action} needs the id of a background command; `list` names them")
        act = self.background.poll if params.action == "poll" else self.background.kill
        return await act(context.session_key, params.id)


def _tool(
    name: str,
    params: type[_P],
    run: Callable[[ToolContext, _P], Awaitable[str | ToolOutput]],
    *,
    group: str,
    description: str,
    effects: Effects = Effects.NONE,
    keeps_time: bool = False,
) -> Tool:
    async def call(context: ToolContext, arguments: dict[str, Any]) -> ToolOutput:
        try:
            read = msgspec.convert(arguments, params)
        except msgspec.ValidationError as error:
            raise bad_params(name, error, params) from None
        result = await run(context, read)
        return result if isinstance(result, ToolOutput) else ToolOutput(text_content(result))

    return Tool(
        name=name,
        description=description,
        parameters=params_schema(params),
        effects=effects,
        call=call,
        group=group,
        is_opt_in=True,
        keeps_to_sandbox=effects is Effects.OUTSIDE,
        keeps_time=keeps_time,
    )
