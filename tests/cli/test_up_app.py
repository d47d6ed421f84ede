"""`backchannel up --app`: a program's own gateway on all doors."""

from __future__ import annotations

import re
import select
import shutil
import sys
import time
from pathlib import Path

import pytest

from tests.docs.pages import ROOT
from tests.support.processes import Watched, all_ended

from .program import PATIENCE_S, Program

CLERK = """
from backchannel import FunctionContext, Gateway

gateway = Gateway.open({config})


@gateway.agent("main")
async def clerk(run: FunctionContext) -> str:
    return f"{answer}: {{run.text}}"
"""


def write(program: Program, answer: str = "The clerk", config: str = "", name: str = "shop") -> Path:
    file = program.home / f"{name}.py"
    file.write_text(CLERK.format(answer=answer, config=config))
    return file


def test_its_function_agent_answers_on_the_doors_and_its_runs_are_kept(program: Program) -> None:
    write(program)
    with program.up("--app", "shop:gateway"):
        assert program.answer("chat", "hello") == "The clerk: hello\n"
    assert (program.state / "backchannel.db").exists()
    with program.up("--app", "shop:gateway"):
        assert "The clerk: hello" in program.answer("history", "main")


def test_the_example_is_served_as_it_says(program: Program) -> None:
    shutil.copy(ROOT / "examples" / "app.py", program.home / "app.py")
    with program.up("--app", "app:gateway"):
        assert program.answer("chat", "How many teapots?") == "3 teapots are left.\n"


def test_a_function_may_make_it(program: Program) -> None:
    write(program)
    (program.home / "making.py").write_text("import shop\n\ndef make():\n    return shop.gateway\n")
    with program.up("--app", "making:make"):
        assert program.answer("chat", "hello") == "The clerk: hello\n"


def test_what_the_program_says_itself_wins_over_the_options(program: Program) -> None:
    own = program.home / "own"
    write(program, config=f'{{"gateway": {{"auth": {{"token": "{"t" * 32}"}}}}}}, state={str(own)!r}')
    with program.up("--app", "shop:gateway") as up:
        assert (own / "backchannel.db").exists() and not (program.state / "backchannel.db").exists()
        done = program.run("chat", "hello", "--url", up.url, BACKCHANNEL_TOKEN="t" * 32)
        assert done.stdout == "The clerk: hello\n", done.stderr


def test_without_the_program_its_runs_wait_and_are_answered_when_it_is_back(program: Program) -> None:
    write(program)
    with program.up("--app", "shop:gateway"):
        program.answer("chat", "hello")
    with program.up() as up:
        assert "function, waits for its program" in up.said
        told = program.answer("send", "main", "are you there?", "--wait", "0").splitlines()[0]
        assert "main" in program.run("status").stdout.partition("function")[2]
    with program.up("--app", "shop:gateway"):
        reply = program.answer("runs", "wait", told.rpartition(" ")[2].rstrip("."))
        assert reply.startswith("The clerk: are you there?\n")


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("shop", "write MODULE:NAME"),
        ("nowhere:gateway", "there is no module 'nowhere'"),
        ("shop:gatway", "shop has no 'gatway' (it has gateway)"),
        ("empty:gateway", "empty has no 'gateway' (it makes none"),
        ("empty:number", "empty:number is of type int, not a Gateway"),
        ("broken:gateway", "ZeroDivisionError"),
        ("missing:gateway", "No module named 'nothing_like_it'"),
    ],
)
def test_what_cannot_be_served_says_why(program: Program, name: str, told: str) -> None:
    write(program)
    (program.home / "empty.py").write_text("number = 1\n")
    (program.home / "broken.py").write_text("1 / 0\n")
    (program.home / "missing.py").write_text("import nothing_like_it\n")
    done = program.run("up", "--port", "0", "--app", name)
    assert done.returncode in (1, 2) and told in done.stderr
    assert "importlib" not in done.stderr and "cli/apps.py" not in done.stderr


def test_reload_needs_a_program(program: Program) -> None:
    done = program.run("up", "--reload")
    assert done.returncode == 2 and "--app" in done.stderr


def test_with_reload_a_changed_file_is_served_soon(program: Program) -> None:
    file = write(program)
    with program.up("--app", "shop:gateway", "--reload") as up:
        assert program.answer("chat", "hello") == "The clerk: hello\n"
        first = len(re.findall("running at", up.said))
        file.write_text(file.read_text().replace("The clerk", "The new clerk"))
        deadline = time.monotonic() + PATIENCE_S
        while len(re.findall("try: ", up.said)) // 3 <= first:
            assert time.monotonic() < deadline, up.said + up.logged
            select.select([], [], [], 0.05)
        assert program.answer("chat", "hello again") == "The new clerk: hello again\n"
        up.stop()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process that its parent has ended")
def test_with_reload_a_kill_leaves_no_gateway(program: Program) -> None:
    write(program)
    with program.up("--app", "shop:gateway", "--reload") as up:
        served = Watched(int((program.state / "lock").read_text()))
        assert served.pid != up.process.pid
        up.kill()
        assert all_ended([served])
