"""`backchannel cron`: what it shows, and what it says when it cannot be done."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from .program import Program

CONFIG = """{
  agents: { list: [{ id: "main", default: true }, { id: "writer" }] },
  cron: { jobs: [
    { id: "daily", schedule: "0 9 * * *", tz: "Europe/Berlin", message: "good morning" },
    { id: "off", schedule: "every 1h", message: "never", enabled: false },
  ] },
}
"""


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    """A gateway with two jobs in its configuration."""
    program = Program(tmp_path_factory.mktemp("cron"))
    program.write_config(CONFIG)
    with program.up():
        yield program


def test_jobs_are_listed_with_when_they_come_next_in_words(running: Program) -> None:
    head, daily, off = running.answer("cron").splitlines()

    assert head.split() == ["ID", "SCHEDULE", "TZ", "NEXT", "LAST", "RUN", "SKIPPED"]
    assert re.match(r"daily +0 9 \* \* \* +Europe/Berlin +in \d+[smhd] \(\d{4}-\d\d-\d\d \d\d:\d\d:00\)$", daily)
    assert re.match(r"off +every 1h +disabled$", off)
    assert running.answer("cron", "list").splitlines()[0] == head
    assert [job["id"] for job in running.json("cron")["jobs"]] == ["daily", "off"]


def test_a_job_is_added_run_and_removed(running: Program) -> None:
    said = running.answer("cron", "add", "tidy", "every 10m", "tidy up", "--agent", "writer", "--timeout", "60")
    assert re.match(r"Job tidy is added and comes in \d+m \(.*\)\. Run it now with: .* cron run tidy$", said.strip())

    fired = running.answer("cron", "run", "tidy")
    found = re.search(r"Wait for it with: .* runs wait (\S+)$", fired.strip())
    assert found is not None
    assert "tidy up" in running.answer("runs", "wait", found[1].strip("'"))
    row = next(line for line in running.answer("cron").splitlines() if line.startswith("tidy"))
    assert re.search(r" ok, \d+s ago$", row)
    (tidy,) = [job for job in running.json("cron", "list")["jobs"] if job["id"] == "tidy"]
    assert tidy["lastRun"]["status"] == "ok"

    assert running.answer("cron", "remove", "tidy") == "Job tidy is removed. Its session and its runs stay.\n"
    assert "tidy" not in running.answer("cron")
    assert running.answer("history", "agent:writer:cron:tidy")


def test_a_command_decides_whether_a_job_runs(running: Program) -> None:
    running.answer("cron", "add", "mail", "every 1d", "Mail: {output}", "--when", "echo none >&2; exit 3")
    assert running.answer("cron", "run", "mail").startswith("Job mail has nothing to do: its command said no.")
    row = next(line for line in running.answer("cron").splitlines() if line.startswith("mail"))
    assert re.search(r"1 when \(\d+s ago: exit code 3: none\)$", row)
    running.answer("cron", "remove", "mail")


def test_answers_come_as_json_too(running: Program) -> None:
    assert running.json("cron", "add", "other", "every 1d", "hello")["job"]["schedule"] == "every 1d"
    assert running.json("cron", "run", "other")["sessionKey"] == "agent:main:cron:other"
    assert running.json("cron", "remove", "other") == {"ok": True, "id": "other", "removed": True}


def test_a_table_is_drawn_on_a_terminal(running: Program) -> None:
    with running.terminal("cron") as shown:
        assert shown.wait() == 0

    assert "daily" in shown.shown
    assert "skipped" not in shown.shown  # nothing was


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("add", "x", "0 0 30 2 *", "hello"), "no such day ever comes"),
        (("add", "x", "2020-01-01", "hello"), "has passed"),
        (("add", "x", "every 1h", "hello", "--tz", "Mars/Base"), "expected a time zone such as `Europe/Berlin`"),
        (("add", "a b", "every 1h", "hello"), "id: got 'a b'"),
        (("add", "x", "every 1h", " "), "message: it is empty"),
        (("add", "x", "every 1h", "hello", "--timeout", "-1"), "timeoutSeconds"),
        (("add", "x", "every 1h", "hello", "--agent", "nobody"), "See the agents with: "),
        (("add", "x", "every 1h", "hello", "--channel", "desk", "--to", "C"), "no channel 'desk' is configured"),
        (("add", "daily", "every 1h", "hello"), "stands in the configuration: choose another id"),
        (("remove", "daily"), "take it out of `cron.jobs` there"),
        (("remove", "nothing"), "See the jobs with: "),
        (("run", "nothing"), "no cron job 'nothing'"),
    ],
)
def test_what_cannot_be_done_says_what_to_do(running: Program, words: tuple[str, ...], said: str) -> None:
    done = running.run("cron", *words)

    assert done.returncode == 1
    assert said in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("given", [("--channel", "desk"), ("--to", "C"), ("--account", "a")])
def test_half_an_address_is_a_usage_error(running: Program, given: tuple[str, str]) -> None:
    done = running.run("cron", "add", "x", "every 1h", "hello", *given)

    assert done.returncode == 2
    assert "--channel and --to belong together" in done.stderr


def test_without_jobs_it_says_how_to_add_one(program: Program) -> None:
    with program.up():
        said = program.answer("cron")

    assert said.startswith("There are no cron jobs. Add one with: ")
    assert said.strip().endswith("cron add ID 'every 1h' MESSAGE")
