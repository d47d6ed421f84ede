"""Every command that this program tells people to type works as it is printed."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from .program import PROGRAM, Program


@pytest.fixture
def called(program: Program) -> str:
    """A way to the program that is only known in its folder, as `make` leaves one."""
    (program.home / "bin").mkdir()
    (program.home / "bin" / "backchannel").symlink_to(PROGRAM[0])
    return "bin/backchannel --state state"


def _run(program: Program, called: str, *words: str) -> subprocess.CompletedProcess[str]:
    path = ":".join(part for part in program.env["PATH"].split(":") if not (Path(part) / "backchannel").exists())
    return subprocess.run(
        [*called.split(), *words],
        env=program.env | {"PATH": path},
        cwd=program.home,
        capture_output=True,
        text=True,
        check=False,
    )


def test_hints_carry_how_the_program_was_called(program: Program, called: str) -> None:
    program.write_config("{ agent: { model: 'builtin/demo' } }")
    assert f"`{called} config migrate` rewrites it" in _run(program, called, "config", "check").stdout
    assert _run(program, called, "init").stderr.endswith(f"To replace it: {called} init --force\n")
    assert _run(program, called, "sessions").stderr.endswith(f"Start one with: {called} up\n")
    with program.up():
        spawned = _run(program, called, "spawn", "count to three").stderr
        refused = _run(program, called, "history", "nope").stderr

    assert f"with: {called} tree --watch\n" in spawned
    assert f"with: {called} history agent:main:subagent:" in spawned
    assert refused.endswith(f"with: {called} sessions\n")


def test_who_names_the_session_of_a_history_as_an_option_is_told_where_it_goes(program: Program, called: str) -> None:
    done = _run(program, called, "history", "--session", "cron:nightly")

    assert done.returncode == 2
    assert done.stderr.endswith(f"the session is an argument here: {called} history cron:nightly\n")


def test_a_refused_token_is_told_where_it_came_from_and_no_command_that_needs_a_right_one(
    program: Program, called: str
) -> None:
    with program.up() as up:
        done = _run(program, f"{called} --url {up.url}", "sessions")
        assert done.returncode == 0
        (program.state / "token").write_text("another\n")
        done = _run(program, called, "sessions")

    assert done.returncode == 4
    assert "the token is not valid here" in done.stderr and "the file `token` in the state folder" in done.stderr
    assert "tokens list" not in done.stderr


def test_the_gateway_says_what_stopping_means(program: Program) -> None:
    with program.up() as up:
        assert up.stop() == 0
        assert up.said.endswith("Stopped. What it has accepted goes on at the next start.\n")
