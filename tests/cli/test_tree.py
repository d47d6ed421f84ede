"""`backchannel tree`: who spawned whom."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from backchannel.cli.tree import build_trees
from tests.tools.shelf import START_MS, Shelf

from .program import Program

MAIN = "agent:main:main"


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    """A gateway whose main session spawned two others, one of which spawned a third."""
    program = Program(tmp_path_factory.mktemp("tree"))
    program.write_config('{ agents: { list: [{ id: "zoe", default: true }, { id: "main" }, { id: "writer" }] } }')
    shelf = Shelf(program.state)
    shelf.session(MAIN, at=START_MS, tokens_in=10, tokens_out=1)
    shelf.session("agent:main:cron:nightly", at=START_MS + 9)
    shelf.session("agent:main:subagent:a", at=START_MS + 2, spawned_by=MAIN, label="dig", tokens_in=100, cost=0.25)
    shelf.session("agent:writer:subagent:b", at=START_MS + 1, spawned_by=MAIN, tokens_in=1000, cost=0.5)
    shelf.session("agent:main:subagent:c", at=START_MS + 3, spawned_by="agent:main:subagent:a")
    shelf.session("agent:writer:main", at=START_MS)
    shelf.session("agent:writer:hook:gone", archived_at=START_MS, at=START_MS)
    shelf.session("agent:writer:subagent:d", at=START_MS, spawned_by="agent:writer:hook:gone")
    shelf.session("agent:zoe:main", at=START_MS)
    with program.up():
        yield program


def _drawn(text: str) -> list[str]:
    """The first column, without its header."""
    width = text.index("STATUS")
    return [line[:width].rstrip() for line in text.splitlines()[1:]]


def test_sessions_stand_under_those_that_spawned_them_by_agent(running: Program) -> None:
    assert _drawn(running.answer("tree")) == [
        "zoe",
        "└─ agent:zoe:main",
        "main",
        "├─ agent:main:main",
        "│  ├─ agent:main:subagent:a",
        "│  │  └─ agent:main:subagent:c",
        "│  └─ agent:writer:subagent:b",
        "└─ agent:main:cron:nightly",
        "writer",
        "├─ agent:writer:main",
        "└─ agent:writer:hook:gone",
        "   └─ agent:writer:subagent:d",
    ]


def test_a_tree_tells_state_tokens_and_cost_alone_and_of_the_agent(running: Program) -> None:
    lines = running.answer("tree").splitlines()

    assert lines[3].split() == ["main", "1111", "$0.7500"]
    (dug,) = [line.split()[3:] for line in lines if "subagent:a" in line]
    assert [dug[0], dug[1], *dug[3:]] == ["idle", "dig", "100", "$0.2500"]
    (gone,) = [line for line in lines if "hook:gone" in line]
    assert "archived" in gone


def test_one_session_can_be_shown_with_what_it_spawned(running: Program) -> None:
    assert _drawn(running.answer("tree", "agent:main:subagent:a")) == [
        "main",
        "└─ agent:main:subagent:a",
        "   └─ agent:main:subagent:c",
    ]
    missing = running.run("tree", "agent:main:cron:never")
    assert missing.returncode == 1
    assert missing.stderr.strip().endswith("sessions")


def test_the_sessions_of_one_agent_come_with_what_they_spawned(running: Program) -> None:
    assert _drawn(running.answer("tree", "--agent", "main"))[0] == "main"
    assert "agent:writer:subagent:b" in running.answer("tree", "--agent", "main")
    writer = running.answer("tree", "--agent", "writer")
    assert "spawned by agent:main:main" in writer
    assert running.run("tree", "main", "--agent", "main").returncode == 2


def test_a_parent_that_the_limit_left_out_is_there_all_the_same(running: Program) -> None:
    done = running.run("tree", "--limit", "2")

    assert _drawn(done.stdout) == [
        "main",
        "├─ agent:main:main",
        "│  └─ agent:main:subagent:a",
        "│     └─ agent:main:subagent:c",
        "└─ agent:main:cron:nightly",
    ]
    assert "There are more" in done.stderr


def test_a_tree_as_json_has_children_in_their_parents(running: Program) -> None:
    told = running.json("tree")

    zoe, main, writer = told["agents"]
    assert [group["agentId"] for group in (zoe, main, writer)] == ["zoe", "main", "writer"]
    assert main["usage"] == {"input": 1110, "output": 1, "cost": 0.75}
    assert main["sessions"][0]["usage"] == {"input": 10, "output": 1}
    dig, write = main["sessions"][0]["children"]
    assert (dig["label"], write["key"]) == ("dig", "agent:writer:subagent:b")
    assert [child["key"] for child in dig["children"]] == ["agent:main:subagent:c"]
    assert told["count"] == 9


def test_a_tree_is_drawn_on_a_terminal_of_any_width(running: Program) -> None:
    for columns in (200, 60):
        with running.terminal("tree", "agent:main:subagent:a", COLUMNS=str(columns)) as shown:
            assert shown.wait() == 0
        lines = [line.rstrip() for line in shown.shown.splitlines()]
        assert max(map(len, lines)) <= columns
        assert any(line.startswith("   └─ agent:main:sub") for line in lines)


def test_rows_that_spawned_each_other_are_shown_once() -> None:
    def row(key: str, spawned_by: str | None = None) -> dict[str, Any]:
        return {"key": key} | ({"spawnedBy": spawned_by} if spawned_by else {})

    trees = build_trees([row("a", "b"), row("b", "a"), row("c", "c"), row("d", "gone"), row("e")])

    assert sorted(session["key"] for node in trees for session in node.all()) == ["a", "b", "c", "d", "e"]
    assert [node.session["key"] for node in trees] == ["d", "e", "a", "c"]
