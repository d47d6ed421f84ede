"""What the command line costs before it does anything."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

from .program import PROGRAM, Program

HEAVY = {"pydantic_ai", "uvicorn", "starlette", "rich", "structlog", "websockets", "msgspec", "asyncio"}


def test_importing_the_command_line_imports_nothing_heavy() -> None:
    script = f"import sys, backchannel.cli.main; sys.exit(' '.join({HEAVY!r} & set(sys.modules)) or 0)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)

    assert done.stderr.strip() == ""
    assert done.returncode == 0


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

    assert cost_s(*PROGRAM, "--help") < 4 * cost_s(sys.executable, "-c", "import typer")


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
