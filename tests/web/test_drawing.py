"""The drawings: the time axis of a run, and the map of who talked to whom."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

from .gateways import GatewayProcess

SECOND = 1000


@pytest.fixture(scope="module")
def drawing(chromium: Browser, gateway: GatewayProcess) -> Iterator[Page]:
    """The page before anybody has logged in: what is looked at here asks the gateway nothing."""
    page = chromium.new_page()
    page.goto(gateway.url)
    yield page
    page.close()


def scale(page: Page, spans: list[list[int]], start: int, end: int, *places: int) -> dict[str, Any]:
    """Build a time axis, and tell where on it some times are."""
    found: dict[str, Any] = page.evaluate(
        """async ([spans, start, end, places]) => {
            const { buildScale } = await import("/page/views/scale.js");
            const scale = buildScale(spans.map(([from, to]) => ({ from, to })), start, end);
            return { places: places.map(scale.at), folds: scale.folds, ticks: scale.ticks };
        }""",
        [spans, start, end, list(places)],
    )
    return found


def draw(page: Page, edges: list[tuple[str | None, str]], *, spawns: bool = False) -> dict[str, Any]:
    """Build the map of these talks; gives its boxes with their places, and what was left out."""
    counts = {"sends": 0, "replies": 0, "spawns": 1} if spawns else {"sends": 1, "replies": 1, "spawns": 0}
    talks = [{"from": asker, "to": asked, "lastAt": 1, **counts} for asker, asked in edges]
    keys = sorted({key for edge in edges for key in edge if key is not None})
    drawn: dict[str, Any] = page.evaluate(
        """async (map) => {
            const { buildGraph } = await import("/page/views/graph.js");
            const { placeNodes } = await import("/page/views/layout.js");
            const graph = buildGraph(map);
            const { places, width, height } = placeNodes(graph.boxes, graph.lines);
            const boxes = Object.fromEntries(graph.boxes.map((box) => [box.name ?? box.id, places.get(box.id)]));
            return { boxes, width, height, leftOut: graph.leftOut };
        }""",
        {"nodes": [{"key": key, "kind": "main", "agentId": "main"} for key in keys], "edges": talks},
    )
    return drawn


def test_work_is_drawn_to_scale_and_a_long_idle_time_is_folded(drawing: Page) -> None:
    hour = 3600 * SECOND
    ended = hour + 3 * SECOND
    drawn = scale(drawing, [[0, SECOND], [hour, ended]], 0, ended, 0, SECOND, hour, ended)

    start, first_end, second_start, end = drawn["places"]
    assert (start, end) == (0, pytest.approx(1))
    assert (end - second_start) == pytest.approx(3 * (first_end - start))
    assert [fold["ms"] for fold in drawn["folds"]] == [hour - SECOND]
    assert second_start - first_end < 0.1


def test_a_short_pause_is_not_folded(drawing: Page) -> None:
    drawn = scale(drawing, [[0, 10 * SECOND], [11 * SECOND, 20 * SECOND]], 0, 20 * SECOND, 10 * SECOND)

    assert drawn["folds"] == []
    assert drawn["places"] == [pytest.approx(0.5)]


def test_a_run_that_took_no_time_and_one_that_only_waits_have_an_axis(drawing: Page) -> None:
    assert scale(drawing, [[5, 5]], 5, 5, 5)["places"] == [0]
    assert scale(drawing, [], 0, 60 * SECOND, 30 * SECOND)["places"] == [pytest.approx(0.5)]


def test_who_asks_stands_left_of_who_is_asked_and_the_order_of_the_rows_does_not_matter(drawing: Page) -> None:
    talks: list[tuple[str | None, str]] = [
        (None, "agent:a:main"),
        ("agent:a:main", "agent:b:main"),
        ("agent:b:main", "agent:a:main"),
        ("agent:b:main", "agent:c:main"),
    ]
    drawn = draw(drawing, talks)
    boxes = drawn["boxes"]

    order = ["the operator", "agent:a:main", "agent:b:main", "agent:c:main"]
    assert [boxes[name]["column"] for name in order] == [0, 1, 2, 3]
    assert draw(drawing, talks[::-1]) == drawn


def test_no_two_boxes_lie_over_each_other_and_all_are_inside(drawing: Page) -> None:
    ids = [f"agent:a{n}:main" for n in range(12)]
    talks: list[tuple[str | None, str]] = [
        (one, other) for n, one in enumerate(ids) for other in (ids[(n * 5 + 1) % 12], ids[(n * 7 + 3) % 12])
    ]
    drawn = draw(drawing, talks)

    boxes = list(drawn["boxes"].values())
    assert len(boxes) == 12
    assert len({(box["x"], box["y"]) for box in boxes}) == 12
    assert all(0 <= box["x"] <= drawn["width"] and 0 <= box["y"] <= drawn["height"] for box in boxes)
    rows = sorted((box["column"], box["y"]) for box in boxes)
    gaps = [after[1] - before[1] for before, after in pairwise(rows) if before[0] == after[0]]
    assert all(gap >= 44 for gap in gaps)


def test_many_sub_agents_of_one_session_are_one_box_and_the_busiest_are_drawn(drawing: Page) -> None:
    children: list[tuple[str | None, str]] = [("agent:a:main", f"agent:a:subagent:{n}") for n in range(30)]
    assert set(draw(drawing, children, spawns=True)["boxes"]) == {"agent:a:main", "30 sub-agents"}

    crowd: list[tuple[str | None, str]] = [("agent:a:main", f"agent:b{n}:main") for n in range(50)]
    drawn = draw(drawing, crowd)
    assert (len(drawn["boxes"]), drawn["leftOut"]) == (24, 27)
    assert "agent:a:main" in drawn["boxes"]
