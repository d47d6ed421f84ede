"""`backchannel config migrate`: files of older generations, rewritten where people see it."""

from __future__ import annotations

import json
import shlex
import subprocess

from .program import PATIENCE_S, Program

OLD = """\
{
  // how agents run
  agent: { model: "builtin/demo", thinking: "low" /* at first */ },
  agents: { defaults: { thinking: "high" } },
  routing: { agents: { helper: {} } },
  gateway: { auth: { token: "${HUSH}" } },
}
"""
NEW = """\
{
  agents: {
    defaults: {
      thinking: "high",
      // how agents run
      model: "builtin/demo",
    },
    list: [
      { id: "helper" },
    ],
  },
  gateway: { auth: { token: "${HUSH}" } },
}
"""


def names(program: Program) -> list[str]:
    return sorted(file.name for file in program.state.iterdir())


def test_a_file_is_rewritten_and_the_old_one_kept(program: Program) -> None:
    program.write_config(OLD)

    said = program.answer("config", "migrate", HUSH="a secret of some length")

    assert program.config.read_text() == NEW
    assert (program.state / "backchannel.json5.bak").read_text() == OLD
    assert f"The file as it was: {program.config}.bak" in said
    assert ["3", "agent.model", "agents.defaults.model", "moved"] in [line.split() for line in said.splitlines()]
    assert '+      model: "builtin/demo",' in said.splitlines()
    assert said.index("and are not kept") < said.index("3     /* at first */")
    assert "a secret" not in said
    assert "errors" not in said


def test_a_dry_run_shows_the_same_and_writes_nothing(program: Program) -> None:
    program.write_config(OLD)

    dry = program.answer("config", "migrate", "--dry-run")

    assert names(program) == ["backchannel.json5"]
    assert program.config.read_text() == OLD
    assert dry.endswith("Nothing was written.\n")
    shown, _, _ = dry.partition("Nothing was written.")
    assert program.answer("config", "migrate", HUSH="x").startswith(shown)


def test_a_second_time_there_is_nothing_to_do(program: Program) -> None:
    program.write_config(OLD)
    program.answer("config", "migrate")

    assert program.answer("config", "migrate") == f"{program.config} is already up to date.\n"
    assert program.json("config", "migrate") == {
        "file": str(program.config),
        "changes": [],
        "lostComments": [],
        "diff": "",
        "backup": None,
    }
    assert names(program) == ["backchannel.json5", "backchannel.json5.bak"]


def test_programs_get_json(program: Program) -> None:
    program.write_config(OLD)

    planned = program.json("config", "migrate", "--dry-run")
    done = program.json("config", "migrate")

    assert planned | {"backup": done["backup"]} == done
    assert (planned["backup"], done["backup"]) == (None, f"{program.config}.bak")
    assert done["changes"] == [
        {"line": 3, "before": "agent.model", "today": "agents.defaults.model", "what": "moved"},
        {
            "line": 3,
            "before": "agent.thinking",
            "today": "agents.defaults.thinking",
            "what": "left out: it is given under a newer name",
        },
        {"line": 5, "before": "routing.agents.helper", "today": "agents.list[0]", "what": "moved"},
    ]
    assert done["lostComments"] == [{"line": 3, "text": "/* at first */"}]
    assert '-  agent: { model: "builtin/demo"' in done["diff"]


def test_a_file_that_cannot_be_rewritten_is_an_error_and_stays(program: Program) -> None:
    for text, told in (
        ("{ agent: {", "column 11"),
        ("{ routing: { agents: [] } }", "routing.agents: got a list, expected an object"),
    ):
        program.write_config(text)

        done = program.run("config", "migrate")

        assert done.returncode == 1
        assert told in done.stderr
        assert "config check" in done.stderr
        assert program.config.read_text() == text
        assert names(program) == ["backchannel.json5"]


def test_errors_that_were_there_before_are_mentioned(program: Program) -> None:
    program.write_config("{ agent: {}, gatway: {} }")

    assert "It had errors before, and has them still" in program.answer("config", "migrate")


def test_without_a_file_there_is_nothing_to_migrate(program: Program) -> None:
    assert "There is no configuration file" in program.answer("config", "migrate")
    assert program.json("config", "migrate")["file"] is None

    missing = program.run("--config", "nowhere.json5", "config", "migrate")
    assert missing.returncode == 1
    assert "there is no such file" in missing.stderr


def test_a_file_that_cannot_be_written_is_told_and_is_as_it_was(program: Program) -> None:
    program.write_config(OLD)
    words = shlex.join(program.command("config", "migrate"))

    done = subprocess.run(
        ["bash", "-c", f"ulimit -f 0; {words}"],
        env=program.env,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )

    assert done.returncode == 1
    assert f"cannot write {program.config}, which is as it was: File too large" in done.stderr
    assert program.config.read_text() == OLD
    assert names(program) == ["backchannel.json5"]


def test_the_difference_has_colours_on_a_terminal(program: Program) -> None:
    program.write_config("{ agent: {} }")
    with program.terminal("config", "migrate", "--dry-run") as terminal:
        assert terminal.wait() == 0
        assert "+{ agents: { defaults: {} } }" in terminal.shown


def test_config_check_lists_older_names_as_warnings(program: Program) -> None:
    program.write_config("{\n  agent: {},\n  routing: { agents: { helper: {} } },\n}")

    said = program.answer("config", "check")
    found = program.json("config", "check")

    assert "no errors, 2 warnings." in said
    assert found["ok"]
    assert [(finding["level"], finding["line"], finding["path"]) for finding in found["findings"]] == [
        ("warning", 2, "agent"),
        ("warning", 3, "routing.agents.helper"),
    ]


def test_up_warns_of_each_older_name_once(program: Program) -> None:
    program.write_config("{ agent: {}, routing: { agents: { helper: {} } } }")
    with program.up() as up:
        assert "agents: helper (default)" in up.said
        assert up.said.count("warning: agent: an older name for `agents.defaults`") == 1
        assert up.said.count("warning: routing.agents.helper: an older name") == 1
        logged = [json.loads(line) for line in up.logged.splitlines() if '"configuration"' in line]
        assert [(entry["warning"].partition(":")[0], entry["line"]) for entry in logged] == [
            ("agent", 1),
            ("routing.agents.helper", 1),
        ]
