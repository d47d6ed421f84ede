"""Posts, edits and deletions of a bot: parts of deliveries, and drafts.

A text is posted as HTML, or as plain text if Telegram rejects the markup. An edit that changes nothing counts as done.
A refused edit raises, with `DraftGone` if the message is gone. The outbox then posts the text itself, so that the post
has its own attempt row: a post without an answer must not be repeated.

Telegram's request to wait does not say whether it is for one chat or for the whole bot. It is taken to be for the bot
if a second chat must wait while a first still does. Until a wait is over, nothing is sent to any topic of that chat:
asking sooner makes the wait longer. A wait in answer to a typing sign delays only typing signs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar

from backchannel.channels.telegram.form import to_html
from backchannel.channels.telegram.reading import GENERAL_TOPIC
from backchannel.channels.telegram.wire import Wire
from backchannel.core.contracts import Clock
from backchannel.core.delivery.channels import (
    ChannelBusy,
    ChannelRefused,
    ChannelUnusable,
    Draft,
    DraftGone,
    OutboundPart,
    Sent,
)
from backchannel.core.delivery.outgoing import OutboundFile
from backchannel.core.text import storable_text

T = TypeVar("T")

GROUP_INTERVAL_S = 3.0
"""How often a draft is shown anew in a group: Telegram lets a bot write there twenty times a minute."""
_IN_A_THREAD = 1000
"""Texts that are longer are made into HTML beside the event loop."""
_MOST_FORUMS = 1000
_BAD_MARKUP = "can't parse entities"
_NOT_MODIFIED = "message is not modified"
_GONE = "message to delete not found"
_PICTURES = ("image/png", "image/jpeg", "image/webp")
_MAX_PICTURE_BYTES = 10 * 1024 * 1024
_NO_PICTURE = ("PHOTO_INVALID_DIMENSIONS", "IMAGE_PROCESS_FAILED", "PHOTO_SAVE_FILE_INVALID")
_NOTHING_TO_EDIT = ("message to edit not found", "MESSAGE_ID_INVALID")


class TelegramSender:
    """Sends in the name of one bot."""

    def __init__(self, wire: Wire, clock: Clock) -> None:
        self._wire = wire
        self._clock = clock
        self._waiting: dict[str, float] = {}
        """Until when each chat was told to wait."""
        self._quiet: dict[str, float] = {}
        """Until when no typing is shown in each chat."""
        self._shown: dict[str, float] = {}
        """When a draft was shown last in each group."""
        self._forums: dict[str, None] = {}
        """The groups with topics, as far as somebody has written there; the newest of many."""

    def note_forum(self, chat_id: str, *, is_forum: bool) -> None:
        """Note whether a chat has topics. In such a chat, a typing sign in *General* must name that topic."""
        self._forums.pop(chat_id, None)
        if is_forum:
            self._forums[chat_id] = None
            if len(self._forums) > _MOST_FORUMS:
                del self._forums[next(iter(self._forums))]

    async def send(self, part: OutboundPart) -> Sent:
        """Post a part, or replace its draft by it.

        Raises:
            ChannelRefused, ChannelBusy, ChannelMoved, ChannelSilent
        """
        if (file := part.file) is not None:
            return await self._asked(part.to, lambda: self._post_file(part, file))
        return await self._asked(part.to, lambda: self._show(part))

    async def _post_file(self, part: OutboundPart, file: OutboundFile) -> Sent:
        """Post a file: a picture as such, or as a document if Telegram takes it for no picture."""
        topic, reply_to = _topic(part.thread_id), _number(part.reply_to)
        post = partial(
            self._wire.post_file, part.to, file, storable_text(part.text), thread_id=topic, reply_to=reply_to
        )
        if file.mime_type in _PICTURES and len(file.content) <= _MAX_PICTURE_BYTES:
            try:
                return Sent(await post(is_picture=True))
            except ChannelRefused as refused:
                if not any(words in refused.reason for words in _NO_PICTURE):
                    raise
        return Sent(await post(is_picture=False))

    async def show_draft(self, draft: Draft) -> Sent:
        """Post a draft, or edit the message that shows it."""
        if draft.to.startswith("-"):
            self._keep_pace(draft.to)
        return await self._asked(draft.to, lambda: self._show(draft))

    async def remove_draft(self, draft: Draft) -> None:
        """Delete the message that shows a draft."""
        if (message_id := _number(draft.draft_id)) is None:
            return
        try:
            await self._asked(draft.to, lambda: self._wire.delete(draft.to, message_id))
        except ChannelRefused as refused:
            if _GONE not in refused.reason:
                raise

    async def show_typing(self, to: str, thread_id: str | None) -> None:
        """Show that the bot is typing, unless Telegram asked to wait."""
        self._check_wait(to, self._waiting)
        self._check_wait(to, self._quiet)
        try:
            general = int(GENERAL_TOPIC) if to in self._forums else None
            await self._wire.show_typing(to, _topic(thread_id) or general)
        except ChannelBusy as busy:
            self._quiet = self._with_wait(self._quiet, to, busy.retry_after_s or 0.0)
            raise

    async def react(self, to: str, message_id: str, emoji: str) -> None:
        """Put an emoji on a message, unless Telegram asked to wait."""
        self._check_wait(to, self._waiting)
        if (number := _number(message_id)) is not None:
            await self._wire.react(to, number, emoji)

    async def _show(self, said: OutboundPart | Draft) -> Sent:
        text = storable_text(said.text)
        html = await asyncio.to_thread(to_html, text) if len(text) > _IN_A_THREAD else to_html(text)
        if html is not None:
            try:
                return await self._put(said, html, is_html=True)
            except ChannelRefused as refused:
                if _BAD_MARKUP not in refused.reason:
                    raise
        return await self._put(said, text, is_html=False)

    async def _put(self, said: OutboundPart | Draft, text: str, *, is_html: bool) -> Sent:
        buttons = said.buttons if isinstance(said, OutboundPart) else ()
        if said.draft_id is None:
            topic, reply_to = _topic(said.thread_id), _number(said.reply_to)
            posted = self._wire.post(
                said.to, text, is_html=is_html, thread_id=topic, reply_to=reply_to, buttons=buttons
            )
            return Sent(await posted)
        try:
            await self._wire.edit(said.to, _number(said.draft_id) or 0, text, is_html=is_html, buttons=buttons)
        except ChannelRefused as refused:
            if any(words in refused.reason for words in _NOTHING_TO_EDIT):
                raise DraftGone(refused.reason) from None
            if _NOT_MODIFIED not in refused.reason:
                raise
        return Sent(said.draft_id)

    async def _asked(self, to: str, ask: Callable[[], Awaitable[T]]) -> T:
        """Ask Telegram, unless the chat must wait. Decide whether a request to wait is for the chat or the bot."""
        self._check_wait(to, self._waiting)
        try:
            return await ask()
        except ChannelUnusable as unusable:  # it was surely not posted, and a refused token may work again later
            raise ChannelBusy(unusable.reason) from None
        except ChannelBusy as busy:
            if busy.retry_after_s is None:
                raise
            self._waiting = self._with_wait(self._waiting, to, busy.retry_after_s)
            is_account_wide = bool(self._waiting.keys() - {to})
            raise ChannelBusy(busy.reason, busy.retry_after_s, is_account_wide=is_account_wide) from None

    def _check_wait(self, to: str, waits: dict[str, float]) -> None:
        if (left_s := waits.get(to, 0.0) - self._clock.monotonic()) > 0:
            raise ChannelBusy("Telegram asked to wait before this chat is written to again", left_s)

    def _with_wait(self, waits: dict[str, float], to: str, seconds: float) -> dict[str, float]:
        """Note the wait of a chat, and forget waits that are over."""
        now = self._clock.monotonic()
        return {chat: until for chat, until in waits.items() if until > now} | {to: now + seconds}

    def _keep_pace(self, group: str) -> None:
        """Refuse a draft that comes too soon after another in a group. The next draft has its text."""
        now = self._clock.monotonic()
        self._shown = {chat: at for chat, at in self._shown.items() if now - at < GROUP_INTERVAL_S}
        if (shown := self._shown.get(group)) is not None:
            raise ChannelBusy("a draft was shown in this group a moment ago", GROUP_INTERVAL_S - (now - shown))
        self._shown[group] = now


def _topic(thread_id: str | None) -> int | None:
    """Return a topic as Telegram expects it; None for *General*."""
    if thread_id is None or thread_id == GENERAL_TOPIC:
        return None
    if (number := _number(thread_id)) is None:
        raise ChannelRefused(f"{thread_id[:64]!r} is no topic of Telegram (expected a number)")
    return number


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isascii() and text.isdecimal() else None
