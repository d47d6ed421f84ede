"""`backchannel spawn`: a sub-agent for one task, and all that comes of it."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from .conftest import Provider
from .program import Program
from .sending import check_refused, under_way

CONFIG = """{
  agents: {
    list: [{ id: "main", subagents: { allowAgents: ["researcher"] } }, { id: "researcher" }, { id: "writer" }],
  },
}"""
PATIENCE_S = 45
TEN = "1, 2, 3, 4, 5, 6, 7, 8, 9, 10"


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    """A gateway whose agents are played by the demo model; somebody has talked to the main session."""
    program = Program(tmp_path_factory.mktemp("running"))
    program.write_config(CONFIG)
    with program.up():
        program.answer("chat", "hello")
        yield program


def _started(line: str) -> tuple[str, str]:
    """The key and the run of a sub-agent, from what is said when it starts."""
    assert line.startswith("Started ")
    return line.split()[1], line.split()[-1].rstrip(".")


def test_what_was_started_is_told_at_once_with_what_to_do_next(running: Program) -> None:
    done = running.run("spawn", "count to ten")
    key, run_id = _started(done.stdout)
    tree, history, place = done.stderr.splitlines()

    assert done.returncode == 0
    assert key.startswith("agent:main:subagent:")
    assert "with builtin/demo" in done.stdout
    assert place == "Its result goes to webchat and into agent:main:main."
    assert tree.endswith("tree --watch") and history.endswith(f"history {key}")
    assert running.answer("runs", "wait", run_id) == f"{TEN}\n"
    assert TEN in running.answer("history", key)


def test_followed_its_work_its_announce_its_post_and_the_receipt_are_shown_in_order(running: Program) -> None:
    told, *lines = running.answer("spawn", "count to ten", "--follow", "--as", "main").splitlines()
    key, _ = _started(told)

    assert lines[0] == f"run {key}: {TEN}"
    assert lines[1] == f"announce {key}: On “count to ten”: {TEN}"
    assert lines[2:4] == ["post main: Status: success", f"Result: On “count to ten”: {TEN}"]
    assert lines[4].startswith("Stats: runtime ")
    assert lines[5].startswith("receipt ") and lines[5].endswith(": sent")
    assert len(lines) == 6


def test_a_terminal_shows_the_work_as_it_is_done(program: Program, provider: Provider) -> None:
    program.write_config(provider.config)
    held = provider.hold("The first half, ", "and the second.")
    provider.then("It is done.")
    with program.up(), program.terminal("spawn", "do it", "-f") as shown:
        shown.expect("Started agent:main:subagent:")
        shown.expect(" run\n")
        shown.expect("The first half, ")
        held.release()
        shown.expect("and the second.\n\n")
        shown.expect(" announce\n")
        shown.expect("It is done.\n\n")
        shown.expect("agent:main:main post\nStatus: success\nResult: It is done.\n")
        shown.expect("receipt ")
        assert shown.wait() == 0


def test_what_keeps_silent_has_no_post_and_can_be_cleaned_up_at_once(running: Program) -> None:
    words = ("spawn", "quietly count to 2", "--follow", "--cleanup", "delete", "--label", "silent")
    told, *lines = running.answer(*words).splitlines()
    key, _ = _started(told)

    assert lines[:2] == [f"run {key}: 1, 2", f"announce {key}: (nothing to announce)"]
    assert lines[2].endswith(": skipped: the sub-agent chose to stay silent")
    assert key not in running.answer("sessions")
    assert key in running.answer("sessions", "--archived")


def test_a_sub_agent_of_another_agent_has_what_it_was_given(running: Program) -> None:
    words = ("spawn", "count to 2", "--agent", "researcher", "--label", "two", "--thinking", "low", "--timeout", "60")
    result = running.json(*words, "--model", "builtin/demo")

    assert set(result) == {"status", "runId", "childSessionKey", "model"}
    assert result["childSessionKey"].startswith("agent:researcher:subagent:")
    run = running.json("runs", "show", result["runId"])["run"]
    assert run["timeoutSeconds"] == 60
    (row,) = running.json("sessions", "--label", "two")["sessions"]
    assert (row["key"], row["thinkingLevel"]) == (result["childSessionKey"], "low")


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["x", "--as", "main", "--agent", "writer"], 1, "agents.list[main].subagents.allowAgents"),
        (["x", "--agent", "nobody"], 1, "no agent 'nobody'"),
        (["x", "--model", "no/such"], 1, "unknown model: 'no/such'"),
        (["x", "--thinking", "lots"], 1, "sessions_spawn: thinking"),
        (["x", "--cleanup", "burn"], 1, "sessions_spawn: cleanup"),
        ([" "], 1, "task: it is empty"),
        (["x", "--as", "agent:nobody:main"], 4, "nobody"),
        (["x", "--timeout", "-1"], 2, "--timeout"),
        (["x", "--follow", "--json"], 2, "--follow"),
        ([], 2, "TASK"),
    ],
)
def test_what_is_not_started_says_why(running: Program, words: list[str], code: int, told: str) -> None:
    check_refused(running, "spawn", *words, code=code, told=told)


def test_a_label_that_is_taken_names_its_holder(running: Program) -> None:
    holder, _ = _started(running.answer("spawn", "count to 2", "--label", "taken"))
    done = running.run("spawn", "count to 2", "--label", "taken", "--json")

    assert done.returncode == 1
    assert '"status": "error"' in done.stdout and holder in done.stdout
    assert done.stderr == ""


def test_a_sub_agent_that_fails_is_told_with_its_reason(program: Program) -> None:
    program.write_config('{ agents: { list: [{ id: "main" }, { id: "broken", model: "nobody/any" }] } }')
    with program.up():
        done = program.run("spawn", "count to ten", "--agent", "broken", "--as", "agent:broken:main", "--follow")

    assert done.returncode == 1
    assert "unknown model: 'nobody/any'" in done.stderr


def test_a_sub_agent_that_runs_out_of_time_ends_with_one(program: Program, provider: Provider) -> None:
    program.write_config(provider.config)
    provider.hold("It begins, ", "and never ends.")
    with program.up():
        done = program.run("spawn", "do it", "--timeout", "0.3", "--follow")

    assert done.returncode == 1
    lines = done.stdout.splitlines()
    assert "0.3" in lines[1] and lines[1].startswith("run ")
    assert "post agent:main:main: Status: timeout" in lines


def test_an_agents_token_sees_the_work_and_the_receipt(running: Program) -> None:
    token = running.json("tokens", "create", "--session", "agent:main:main")["token"]
    told, *lines = running.answer("spawn", "count to ten", "-f", BACKCHANNEL_TOKEN=token).splitlines()
    key, _ = _started(told)

    assert lines[0] == f"run {key}: {TEN}"
    assert lines[1].startswith("receipt ") and lines[1].endswith(": sent")


def test_a_gateway_that_is_killed_in_between_starts_one_sub_agent_and_posts_once(
    program: Program, provider: Provider
) -> None:
    program.write_config(provider.config)
    provider.then("hello")
    provider.hold("The first half, ", "which is lost.")
    provider.then("The whole work.", "It is done.")
    with program.up() as first:
        program.answer("chat", "hello")
        with under_way(program, first, "spawn", "do it", "--follow") as following:
            first.kill()
            with program.up():
                printed, told = following.communicate(timeout=PATIENCE_S)
                children = program.json("tree", "main")["agents"][0]["sessions"][0]["children"]
                said = program.answer("history")

    assert following.returncode == 0, told
    lines = printed.splitlines()
    assert lines[1].endswith(": The whole work.") and lines[2].endswith(": It is done.")
    assert lines[-1].endswith(": sent")
    assert told.splitlines()[-1] == "It is back."
    assert len(children) == 1
    assert said.count("Status: success") == 1


def test_ctrl_c_stops_watching_and_nothing_else(program: Program, provider: Provider) -> None:
    program.write_config(provider.config)
    held = provider.hold("It begins, ", "and it ends.")
    with program.up() as up, under_way(program, up, "spawn", "do it", "--follow") as following:
        following.send_signal(signal.SIGINT)
        printed, told = following.communicate(timeout=PATIENCE_S)
        _, run_id = _started(printed.splitlines()[0])
        held.release()
        assert program.answer("runs", "wait", run_id) == "It begins, and it ends.\n"

    assert following.returncode == 130
    assert told.splitlines()[-1].startswith("Not watching any longer.")


def test_without_a_gateway_it_says_how_to_start_one(program: Program) -> None:
    program.write_config("{ gateway: { port: 1 } }")
    done = program.run("spawn", "count to ten")

    assert done.returncode == 3
    assert "Start one with" in done.stderr
