"""The cost of starting the command line."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import pytest
from typer.main import get_command

from backchannel.cli.main import CLI_COMMANDS, app

from .program import PROGRAM, Program

HEAVY = {"pydantic_ai", "uvicorn", "starlette", "rich", "structlog", "websockets", "msgspec", "asyncio"}


def test_importing_the_command_line_imports_nothing_heavy() -> None:
    script = f"import sys, backchannel.cli.main; sys.exit(' '.join({HEAVY!r} & set(sys.modules)) or 0)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)

    assert done.stderr.strip() == ""
    assert done.returncode == 0


def _imported_by(*words: str, **env: str) -> set[str]:
    """Run the command line in a process of its own, and tell what it has imported at its end."""
    script = """
import sys
from backchannel.cli.main import main
sys.argv[0] = "backchannel"
try:
    main()
finally:
    print(*sys.modules, file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", script, *words], env=env, capture_output=True, text=True)
    return set(done.stderr.splitlines()[-1].split())


def _commands_imported_by(*words: str, **env: str) -> set[str]:
    modules = {listed.place.split(".")[0] for listed in CLI_COMMANDS.values()}
    return {name.removeprefix("backchannel.cli.commands.") for name in _imported_by(*words, **env)} & modules


@pytest.mark.parametrize("words", [("--help",), ("--version",), (), ("sesions",)], ids=str)
def test_what_concerns_all_commands_imports_none(words: tuple[str, ...]) -> None:
    assert _commands_imported_by(*words) == set()


@pytest.mark.parametrize("line", ["", "s", "--", "list "])
def test_completing_the_name_of_a_command_imports_none(line: str) -> None:
    completing = {"_BACKCHANNEL_COMPLETE": "complete_zsh", "_TYPER_COMPLETE_ARGS": f"backchannel {line}"}

    assert _commands_imported_by(**completing) == set()


@pytest.mark.parametrize(("command", "module"), [("mcp", "mcp"), ("import", "import_"), ("tokens", "tokens")])
def test_a_command_imports_its_own_module_alone(command: str, module: str) -> None:
    assert _commands_imported_by(command, "--help") == {module}


@pytest.mark.parametrize(
    "line",
    [
        "status",
        "sessions --limit 5",
        "history main --tools",
        "runs --session main",
        "tokens list --config away.json5",
        "export out --config .",
    ],
)
def test_a_command_that_is_given_what_is_plain_does_without_pydantic(line: str, tmp_path: Path) -> None:
    imported = _imported_by(*line.split(), BACKCHANNEL_STATE_DIR=str(tmp_path))

    assert "backchannel.config" in imported  # it was at the point of asking the gateway
    assert not {"pydantic", "pydantic_core"} & imported


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("up --port 70000", "Input should be less than or equal to 65535"),
        ("up --port ten", "Input should be a valid integer"),
        ("up --port ٣", "Input should be a valid integer"),
        ("up --port -1", "Input should be greater than or equal to 0"),
        ("sessions --limit 0", "Input should be greater than or equal to 1"),
        (f"sessions --limit {'9' * 5000}", "--limit"),
    ],
)
def test_a_number_that_will_not_do_is_refused_with_what_would(line: str, said: str, tmp_path: Path) -> None:
    done = subprocess.run([*PROGRAM, *line.split()], env={"BACKCHANNEL_STATE_DIR": str(tmp_path)}, capture_output=True)

    assert done.returncode == 2
    assert said in done.stderr.decode()


@pytest.mark.parametrize("name", CLI_COMMANDS)
def test_help_lists_a_command_with_what_it_says_of_itself(name: str) -> None:
    listed, command = CLI_COMMANDS[name], get_command(app).commands[name]  # type: ignore[attr-defined]

    for room in (20, 45, 80, 200):
        assert listed.get_short_help_str(room) == command.get_short_help_str(room)


def test_a_gateway_with_a_bridge_only_imports_nothing_of_telegram(tmp_path: Path) -> None:
    channel = {"adapter": "bridge", "url": "http://127.0.0.1:9/out", "secret": "a-secret-of-the-tests", "owners": ["7"]}
    script = f"""
import asyncio, sys
from backchannel import Gateway

async def main():
    async with Gateway.open({{"channels": {{"desk": {channel!r}}}}}, state={str(tmp_path)!r}) as gateway:
        assert list(gateway.channels) == ["desk"]

asyncio.run(main())
sys.exit(" ".join({{"aiogram", "aiohttp"}} & set(sys.modules)) or 0)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)

    assert done.returncode == 0, done.stderr


def test_help_costs_little_more_than_importing_what_it_is_made_with() -> None:
    def cost_s(*command: str) -> float:
        """Measure the processor time of a process; the best of five counts, since the machine may be busy."""
        took = []
        for _ in range(5):
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            subprocess.run(command, check=True, capture_output=True)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            took.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
        return min(took)

    assert cost_s(*PROGRAM, "--help") < 1.75 * cost_s(sys.executable, "-c", "import typer")


def test_it_runs_as_a_module_too(program: Program) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "backchannel", "--version"], env=program.env, capture_output=True, text=True
    )

    assert done.stdout == subprocess.run([*PROGRAM, "--version"], capture_output=True, text=True).stdout
    assert done.stdout.startswith("backchannel ")


def test_list_is_answered_with_the_command_that_lists(program: Program) -> None:
    done = program.run("list")

    assert done.returncode == 2
    assert "Did you mean 'sessions'?" in done.stderr


def test_a_command_that_is_misspelt_is_a_usage_error_with_a_suggestion(program: Program) -> None:
    done = program.run("sesions")

    assert done.returncode == 2
    assert "sessions" in done.stderr


def test_completion_goes_through_a_group_to_its_commands(program: Program) -> None:
    def completed(line: str) -> list[str]:
        done = program.run(
            _BACKCHANNEL_COMPLETE="complete_fish",
            _TYPER_COMPLETE_ARGS=f"backchannel {line}",
            _TYPER_COMPLETE_FISH_ACTION="get-args",
        )
        assert done.stderr == ""
        return [given.split("\t")[0] for given in done.stdout.splitlines()]

    assert completed("") == list(CLI_COMMANDS)
    assert completed("se") == ["send", "search", "sessions"]
    assert "list" in completed("sessions ")
    assert "--follow" in completed("history --fo")
    assert completed("ls ") == list(CLI_COMMANDS)  # there is no such command, which is told when it is run
