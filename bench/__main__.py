"""Runs the bench: `python -m bench [--rows list,run] [--quick]`."""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Sequence
from contextlib import aclosing
from pathlib import Path

import uvloop
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

from bench.client import Failed
from bench.measures import FULL, QUICK, Curve, Figure, Sizes
from bench.plot import draw
from bench.report import Report, show, write_results
from bench.rows import ROWS
from bench.world import BenchWorld

RESULTS = Path(__file__).parent / "results"


def main(words: Sequence[str] | None = None) -> int:
    """Run the rows asked for, show and write what they found."""
    parser = argparse.ArgumentParser(prog="bench", description="Measures Backchannel.")
    parser.add_argument("--rows", default=",".join(ROWS), help=f"which rows, of {', '.join(ROWS)}")
    parser.add_argument("--quick", action="store_true", help="measure less")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where the results go")
    given = parser.parse_args(words)
    names = [name for name in given.rows.replace(" ", ",").split(",") if name]
    if unknown := [name for name in names if name not in ROWS]:
        parser.error(f"no row {', '.join(unknown)} (there are {', '.join(ROWS)})")
    console = Console(width=None if sys.stdout.isatty() else 140)
    report = measure(names, QUICK if given.quick else FULL, given.results, console)
    console.print(report.table())
    if report.is_mixed:
        console.print("[bold red]The program was changed while it was measured: these figures do not belong together.")
    for path in write_results(report, given.results, draw(report.curves)):
        console.print(f"wrote {path}", highlight=False)
    return 1 if report.failed else 0


def measure(names: Sequence[str], sizes: Sizes, results: Path, console: Console) -> Report:
    """Measure rows, one after the other."""
    report = Report(quick=sizes is QUICK)
    results.mkdir(parents=True, exist_ok=True)
    # On the disk of the project: a temporary folder is often in memory, where commits cost nothing.
    with (
        tempfile.TemporaryDirectory(prefix="scratch-", dir=results) as scratch,
        Progress(
            SpinnerColumn(),
            TextColumn("{task.description:<9}"),
            TimeElapsedColumn(),
            TextColumn("{task.fields[doing]}", style="dim"),
            console=console,
        ) as progress,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        world = BenchWorld(sizes, Path(scratch))
        for name in names:
            task = progress.add_task(name, total=1, doing="")
            runner.run(_row(name, world, report, progress, task))
    return report


async def _row(name: str, world: BenchWorld, report: Report, progress: Progress, task: TaskID) -> None:
    said: list[str] = []
    try:
        async with aclosing(ROWS[name](world)) as findings:
            async for found in findings:
                match found:
                    case Figure():
                        report.figures.append((name, found))
                        said.append(show(found.value, found.unit))
                    case Curve():
                        report.curves.append(found)
                    case str():
                        progress.update(task, doing=found)
    except (Failed, OSError, RuntimeError) as error:
        report.failed[name] = str(error)
        said.append(f"failed: {error}")
    progress.update(task, completed=1)
    if said:  # else it has said why it found nothing
        progress.update(task, doing=" · ".join(said))


if __name__ == "__main__":
    sys.exit(main())
