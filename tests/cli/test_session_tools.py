"""`backchannel tools`, `policy` and the filters of `sessions`: the session tools and their rules, by hand."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from backchannel.cli.commands.tools import read_value
from backchannel.tools.registry import SESSION_TOOLS
from tests.tools.shelf import START_MS, Shelf

from .program import Program

CONFIG = """{
  agents: { list: [{ id: "main" }, { id: "writer" }] },
  session: { sendPolicy: { rules: [{ match: { channel: "discord", chatType: "group" }, action: "deny" }] } },
}"""


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    """A gateway with sessions of two agents, where nobody sees more than its own tree."""
    program = Program(tmp_path_factory.mktemp("running"))
    program.write_config(CONFIG)
    shelf = Shelf(program.state)
    shelf.session("agent:main:main", "hello", at=START_MS + 3)
    shelf.session("agent:main:cron:nightly", "tidy up", at=START_MS + 2, label="007")
    shelf.session("agent:writer:main", "write", at=START_MS + 1)
    shelf.session("agent:main:cron:old", archived_at=START_MS)
    with program.up():
        yield program


def test_the_tools_are_listed_and_shown_as_the_registry_has_them(running: Program) -> None:
    listed = running.answer("tools", "list")
    described = {tool["name"]: tool for tool in running.json("tools", "list")["tools"]}

    for tool in SESSION_TOOLS:
        assert tool.name in listed
        assert tool.description in listed
        assert described[tool.name]["parameters"] == tool.schema()
    assert running.json("tools", "show", "session_status") == described["session_status"]
    shown = running.answer("tools", "show", "sessions_history").splitlines()
    (needed,) = [line.split() for line in shown if line.startswith("sessionKey ")]
    assert needed[:3] == ["sessionKey", "string", "needed"]


def test_a_tool_is_called_as_the_operator_with_pairs_or_json(running: Program) -> None:
    by_pairs = running.call("tools", "call", "sessions_list", "kinds=cron,main", "limit=1", "label=007")
    by_json = running.call("tools", "call", "sessions_list", "--args", '{"kinds": ["cron", "main"], "label": "007"}')

    assert [row["key"] for row in by_pairs["sessions"]] == ["agent:main:cron:nightly"]
    assert by_pairs["sessions"] == by_json["sessions"]


def test_a_tool_is_called_as_a_session_under_its_visibility(running: Program) -> None:
    seen = running.call("tools", "call", "sessions_list", "--as", "agent:writer:main")
    assert [row["key"] for row in seen["sessions"]] == ["main"]
    assert seen["visibility"] == {"mode": "tree", "restricted": True}

    refused = running.run(
        "tools", "call", "sessions_history", "sessionKey=agent:main:main", "--as", "agent:writer:main"
    )
    assert refused.returncode == 1
    assert '"status": "forbidden"' in refused.stdout
    assert refused.stderr == ""


def test_an_agents_token_calls_tools_as_its_own_session_only(running: Program) -> None:
    token = running.json("tokens", "create", "--session", "agent:writer:main")["token"]

    own = running.answer("tools", "call", "session_status", BACKCHANNEL_TOKEN=token)
    assert '"agentId": "writer"' in own
    other = running.run("tools", "call", "session_status", "--as", "agent:main:main", BACKCHANNEL_TOKEN=token)
    assert other.returncode == 4
    assert "bound to one session" in other.stderr


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["sessions_lst"], 1, "did you mean sessions_list"),
        (["sessions_list", "limit=0"], 1, "limit"),
        (["sessions_list", "limit=many"], 1, "limit"),
        (["sessions_list", "nonsense=1"], 1, "nonsense"),
        (["sessions_list", "limit"], 2, "KEY=VALUE"),
        (["sessions_list", "--args", "{"], 2, "not JSON"),
        (["sessions_list", "--args", "[1]"], 2, "expected an object"),
        (["sessions_list", "limit=1", "--args", "{}"], 2, "not both"),
        (["sessions_list", "--as", "agent:nobody:main"], 4, "nobody"),
    ],
)
def test_a_call_that_does_not_fit_says_why(running: Program, words: list[str], code: int, told: str) -> None:
    done = running.run("tools", "call", *words)

    assert done.returncode == code
    assert told in done.stderr
    assert done.stdout == ""
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("text", "types", "value"),
    [
        ("007", {"string", "null"}, "007"),
        ("7", {"integer"}, 7),
        ("true", {"boolean"}, True),
        ("a, b", {"array", "null"}, ["a", "b"]),
        ('["a"]', {"array"}, ["a"]),
        ("many", {"integer"}, "many"),
        ('{"a": 1}', set(), {"a": 1}),
    ],
)
def test_arguments_are_read_as_people_write_them(text: str, types: set[str], value: object) -> None:
    assert read_value(text, types) == value


def test_policy_explain_names_the_setting_that_decides(running: Program) -> None:
    words = ("policy", "explain", "--caller", "main", "--target", "agent:writer:main")
    told = running.json(*words)
    lines = running.answer(*words).splitlines()

    assert (told["caller"], told["target"]) == ("agent:main:main", "agent:writer:main")
    assert running.json("policy", "explain", "--as", "main", "--target", "agent:writer:main") == told
    assert {entry["what"]: entry["allowed"] for entry in told["tools"]}["sessions_history"] is False
    assert lines[:2] == ["caller  agent:main:main", "target  agent:writer:main"]
    (verdict,) = [line.split() for line in lines if line.startswith("sessions_history ")]
    assert verdict[1:] == ["denied", "tools.sessions.visibility"]
    (reason,) = [line for line in lines if line.startswith("tools.sessions.visibility ")]
    assert '"all" would allow it' in reason


def test_policy_explain_is_for_the_operator_unless_a_caller_is_named(running: Program) -> None:
    target = ("--target", "agent:main:discord:group:1")
    told = running.json("policy", "explain", *target)
    assert told["caller"] == "operator"
    allowed = {entry["what"]: entry["allowed"] for entry in told["tools"]}
    assert [what for what, is_allowed in allowed.items() if not is_allowed] == ["sessions_send"]
    assert told["send"]["rule"] == "session.sendPolicy.rules[0]"
    assert not told["send"]["allowed"]

    assert running.json("policy", "explain", *target, "--channel", "slack")["send"]["allowed"]
    assert running.json("policy", "explain", *target, "--chat-type", "channel")["send"]["allowed"]


def test_policy_explain_says_what_is_wrong_with_a_question(running: Program) -> None:
    assert "--target" in running.run("policy", "explain").stderr
    assert running.run("policy", "explain", "--target", "agent::x").returncode == 1
    wrong = running.run("policy", "explain", "--target", "main", "--chat-type", "loud")
    assert wrong.returncode == 1
    assert "direct, group, channel" in wrong.stderr


def test_sessions_are_found_by_label_and_archived_ones_apart(running: Program) -> None:
    assert [row["key"] for row in running.json("sessions", "--label", "007")["sessions"]] == ["agent:main:cron:nightly"]
    assert [row["key"] for row in running.json("sessions", "--archived")["sessions"]] == ["agent:main:cron:old"]
    assert running.answer("sessions", "--archived").splitlines()[1].split()[2] == "archived"
    assert running.json("sessions", "--active", "5")["sessions"] == []


def test_a_list_longer_than_a_page_is_read_page_by_page(running: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    from backchannel.cli.client import connected
    from backchannel.cli.commands import sessions
    from backchannel.cli.options import Options

    monkeypatch.setattr(sessions, "_PAGE", 2)
    with connected(Options(running.state)) as client:
        listed = sessions.SessionsView(50, {}).list(client)

    assert [row.key for row in listed.sessions] == [
        "agent:main:main",
        "agent:main:cron:nightly",
        "agent:writer:main",
    ]
    assert listed.count == 3
    assert not listed.has_more


def test_a_tool_that_is_none_of_sessions_is_said_not_to_be_called_so(program: Program) -> None:
    with program.up():
        told = program.run("tools", "call", "exec", "command=ls")

    assert told.returncode == 1
    assert "there is no session tool 'exec': the session tools are sessions_list, " in told.stderr
    assert "It cannot call exec and other tools of agents." in " ".join(program.answer("tools", "call", "-h").split())
