"""The tool `exec`: a shell command in the workspace, in the session's sandbox if any.

The command is started under the leash. Its output is read as it comes, and it is stopped with all its children.
"""

from __future__ import annotations

import asyncio
import shutil
import time
from asyncio.subprocess import DEVNULL, PIPE, STDOUT
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from signal import Signals
from typing import Self

from backchannel.agents.gates import Gate
from backchannel.agents.leash import GRACE_S
from backchannel.agents.programs import Program, environment, leashed
from backchannel.agents.registry import Agents
from backchannel.agents.sandbox.sandboxes import Sandbox, Sandboxes
from backchannel.core.contracts import ToolContext, ToolOutput
from backchannel.core.keys import SessionKey
from backchannel.core.messages import text_content
from backchannel.core.policy.checks import CheckEnd
from backchannel.core.text import one_line, storable_text
from backchannel.errors import EndedByOperator, InvalidRequest
from backchannel.workspace.beneath import Place
from backchannel.workspace.output import Output

_PIECE = 64 * 1024
STOP_LIMIT_S = GRACE_S + 12.0
"""How long the leash has to kill everything; then it is killed itself, which takes the program with it."""
LAST_WORDS_S = 1.0


Take = Callable[[bytes], Awaitable[None]]


class RunningProgram:
    """One program, from its start to its end."""

    def __init__(self, process: asyncio.subprocess.Process, take: Take, take_errors: Take | None = None) -> None:
        self._process = process
        self._reading = asyncio.ensure_future(_read(process, take, take_errors))

    @classmethod
    async def start(cls, program: Program, take: Take, take_errors: Take | None = None) -> Self:
        """Start a program; `take` gets what it writes, errors too unless `take_errors` gets those.

        Raises:
            InvalidRequest: it cannot be started.
        """
        started = leashed(program)
        starting = asyncio.ensure_future(
            asyncio.create_subprocess_exec(
                *started.argv,
                cwd=started.cwd,
                env=dict(started.env),
                stdin=DEVNULL,
                stdout=PIPE,
                stderr=STDOUT if take_errors is None else PIPE,
                start_new_session=True,
            )
        )
        try:
            return cls(await asyncio.shield(starting), take, take_errors)
        except (OSError, ValueError) as error:
            raise InvalidRequest(f"the command could not be started: {error}") from None
        except asyncio.CancelledError:
            with suppress(OSError, ValueError):
                await cls(
                    await starting, take, take_errors
                ).stop()  # stopped by its leash, or something of it could be left
            raise

    @property
    def has_ended(self) -> bool:
        return self._process.returncode is not None and self._reading.done()

    async def ended(self) -> int:
        """Wait for its end and all of its output; gives its exit code, or the negative number of its signal."""
        await asyncio.wait({self._reading})
        return await self._process.wait()

    async def stop(self) -> None:
        """End it and all that it started; returns when nothing of it is left."""
        with suppress(ProcessLookupError):
            self._process.terminate()
        try:
            async with asyncio.timeout(STOP_LIMIT_S):
                await self._process.wait()
        except TimeoutError:
            with suppress(ProcessLookupError):
                self._process.kill()
        await asyncio.wait({self._reading}, timeout=LAST_WORDS_S)
        if not self._reading.done():  # it has killed its leash, and something of it keeps the pipe
            self._reading.cancel()
            await asyncio.wait({self._reading})
            self._process._transport.close()  # type: ignore[attr-defined]  # there is no other way to close the pipe


async def _read(process: asyncio.subprocess.Process, take: Take, take_errors: Take | None) -> None:
    assert process.stdout is not None
    if take_errors is None or process.stderr is None:
        await _pass_on(process.stdout, take)
    else:
        await asyncio.gather(_pass_on(process.stdout, take), _pass_on(process.stderr, take_errors))


async def _pass_on(stream: asyncio.StreamReader, take: Take) -> None:
    while piece := await stream.read(_PIECE):
        await take(piece)


def describe_exit(code: int) -> str:
    """Say how a program ended."""
    if code < 0:
        return f"ended by {_signal(-code)}"
    # A shell, and bubblewrap, tell in this way that what they ran was ended by a signal.
    return f"exit code {code}" + (f", as after {_signal(code - 128)}" if 128 < code < 128 + 65 else "")


def _signal(number: int) -> str:
    try:
        return Signals(number).name
    except ValueError:
        return f"signal {number}"


LONGEST_COMMAND = 100_000
"""Bytes; the system takes a little more in one word."""
MOST_AT_ONCE, MOST_OF_SESSION = 16, 4
"""How many may run at the same time, in all and of one session."""
USUAL_LIMIT_S = 120.0
LONGEST_LIMIT_S = 590.0
"""About as long as any other tool call may take."""
COMMAND_SHOWN = 80
"""How much of a command is shown in a line."""
KIB = 1024
_ERRORS_KEPT = 4096


