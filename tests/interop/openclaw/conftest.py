"""The clients, a gateway for those of a file, and the table of what was seen."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.interop.conftest import Node, fetched
from tests.support.stub_provider import Answer
from tests.support.stub_wires import Call
from tests.web.gateways import GatewayProcess, gateway_process

from .rows import Row, row

HERE = Path(__file__).parent
PATIENCE_S = 90.0
CHANNEL = "telegram"
ASKED = "sessions_history"
ASKING: dict[str, Any] = {
    "tools": {
        "sessions": {"visibility": "all"},
        "agentToAgent": {"enabled": True},
        "approval": [{"tool": ASKED, "ask": "always"}],
    }
}
"""A tool that agents have to ask for before they call it."""
ELSEWHERE = os.environ.get("BACKCHANNEL_INTEROP_URL")
"""Another gateway to look at, such as OpenClaw's own, as a control of what the tests ask; see CONTRIBUTING.md."""
_SEEN = pytest.StashKey[dict[Row, list[bool]]]()


class OpenClaw:
    """The command line, on a home of its own that names a gateway and its token, as the page on it says."""

    def __init__(self, node: Node, home: Path, url: str, token: str) -> None:
        self.node = node
        self.home = home
        self.url = url
        self.token = token
        self.at = ("--url", url, "--token", token)
        """Where the gateway is, for commands that look elsewhere too."""
        self.env = {
            "PATH": node.env["PATH"],
            "HOME": str(home),
            "TERM": "xterm-256color",
            "NO_COLOR": "1",
            "OPENCLAW_NO_RESPAWN": "1",
        }
        settings = {"gateway": {"mode": "remote", "remote": {"url": url, "token": token}}}
        (home / ".openclaw").mkdir(parents=True)
        (home / ".openclaw" / "openclaw.json").write_text(json.dumps(settings))

    def command(self, *words: str) -> list[str]:
        return [str(self.node.program), str(self.node.folder / "node_modules" / "openclaw" / "openclaw.mjs"), *words]

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*words),
            env=self.env,
            cwd=self.home,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )

    def answer(self, *words: str) -> str:
        """Run a command that must succeed, and return what it printed."""
        done = self.run(*words)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def json(self, *words: str) -> Any:
        printed = self.answer(*words, "--json")
        return json.loads(printed)

    def call(self, method: str, params: dict[str, Any]) -> Any:
        """Call a method of the gateway by its name."""
        return self.json("gateway", "call", method, "--params", json.dumps(params))


@pytest.fixture(scope="session")
def packages() -> Node:
    return fetched(HERE)


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """A gateway whose channel is called as one that OpenClaw's commands know: they take no other names."""
    if ELSEWHERE:
        pytest.skip(f"needs a gateway of ours, and {ELSEWHERE} is looked at")
    with gateway_process(tmp_path_factory.mktemp("gateway"), _with_channel) as started:
        yield started


def _with_channel(gateway: GatewayProcess) -> dict[str, Any]:
    return {"channels": {CHANNEL: gateway.far_end.settings()}, **ASKING}


def let_ask(gateway: GatewayProcess, key: str) -> str:
    """Let an agent call a tool that has to be allowed; returns the id of the run, which waits."""
    gateway.answer(Answer(calls=(Call(ASKED, {"sessionKey": "main", "limit": 3}),)), "so be it")
    run_id = str(gateway.call("chat.send", sessionKey=key, message="look it up")["runId"])
    while not any(row["runId"] == run_id for row in gateway.call("approvals.list", state="pending")["approvals"]):
        pass
    return run_id


@pytest.fixture(autouse=True)
def forgetting(request: pytest.FixtureRequest) -> Iterator[None]:
    """Leave nothing of what one test has told the models to the next."""
    ours = None if ELSEWHERE else request.getfixturevalue("gateway")
    yield
    if ours is not None:
        ours.forget()


@pytest.fixture(scope="module")
def openclaw(packages: Node, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> OpenClaw:
    """The command line on a gateway of ours, or on the one that the environment names."""
    home = tmp_path_factory.mktemp("openclaw")
    if ELSEWHERE:
        return OpenClaw(packages, home, ELSEWHERE, os.environ["BACKCHANNEL_INTEROP_TOKEN"])
    gateway = request.getfixturevalue("gateway")
    return OpenClaw(packages, home, gateway.url.replace("http:", "ws:"), gateway.token)


# The table


def _rows_of(item: pytest.Item) -> list[Row]:
    return [row(*mark.args) for mark in item.iter_markers("shows")]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Expect a row that does not work to fail: one that works by now has to be moved."""
    for item in items:
        for shown in _rows_of(item):
            if not shown.works and not ELSEWHERE:
                item.add_marker(pytest.mark.xfail(reason=shown.why, strict=True))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Note each row that is to be tried, so that one of which nothing is seen is named too."""
    seen: dict[Row, list[bool]] = {shown: [] for item in session.items for shown in _rows_of(item)}
    session.config.stash[_SEEN] = seen


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    skipped = report.skipped and not hasattr(report, "wasxfail")
    if not skipped and (report.when == "call" or report.failed):
        for shown in _rows_of(item):
            item.config.stash[_SEEN][shown].append(call.excinfo is None)
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    seen = config.stash.get(_SEEN, {})
    if not seen:
        return
    terminalreporter.section("OpenClaw's clients")
    for shown, worked in seen.items():
        terminalreporter.write_line(_result(shown, worked))
        if shown.why:
            terminalreporter.write_line(f"{'':23}{shown.why}")


def _result(shown: Row, worked: list[bool]) -> str:
    name = f"{shown.client:12} {shown.what}"
    if not worked:
        return f"not tried {name}"
    result = "works" if all(worked) else "does not"
    changed = "" if all(worked) == shown.works else "  (THE TABLE SAYS OTHERWISE)"
    return f"{result:9} {name}{changed}"
