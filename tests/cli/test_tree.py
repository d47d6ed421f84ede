"""`backchannel tree`: who spawned whom."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from subprocess import PIPE
from typing import Any

import pytest

from backchannel.cli.client import GatewayClient
from backchannel.cli.commands.tree import TreeView
from backchannel.cli.finding import GatewayAddress
from backchannel.wire.state_answers import Status
from tests.support.stub_provider import Fault
from tests.tools.shelf import START_MS, Shelf

from .conftest import Provider
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
    shelf.session("agent:writer:subagent:d", at=START_MS, spawned_by="agent:writer:hook:gone", tokens_in=7)
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


def test_tokens_and_cost_are_those_of_a_session_and_all_below_it(running: Program) -> None:
    lines = running.answer("tree").splitlines()

    assert lines[3].split() == ["main", "1111", "$0.7500"]
    assert lines[4].split()[2:5] == ["idle", "1111", "$0.7500"]
    (dug,) = [line.split()[3:] for line in lines if "subagent:a" in line]
    assert [*dug[:3], dug[4]] == ["idle", "100", "$0.2500", "dig"]
    (gone,) = [line.split() for line in lines if "hook:gone" in line]
    assert gone[2:4] == ["archived", "7"]


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
    assert main["sessions"][0]["treeUsage"] == {"input": 1110, "output": 1, "cost": 0.75}
    dig, write = main["sessions"][0]["children"]
    assert (dig["label"], write["key"]) == ("dig", "agent:writer:subagent:b")
    assert [child["key"] for child in dig["children"]] == ["agent:main:subagent:c"]
    assert writer["usage"] == {"input": 7, "output": 0}
    assert told["count"] == 9


def test_a_tree_is_drawn_on_a_terminal_of_any_width(running: Program) -> None:
    for columns in (200, 60):
        with running.terminal("tree", "agent:main:subagent:a", COLUMNS=str(columns)) as shown:
            assert shown.wait() == 0
        lines = [line.rstrip() for line in shown.shown.splitlines()]
        assert max(map(len, lines)) <= columns
        (child,) = [line for line in lines if line.startswith("   └─ ")]
        assert child.split()[1] == ("agent:main:subagent:c" if columns == 200 else "subagent:c")


# Sub-agents


@pytest.fixture(scope="module")
def spawning(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    """A gateway of the demo model, to whose main session somebody has talked."""
    program = Program(tmp_path_factory.mktemp("spawning"))
    program.write_config("{}")
    with program.up():
        program.answer("chat", "hello")
        yield program


def _branch(program: Program) -> Any:
    return program.json("tree", "main")["agents"][0]["sessions"][0]


def _cells(program: Program, key: str) -> list[str]:
    """What stands beside a session in the tree."""
    (line,) = [line for line in program.answer("tree", "main").splitlines() if key in line]
    return line.partition(key)[2].split()


def test_a_sub_agent_shows_how_it_ended_how_long_it_took_and_its_receipt(spawning: Program) -> None:
    spawning.answer("spawn", "count to ten", "--follow", "--as", "main", "--label", "ten")
    top = _branch(spawning)
    (child,) = [child for child in top["children"] if child.get("label") == "ten"]

    assert child["spawn"]["state"] == "done" and child["spawn"]["runStatus"] == "ok"
    assert child["spawn"]["receipt"]["state"] == "sent"
    status, runtime, receipt, tokens, _, name = _cells(spawning, child["key"])
    assert (status, receipt, name) == ("ok", "sent", "ten")
    assert re.fullmatch(r"\d+s", runtime)
    assert int(tokens) == child["usage"]["input"] + child["usage"]["output"]
    assert top["treeUsage"]["input"] >= top["usage"]["input"] + child["usage"]["input"]


def test_a_sub_agent_without_a_name_shows_its_task(spawning: Program) -> None:
    key = spawning.answer("spawn", "count to three million", "--follow").split()[1]

    assert " ".join(_cells(spawning, key)[-4:]) == "count to three million"


def test_those_that_are_archived_share_a_line_and_still_count(spawning: Program) -> None:
    before = _branch(spawning)
    spawning.answer("spawn", "quietly count to 3", "--follow", "--cleanup", "delete")
    after = _branch(spawning)
    (gone,) = after["archivedChildren"]

    assert gone["spawn"]["task"] == "quietly count to 3"
    assert after["treeUsage"]["input"] == before["treeUsage"]["input"] + gone["usage"]["input"]
    last = spawning.answer("tree", "main").splitlines()[-1]
    assert last.strip().split() == ["└─", "1", "archived", str(sum(gone["usage"].values()))]


def test_a_narrow_terminal_shows_what_matters_on_one_line_each(spawning: Program) -> None:
    key = spawning.answer("spawn", "count to four and then tell me about it", "--follow").split()[1]
    for columns in (80, 60):
        with spawning.terminal("tree", "main", COLUMNS=str(columns)) as shown:
            assert shown.wait() == 0
        lines = [line.rstrip() for line in shown.shown.splitlines()]
        (line,) = [line for line in lines if key[20:28] in line]

        assert max(map(len, lines)) <= columns
        assert line.split()[1] == f"subagent:{key[20:28]}…"
        assert line.split()[2] == "ok"
        assert ("count to four and then…" in line) is (columns == 80)


def test_a_sub_agent_is_watched_from_its_start_to_its_receipt(program: Program, provider: Provider) -> None:
    program.write_config(provider.config)
    provider.then("hello")
    held = provider.hold("The first half, ", "and the second.")
    announce = provider.hold("It is ", "done.")
    with program.up():
        program.answer("chat", "hello")
        with program.terminal("tree", "--watch") as watched:
            watched.expect("Ctrl-C ends")
            program.answer("spawn", "do it")
            runtimes = set[int]()
            while len(runtimes) < 3:  # it grows while nothing happens
                watched.expect(" running ")
                runtimes.add(int(watched.expect("s ")))
            held.release()
            watched.expect("announcing")
            announce.release()
            watched.expect("ok")
            watched.expect("sent")
            watched.type("\x03")
            assert watched.wait() == 130


def test_a_piped_watch_has_a_line_for_each_state_of_a_sub_agent(program: Program, provider: Provider) -> None:
    program.write_config(provider.config)
    provider.then("hello", "The work.", "It is done.")
    with program.up():
        program.answer("chat", "hello")
        watcher = subprocess.Popen(program.command("tree", "--watch"), env=program.env, stdout=PIPE, text=True)
        try:
            assert watcher.stdout is not None
            assert "agent:main:main  idle" in watcher.stdout.readline()
            program.answer("spawn", "do it")
            lines = iter(watcher.stdout.readline, "")
            last = next(line for line in lines if "receipt sent" in line)
        finally:
            watcher.kill()
            watcher.communicate()

    assert re.search(r'  agent:main:subagent:\S+  ok  receipt sent  "do it"$', last.rstrip())


def test_runs_tree_and_status_say_which_model_a_sub_agent_waits_for(program: Program, provider: Provider) -> None:
    program.write_config(provider.config)
    provider.then("hello", Fault(429, "slow down", headers={"retry-after": "3600"}))
    with program.up() as up:
        program.answer("chat", "hello")
        program.answer("spawn", "do it")
        up.wait_logged("a run waits for a model")
        told = {name: program.run(*name.split()).stdout for name in ("runs --status queued", "tree", "status")}
        with program.piped("tree", "--watch") as watched:
            assert watched.stdout is not None
            line = next(line for line in watched.stdout if "subagent" in line)

    words = r"waits for stub/any since \d\d:\d\d, asked again at \d\d:\d\d: slow down"
    assert re.search(words, told["runs --status queued"])
    assert re.search(rf"subagent:\S+ +until \d\d:\d\d .*{words}.*; do it$", told["tree"], re.MULTILINE)
    assert re.search(rf'"do it"  {words}', line)
    assert re.search(r"stub/any is left alone since .*: slow down", told["status"])
    assert "1 run waits for a model." in told["status"]


def test_a_tree_is_one_question(spawning: Program) -> None:
    spawning.answer("spawn", "count to 2", "--follow")
    place = GatewayAddress((spawning.state / "address").read_text().replace("http", "ws"), spawning.token)
    with GatewayClient.connect(place) as client:
        asked = client.ask("status")
        client.wait(asked, Status)
        TreeView(None, None, 200).load(client)
        again = client.ask("status")

    assert int(again) - int(asked) == 2
