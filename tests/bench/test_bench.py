"""The bench: every row measures something, and what it found is told well."""

from __future__ import annotations

import json
import os
import subprocess
from io import StringIO
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from bench.__main__ import main, measure
from bench.measures import Curve, Figure, Goal, Sizes, Timings, percentile
from bench.plot import draw
from bench.report import Report, show, show_goal, write_results
from bench.rows import ROWS
from rich.console import Console

from tests.web.browser import find_chromium

PROJECT = Path(__file__).parents[2]
TINY = Sizes(
    rounds=1,
    calls=4,
    growing_runs=8,
    conversations=(10,),
    load_rounds=1,
    load_s=0.04,
    parallel=4,
    sessions=(300,),
    messages=(10, 100),
    waiting=4,
    starts=1,
    strangers=20,
)


def _console() -> Console:
    return Console(file=StringIO(), width=140)


ON_POSTGRES = ("postgres", "transactions")
"""Rows for which several gateways and a server are started. `make test-postgres` tries them."""


@pytest.mark.parametrize(
    "row", [pytest.param(row, marks=pytest.mark.interop if row in ON_POSTGRES else ()) for row in ROWS]
)
def test_a_small_run_of_a_row_gives_well_formed_figures(row: str, tmp_path: Path) -> None:
    if row == "page":
        find_chromium()
    report = measure([row], TINY, tmp_path, _console())
    write_results(report, tmp_path, draw(report.curves))

    found: dict[str, Any] = json.loads((tmp_path / "latest.json").read_text())
    assert found["failed"] == {}
    assert found["figures"]
    for figure in found["figures"]:
        assert figure["row"] == row
        assert figure["name"] and figure["unit"]
        assert figure["value"] > 0
        assert figure["met"] in (True, False, None)
        assert (figure["met"] is None) == (figure["goal"] is None)
        if figure["floor"] is not None:
            assert figure["floorIs"] and figure["floor"] > 0 and figure["ratio"] > 0
    assert {"cores", "python", "sqlite"} <= found["machine"].keys()
    ElementTree.fromstring((tmp_path / "growth.svg").read_text())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["growth.svg", "latest.json", "latest.md"]


def test_a_row_that_is_not_there_is_refused_with_those_that_are(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--rows", "lists"])

    assert "run, budgets, wire, rate" in capsys.readouterr().err


def test_a_row_that_fails_is_shown_as_failed_and_the_others_are_measured(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async def broken(world: object) -> Any:
        yield "beginning"
        raise RuntimeError("no disk")

    async def sound(world: object) -> Any:
        yield Figure(name="something", value=1.0, unit="ms")

    monkeypatch.setitem(ROWS, "broken", broken)
    monkeypatch.setitem(ROWS, "sound", sound)

    report = measure(["broken", "sound"], TINY, tmp_path, _console())

    assert report.failed == {"broken": "no disk"}
    assert [row for row, _ in report.figures] == ["sound"]


def test_a_program_that_changes_while_it_is_measured_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    report = Report()
    assert not json.loads(report.as_json())["sourceChanged"]

    monkeypatch.setattr("bench.report.source_digest", lambda: "another")

    assert json.loads(report.as_json())["sourceChanged"]


@pytest.mark.parametrize(
    ("figure", "ratio", "is_met"),
    [
        (Figure(name="", value=3.0, unit="ms", floor=1.0, goal=Goal(at_most=4, times_floor=4)), 3.0, True),
        (Figure(name="", value=3.0, unit="ms", floor=0.5, goal=Goal(at_most=4, times_floor=4)), 6.0, False),
        (Figure(name="", value=5.0, unit="ms", floor=2.5, goal=Goal(at_most=4, times_floor=4)), 2.0, False),
        (Figure(name="", value=1000.0, unit="runs/s", floor=4000.0, goal=Goal(at_least=1500)), 4.0, False),
        (Figure(name="", value=2000.0, unit="runs/s", floor=4000.0, goal=Goal(at_least=1500)), 2.0, True),
        (Figure(name="", value=2.0, unit="ms", goal=Goal(times_floor=3)), None, False),
        (Figure(name="", value=2.0, unit="ms"), None, None),
    ],
)
def test_a_figure_is_judged_by_its_goal_and_its_floor(figure: Figure, ratio: float | None, is_met: bool | None) -> None:
    assert figure.ratio == ratio
    assert figure.is_met is is_met


def test_the_median_of_the_rounds_counts() -> None:
    timings = Timings([[1.0, 1.0, 9.0], [2.0, 2.0, 9.0], [50.0, 60.0, 70.0]])

    assert timings.p50 == 2.0
    assert percentile([4.0, 1.0, 3.0, 2.0], 50) == 2.0
    assert percentile([4.0, 1.0, 3.0, 2.0], 99) == 4.0


def test_the_table_marks_what_is_missed() -> None:
    report = Report()
    report.figures.append(("run", Figure(name="a run", value=9.0, unit="ms", goal=Goal(at_most=4))))
    report.figures.append(("run", Figure(name="another", value=1.0, unit="ms", goal=Goal(at_most=4))))
    console = _console()
    console.print(report.table())
    assert isinstance(console.file, StringIO)
    shown = console.file.getvalue()

    assert "missed" in shown and "holds" in shown
    assert "| a run | 9.00 ms |  |  | ≤ 4 ms | **missed** |" in report.markdown()


def test_numbers_are_shown_with_the_digits_that_mean_something() -> None:
    assert show(0.0254, "ms") == "0.025 ms"
    assert show(29003.2, "runs/s") == "29,003 runs/s"
    assert show(1.031, "×") == "1.03×"
    assert show_goal(Goal(at_least=1500), "runs/s") == "≥ 1,500 runs/s"


def test_a_plot_draws_each_curve_and_its_floor() -> None:
    curve = Curve(name="a < b", size_is="sessions", unit="ms", points=[(1000, 1.0), (100000, 1.2)], floor=[(1000, 0.5)])
    root = ElementTree.fromstring(draw([curve, curve]))
    lines = [element for element in root.iter() if element.tag.endswith("polyline")]

    assert len(lines) == 4
    assert ElementTree.fromstring(draw([])) is not None


@pytest.mark.parametrize(("given", "is_quick"), [([], False), (["QUICK=1"], True)])
def test_make_bench_measures_less_only_when_told_to(given: list[str], is_quick: bool) -> None:
    recipe = ["make", "--dry-run", "--no-print-directory", "bench", *given]
    env = {name: value for name, value in os.environ.items() if name not in ("QUICK", "MAKEFLAGS")}
    shown = subprocess.run(recipe, cwd=PROJECT, env=env, capture_output=True, text=True, check=True).stdout
    assert ("--quick" in shown) is is_quick
