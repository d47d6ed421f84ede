"""Views that stay up to date until Ctrl-C, for `--watch` and `watch`.

The gateway's events only say that something changed. The view then reads again, at most a few times a second. So
nothing depends on a missed event, and a restart of the gateway is only one more reason to read. A terminal is redrawn
in place. Elsewhere each change is a line.
"""

from __future__ import annotations

import errno
import select
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, Self, TypeVar

from backchannel.cli import answers
from backchannel.cli.client import ANSWER_S, CallFailed, GatewayClient, Link, Payload
from backchannel.cli.finding import NoGateway
from backchannel.cli.options import Options
from backchannel.cli.output import clock_time, console, is_terminal, say, say_dim, show_json
from backchannel.cli.tables import TableRows

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

SeenT = TypeVar("SeenT")
ThingT = TypeVar("ThingT")
LoadedT = TypeVar("LoadedT", covariant=True)
ShownT = TypeVar("ShownT", contravariant=True)
SessionT = TypeVar("SessionT", bound="answers.SessionRow | answers.TreeNode", covariant=True)
RowT = TypeVar("RowT", bound="answers.SessionRow | answers.TreeNode")
REDRAW_S = 0.25
"""The least time between two reads, however many events come."""
_TICK_S = 1.0
"""How often ages are redrawn."""
HEAD_LINES = 2
"""The lines above a table: the time, and an empty line."""
LOOK_AGAIN_S = 10.0
"""How often a view is read without an event: some rows leave it by their age."""


class TableSnapshot(Protocol[SessionT]):
    """What there is to see at one moment."""

    @property
    def ts(self) -> int:
        """The gateway's time when it was loaded."""
        ...

    @property
    def sessions(self) -> Sequence[SessionT]:
        """The sessions in it."""
        ...

    def table(self, now_ms: int) -> TableRows:
        """Its table, with ages as of `now_ms`."""
        ...


class TableView(ABC, Generic[RowT]):
    """A table of sessions that can be watched. It is read again when one of them changed, or a receipt."""

    look_again_s: ClassVar = LOOK_AGAIN_S

    @abstractmethod
    def load(self, client: GatewayClient) -> TableSnapshot[RowT]:
        """Read what there is now."""

    def is_news(self, event: Payload) -> bool:
        return event["event"] in ("sessions.changed", "delivery")


class Display(Protocol[ShownT]):
    """The place where a view is shown."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def show(self, snapshot: ShownT, deleted: set[str]) -> None:
        """Show a snapshot. `deleted` names the sessions that were deleted since the last one."""
        ...

    def tick(self) -> None:
        """Redraw ages, or notice that the output was closed. Called several times a second."""
        ...

    def note(self, text: str) -> None:
        """Say something about the connection."""
        ...


class WatchedView(Protocol[LoadedT]):
    """A view: how it is read, and which events make it read again."""

    @property
    def look_again_s(self) -> float:
        """After how long it is read again without news."""
        ...

    def load(self, client: GatewayClient) -> LoadedT:
        """Read what there is now."""
        ...

    def is_news(self, event: Payload) -> bool:
        """True if an event says that there is something new to read."""
        ...


def keep_watching(options: Options, source: WatchedView[SeenT], display: Display[SeenT]) -> None:
    """Show something and keep it up to date until Ctrl-C, over restarts of the gateway."""
    with Link(options, display.note, partial(_pause, display)) as link, display:
        while True:
            try:
                _follow(link.client(), source, display, link.worked)
            except NoGateway:
                link.lose()
            except CallFailed as refused:
                link.hold_off(refused)


def watch_table(options: Options, view: TableView[RowT], lines: Lines[RowT], *, as_json: bool) -> None:
    """Keep a table up to date; `lines` is for output that is not a terminal."""
    keep_watching(options, view, Screen() if is_drawn(as_json=as_json) else lines)


def is_drawn(*, as_json: bool) -> bool:
    """True if there is a terminal to draw on. Otherwise each change is a line."""
    return not as_json and is_terminal(sys.stdout) and not console().is_dumb_terminal


def _follow(
    client: GatewayClient, source: WatchedView[SeenT], display: Display[SeenT], on_read: Callable[[], None]
) -> None:
    # Subscribing comes first: what changes while the rows are read is then read once more, never missed.
    client.wait(client.ask("sessions.subscribe"), answers.EventsSubscribed, ANSWER_S)
    deleted: set[str] = set()
    while True:
        loaded = source.load(client)
        on_read()
        display.show(loaded, deleted)
        deleted = _wait_for_news(client, source, display)


def _wait_for_news(client: GatewayClient, source: WatchedView[SeenT], display: Display[SeenT]) -> set[str]:
    """Wait until it is time to read again; returns the sessions that were deleted meanwhile."""
    looked = time.monotonic()
    is_news = False
    deleted: set[str] = set()
    while (left_s := looked + (REDRAW_S if is_news else source.look_again_s) - time.monotonic()) > 0:
        for event in client.events(min(left_s, REDRAW_S)):
            is_news = source.is_news(event) or is_news
            if event["event"] == "sessions.changed" and event["payload"]["reason"] == "delete":
                deleted.add(event["payload"]["sessionKey"])
        display.tick()
    return deleted


def _pause(display: Display[SeenT], for_s: float) -> None:
    """Wait, and keep the display alive meanwhile."""
    until = time.monotonic() + for_s
    while (left_s := until - time.monotonic()) > 0:
        display.tick()
        time.sleep(min(left_s, REDRAW_S))


class ScreenDrawing(ABC, Generic[SeenT]):
    """A picture on a terminal's second screen, which is redrawn when the window changes."""

    def __init__(self) -> None:
        from rich.live import Live

        self._snapshot: SeenT | None = None
        self._note = ""
        self._loaded = self._drawn = 0.0
        self._size = (0, 0)
        self._console = console()
        self._live = Live(console=self._console, screen=True, auto_refresh=False)

    @abstractmethod
    def picture(self, snapshot: SeenT | None, note: str, since_ms: int) -> RenderableType:
        """Draw the snapshot, `since_ms` after it was loaded. A note is about the connection."""

    @abstractmethod
    def last(self, snapshot: SeenT, since_ms: int) -> RenderableType:
        """Draw what stays on the first screen at the end."""

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()
        if self._snapshot is not None:
            self._console.print(self.last(self._snapshot, self._since_ms()))

    def show(self, snapshot: SeenT, deleted: set[str]) -> None:
        self._snapshot, self._note = snapshot, ""
        self._loaded = time.monotonic()
        self._draw()

    def tick(self) -> None:
        if time.monotonic() - self._drawn >= _TICK_S or self._size != self._console.size:
            self._draw()

    def note(self, text: str) -> None:
        self._note = text
        self._draw()

    def _since_ms(self) -> int:
        return int((time.monotonic() - self._loaded) * 1000)

    def _draw(self) -> None:
        self._drawn, self._size = time.monotonic(), self._console.size
        self._live.update(self.picture(self._snapshot, self._note, self._since_ms()), refresh=True)


