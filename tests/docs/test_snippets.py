"""The snippets of the docs, run: programs, commands and their output, configurations, links."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import textwrap
import time
from functools import cache
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from backchannel.cli.main import app
from backchannel.config import check_config

from .conftest import Provider, Reader
from .pages import ROOT, SHOWN_ONLY, Command, Snippet, commands, complaints, fits, pages, snippets

RUN_HERE = ("backchannel", "curl", "sqlite3", "tail")
QUICKSTART = ROOT / "docs" / "quickstart.md"
SUBAGENTS = ROOT / "docs" / "how-to" / "hand-work-to-sub-agents.md"
TOOLS = ROOT / "docs" / "how-to" / "give-agents-tools.md"
PROGRAMS = [snippet for snippet in snippets("python") if "serve_forever" not in snippet.text]
CONSOLE_PAGES = sorted({snippet.page for snippet in snippets("console")})

_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_PROGRAM = re.compile(r"^(?:\.venv/bin/)?backchannel (.+)$", re.MULTILINE)


def test_every_snippet_says_what_it_is() -> None:
    known = ("python", "console", "json5", *SHOWN_ONLY)
    for snippet in snippets():
        assert snippet.language in known, f"{snippet}: a block of the language {snippet.language!r}"


# Programs


@pytest.mark.parametrize("snippet", PROGRAMS, ids=str)
def test_a_program_runs(snippet: Snippet, reader: Reader) -> None:
    if ".state" in snippet.text:
        reader.start()
    done = reader.run_python(snippet.text)

    assert done.returncode == 0, done.stderr
    assert complaints(done.stderr) == []
    assert fits(_printed_by(snippet), done.stdout), done.stdout


@pytest.mark.parametrize("snippet", [one for one in snippets("python") if "idempotencyKey" in one.text], ids=str)
def test_a_program_with_a_key_of_its_own_prints_the_same_again(snippet: Snippet, reader: Reader) -> None:
    reader.start()
    first, again = (reader.run_python(snippet.text) for _ in range(2))

    assert first.returncode == again.returncode == 0, first.stderr + again.stderr
    assert first.stdout == again.stdout


def _printed_by(snippet: Snippet) -> str:
    """What the page says a program prints: a block, or a few words, after `It prints`."""
    after = snippet.page.read_text(encoding="utf-8").partition(snippet.text)[2]
    found = re.match(r"```\n\nIt prints(?::\n\n```text\n(?P<block>.*?)```| `(?P<words>[^`]+)`)", after, re.DOTALL)
    return (found["block"] or found["words"]) if found else "…"


def test_the_program_of_the_readme_answers_the_same_question_once(reader: Reader) -> None:
    (snippet,) = snippets("python", of=ROOT / "README.md")
    outputs = {reader.run_python(snippet.text).stdout for _ in range(2)}
    lines = [line for line in snippet.text.splitlines() if line.strip()]

    assert outputs == {"A teapot is 42 euros.\n"}
    assert len(lines) <= 16


# Commands


@pytest.mark.parametrize("page", CONSOLE_PAGES, ids=lambda page: str(page.stem))
def test_the_commands_of_a_page_print_what_it_shows(page: Path, reader: Reader) -> None:
    if page == TOOLS:
        reader.start("--app", _write_hands(reader))
    else:
        reader.start()
    for snippet in snippets("console", of=page):
        if page == QUICKSTART and "backchannel runs" in snippet.text:
            _kill_and_restart(reader)
        for command in commands(snippet):
            assert command.program in RUN_HERE, f"{command.where}: {command.program} is not run: make it a `sh` block"
            if shutil.which(command.program, path=reader.env["PATH"]) is None:
                pytest.skip(f"{command.program} is not installed")
            _check(command, reader)


def _write_hands(reader: Reader) -> str:
    """Write the program and the configuration of the page on tools, and name the program's gateway."""
    [hands] = snippets("python", of=TOOLS)
    [config] = [one for one in snippets("json5", of=TOOLS) if '"hands"' in one.text]
    (reader.home / "hands.py").write_text(hands.text, encoding="utf-8")
    reader.program.write_config(config.text)
    return "hands:gateway"


def _check(command: Command, reader: Reader) -> None:
    done = reader.do(command.text)
    assert done.returncode == 0, f"{command.where}: {done.stderr}"
    assert fits(command.output or "", done.stdout), f"{command.where}: {command.text}\n{done.stdout}"


