"""Chat commands: what is one, what is ordinary text, and who may use which."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backchannel.core.commands.commands import (
    COMMANDS,
    Command,
    CommandName,
    CommandReply,
    CommandSpec,
    Rank,
    may_use,
    parse,
)
from backchannel.core.commands.texts import help_text

N = CommandName
OWNERS_ONLY = (N.SEND, N.APPROVE, N.DENY, N.PAIRING)
SPECS = {spec.name: spec for spec in COMMANDS}
PLAIN = [N.NEW, N.RESET, N.STOP, N.STATUS, N.HELP]


@pytest.mark.parametrize(
    ("text", "command"),
    [
        ("/send on", Command(N.SEND, "on")),
        ("/send off", Command(N.SEND, "off")),
        ("/send inherit", Command(N.SEND, "inherit")),
        ("/new", Command(N.NEW)),
        ("/reset", Command(N.RESET)),
        ("/stop", Command(N.STOP)),
        ("/status", Command(N.STATUS)),
        ("/help", Command(N.HELP)),
        ("/model", Command(N.MODEL, "list")),
        ("/model default", Command(N.MODEL, "default")),
        ("/model DEFAULT", Command(N.MODEL, "default")),
        ("/model ollama/Llama3:8b", Command(N.MODEL, None, "ollama/Llama3:8b")),
        ("/subagents list", Command(N.SUBAGENTS, "list")),
        ("/subagents", Command(N.SUBAGENTS, "list")),
        ("/subagents info 2", Command(N.SUBAGENTS, "info", "2")),
        ("/subagents log Scout", Command(N.SUBAGENTS, "log", "Scout")),
        ("/subagents stop all", Command(N.SUBAGENTS, "stop", "all")),
        ("/subagents stop  the   Scout", Command(N.SUBAGENTS, "stop", "the Scout")),
        ("  /STOP \n", Command(N.STOP)),
        ("/Send: OFF", Command(N.SEND, "off")),
        ("/send:off", Command(N.SEND, "off")),
        ("/send : off", Command(N.SEND, "off")),
        ("/send\u00a0off", Command(N.SEND, "off")),
        ("/stop:", Command(N.STOP)),
        ("/stop@Our_Bot", Command(N.STOP)),
        ("/send@our_bot: off", Command(N.SEND, "off")),
        ("/send@our_bot   off", Command(N.SEND, "off")),
    ],
)
def test_a_message_that_is_only_a_command_is_read_as_one(text: str, command: Command) -> None:
    assert parse(text) == command
    assert parse(text, ["@our_bot"]) == command


@pytest.mark.parametrize(
    "text",
    [
        "",
        "/",
        "hello",
        "stop",
        "please /stop",
        "/stop\nand tell me why",
        "/new\n/stop",
        "/stop\rnow",
        "/stop\u2028now",
        "/send\x85off",
        "/model a/\x00b",
        "/subagents stop \x1b[2J",
        "> /stop",
        "`/stop`",
        "//stop",
        "/ stop",
        "/stopp",
        "/stop-it",
        "/stop/now",
        "/stop@",
        "/ſtop",
        "/unknown",
        "/unknown on",
        "/etc/hosts",
    ],
)
def test_everything_else_is_ordinary_text(text: str) -> None:
    assert parse(text) is None


def test_a_command_for_another_bot_is_ordinary_text_where_our_names_are_known() -> None:
    assert parse("/stop@other_bot", ["our_bot"]) is None
    assert parse("/stop@other_bot", []) is None
    assert parse("/stop", []) == Command(N.STOP)
    assert parse("/stop@other_bot") == Command(N.STOP)


@pytest.mark.parametrize(
    "text",
    [
        "/send",
        "/send maybe",
        "/send on off",
        "/model a/b c/d",
        "/subagents kill",
        "/subagents info",
        "/subagents list all",
        f"/model a/{'b' * 600}",
        *(f"/{name} now" for name in PLAIN),
    ],
)
def test_an_unknown_argument_is_answered_with_how_to_write_it(text: str) -> None:
    reply = parse(text)
    assert isinstance(reply, CommandReply)
    assert reply.spec.usage in reply.text
    assert " ".join(text.split()[1:])[:60] in reply.text


def test_a_usage_reply_repeats_only_the_beginning_of_what_came() -> None:
    reply = parse("/stop " + "x" * 10_000)
    assert isinstance(reply, CommandReply)
    assert len(reply.text) < 200


@pytest.mark.parametrize(("spec", "standing"), list(itertools.product(COMMANDS, Rank)), ids=str)
def test_some_are_for_owners_the_rest_for_authorised_senders_and_nothing_for_strangers(
    spec: CommandSpec, standing: Rank
) -> None:
    expected = standing is Rank.OWNER or (standing is Rank.AUTHORISED and spec.name not in OWNERS_ONLY)
    decision = may_use(spec, standing)
    assert decision.allowed is expected
    assert expected or (decision.rule is not None and f"/{spec.name}" in decision.reason)


def test_an_operator_is_an_owner_only_with_the_scope_admin() -> None:
    assert Rank.of_operator(is_admin=True) is Rank.OWNER
    assert Rank.of_operator(is_admin=False) is Rank.AUTHORISED


def test_every_command_is_registered_once_and_shown_in_help_to_those_who_may_use_it() -> None:
    assert [spec.name for spec in COMMANDS] == list(CommandName)
    owners, others = help_text(Rank.OWNER), help_text(Rank.AUTHORISED)
    assert all(spec.usage in owners and spec.summary in owners for spec in COMMANDS)
    assert "/send on|off|inherit" in owners
    assert "/send" not in others
    assert "/model list|default|<ref>" in others
    assert help_text(Rank.STRANGER) == ""


def _writings(spec: CommandSpec) -> list[str]:
    return [f"/{spec.name} {str(form).replace('<', '').replace('>', '')}".strip() for form in spec.forms]


WRITINGS = [(spec.name, text) for spec in COMMANDS for text in _writings(spec)]


@given(st.sampled_from(WRITINGS), st.data())
def test_every_form_is_read_in_any_case_with_and_without_colon_and_bot_name(
    writing: tuple[CommandName, str], data: st.DataObject
) -> None:
    name, text = writing
    head, _, rest = text.partition(" ")
    bot = data.draw(st.sampled_from(["", "@bot", "@My.Bot-1"]))
    colon = data.draw(st.sampled_from(["", ":", " :"]))
    case = data.draw(st.sampled_from([str.lower, str.upper, str.title]))
    command = parse(f" {case(head)}{bot}{colon} {rest} ")
    assert isinstance(command, Command)
    assert command.name is name


@given(st.text(max_size=40))
def test_no_text_breaks_the_parser(text: str) -> None:
    parse(text)
    parse("/" + text)
    parse("/send " + text)
