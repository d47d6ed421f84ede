"""The global options go with every command, before it and after it; the help names each command in full."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.core import TyperGroup
from typer.main import get_command
from typer.testing import CliRunner

from backchannel.cli.main import app

from .program import PROGRAM, Program


def _leaves(command: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    if not isinstance(command, TyperGroup) or command.invoke_without_command:
        yield words, command
    if isinstance(command, TyperGroup):
        for name, inner in command.commands.items():
            yield from _leaves(inner, (*words, name))


LEAVES = dict(_leaves(get_command(app)))


@pytest.mark.parametrize("words", LEAVES, ids=" ".join)
def test_every_command_takes_all_global_options(words: tuple[str, ...]) -> None:
    taken = {option: param for param in LEAVES[words].params for option in param.opts}

    assert {"--state", "--config", "--url", "--json"} <= set(taken)
    assert taken["--json"].expose_value or words == ()  # the command itself prints JSON, it does not only accept it


@pytest.mark.parametrize("words", [(), *LEAVES, ("config",), ("tokens",)], ids=" ".join)
def test_the_help_of_a_command_is_not_cut_at_80_columns(words: tuple[str, ...]) -> None:
    told = CliRunner().invoke(app, [*words, "--help"], env={"COLUMNS": "80"}).stdout

    assert "Usage: " in told
    repeated = told.replace("]...", "]").replace("}...", "}").replace("words...", "words")  # an argument that may be
    assert "..." not in repeated
    assert all(len(line) <= 80 for line in told.splitlines())


def test_commands_are_listed_under_their_themes(program: Program) -> None:
    told = program.answer("--help")

    assert told.index("Start it:") < told.index("  config ") < told.index("Talk to agents:") < told.index("  cron ")


def _run(program: Program, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*PROGRAM, *words], env=program.env, cwd=program.home, capture_output=True, text=True)


def test_options_count_before_and_after_a_command_and_between_a_group_and_its_command(program: Program) -> None:
    state, other = str(program.state), str(program.home / "other.json5")
    before = _run(program, "--state", state, "--config", other, "--json", "config", "path")
    after = _run(program, "config", "path", "--state", state, "--config", other, "--json")
    between = _run(program, "config", "--state", state, "--config", other, "--json", "path")

    assert json.loads(before.stdout) == {"file": other, "exists": False, "state": state}
    assert after.stdout == between.stdout == before.stdout


def test_what_stands_nearest_to_the_command_counts(program: Program) -> None:
    told = _run(program, "--state", "first", "config", "--state", "second", "path", "--state", "third", "--json")

    assert json.loads(told.stdout)["state"] == str(program.home / "third")


def test_an_error_repeats_options_that_were_given_after_the_command(program: Program) -> None:
    told = _run(program, "sessions", "--state", str(program.state))

    assert told.returncode == 3
    assert told.stderr.strip().endswith(f"{program.option} up")


def test_a_running_gateway_is_asked_with_options_after_the_command(program: Program) -> None:
    with program.up("--init") as up:
        elsewhere = {"BACKCHANNEL_TOKEN": program.token}
        by_state = _run(program, "runs", "list", "--state", str(program.state), "--json")
        by_url = subprocess.run(
            [*PROGRAM, "sessions", "--url", up.url, "--json"],
            env=program.env | elsewhere,
            capture_output=True,
            text=True,
        )

    assert json.loads(by_state.stdout)["runs"] == []
    assert json.loads(by_url.stdout)["sessions"] == []


@pytest.mark.parametrize("words", [("runs", "--state", "error"), ("deliveries", "list", "--state", "failed")])
def test_who_means_the_status_by_state_is_told_its_name(words: tuple[str, ...], program: Program) -> None:
    told = _run(program, *words)

    assert told.returncode == 2
    assert f"--status {words[-1]}" in told.stderr


def test_a_folder_named_like_a_status_is_a_folder_all_the_same(program: Program) -> None:
    (program.home / "failed").mkdir()

    assert _run(program, "deliveries", "--state", "failed").returncode == 3


def test_one_message_is_answered_as_json(program: Program) -> None:
    with program.up("--init"):
        answered = program.json("chat", "red shoes")

    assert answered["status"] == "ok"
    assert "red shoes" in answered["reply"]


def test_up_says_where_it_listens_as_one_line_of_json(program: Program) -> None:
    with subprocess.Popen(
        program.command("up", "--init", "--port", "0", "--json"),
        env=program.env,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as up:
        assert up.stdout is not None
        told = json.loads(up.stdout.readline())
        up.terminate()
        rest = up.stdout.read()

    assert told["url"].startswith("http://127.0.0.1:")
    assert told["state"] == str(Path(program.state))
    assert rest == ""