def _kill_and_restart(reader: Reader) -> None:
    """Do what the quickstart says: kill the gateway in the middle of a reply, start it again, and wait."""
    (block,) = [snippet.text for snippet in snippets("sh", of=QUICKSTART) if "kill -9" in snippet.text]
    talk, _, kill = block.partition(" & sleep 2; ")
    talking = subprocess.Popen(
        ["sh", "-c", talk],
        cwd=reader.home,
        env=reader.env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    _wait_for_run(reader)
    assert reader.up is not None
    assert reader.do(kill).returncode == 0
    assert reader.up.process.wait(5) == -signal.SIGKILL
    reader.start()
    reply, told = talking.communicate(timeout=20)
    assert "You said: 1 2 3" in reply and "299 300" in reply
    for line in ("The gateway went away. Waiting for it to come back (Ctrl-C stops waiting) ...", "It is back."):
        assert line in told
        assert line in (ROOT / "README.md").read_text(encoding="utf-8")


def _wait_for_run(reader: Reader) -> None:
    deadline = time.monotonic() + 10
    while "running" not in reader.do("backchannel runs --status running").stdout:
        assert time.monotonic() < deadline, "no run began"


def test_sub_agents_that_were_killed_at_work_report_once(reader: Reader) -> None:
    (block,) = [snippet.text for snippet in snippets("sh", of=SUBAGENTS) if "kill -9" in snippet.text]
    reader.start()
    assert reader.up is not None
    assert reader.do(block.replace("count to 100", "count to 20")).returncode == 0  # a second each is enough here
    assert reader.up.process.wait(5) == -signal.SIGKILL
    reader.start()
    deadline = time.monotonic() + 20
    while reader.do("backchannel deliveries").stdout.count(" sent ") < 3:
        assert time.monotonic() < deadline, "not all of them reported"

    assert reader.do("backchannel history main").stdout.count("Status: success") == 3


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_every_command_that_a_page_names_exists(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    shown = [match for snippet in snippets("sh", "text", of=page) for match in _PROGRAM.findall(snippet.text)]
    named = re.findall(r"`(?:\.venv/bin/)?backchannel ([a-z][^`]*)`", text)
    for words in (*shown, *named):
        arguments = re.sub(r"'[^']*'|\"[^\"]*\"|&.*|\$.*|\[.*\]|#.*", " ", words).split()
        _check_words(page, [word for word in arguments if word not in ("…", "|", "\\")])


def _check_words(page: Path, words: list[str]) -> None:
    """Ask the program for help on a command, and find there all options that the page gives it."""
    names = []
    while words and words[0].startswith("--"):
        words = words[2:]  # an option of all commands, and its value
    while words and re.fullmatch(r"[a-z]+(?:\|[a-z]+)*", words[0]):
        names.append(words.pop(0).split("|")[0])
    shown = _help(*names[:2])
    if shown.exit_code:  # what follows a command may be its argument
        names = names[:1]
        shown = _help(*names)
    assert shown.exit_code == 0, f"{page.relative_to(ROOT)}: backchannel {' '.join(names)} is no command"
    for option in (word for word in words if word.startswith("--")):
        assert option in shown.output, f"{page.relative_to(ROOT)}: backchannel {' '.join(names)} has no {option}"


@cache
def _help(*names: str) -> Result:
    return CliRunner().invoke(app, [*names, "--help"])


def test_the_conversation_of_the_readme_is_what_happens(reader: Reader, provider: Provider) -> None:
    (cast,) = [s.text for s in snippets("text", of=ROOT / "README.md") if "backchannel --state .state chat" in s.text]
    asked, begun, lost, back, rest, question, answer = _parts_of(cast)
    # The reply is held where the page breaks it: how far it gets before a kill would be chance.
    provider.hold(f"{begun} ", rest)
    provider.then(f"{begun} {rest}", answer)
    reader.program.write_config(provider.config)
    reader.start()
    with reader.program.terminal("chat") as terminal:
        terminal.expect(cast.splitlines()[1])
        terminal.expect("> ")
        terminal.type(f"{asked}\r")
        terminal.expect(begun)
        reader.stop()  # as kill -9 does
        terminal.expect(lost)
        reader.start()
        terminal.expect(f"{back}\n{rest}\n\n> ")
        terminal.type(f"{question}\r")
        terminal.expect(f"{answer}\n")


def _parts_of(cast: str) -> list[str]:
    """Take the conversation apart: what was typed, what came before and after the kill."""
    found = re.search(
        r"^> (.+)\n(.+)\n(The gateway went away.+)\n(It is back\.)\n(.+?)\n\n> (.+)\n(.+)\Z", cast.strip(), re.M | re.S
    )
    assert found is not None
    return list(found.groups())


def test_the_demo_model_says_what_the_conversation_of_the_readme_shows() -> None:
    (cast,) = [s.text for s in snippets("text", of=ROOT / "README.md") if "backchannel --state .state chat" in s.text]
    _, begun, _, _, rest, _, answer = _parts_of(cast)
    printed = textwrap.dedent((ROOT / "examples" / "hello.py").read_text(encoding="utf-8").split('"""')[1])
    printed = re.sub(r"^    ", "", printed, flags=re.MULTILINE)  # the example is run, with this as its output

    assert f"{begun} {rest}" in printed
    assert answer in printed


# Configurations


@pytest.mark.parametrize("snippet", snippets("json5"), ids=str)
def test_a_configuration_loads_without_findings(snippet: Snippet, tmp_path: Path) -> None:
    file = tmp_path / "backchannel.json5"
    file.write_text(snippet.text.replace("change-me", "as-chosen"), encoding="utf-8")
    (tmp_path / "researcher.md").write_text("Find out.", encoding="utf-8")
    env = {name: "42:" + f"a-value-for-{name}".ljust(35, "-") for name in re.findall(r"\$\{(\w+)\}", snippet.text)}

    assert check_config(file, env, state=tmp_path) == []


# Links


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for link in _LINK.findall(page.read_text(encoding="utf-8")):
        if re.match(r"https?:|mailto:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{page.relative_to(ROOT)}: {link} is not there"
        if anchor:
            assert anchor in _anchors(target), f"{page.relative_to(ROOT)}: {link} has no such heading"


def _anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def test_the_readme_has_the_two_commands() -> None:
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()

    assert any(line.startswith("make up") for line in lines)
    assert any(line.startswith("make test") for line in lines)
