"""Sessions are named by key, id, label or agent, wherever a command takes one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .program import Program


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    """A gateway with three agents and a sub-agent that is labelled `ten`."""
    program = Program(tmp_path_factory.mktemp("running"))
    with program.up("--init"):
        program.answer("chat", "hello main")
        program.answer("chat", "--session", "agent:researcher:main", "hello researcher")
        program.answer("spawn", "--as", "main", "--label", "ten", "--follow", "count to ten")
        yield program


def _key_of(running: Program, label: str) -> str:
    [row] = running.json("sessions", "--label", label)["sessions"]
    key: str = row["key"]
    return key


def test_a_label_names_a_session_in_every_command(running: Program) -> None:
    key = _key_of(running, "ten")

    assert running.json("send", "ten", "hi")["sessionKey"] == key
    assert running.json("history", "ten")["sessionKey"] == key
    assert running.json("tree", "ten")["agents"][0]["sessions"][0]["key"] == key
    assert {run["sessionKey"] for run in running.json("runs", "--session", "ten")["runs"]} == {key}
    assert {sent["sessionKey"] for sent in running.json("deliveries", "--session", "ten")["deliveries"]} == {key}
    assert running.json("policy", "explain", "--target", "ten")["target"] == key
    assert running.json("transcripts", "rebuild", "ten")["rebuilt"][0]["key"] == key
    assert running.json("tokens", "create", "--session", "ten")["sessionKey"] == key
    assert key in running.run("tools", "call", "session_status", "--as", "ten").stderr  # a sub-agent has no such tool
    assert running.run("mcp", "--as", "ten").returncode == 0


def test_an_agents_id_names_its_main_session(running: Program) -> None:
    assert running.json("send", "researcher", "hi")["sessionKey"] == "agent:researcher:main"
    assert running.json("history", "Researcher")["sessionKey"] == "agent:researcher:main"
    sent = running.json("send", "--as", "researcher", "agent:main:main", "hi")
    assert sent["status"] == "ok"
    spawned = running.json("spawn", "--as", "researcher", "count to three")
    assert spawned["childSessionKey"].startswith("agent:researcher:")


def test_a_key_without_its_beginning_is_refused_with_the_whole_key(running: Program) -> None:
    running.answer("chat", "--session", "agent:researcher:pg", "hello")
    done = running.run("history", "researcher:pg")
    assert done.returncode == 1 and "no session 'researcher:pg'" in done.stderr
    assert "of the agent researcher the key would be 'agent:researcher:pg'" in done.stderr
    assert "would be" not in running.run("history", "nobody:pg").stderr


def test_an_agent_that_nobody_spoke_to_can_be_talked_to_by_its_id(running: Program) -> None:
    running.answer("chat", "--session", "writer", "hello")

    assert running.json("history", "agent:writer:main")["messages"][0]["content"][0]["text"] == "hello"


def test_a_key_wins_over_a_label_and_a_label_over_an_agent(running: Program) -> None:
    running.answer("chat", "--session", "agent:main:ten", "hello")
    running.answer("spawn", "--as", "main", "--label", "researcher", "--follow", "count to two")

    assert running.json("history", "ten")["sessionKey"] == "agent:main:ten"
    assert running.json("history", "researcher")["sessionKey"] == _key_of(running, "researcher")


@pytest.mark.parametrize("words", [("send", "nope", "hi"), ("history", "nope"), ("chat", "-s", "nope", "hi")])
def test_what_nothing_is_called_is_told_with_a_command_that_lists_the_sessions(
    running: Program, words: tuple[str, ...]
) -> None:
    done = running.run(*words)

    assert done.returncode == 1
    said, hint = done.stderr.splitlines()
    assert said == "no session has the key, the id or the label 'nope', and no agent has this id"
    assert hint.startswith("See the sessions with: ")
    assert hint.endswith(f"backchannel {running.option} sessions")


@pytest.mark.parametrize(
    ("words", "said", "hint", "command"),
    [
        (("cron", "remove", "nope"), "no cron job 'nope'", "See the jobs with: ", "cron"),
        (("runs", "show", "nope"), "no run 'nope'", "See the runs with: ", "runs"),
        (("history", "agent:main:nope"), "no session 'agent:main:nope'", "See the sessions with: ", "sessions"),
        (("history", "-f", "cron:nope"), "no session 'cron:nope'", "See the sessions with: ", "sessions"),
    ],
)
def test_hints_are_commands_and_not_methods(
    running: Program, words: tuple[str, ...], said: str, hint: str, command: str
) -> None:
    done = running.run(*words)

    assert done.returncode == 1
    assert done.stderr.startswith(f"{said}\n{hint}")
    assert done.stderr.endswith(f"backchannel {running.option} {command}\n")


def test_sub_agents_are_told_apart_in_the_list(running: Program) -> None:
    spawned = running.json("spawn", "--as", "main", "count to three")["childSessionKey"]
    rows = {line.split()[0]: line for line in running.answer("sessions").splitlines()}

    assert " sub-agent  " in rows[spawned]
    assert "sub-agent of agent:main:main" in rows[spawned]
    assert " ten " in rows[_key_of(running, "ten")]
    assert "sub-agent" not in rows["agent:main:main"]
