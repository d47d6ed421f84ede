"""Telegram as a channel: bots by their tokens, over long polling or a webhook.

`ts` is left out of what is handed in: messages that were written while the gateway was down are to be answered, and
each is known by its id.

aiogram is an extra and takes seconds to import, so it is loaded beside the event loop when the channel is first used.
Without it the channel says how to install it, and everything else works.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Collection, Mapping
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING

from backchannel.agents.loading import load
from backchannel.channels.keeping import SupervisedConnection
from backchannel.channels.telegram.adapter import ADAPTER
from backchannel.channels.telegram.length import MAX_UNITS, text_units
from backchannel.channels.telegram.settings import TelegramAccountSettings, TelegramSettings
from backchannel.config.adapters import not_installed
from backchannel.core.contracts import Clock
from backchannel.core.delivery.channels import (
    DEFAULT_ACCOUNT,
    Channel,
    ChannelBusy,
    ChannelHealth,
    ChannelRefused,
    ChannelUnusable,
    Draft,
    InboundId,
    InboundTaker,
    OutboundPart,
    Sent,
)
from backchannel.errors import BadSignature, NotFound, Unavailable

if TYPE_CHECKING:
    from backchannel.channels.telegram.account import TelegramAccount
    from backchannel.channels.telegram.reading import BotIdentity
    from backchannel.channels.telegram.wire import TelegramConnections

_SMALL_GROUPS = 10**12
"""Up to here reach the ids of groups, without their sign, in which each bot counts messages by itself."""
SECRET_HEADER = "X-Telegram-Bot-Api-Secret-Token"


class TelegramChannel(Channel):
    """The bots of one channel."""

    settings: TelegramSettings
    thread_word = ADAPTER.thread_word
    has_buttons = True
    max_file_bytes = 50 * 1024 * 1024
    draft_interval_s = 1.0
    """Telegram's pace for edits in a chat; in groups `sending.py` keeps a slower one."""

    def __init__(self, name: str, settings: TelegramSettings, clock: Clock) -> None:
        self.name = name
        self.settings = settings
        self.max_text_length = min(settings.max_text_length or MAX_UNITS, MAX_UNITS)
        self.streams = settings.streaming
        self._clock = clock
        own = TelegramAccountSettings(token=settings.token, webhook=settings.webhook)
        self._bots = {DEFAULT_ACCOUNT: own, **settings.accounts}
        self.takes_posts = any(bot.webhook is not None for bot in self._bots.values())
        self._accounts: dict[str, TelegramAccount] = {}
        self._connections: TelegramConnections | None = None
        self._loading = asyncio.Lock()
        self._kept = {id: SupervisedConnection(name, clock, self._shown_id(id), tells=True) for id in self._bots}

    @property
    def own_names(self) -> Collection[str]:  # type: ignore[override]  # they are known when Telegram was asked
        return [name for id in self._accounts for name in self.names_of(id)]

    def names_of(self, account_id: str) -> Collection[str]:
        """List the id and the name of a bot; none before Telegram was asked."""
        account = self._accounts.get(account_id)
        bot = None if account is None else account.identity
        return [] if bot is None else [name for name in (str(bot.id), bot.username) if name]

    def twins(self, id: InboundId) -> Collection[InboundId]:
        """List by what a message is known to the other bots: in supergroups and channels its number is one for all."""
        number = id.chat_id.removeprefix("-")
        if number == id.chat_id or not number.isdecimal() or int(number) <= _SMALL_GROUPS:
            return ()
        return [id._replace(account_id=other) for other in self._bots if other != id.account_id]

    def direct_chat(self, person_id: str) -> str | None:
        """Name the chat of a person with a bot: it has the person's number."""
        return person_id if person_id.isascii() and person_id.isdecimal() else None

    def text_length(self, text: str) -> int:
        """Measure a text in units of UTF-16, as Telegram does."""
        return text_units(text)

    # What comes in

    async def run(self, inbound: InboundTaker) -> None:
        """Hand in what people write to the bots. Each is kept going by itself: a wrong token stops no other."""
        async with asyncio.TaskGroup() as running:
            for id, kept in self._kept.items():
                running.create_task(kept.connect(partial(self._run, id, kept, inbound)))

    async def _run(self, id: str, kept: SupervisedConnection, inbound: InboundTaker) -> None:
        account = await self._account(id)
        await account.run(inbound, self.settings.owners, kept)

    def health(self) -> ChannelHealth:
        """Tell how the bots are: up when all are, else what is wrong with those that are not."""
        known = {id: kept.health for id, kept in self._kept.items()}
        connecting = {id: health for id, health in known.items() if health.is_connecting}
        down = {id: health for id, health in known.items() if not health.is_up and not health.is_connecting}
        wrong = down or {id: health for id, health in known.items() if health.error is not None}
        return ChannelHealth(
            is_up=not down and not connecting,
            is_connecting=bool(connecting) and not down,
            since_ms=max(health.since_ms for health in (down or connecting or known).values()),
            error="; ".join(f"{self._prefix(id)}{health.error}" for id, health in wrong.items()) or None,
            error_at_ms=max((health.error_at_ms or 0 for health in wrong.values()), default=None),
            is_usable=all(health.is_usable for health in down.values()),
        )

    def _shown_id(self, id: str) -> str | None:
        return id if len(self._bots) > 1 else None

    def _prefix(self, id: str) -> str:
        return f"account {id}: " if len(self._bots) > 1 else ""

    async def post(self, body: bytes, headers: Mapping[str, str], inbound: InboundTaker) -> object:
        """Take an update that Telegram posts; which bot it is for, its secret says.

        Raises:
            BadSignature: it does not come from Telegram.
            Unavailable: nothing was taken; Telegram posts it again.
        """
        if not self.takes_posts:
            raise NotFound(f"the channel {self.name!r} takes no posts: it has no webhook")
        secret = headers.get(SECRET_HEADER) or ""
        for id, bot in self._bots.items():
            if bot.webhook is not None and hmac.compare_digest(bot.webhook.secret.encode(), secret.encode()):
                try:
                    account = await self._account(id)
                except ChannelUnusable as unusable:
                    raise Unavailable(unusable.reason) from None
                await account.take_post(body, inbound, self._kept[id].troubled)
                return {"ok": True}
        raise BadSignature(f"{SECRET_HEADER}: it is not the secret of the webhook", signature=secret)

    async def test(self) -> str:
        """Ask Telegram who the bots are, and how its posts to a webhook fare."""
        lines = []
        for id in self._bots:
            account = await self._account(id)
            bot = await account.introduce()
            partly = "in groups only commands and replies to it (privacy mode)"
            reads = "all messages of groups" if bot.reads_groups else partly
            lines.append(f"{self._prefix(id)}@{bot.username}, id {bot.id}, reads {reads}")
            if (webhook := await account.describe_webhook()) is not None:
                lines.append(webhook)
        return "; ".join(lines)

    # What goes out

    async def send(self, part: OutboundPart) -> Sent:
        """Post a part, or put it in the place of its draft.

        Raises:
            ChannelRefused, ChannelBusy, ChannelMoved, ChannelSilent
        """
        account = await self._sending(part.account_id)
        return await account.sender.send(part)

    async def show_draft(self, draft: Draft) -> Sent:
        """Post a draft, or edit the message that shows it."""
        account = await self._sending(draft.account_id)
        return await account.sender.show_draft(draft)

    async def remove_draft(self, draft: Draft) -> None:
        """Delete the message that shows a draft."""
        account = await self._sending(draft.account_id)
        await account.sender.remove_draft(draft)

    async def show_typing(self, to: str, account_id: str | None, thread_id: str | None) -> None:
        """Show that the bot is typing, for about five seconds."""
        account = await self._sending(account_id)
        await account.sender.show_typing(to, thread_id)

    async def react(self, to: str, account_id: str, message_id: str, emoji: str) -> None:
        """Put an emoji on a message of a person."""
        account = await self._sending(account_id)
        await account.sender.react(to, message_id, emoji)

    async def close(self) -> None:
        """Close the connections."""
        if self._connections is not None:
            await self._connections.close()

    async def _sending(self, account_id: str | None) -> TelegramAccount:
        """Find the bot that sends.

        Raises:
            ChannelRefused: there is no such bot, or its token is none.
            ChannelBusy: aiogram is not installed, and may be at the next start.
        """
        id = account_id or DEFAULT_ACCOUNT
        if id not in self._bots:
            raise ChannelRefused(f"no account {id[:64]!r} is configured (there are: {', '.join(self._bots)})")
        try:
            return await self._account(id)
        except _NotInstalled as missing:
            raise ChannelBusy(missing.reason) from None
        except ChannelUnusable as unusable:
            raise ChannelRefused(unusable.reason) from None

    async def _account(self, id: str) -> TelegramAccount:
        """Give a bot, made when it is first asked for.

        Raises:
            ChannelUnusable: its token is none, or aiogram is not installed.
        """
        async with self._loading:
            if id not in self._accounts:
                await load(_load)
                self._accounts[id] = self._make(id)
        return self._accounts[id]

    def _make(self, id: str) -> TelegramAccount:
        from backchannel.channels.telegram.account import TelegramAccount
        from backchannel.channels.telegram.wire import TelegramConnections

        if self._connections is None:
            self._connections = TelegramConnections(self.settings.api_root)
        bot = self._bots[id]
        return TelegramAccount(id, bot.token, bot.webhook, self._connections, self._clock, partial(self._others, id))

    def _others(self, id: str) -> Mapping[str, BotIdentity]:
        return {
            other: account.identity
            for other, account in self._accounts.items()
            if other != id and account.identity is not None
        }


class _NotInstalled(ChannelUnusable):
    """aiogram is missing."""


def _load() -> None:
    try:
        import_module("backchannel.channels.telegram.account")
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "backchannel":
            raise
        raise _NotInstalled(not_installed(ADAPTER, error.name), remedy="install it") from None
