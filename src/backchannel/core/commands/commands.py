"""Chat commands, such as `/stop`, as data, and the parser that finds them.

A message is a command when it is nothing else: one line, a known name after `/`, and perhaps arguments. Case does not
matter; `:` may follow the name, and `@botname` too. A known name with wrong arguments is answered with its usage.
Everything else is ordinary text: an unknown name, or a command among other words.

Only messages of people are read this way. The caller of `parse` makes sure of that, and asks `may_use` before
anything is done. A command and its answer are not in the transcript, and no model ever reads them. A new command is an
entry of `COMMANDS`; `/help` and `commands.list` are made from it.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from enum import IntEnum, StrEnum

import msgspec

from backchannel.core.policy.answering import Answerer
from backchannel.core.policy.decisions import Decision
from backchannel.core.policy.send_policy import Destination, SendPolicySettings
from backchannel.core.sessions import WEBCHAT, Address
from backchannel.core.text import cut

_SHAPE = re.compile(r"/(?P<name>[a-zA-Z]+)(?:@(?P<bot>[\w.-]+))?(?:\s*:|(?=\s)|$)(?P<rest>[^\x00-\x08\x0e-\x1f\x7f]*)")
_QUOTED_LENGTH = 64
_ARGUMENT_LIMIT = 512
"""No key is longer, and nothing else that an argument names."""


class Rank(IntEnum):
    """The rank of a sender on a channel; each includes the one before."""

    STRANGER = 0
    AUTHORISED = 1
    """Is answered, and may use commands."""
    OWNER = 2

    @classmethod
    def of_operator(cls, *, is_admin: bool) -> Rank:
        """Tell what an operator's token makes of who writes with it."""
        return cls.OWNER if is_admin else cls.AUTHORISED


class CommandName(StrEnum):
    SEND = "send"
    NEW = "new"
    RESET = "reset"
    COMPACT = "compact"
    STOP = "stop"
    STATUS = "status"
    MODEL = "model"
    SUBAGENTS = "subagents"
    APPROVE = "approve"
    DENY = "deny"
    PAIRING = "pairing"
    HELP = "help"
    COMMANDS = "commands"


@dataclass(frozen=True, slots=True)
class CommandForm:
    """One way to write what follows a command's name: a fixed word, an argument, both, or nothing."""

    word: str | None = None
    argument: str | None = None
    """What the argument is, such as `child`; shown as `<child>`."""
    has_spaces: bool = False
    """Whether the argument may be several words: a label may."""
    last: str | None = None
    """A fixed word behind the argument."""

    def __str__(self) -> str:
        shown = (self.word, self.argument and f"<{self.argument}>", self.last)
        return " ".join(part for part in shown if part)


@dataclass(frozen=True, slots=True)
class CommandSpec:
    """A command: how it is written, what it does, and who may use it."""

    name: CommandName
    summary: str
    forms: tuple[CommandForm, ...] = (CommandForm(),)
    needs: Rank = Rank.AUTHORISED
    alone: str | None = None
    """The word that is meant when nothing follows the name."""

    @property
    def usage(self) -> str:
        """How it is written, such as `/send on|off|inherit`."""
        return f"/{self.name} {'|'.join(map(str, self.forms))}".rstrip()


COMMANDS = (
    CommandSpec(
        CommandName.SEND,
        "send this session's messages, hold them back, or follow the rules",
        (CommandForm("on"), CommandForm("off"), CommandForm("inherit")),
        Rank.OWNER,
    ),
    CommandSpec(CommandName.NEW, "start a new conversation; the old one is kept"),
    CommandSpec(CommandName.RESET, "same as /new"),
    CommandSpec(
        CommandName.COMPACT,
        "summarise the older part of this conversation, or take the last summary back",
        (CommandForm("now"), CommandForm("undo"), CommandForm(argument="what to keep", has_spaces=True)),
        alone="now",
    ),
    CommandSpec(CommandName.STOP, "stop this session's run and its sub-agents"),
    CommandSpec(CommandName.STATUS, "show this session's activity and usage"),
    CommandSpec(
        CommandName.MODEL,
        "show or choose this session's model, or go back to the agent's default",
        (CommandForm("list"), CommandForm("default"), CommandForm(argument="ref")),
        alone="list",
    ),
    CommandSpec(
        CommandName.SUBAGENTS,
        "list this session's sub-agents, show one, read its log, or stop one or all",
        (
            CommandForm("list"),
            CommandForm("info", "child", has_spaces=True),
            CommandForm("log", "child", has_spaces=True),
            CommandForm("stop", "child|all", has_spaces=True),
        ),
        alone="list",
    ),
    CommandSpec(
        CommandName.APPROVE,
        "approve a waiting tool call; with `always`, also later calls of this tool here",
        (CommandForm(argument="id"), CommandForm(argument="id", last="always")),
        Rank.OWNER,
    ),
    CommandSpec(
        CommandName.DENY,
        "deny a waiting tool call",
        (CommandForm(argument="id"),),
        Rank.OWNER,
    ),
    CommandSpec(
        CommandName.PAIRING,
        "list pairing requests, admit a sender, or ignore one",
        (CommandForm("list"), CommandForm("approve", "code"), CommandForm("deny", "code")),
        Rank.OWNER,
        alone="list",
    ),
    CommandSpec(CommandName.HELP, "show the commands"),
    CommandSpec(CommandName.COMMANDS, "same as /help"),
)
_BY_NAME = {spec.name.value: spec for spec in COMMANDS}


