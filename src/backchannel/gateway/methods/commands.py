"""Chat commands: the list of them."""

from __future__ import annotations

from backchannel.core.commands.commands import COMMANDS, CommandForm, CommandSpec
from backchannel.gateway.calls import Call, method
from backchannel.wire.frames import SharedNoParams, TokenScope
from backchannel.wire.shapes import Answer


class CommandDetails(Answer, frozen=True, kw_only=True):
    """The part of a command that OpenClaw's answer has no place for."""

    usage: str
    needs: str
    """Who may use it: `authorised` or `owner`."""


class CommandShown(Answer, frozen=True, kw_only=True, omit_defaults=False):
    """A chat command."""

    name: str
    description: str
    source: str = "native"
    scope: str = "text"
    accepts_args: bool
    text_aliases: tuple[str, ...]
    backchannel: CommandDetails


class CommandsListed(Answer, frozen=True, kw_only=True):
    commands: list[CommandShown]


@method("commands.list", TokenScope.READ)
async def commands_list(call: Call, params: SharedNoParams) -> CommandsListed:
    """Lists the chat commands, and who may use each."""
    return CommandsListed(commands=[_show_command(spec) for spec in COMMANDS])


def _show_command(spec: CommandSpec) -> CommandShown:
    return CommandShown(
        name=spec.name.value,
        description=spec.summary,
        accepts_args=spec.forms != (CommandForm(),),
        text_aliases=(f"/{spec.name}",),
        backchannel=CommandDetails(usage=spec.usage, needs=spec.needs.name.lower()),
    )
