"""`backchannel doctor`: what is wrong, wherever it is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.postgres import Cluster, new_database

from .program import Program

SANDBOXED = '{ agents: { defaults: { sandbox: { mode: "all" } } } }'


def test_the_configuration_is_shown_without_its_secrets(program: Program) -> None:
    program.write_config(
        """{
            agents: { list: [{ id: "main", instructions: "The password is hunter2x.", model: "builtin/demo" }] },
            mcp: { servers: { far: { command: "sh", args: ["--api-key", "open-sesame"], env: { PIN: "1" } } } },
            channels: { desk: { adapter: "bridge", url: "http://x/?key=swordfish", secret: "0123456789abcdef" } },
        }"""
    )
    shown = program.json("config", "show")
    assert shown["mcp"]["servers"]["far"]["args"] == ["--api-key", "<hidden>"]
    assert shown["agents"]["list"][0]["instructions"] == "The password is [hidden]."
    desk = shown["channels"]["desk"]
    assert (desk["adapter"], desk["url"], desk["secret"]) == ("bridge", "http://x/?key=[hidden]", "<hidden>")


def test_without_a_gateway_it_looks_at_the_configuration_and_says_how_to_start_one(program: Program) -> None:
    told = program.answer("doctor")
    assert "Nothing is wrong." in told and f"{program.option} up" in told


def test_it_says_which_package_brings_the_sandbox_that_is_missing(program: Program, tmp_path: Path) -> None:
    program.write_config(SANDBOXED)
    assert "bubblewrap" in program.answer("doctor", PATH=str(tmp_path))


def test_what_is_wrong_with_the_configuration_is_an_error(program: Program) -> None:
    program.write_config("{ agents: { lst: [] } }")
    done = program.run("doctor")
    assert done.returncode == 1 and "agents.lst" in done.stdout


def test_of_a_gateway_that_runs_it_tells_the_problems(program: Program) -> None:
    program.write_config('{ agents: { list: [{ id: "main", model: "openai/gpt-5-mini" }] } }')
    with program.up():
        done = program.run("doctor", "--json")
        assert done.returncode == 5 and '"gateway": "running"' in done.stdout and "OPENAI_API_KEY" in done.stdout
    program.write_config("{}")
    with program.up():
        assert "The gateway runs, and nothing is wrong with it." in program.answer("doctor")


@pytest.mark.sqlite_only
def test_while_the_database_is_away_status_and_doctor_say_so_and_what_to_do(program: Program) -> None:
    server = Cluster()
    try:
        program.write_config(f'{{ database: {{ url: "{new_database(server=server.url)}" }} }}')
        with program.up():
            server.stop()
            status, doctor = program.run("status"), program.run("doctor")
    finally:
        server.remove()
    assert status.returncode == 1, status.stderr
    assert re.search(r"^health +unavailable$", status.stdout, re.MULTILINE)
    assert re.search(r"^runs +unknown while the database cannot be read$", status.stdout, re.MULTILINE)
    for told in (status, doctor):
        assert re.search(r"^storage +Nothing can be accepted: the database .* start it", told.stdout, re.MULTILINE)
    assert doctor.returncode == 5, doctor.stderr
