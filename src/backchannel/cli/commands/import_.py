"""`backchannel import`: take sessions of another program into the state folder, without a gateway."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from backchannel.cli.options import EXIT_INTERRUPTED, AsJson, CommandFailed, Options, options_of
from backchannel.cli.output import console, counted, is_terminal, say, show_facts, show_json
from backchannel.cli.tables import show_table

if TYPE_CHECKING:
    from collections import Counter

    from backchannel.config import Config
    from backchannel.openclaw.importing import ImportReport, SessionResult
    from backchannel.storage.files.folder import StateFolder

_MOST_SHOWN = 200
EXPECTED = "expected agents/<id>/sessions/sessions.json, sessions/sessions.json or sessions.json in it"
_DATABASES = tuple(f"{place}openclaw*.sqlite" for place in ("agents/*/agent/", "*/agent/", "agent/", ""))
"""The folder of OpenClaw's sessions below its state folder, and below each folder on the way."""


def import_(
    ctx: typer.Context,
    folder: Annotated[Path, typer.Argument(help="The state folder of the other program, such as ~/.openclaw.")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Import without asking.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be imported.")] = (False),
    as_json: AsJson = False,
) -> None:
    """Import sessions from OpenClaw, Clawdbot or an export.

    Stop the gateway of the state folder first. Without --yes it shows what it would import, and asks. It never changes
    existing sessions: a session whose key is taken gets a new key. The same import again adds what is missing.
    """
    options = options_of(ctx)
    work = ImportCommand(options, options.load_config(), folder.expanduser(), as_json=as_json)
    work.check_folder()
    if dry_run or not (yes or work.can_ask):
        work.show_dry_run()
    else:
        work.take(asks=not yes)


class ImportCommand:
    """The steps of `backchannel import`, for a person or a program."""

    def __init__(self, options: Options, config: Config, folder: Path, *, as_json: bool) -> None:
        self._options = options
        self._config = config
        self._folder = folder
        self._as_json = as_json

    @property
    def can_ask(self) -> bool:
        return not self._as_json and is_terminal(sys.stdin) and is_terminal(sys.stdout)

    def check_folder(self) -> None:
        """Refuse a folder that has no sessions, or that is the one to write to."""
        from backchannel.openclaw.files import find_session_folders

        if not self._folder.is_dir():
            raise CommandFailed(f"{self._folder} is no folder: name the state folder of the other program")
        if self._is_own(self._config.state_dir):
            raise CommandFailed(f"{self._folder} is in the state folder that is written to: name another with --state")
        if not find_session_folders(self._folder):
            raise CommandFailed(f"there are no sessions in {self._folder}: {_what_is_there(self._folder)}")

    def _is_own(self, state: Path) -> bool:
        """True if transcript files would overwrite those that are read."""
        theirs = self._folder.resolve()
        return theirs.is_relative_to(state.resolve()) or (theirs / "agents") == (state / "agents").resolve()

    def show_dry_run(self) -> None:
        """Show what would be imported."""
        report = self._dry_run()
        self._show(report, is_written=False)
        if not self._as_json and report.has_work:
            again = self._options.command("import", str(self._folder), "--yes")
            say(f"\nNothing was written. To take the sessions, stop the gateway and run: {again}")

    def take(self, *, asks: bool) -> None:
        """Import the sessions, and show the result."""
        from backchannel.storage.files.folder import StateFolder

        held = StateFolder.hold(self._config.state_dir)
        try:
            if asks and not self._is_wanted():
                return
            report = self._taken(held)
            if not asks:  # else it was shown before the question
                self._show(report, is_written=True)
            if not self._as_json:
                say(f"\n{_what_was_written(report, self._config.state_dir)}")
            if not self._as_json and report.has_work:
                say(f"Start the gateway with: {self._options.command('up')}")
                say(f"Then see them with: {self._options.command('sessions')}")
        except KeyboardInterrupt:
            say("\nStopped. What was taken stays; the same command goes on from there.", err=True)
            raise typer.Exit(EXIT_INTERRUPTED) from None
        finally:
            held.release()

    def _is_wanted(self) -> bool:
        report = self._dry_run()
        self._show(report, is_written=False)
        if not report.has_work:
            say("\nThere is nothing to take.")
            return False
        if not typer.confirm("\nTake them?"):
            say("Nothing was written.")
            return False
        return True

    def _dry_run(self) -> ImportReport:
        import asyncio
        from contextlib import ExitStack

        from backchannel.openclaw.importing import DryRun, SessionImport
        from backchannel.storage.databases import database_at

        database = database_at(self._config.database_url)
        with ExitStack() as exits:
            reader = exits.enter_context(database.open_reader()) if database.exists() else None
            on_bytes = exits.enter_context(_progress("reading", self._folder))
            return asyncio.run(SessionImport(self._folder, self._config.key_scheme, DryRun(reader), on_bytes).run())

    def _taken(self, held: StateFolder) -> ImportReport:
        import asyncio

        with _progress("taking sessions", self._folder) as on_bytes:
            return asyncio.run(self._take_all(held, on_bytes))

    async def _take_all(self, held: StateFolder, on_bytes: Callable[[int], None]) -> ImportReport:
        from asyncio import CancelledError

        from backchannel.openclaw.importing import SessionImport, StoreTarget
        from backchannel.runtime.clocks import SystemClock
        from backchannel.storage.store import Store

        config = self._config
        failures: list[BaseException] = []
        store = await Store.open(
            held,
            config.key_scheme,
            SystemClock(),
            on_fatal=failures.append,
            url=config.database_url,
            writes_files=config.writes_transcript_files,
            locks_rows=config.cluster.locks == "rows",
        )
        try:
            target = StoreTarget(store, writes_files=config.writes_transcript_files)
            return await SessionImport(self._folder, config.key_scheme, target, on_bytes).run()
        except CancelledError:
            if failures:  # the store cancelled what waited for it
                raise CommandFailed(f"the database failed in a commit ({failures[0]}): run the command again") from None
            raise
        finally:
            await (store.abandon() if failures else store.close())

    def _show(self, report: ImportReport, *, is_written: bool) -> None:
        configured = [agent.id for agent in self._config.agents.list]
        unconfigured = [agent for agent in report.agents if agent not in configured]
        if not self._as_json:
            _show_report(report, unconfigured=unconfigured)
            return
        places = {"folder": str(self._folder), "state": str(self._config.state_dir), "dryRun": not is_written}
        show_json({**places, **report.as_json(), "agentsToConfigure": unconfigured})


def _show_report(report: ImportReport, *, unconfigured: list[str]) -> None:
    """Print a report for people."""
    from backchannel.openclaw.importing import ImportAction

    shown = report.results[:_MOST_SHOWN]
    rows = [[one.action, one.key or one.name, one.written, one.messages, _note(one)] for one in shown]
    show_table(["what", "session", "new messages", "of", "note"], rows, empty="There are no sessions.")
    if len(report.results) > _MOST_SHOWN:
        say(f"… and {len(report.results) - _MOST_SHOWN} more: --json shows all of them.")
    if report.problems:
        say()
        places = [[f"{one.file}:{one.line}", one.what] for one in report.problems]
        show_table(["passed over", "why"], places, empty="")
        for file, number in report.unnamed.items():
            say(f"… and {number} more in {file}.")
    say()
    show_facts(
        {
            "sessions": ", ".join(
                f"{report.count(action)} {action}" for action in ImportAction if report.count(action)
            ),
            "messages": f"{report.messages} new",
            "other lines": _counts(report.other_lines),
            "unknown lines": _counts(report.unknown_lines),
            "unknown blocks": report.blocks_left_out or None,
            "left alone": f"{report.strays} transcripts that no session points to" if report.strays else None,
            "agents to configure": ", ".join(unconfigured),
        }
    )


def _note(result: SessionResult) -> str:
    renamed = [f"was {result.name}"] if result.key is not None and result.key != result.name else []
    reason = [result.reason] if result.reason else []
    return "; ".join([*reason, *renamed, *result.remarks])


def _counts(types: Counter[str]) -> str:
    return ", ".join(f"{number} {type}" for type, number in types.most_common())


def _what_was_written(report: ImportReport, state: Path) -> str:
    if not report.has_work:
        return "Nothing was written: there was nothing new."
    return f"Wrote {counted(report.changed, 'session')} with {counted(report.messages, 'new message')} to {state}"


def _what_is_there(folder: Path) -> str:
    if (folder / "backchannel.db").exists():
        # Not between backticks: this folder's own gateway is asked, not the one that the command speaks of.
        option = f"--state {shlex.quote(str(folder))}"
        return f"it belongs to Backchannel itself; with its gateway running, export it: {option} export <folder>"
    if any(path for place in _DATABASES for path in folder.glob(place)):
        return f"this version of OpenClaw keeps them in a database, which is not read ({EXPECTED})"
    return EXPECTED


@contextmanager
def _progress(text: str, folder: Path) -> Iterator[Callable[[int], None]]:
    """Show the progress on a terminal."""
    if not is_terminal(sys.stderr):
        yield lambda size: None
        return
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    from backchannel.openclaw.files import find_session_folders

    files = (path for found in find_session_folders(folder) for path in found.path.glob("*.jsonl") if path.is_file())
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console(sys.stderr), transient=True) as progress:
        task = progress.add_task(text, total=sum(path.stat().st_size for path in files))
        yield lambda size: progress.advance(task, size)
