"""Following a run for one client: its growing reply, and its end.

Events are hints and the row is the truth: after the streamed text comes the rest of the committed reply. For a slow
client only the reply itself is buffered.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from enum import Enum
from typing import Any
from urllib.parse import quote

from msgspec.structs import replace
from starlette.responses import JSONResponse, Response

from backchannel.core.commands.control_words import is_control_word
from backchannel.core.runs import Run, RunState
from backchannel.gateway.errors import NO_RETRY
from backchannel.gateway.events.subscriptions import error_of
from backchannel.gateway.ws.connections import OpenWaits
from backchannel.runtime.events import Event, ListenerWants, ReplyGrew
from backchannel.runtime.runtime import Runtime
from backchannel.wire.frames import KEEP_ALIVE_S

_WAIT_S = 3600.0


class Pause(Enum):
    """A pause without new text."""

    PAUSE = ": keep-alive\n\n"


def shown_reply(run: Run) -> str:
    """Give the reply of a run for people, without control words."""
    reply = run.reply or ""
    return "" if is_control_word(reply) else reply


async def wait_ended(runtime: Runtime, run: Run, waits: OpenWaits) -> Run:
    """Wait for the end of a run.

    Raises:
        ShuttingDown: the gateway stopped first; the run goes on at its next start.
    """
    while not run.is_finished:
        run = await waits.until(runtime.wait(run.id, _WAIT_S))
    links = await _links(runtime, run) if run.step != 1 else ""  # a run of one step has called no tool
    return replace(run, reply=f"{shown_reply(run)}{links}".lstrip()) if links else run


async def _links(runtime: Runtime, run: Run) -> str:
    """List the files that a run sends, each as a link that needs the token."""
    files = await runtime.attachments(run.id)
    lines = [f"[{copy.name}](/media/{copy.file}/{quote(copy.name, safe='')})" for copy in files]
    return "".join(f"\n\n{line}" for line in lines)


class Pieces:
    """The unsent rest of a growing reply; sent text cannot be taken back."""

    def __init__(self) -> None:
        self._step = -1
        self._sent = ""
        self._pending: list[str] = []
        self._has_sent = False

    def grew(self, step: int, text: str) -> None:
        """Take the text so far of a step; a repeated attempt waits for the end."""
        if step != self._step:
            self._step, self._sent = step, ""
        if text.startswith(self._sent):
            self._add(text[len(self._sent) :], follows=bool(self._sent))
            self._sent = text

    def end(self, run: Run) -> None:
        """Take the committed reply."""
        reply = shown_reply(run)
        self.grew(run.step - 1, reply)
        if not reply.startswith(self._sent):
            self._add(reply, follows=False)

    def _add(self, text: str, *, follows: bool) -> None:
        if text:
            self._pending.append(text if follows or not self._has_sent else f"\n\n{text}")
            self._has_sent = True

    def take(self) -> str:
        text = "".join(self._pending)
        self._pending.clear()
        return text


async def follow(runtime: Runtime, run: Run, waits: OpenWaits) -> AsyncGenerator[str | Pause | Run, None]:
    """Give pieces of the reply, pauses, and last the ended run.

    Raises:
        ShuttingDown: the gateway stopped first.
    """
    pieces, changed = Pieces(), asyncio.Event()

    def on_event(event: Event) -> None:
        if isinstance(event, ReplyGrew) and event.run.id == run.id:
            pieces.grew(event.run.step, event.text)
            changed.set()

    def wake(task: asyncio.Task[Run]) -> None:
        changed.set()
        if not task.cancelled():
            task.exception()  # mark it retrieved, so that asyncio does not log it; it is raised below

    unlisten = runtime.hub.listen(on_event, ReplyGrew, elsewhere=True, wants=lambda: ListenerWants(runs={run.id}))
    ended = asyncio.create_task(wait_ended(runtime, run, waits))
    ended.add_done_callback(wake)
    try:
        while not ended.done():
            try:
                async with asyncio.timeout(KEEP_ALIVE_S):
                    await changed.wait()
            except TimeoutError:
                yield Pause.PAUSE
                continue
            changed.clear()
            if text := pieces.take():
                yield text
        last = ended.result()
        if last.state is RunState.OK:
            pieces.end(last)
        if text := pieces.take():
            yield text
        yield last
    finally:
        # Nothing is awaited here: a client that goes away cancels whatever its stream waits for.
        unlisten()
        ended.cancel()


def describe_failure(run: Run) -> dict[str, Any]:
    """Say why a run did not end well."""
    return {"message": error_of(run), "type": "run_failed", "param": None, "code": run.error_code}


def show_failure(run: Run) -> Response:
    """Show a run that failed: it was stopped, a provider failed, or the gateway did."""
    status = 422
    if run.state is RunState.ERROR:
        status = 424 if run.error_code == "model_failed" else 500
    return JSONResponse({"error": describe_failure(run)}, status_code=status, headers=NO_RETRY)
