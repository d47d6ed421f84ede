"""What `--watch` does: a table that stays up to date, until Ctrl-C.

The gateway's events say only that a session or a receipt is new. What is shown is then read again, a few times a
second at most, so nothing depends on an event that was missed, and a restart of the gateway is one more reason to read.
On a terminal the table is drawn anew in place; elsewhere each session that changed gets a line of its own.
"""

from __future__ import annotations

import errno
import select
import sys
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self

from backchannel.cli.client import CallFailed, GatewayClient, Link, NoGateway, Payload
from backchannel.cli.options import Options
from backchannel.cli.output import Rows, build_table, console, is_terminal, say, say_dim, show_json

if TYPE_CHECKING:
    from rich.console import RenderableType

REDRAW_S = 0.25
"""The least time between two looks at the gateway, however much happens."""
TICK_S = 1.0
"""How often ages are drawn anew."""
HEAD_LINES = 2
"""What stands above a table: the time, and an empty line."""
LOOK_AGAIN_S = 10.0
"""How often the gateway is asked though no event came: some rows leave a view by growing old."""


class TableSnapshot(Protocol):
    """What there is to see at one moment."""

    @property
    def ts(self) -> int:
        """The gateway's time when it was loaded."""
        ...

    @property
    def sessions(self) -> Sequence[Payload]:
        """The sessions in it, each with its `key`."""
        ...

    def rows(self, now_ms: int) -> Rows:
        """The cells of the table, with ages as of `now_ms`."""
        ...


class TableView(Protocol):
    """A table that can be watched."""

    @property
    def columns(self) -> Sequence[str]: ...

    @property
    def spare(self) -> Sequence[str]:
        """The columns that are left out first where there is little room."""
        ...

    @property
    def empty(self) -> str:
        """What to say when there are no rows."""
        ...

    def load(self, client: GatewayClient) -> TableSnapshot:
        """Read what there is now."""
        ...


class Display(Protocol):
    """Where a watched table is shown."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def show(self, snapshot: TableSnapshot, deleted: set[str]) -> None:
        """Show what there is now; `deleted` names the sessions that were deleted since the last time."""
        ...

    def tick(self) -> None:
        """Called about every second: draw ages anew, or notice that the output was closed."""
        ...

    def note(self, text: str) -> None:
        """Say something about the connection."""
        ...


def watch(options: Options, view: TableView, line_of: Callable[[Payload], str], *, as_json: bool) -> None:
    """Show a view and keep it up to date until Ctrl-C, over restarts of the gateway.

    `line_of` shows one session in a line, for output that is not a terminal.
    """
    display: Display
    if as_json or not is_terminal(sys.stdout) or console().is_dumb_terminal:
        display = Lines(line_of, as_json=as_json)
    else:
        display = Screen(view)
    with Link(options, display.note) as link, display:
        while True:
            try:
                _follow(link.client(), view, display)
            except NoGateway:
                link.lose()
            except CallFailed as refused:
                if not refused.is_retryable:
                    raise
                link.lose()  # it is about to stop


def _follow(client: GatewayClient, view: TableView, display: Display) -> None:
    # Subscribing comes first: what changes while the rows are read is then read once more, never missed.
    client.call("sessions.subscribe")
    deleted: set[str] = set()
    while True:
        display.show(view.load(client), deleted)
        deleted = _wait_for_news(client, display)


def _wait_for_news(client: GatewayClient, display: Display) -> set[str]:
    """Return when there is something new and the last look is some time ago; gives the sessions that were deleted."""
    looked = time.monotonic()
    is_news = False
    deleted: set[str] = set()
    while (left_s := looked + (REDRAW_S if is_news else LOOK_AGAIN_S) - time.monotonic()) > 0:
        for event in client.events(min(left_s, TICK_S)):
            is_news = is_news or event["event"] in ("sessions.changed", "delivery")
            if event["event"] == "sessions.changed" and event["payload"]["reason"] == "delete":
                deleted.add(event["payload"]["sessionKey"])
        display.tick()
    return deleted


class Screen:
    """A table on a terminal's second screen, where it can be drawn anew however the window changes."""

    def __init__(self, view: TableView) -> None:
        from rich.live import Live

        self._view = view
        self._snapshot: TableSnapshot | None = None
        self._note = ""
        self._loaded = self._drawn = 0.0
        self._console = console()
        self._live = Live(console=self._console, screen=True, auto_refresh=False)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()
        if self._snapshot is not None:  # what was seen last stays on the first screen
            self._console.print(self._build(self._rows(self._snapshot)))

    def show(self, snapshot: TableSnapshot, deleted: set[str]) -> None:
        self._snapshot, self._note = snapshot, ""
        self._loaded = time.monotonic()
        self._draw()

    def tick(self) -> None:
        if time.monotonic() - self._drawn >= TICK_S:
            self._draw()

    def note(self, text: str) -> None:
        self._note = text
        self._draw()

    def _draw(self) -> None:
        from rich.console import Group
        from rich.text import Text

        head = Text(f"{time.strftime('%H:%M:%S')} · Ctrl-C ends", style="dim")
        if self._note:
            head = Text(self._note, style="yellow")
        self._drawn = time.monotonic()
        table = self._fitting(self._snapshot) if self._snapshot is not None else Text()
        self._live.update(Group(head, Text(), table), refresh=True)

    def _fitting(self, snapshot: TableSnapshot) -> RenderableType:
        """The table as far as the window reaches, and how much of it is below."""
        from rich.console import Group
        from rich.text import Text

        rows = self._rows(snapshot)
        table = self._build(rows)
        if len(self._console.render_lines(table)) <= (room := self._console.height - HEAD_LINES):
            return table
        shown = rows[: max(1, room - 2)]  # one line names the columns, one counts the rest
        while len(shown) > 1 and len(self._console.render_lines(self._build(shown))) >= room:
            shown = shown[:-1]  # some rows take more than a line
        return Group(self._build(shown), Text(f"… {len(rows) - len(shown)} more", "dim"))

    def _rows(self, snapshot: TableSnapshot) -> Rows:
        return snapshot.rows(snapshot.ts + int((time.monotonic() - self._loaded) * 1000))

    def _build(self, rows: Rows) -> RenderableType:
        from rich.text import Text

        return build_table(self._view.columns, rows, self._view.spare) if rows else Text(self._view.empty)


class Lines:
    """A line for each session at first, and for each that changes from then on."""

    def __init__(self, line_of: Callable[[Payload], str], *, as_json: bool) -> None:
        self._line_of = line_of
        self._as_json = as_json
        self._known: dict[str, Payload] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def show(self, snapshot: TableSnapshot, deleted: set[str]) -> None:
        now = {session["key"]: session for session in snapshot.sessions}
        for key in sorted((deleted & self._known.keys()) - now.keys()):
            self._say({"key": key, "status": "deleted", "updatedAt": snapshot.ts})
        changed = [session for key, session in now.items() if self._known.get(key) != session]
        for session in sorted(changed, key=lambda session: int(session["updatedAt"])):
            self._say(session)
        self._known = now

    def tick(self) -> None:
        """End when the reader of the pipe has gone; otherwise only writing the next line would notice."""
        poll = select.poll()
        poll.register(sys.stdout, 0)
        if any(events & select.POLLERR for _, events in poll.poll(0)):
            raise BrokenPipeError(errno.EPIPE, "the reader of the pipe is gone")

    def note(self, text: str) -> None:
        say_dim(text, err=True)

    def _say(self, session: Payload) -> None:
        if self._as_json:
            show_json(session, lines=True)
        else:
            say(self._line_of(session))