@dataclass(frozen=True, slots=True)
class Command:
    """A command to carry out: `/send off` has the word `off`, `/model a/b` the argument `a/b`."""

    name: CommandName
    word: str | None = None
    argument: str | None = None
    choices: tuple[str, ...] = ()
    """What the gateway knows by name, where a command lists it."""
    doubt: str | None = None
    """What could not be made sure of, to be told with the answer."""

    @property
    def spec(self) -> CommandSpec:
        return _BY_NAME[self.name]


@dataclass(frozen=True, slots=True)
class CommandReply:
    """A command that is only answered: it was written wrongly, or by a sender who may not use it."""

    name: CommandName
    text: str

    @property
    def spec(self) -> CommandSpec:
        return _BY_NAME[self.name]


def parse(text: str, bot_names: Collection[str] | None = None) -> Command | CommandReply | None:
    """Read a person's message as a command; None is ordinary text.

    `bot_names` are the names that we go by: a command for another name is meant for another bot, and is not read.
    With None every name counts as ours.
    """
    line = text.strip()
    is_one_line = line.startswith("/") and len(line.splitlines()) == 1
    match = _SHAPE.fullmatch(line) if is_one_line else None
    spec = _BY_NAME.get(match["name"].lower()) if match else None
    if match is None or spec is None or not _is_ours(match["bot"], bot_names):
        return None
    words = match["rest"].split() or ([spec.alone] if spec.alone else [])
    for form in spec.forms:
        if command := _fit(spec.name, form, words):
            return command
    return CommandReply(spec.name, _usage_reply(spec, words))


def may_use(spec: CommandSpec, standing: Rank) -> Decision:
    """Decide whether a sender of this standing may use a command."""
    if standing >= spec.needs:
        return Decision(True, f"/{spec.name} is open to {_WHO[standing]}")
    if spec.needs is Rank.OWNER:
        who = "senders in channels.<name>.owners, and operators with the scope admin"
        return Decision(False, f"/{spec.name} is for owners only ({who})", "channels.<name>.owners")
    reason = f"/{spec.name} is only for senders that the channel answers"
    return Decision(False, reason, "channels.<name>.allowFrom")


_WHO = {Rank.STRANGER: "strangers", Rank.AUTHORISED: "authorised senders", Rank.OWNER: "owners"}


def _is_ours(bot: str | None, bot_names: Collection[str] | None) -> bool:
    return bot is None or bot_names is None or bot.lower() in {name.lower().lstrip("@") for name in bot_names}


def _fit(name: CommandName, form: CommandForm, words: list[str]) -> Command | None:
    """Read the words as this form, or tell that they are another."""
    left = words
    if form.word is not None:
        if not left or left[0].lower() != form.word:
            return None
        left = left[1:]
    if form.last is not None:
        if not left or left[-1].lower() != form.last:
            return None
        left = left[:-1]
    if bool(left) is (form.argument is None) or (len(left) > 1 and not form.has_spaces):
        return None
    argument = " ".join(left)
    return Command(name, form.word or form.last, argument or None) if len(argument) <= _ARGUMENT_LIMIT else None


def _usage_reply(spec: CommandSpec, words: list[str]) -> str:
    given = " ".join(words)
    if not given:
        return f"/{spec.name} needs more (write {spec.usage})"
    for form in spec.forms:
        if form.argument is not None and given.lower() == form.word:
            return f"/{spec.name} {form.word} needs more: <{form.argument}> (write {spec.usage})"
    shown = cut(given, _QUOTED_LENGTH)
    return f"/{spec.name} does not know {shown!r} (write {spec.usage})"


# Carrying one out


class CommandChat(msgspec.Struct, frozen=True):
    """The chat in which a command was written."""

    address: Address = WEBCHAT
    quotes: str | None = None
    """The platform's id of the message with the command."""


class Asker(msgspec.Struct, frozen=True, kw_only=True):
    """Who wrote a command, and what the gateway knows of the session that rows do not tell."""

    standing: Rank
    agent_model: str | None = None
    """The model of the session's agent; None when it is a function."""
    policy: SendPolicySettings = SendPolicySettings()
    """The send policy, for `/status`."""
    destination: Destination | None = None
    """What the send policy is asked about; None: the session's own destination."""
    by: Answerer = Answerer("an operator")
    """Who it was, for questions that it answers."""
    at_webchat: bool = False
    """Whether it was written by `chat.send`, which is answered there."""
    chat: CommandChat = CommandChat()
    """Where it was written, for an answer that comes later."""
