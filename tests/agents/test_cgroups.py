"""The memory limits of sandboxes, and a cgroup that is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from backchannel.agents import cgroups
from backchannel.agents.programs import Program, ProgramLimits, environment, leashed
from tests.agents.inside import inside
from tests.agents.test_programs import _ran
from tests.cli.program import Program as CommandLine

SANDBOXED = '{agents: {defaults: {sandbox: {mode: "all"}}}, tools: {allow: ["group:exec"]}}'


@pytest.mark.usefixtures("real_sandbox")
def test_status_and_doctor_say_what_bounds_the_memory_of_sandboxes(tmp_path: Path) -> None:
    program = CommandLine(tmp_path)
    program.write_config(SANDBOXED)
    with program.up():
        said = program.json("status")["sandbox"]
        assert said.startswith("memory is counted; ") and "control group" in said
        assert said in program.answer("status").replace("\n", " ")
        assert f"In sandboxes, {said}." in program.run("doctor").stdout.replace("\n", " ")
        assert program.json("doctor")["sandbox"] == said


def test_where_nothing_is_sandboxed_nothing_is_said(tmp_path: Path) -> None:
    program = CommandLine(tmp_path)
    with program.up():
        assert program.json("doctor")["sandbox"] is None


def test_a_program_whose_group_cannot_be_made_runs_without_one(tmp_path: Path) -> None:
    limits = ProgramLimits(memory_bytes=1 << 30, processes=100)
    made = leashed(Program(("echo", "hi"), None, environment(), limits, group=str(tmp_path / "nowhere")))
    assert _ran(made).stdout == b"hi\n"


@pytest.mark.usefixtures("real_sandbox")
def test_a_user_without_systemd_gets_no_scope(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert not cgroups.has_scopes(str(tmp_path))
    assert inside(tmp_path).says("echo hi") == "hi\n"
