"""The findings of a bench run, as a table for people and as JSON."""

from __future__ import annotations

import hashlib
import os
import platform
import sqlite3
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
from rich.table import Table

import backchannel
from backchannel.version import __version__
from bench.measures import Curve, Figure, Goal


class Report:
    """Figures and curves by row, in the order in which they came."""

    def __init__(self, *, quick: bool = False) -> None:
        self.figures: list[tuple[str, Figure]] = []
        self.curves: list[Curve] = []
        self.failed: dict[str, str] = {}
        """Rows that could not be measured, and why."""
        self._quick = quick
        self._began = datetime.now(UTC)
        self._source = source_digest()

    @property
    def is_mixed(self) -> bool:
        """Whether the program was changed while it was measured, so that rows tell of different ones."""
        return source_digest() != self._source

    def as_json(self) -> bytes:
        took_s = (datetime.now(UTC) - self._began).total_seconds()
        found: dict[str, Any] = {
            "machine": machine(),
            "date": self._began.isoformat(timespec="seconds"),
            "tookSeconds": round(took_s, 1),
            "quick": self._quick,
            "source": self._source,
            "sourceChanged": self.is_mixed,
            "figures": [_figure_json(row, figure) for row, figure in self.figures],
            "curves": self.curves,
            "failed": self.failed,
        }
        return msgspec.json.format(msgspec.json.encode(found), indent=2) + b"\n"

    def table(self) -> Table:
        """Show all figures."""
        table = Table(title="Backchannel bench", title_justify="left", caption=_caption(), caption_justify="left")
        for name in ("row", "what", "measured", "floor", "ratio", "goal", ""):
            table.add_column(name, justify="right" if name in ("measured", "floor", "ratio") else "left")
        last = ""
        for row, figure in self.figures:
            table.add_row(
                row if row != last else "",
                figure.name,
                show(figure.value, figure.unit),
                "" if figure.floor is None else show(figure.floor, figure.unit),
                "" if figure.ratio is None else f"{figure.ratio:.1f}×",
                "" if figure.goal is None else show_goal(figure.goal, figure.unit),
                _mark(figure.is_met),
            )
            last = row
        for row, why in self.failed.items():
            table.add_row(row, f"[red]not measured: {why}[/red]", "", "", "", "", "[red]failed[/red]")
        return table

    def markdown(self) -> str:
        """Show all figures as a table for a page of documentation."""
        lines = ["| what | measured | floor | ratio | goal | |", "|---|---:|---:|---:|---|---|"]
        for _, figure in self.figures:
            cells = (
                figure.name,
                show(figure.value, figure.unit),
                "" if figure.floor is None else show(figure.floor, figure.unit),
                "" if figure.ratio is None else f"{figure.ratio:.1f}×",
                "" if figure.goal is None else show_goal(figure.goal, figure.unit),
                {None: "", True: "holds", False: "**missed**"}[figure.is_met],
            )
            lines.append(f"| {' | '.join(cells)} |")
        return "\n".join(lines) + "\n"


def source_digest() -> str:
    """Name the program that is measured by what its files hold."""
    digest = hashlib.sha256()
    for path in sorted(Path(backchannel.__file__).parent.rglob("*")):
        if path.suffix in (".py", ".sql"):
            digest.update(f"{path.name}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:12]


def machine() -> dict[str, Any]:
    """Tell what the figures were measured on."""
    return {
        "cores": os.cpu_count(),
        "processor": _processor(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
        "backchannel": __version__,
        "load": [round(load, 2) for load in os.getloadavg()],
    }


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _caption() -> str:
    facts = machine()
    return f"{facts['cores']} cores, Python {facts['python']}, SQLite {facts['sqlite']}"


def _figure_json(row: str, figure: Figure) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.to_builtins(figure)
    return {"row": row, **found, "ratio": figure.ratio, "met": figure.is_met}


def _mark(is_met: bool | None) -> str:
    return {None: "", True: "[green]holds[/green]", False: "[bold red]missed[/bold red]"}[is_met]


def show(value: float, unit: str) -> str:
    """Show a number with its unit, with as many digits as mean something."""
    digits = 0 if value >= 100 else 1 if value >= 10 else 2 if value >= 1 else 3
    return f"{value:,.{digits}f}{'' if unit == '×' else ' '}{unit}"


def show_goal(goal: Goal, unit: str) -> str:
    """Show what has to hold."""
    parts: list[str] = []
    if goal.at_most is not None:
        parts.append(f"≤ {goal.at_most:g}{'' if unit == '×' else ' '}{unit}")
    if goal.at_least is not None:
        parts.append(f"≥ {goal.at_least:,g} {unit}")
    if goal.times_floor is not None:
        parts.append(f"≤ {goal.times_floor:g}× floor")
    return ", ".join(parts)


def write_results(report: Report, folder: Path, plot: str) -> Iterable[Path]:
    """Write the JSON, the table and the plot; returns where."""
    folder.mkdir(parents=True, exist_ok=True)
    files = {"latest.json": report.as_json(), "latest.md": report.markdown().encode(), "growth.svg": plot.encode()}
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return [folder / name for name in files]