class ShellCommands:
    """Starts commands for sessions."""

    def __init__(self, agents: Agents, sandboxes: Sandboxes, gate: Gate) -> None:
        self._agents = agents
        self._sandboxes = sandboxes
        self._gate = gate

    def place(self, context: ToolContext) -> Place:
        """Say what the session that calls a tool has of its agent's workspace."""
        return self.place_of(context.agent_id, context.session_key)

    def place_of(self, agent_id: str, session_key: str) -> Place:
        """Say what a session has of its agent's workspace."""
        sandbox = self._sandboxes.of(agent_id, session_key)
        root = self._sandboxes.workspace(agent_id)
        kept = self._sandboxes.outputs(agent_id, session_key)
        if sandbox is None:
            return Place(root, str(root), outputs=Place(kept, str(kept), is_writable=False))
        rules = sandbox.rules
        outputs = Place(kept, Sandbox.INSIDE_OUTPUTS, is_writable=False)
        return Place(
            root,
            Sandbox.INSIDE,
            is_readable=rules.workspace_access != "none",
            is_writable=rules.workspace_access == "rw",
            most_bytes=rules.disk_mb * KIB * KIB,
            most_files=rules.files,
            outputs=outputs,
        )

    def output(self, context: ToolContext) -> Output:
        """Make what takes the output of a command; the whole of it is kept where the session can read it."""
        kept = self.place(context).outputs
        assert kept is not None
        return Output(kept.root, kept.shown, self._agents.get(context.agent_id).sandbox.output_kb * KIB)

    def forget_outputs(self, session_key: str) -> None:
        """Delete the outputs of a session that was deleted."""
        agent_id = SessionKey.stored(session_key).agent
        shutil.rmtree(self._sandboxes.outputs(agent_id, session_key), ignore_errors=True)

    async def start(
        self, context: ToolContext, command: str, output: Output, take_errors: Take | None = None
    ) -> RunningProgram:
        """Start a command; `output` gets what it writes, errors too unless `take_errors` gets those.

        Raises:
            InvalidRequest: it cannot be started.
        """
        program = await asyncio.to_thread(self._program, context, command)
        return await RunningProgram.start(program, output.add, take_errors)

    def _program(self, context: ToolContext, command: str) -> Program:
        command = storable_text(command)
        if not command.strip() or "\0" in command or len(command.encode()) > LONGEST_COMMAND:
            raise InvalidRequest(f"command: expected a shell command of at most {LONGEST_COMMAND} bytes")
        root = self._sandboxes.workspace(context.agent_id)
        try:
            root.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise InvalidRequest(f"the workspace {root} cannot be made: {error.strerror}") from None
        shell = "/bin/bash" if Path("/bin/bash").exists() else "/bin/sh"
        program = Program((shell, "-c", command), root, environment({"TERM": "dumb"}))
        sandbox = self._sandboxes.of(context.agent_id, context.session_key)
        return program if sandbox is None else sandbox.wrap(program)

    async def run(self, context: ToolContext, command: str, limit_s: float) -> ToolOutput:
        """Run a command to its end, or to that of its time; when the call is cancelled, all of it ends."""
        output = self.output(context)
        what = one_line(storable_text(command[:LONGEST_COMMAND]), COMMAND_SHOWN)
        try:
            async with self._gate.slot(context.agent_id, context.session_key, what, context.run_id):
                return await self._run(context, command, limit_s, output)
        except EndedByOperator as ended:
            what_ended = "with all that it had started" if ended.had_begun else "before it had begun"
            return _told(output, f"ended by the operator, {what_ended}", is_error=True)
        finally:
            output.close()

    async def _run(self, context: ToolContext, command: str, limit_s: float, output: Output) -> ToolOutput:
        running = await self.start(context, command, output)
        began = time.monotonic()
        code = await _end_of(running, limit_s)
        if code is None:
            return _told(output, f"{_stopped_after(limit_s)}, with all that it had started", is_error=True)
        return _told(output, f"{describe_exit(code)}, {time.monotonic() - began:.1f} s", is_error=code < 0)

    async def check(self, context: ToolContext, command: str, limit_s: float) -> CheckEnd:
        """Run the command of a cron job, as a session's own would run. Its errors are kept apart from its output.

        Raises:
            InvalidRequest: it cannot be started.
        """
        sandbox = self._sandboxes.of(context.agent_id, context.session_key)
        if sandbox is not None and (problem := await asyncio.to_thread(lambda: sandbox.problem)) is not None:
            raise InvalidRequest(f"the command needs a sandbox that cannot be made: {problem}")
        output, errors = self.output(context), bytearray()

        async def take_errors(piece: bytes) -> None:
            errors.extend(piece[: _ERRORS_KEPT - len(errors)])

        what = one_line(f"when: {storable_text(command)}", COMMAND_SHOWN)
        try:
            async with self._gate.slot(context.agent_id, context.session_key, what):
                code = await _end_of(await self.start(context, command, output, take_errors), limit_s)
        except EndedByOperator:
            return CheckEnd(how="ended by the operator")
        finally:
            output.close()
        how = _stopped_after(limit_s) if code is None else describe_exit(code)
        return CheckEnd(code=code, how=how, output=output.text(), errors=errors.decode("utf-8", "replace"))


async def _end_of(running: RunningProgram, limit_s: float) -> int | None:
    """Wait for the end of a command; None if it had to be stopped. Cancelled, all of it ends."""
    limit = asyncio.timeout(limit_s)
    try:
        async with limit:
            return await running.ended()
    except TimeoutError:
        if not limit.expired():
            raise
        await running.stop()
        return None
    finally:
        if not running.has_ended:
            await asyncio.shield(running.stop())


def _stopped_after(limit_s: float) -> str:
    return f"stopped after {limit_s:g} s"


def _told(output: Output, end: str, *, is_error: bool) -> ToolOutput:
    text = output.text()
    gap = "" if not text or text.endswith("\n") else "\n"
    return ToolOutput(text_content(f"{text}{gap}[{end}]"), is_error)
