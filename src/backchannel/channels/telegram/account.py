"""One bot of a channel: its identity, its inbound messages and its sends."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any

import msgspec
import structlog

from backchannel.channels.keeping import SupervisedConnection
from backchannel.channels.telegram.polling import MOST_TRIES, Poller, told_of_fault
from backchannel.channels.telegram.reading import AttachedFile, BotIdentity, ChatMoved, parse_update, read_update
from backchannel.channels.telegram.sending import TelegramSender
from backchannel.channels.telegram.settings import TelegramWebhookSettings
from backchannel.channels.telegram.wire import TelegramConnections, Wire
from backchannel.core.commands.commands import COMMANDS, Rank
from backchannel.core.contracts import Clock
from backchannel.core.delivery.channels import ChannelError, InboundTaker, IncomingFile
from backchannel.core.incoming_json import check_parts
from backchannel.core.text import cut
from backchannel.errors import GatewayError, Unavailable

log = structlog.get_logger(__name__)

_MAX_FILE_BYTES = 20 * 1024 * 1024
"""Telegram gives bots no larger files."""
_LONGEST_DESCRIPTION = 256
_MOST_COUNTED = 100


class TelegramAccount:
    """A bot, by its token."""

    def __init__(
        self,
        id: str,
        token: str,
        webhook: TelegramWebhookSettings | None,
        connections: TelegramConnections,
        clock: Clock,
        others: Callable[[], Mapping[str, BotIdentity]],
    ) -> None:
        """Make the bot of a token; `others` tells which other bots the channel has, as far as is known.

        Raises:
            ChannelUnusable: no bot has such a token.
        """
        self.id = id
        self.identity: BotIdentity | None = None
        self._wire = Wire(token, connections)
        self._webhook = webhook
        self._clock = clock
        self._others = others
        self._faults: dict[int, int] = {}
        """How often faults of ours kept a post from being taken, for the newest of such posts."""
        self.sender = TelegramSender(self._wire, clock)

    async def introduce(self) -> BotIdentity:
        """Ask Telegram who we are."""
        self.identity = await self._wire.me()
        return self.identity

    async def run(self, inbound: InboundTaker, owners: Sequence[str], kept: SupervisedConnection) -> None:
        """Hand in what people write, until it is cancelled; `kept` is told when Telegram answers.

        Raises:
            ChannelError: Telegram cannot be asked.
        """
        await self.introduce()
        kept.answered()
        await self._set_menu(owners)
        if self._webhook is None:
            await Poller(self._wire, partial(self.hand_in, inbound), self._clock, kept.recovered, kept.troubled).run()
        else:
            await self._wire.set_webhook(self._webhook.url, self._webhook.secret)
            kept.recovered()
            await asyncio.Event().wait()  # from now on Telegram posts

    async def describe_webhook(self) -> str | None:
        """Ask Telegram how its posts fare, and tell it in words; None: it does not post."""
        if self._webhook is None:
            return None
        state = await self._wire.webhook_state()
        if state.url != self._webhook.url:
            return "its webhook is not set: restart the gateway"
        failed = "" if state.error is None else f", posting failed last{_at(state.error_at)}: {state.error}"
        return f"its webhook is set, messages waiting: {state.waiting}{failed}"

    async def take_post(self, body: bytes, inbound: InboundTaker, troubled: Callable[[str], None]) -> None:
        """Take an update that Telegram posted. One that can never be taken is answered as one that was.

        `troubled` is called when a fault of ours keeps it from being taken.

        Raises:
            Unavailable: nothing was taken; Telegram posts it again.
        """
        try:
            check_parts(body)
            raw = json.loads(body)  # msgspec would refuse lone surrogates
        except (ValueError, RecursionError) as error:
            log.error("an update of Telegram cannot be read, and is left out", error=str(error))
            return
        try:
            await self.hand_in(inbound, raw)
        except (Unavailable, ChannelError) as error:
            raise Unavailable(f"not now: {error}") from error
        except GatewayError as error:
            log.error("a message cannot be taken, and is left out", error=str(error))
        except Exception as error:  # the edge of a channel: it is logged, and posted again
            faults = self._count_fault(body)
            told = told_of_fault(error, faults)
            troubled(told)
            if faults < MOST_TRIES:
                raise Unavailable(told) from error

    def _count_fault(self, body: bytes) -> int:
        """Count how often faults of ours kept a post from being taken; Telegram posts it again, but not for ever."""
        update = hash(body)
        faults = self._faults.pop(update, 0) + 1
        if faults < MOST_TRIES:
            self._faults[update] = faults
            if len(self._faults) > _MOST_COUNTED:
                del self._faults[next(iter(self._faults))]
        return faults

    async def hand_in(self, inbound: InboundTaker, raw: Any) -> None:
        """Hand in an update as it came; returns when it is committed, or of no use."""
        if self.identity is None:
            raise Unavailable("Telegram was not yet asked who this bot is")
        try:
            update = parse_update(raw)
            read = read_update(update, self.identity, self.id, self._others())
        except (msgspec.ValidationError, RecursionError) as error:
            log.error("an update of Telegram cannot be read, and is left out", error=str(error))
            return
        if (message := update.message) is not None:
            self.sender.note_forum(str(message.chat.id), is_forum=message.chat.is_forum)
        if isinstance(read, ChatMoved):
            await inbound.moved(self.id, read.chat_id, read.to)
        elif read is not None:
            answer = await inbound(read.event, [self._incoming(file) for file in read.files])
            if read.press_id is not None:
                await self._answer_press(read.press_id, answer.reply)

    async def _answer_press(self, press_id: str, text: str | None) -> None:
        """Answer a press that is committed; one that Telegram waits for no longer needs none."""
        try:
            await self._wire.answer_press(press_id, text)
        except ChannelError as error:
            log.debug("a press of a button could not be answered", account=self.id, error=error.reason)

    def _incoming(self, attached: AttachedFile) -> IncomingFile:
        file = attached.file
        fetch = partial(self._wire.download, file.file_id, _MAX_FILE_BYTES)
        return IncomingFile(attached.kind, attached.name, file.file_size, file.mime_type, fetch)

    async def _set_menu(self, owners: Sequence[str]) -> None:
        """Show the commands in Telegram's own menu: to everybody those for everybody, to owners all."""
        shown = [(spec, (spec.name.value, cut(spec.summary, _LONGEST_DESCRIPTION))) for spec in COMMANDS]
        everybodys = [entry for spec, entry in shown if spec.needs <= Rank.AUTHORISED]
        chats = [int(owner) for owner in owners if owner.isascii() and owner.isdecimal()]
        try:
            await self._wire.set_commands(everybodys)
        except ChannelError as error:
            log.warning("the menu of commands could not be set", account=self.id, error=error.reason)
            return
        for chat in chats:
            try:
                await self._wire.set_commands([entry for _, entry in shown], chat)
            except ChannelError as error:  # one who never wrote to the bot has no chat yet
                log.debug("an owner's menu of commands could not be set", account=self.id, error=error.reason)


def _at(moment: datetime | None) -> str:
    return "" if moment is None else f" at {moment.astimezone(UTC):%Y-%m-%d %H:%M UTC}"