def hint_line(note: str, style: str) -> Text:
    """Write the line about the connection, or how to end the view."""
    from rich.text import Text

    return Text(note, style) if note else Text(f"{time.strftime('%H:%M:%S')} · Ctrl-C ends", "dim")


class Screen(ScreenDrawing[TableSnapshot[Any]]):
    """A table that is drawn."""

    def picture(self, snapshot: TableSnapshot[Any] | None, note: str, since_ms: int) -> RenderableType:
        from rich.console import Group
        from rich.text import Text

        return Group(
            hint_line(note, "yellow"),
            Text(),
            self._fitting(snapshot.table(snapshot.ts + since_ms)) if snapshot else Text(),
        )

    def last(self, snapshot: TableSnapshot[Any], since_ms: int) -> RenderableType:
        return _drawn(snapshot.table(snapshot.ts + since_ms))

    def _fitting(self, table: TableRows) -> RenderableType:
        """Draw the rows that fit into the window, and count the others."""
        from rich.console import Group
        from rich.text import Text

        whole = _drawn(table)
        if len(self._console.render_lines(whole)) <= (room := self._console.height - HEAD_LINES):
            return whole
        count = max(1, room - 2)  # one line names the columns, one counts the rest
        while count > 1 and len(self._console.render_lines(table.build(count))) >= room:
            count -= 1  # some rows take more than a line
        return Group(table.build(count), Text(f"… {len(table.rows) - count} more", "dim"))


def _drawn(table: TableRows) -> RenderableType:
    from rich.text import Text

    return table.build() if table.rows else Text(table.empty)


class PipedOutput:
    """Output that is not drawn on: a pipe, a file, a terminal that cannot move its cursor. It shows changes."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self._known: dict[str, dict[str, object]] = {}
        """The state of each thing at the last look, by its kind and id."""

    def changed(
        self, what: str, rows: Mapping[str, ThingT], state_of: Callable[[ThingT], object] = lambda row: row
    ) -> list[ThingT]:
        """Give the things of a kind that are new, or have another state than at the last look."""
        known, self._known[what] = self._known.get(what, {}), {id_: state_of(row) for id_, row in rows.items()}
        return [row for id_, row in rows.items() if known.get(id_) != state_of(row)]

    def deleted(self, deleted: set[str], sessions: Container[str]) -> list[str]:
        """Give the sessions that were shown and are deleted now."""
        return sorted(key for key in deleted & self._known.get("session", {}).keys() if key not in sessions)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def tick(self) -> None:
        """End when the reader of the pipe has gone. Otherwise only the next line would notice."""
        poll = select.poll()
        poll.register(sys.stdout, 0)
        if any(events & select.POLLERR for _, events in poll.poll(0)):
            raise BrokenPipeError(errno.EPIPE, "the reader of the pipe is gone")

    def note(self, text: str) -> None:
        say_dim(text, err=True)


class Lines(PipedOutput, Generic[RowT]):
    """A line for each session, then for each session that changes. `plain_of` makes the JSON."""

    def __init__(
        self, line_of: Callable[[RowT], str], *, as_json: bool, plain_of: Callable[[RowT], object] = lambda row: row
    ) -> None:
        super().__init__(as_json=as_json)
        self._line_of = line_of
        self._plain_of = plain_of

    def show(self, snapshot: TableSnapshot[RowT], deleted: set[str]) -> None:
        now = {session.key: session for session in snapshot.sessions}
        for key in self.deleted(deleted, now):
            self._say_deleted(key, snapshot.ts)
        for session in sorted(self.changed("session", now), key=lambda session: session.updated_at):
            if self._as_json:
                show_json(self._plain_of(session), lines=True)
            else:
                say(self._line_of(session))

    def _say_deleted(self, key: str, now_ms: int) -> None:
        if self._as_json:
            show_json(deleted_session(key, now_ms), lines=True)
        else:
            say(f"{clock_time(now_ms)}  {key}  deleted")


def deleted_session(key: str, now_ms: int) -> dict[str, object]:
    """Make the JSON of a deleted session, in place of its row."""
    return {"key": key, "status": "deleted", "updatedAt": now_ms}
