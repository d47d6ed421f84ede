"""A chat platform in memory: what people see on it, and a channel that leads to it.

    platform = Platform()
    platform.then(Answer(ChannelSilent("no answer"), takes=True))
    gateway.add_channel(PlatformChannel(platform))

The platform outlives the gateways that are started on it: what it took, people see.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

from backchannel.core.delivery.channels import (
    Channel,
    ChannelError,
    ChannelRefused,
    ChannelSettings,
    Draft,
    DraftGone,
    InboundEvent,
    OutboundPart,
    Sent,
)
from backchannel.core.keys import ChatType


@dataclass(frozen=True)
class Seen:
    """A message as people see it."""

    id: str
    to: str
    text: str
    thread_id: str | None = None
    reply_to: str | None = None
    is_draft: bool = False
    key: str = ""


Moment = Literal["before", "taken", "answered"]


class Answer(NamedTuple):
    """How the platform answers its next call, and whether it has done what was asked."""

    error: ChannelError
    takes: bool = False


class Call(NamedTuple):
    """What the platform was asked: post, edit or delete, of a draft or for good."""

    what: str
    is_draft: bool
    text: str
    to: str


class Platform:
    """The platform."""

    def __init__(self) -> None:
        self.seen: dict[str, Seen] = {}
        self.calls: list[Call] = []
        self.typing: list[str] = []
        self.called = asyncio.Event()
        """Set at each call."""
        self.holds: asyncio.Event | None = None
        """Where there is one, no call is answered before it is set; the platform has done what was asked by then."""
        self.at_call: Callable[[int, Moment], Awaitable[None]] | None = None
        """Asked at each call, which it counts: before it is heard, when it is taken, and when it is answered."""
        self.delay: Callable[[], Awaitable[None]] | None = None
        """Where there is one, an answer takes as long as it."""
        self.overlaps: list[str] = []
        """Messages that were edited while another edit of them was on its way: the older may win."""
        self.asked: list[str] = []
        """The keys that it was asked for."""
        self.find_errors: deque[ChannelError] = deque()
        """How it answers the next questions for a key."""
        self._editing: set[str] = set()
        self._answers: deque[Answer | None] = deque()
        self._count = 0

    @property
    def call_count(self) -> int:
        """How often it was called."""
        return len(self.calls)

    def then(self, *answers: Answer | None) -> None:
        """Say how the next calls are answered; None is a call that goes well."""
        self._answers.extend(answers)

    def texts(self, to: str = "C") -> list[str]:
        """List what people read in a chat, from top to bottom."""
        return [seen.text for seen in self.seen.values() if seen.to == to]

    def posts(self, *, drafts: bool) -> int:
        return sum(call.what == "post" and call.is_draft is drafts for call in self.calls)

    def forgive(self) -> None:
        """Forget how the next calls were to be answered: they go well."""
        self._answers.clear()

    async def typed(self, count: int) -> None:
        """Wait until it was asked so often to show that somebody is typing."""
        async with asyncio.timeout(20):
            while len(self.typing) < count:
                self.called.clear()
                await self.called.wait()

    def show_typing(self, to: str) -> None:
        self.typing.append(to)
        self.called.set()

    async def until_called(self, count: int) -> None:
        """Wait until it was asked so often."""
        async with asyncio.timeout(20):
            while len(self.calls) < count:
                self.called.clear()
                await self.called.wait()

    async def post(self, made: Seen) -> str:
        self._count += 1
        message_id = f"m{self._count}"
        await self._do(Call("post", made.is_draft, made.text, made.to), lambda: self._see(replace(made, id=message_id)))
        return message_id

    async def edit(self, message_id: str, text: str, *, is_draft: bool) -> None:
        old = self.seen.get(message_id)
        if old is None:
            raise DraftGone("no such message")
        if message_id in self._editing:
            self.overlaps.append(message_id)
        self._editing.add(message_id)
        edited = replace(old, text=text, is_draft=is_draft)
        try:
            await self._do(Call("edit", is_draft, text, old.to), lambda: self._see(edited))
        finally:
            self._editing.discard(message_id)

    async def delete(self, message_id: str, to: str) -> None:
        await self._do(Call("delete", True, "", to), lambda: self.seen.pop(message_id, None))

    def find(self, key: str) -> str | None:
        """Tell the id of the message that was posted with a key."""
        self.asked.append(key)
        if self.find_errors:
            raise self.find_errors.popleft()
        return next((seen.id for seen in self.seen.values() if seen.key == key), None)

    def _see(self, message: Seen) -> None:
        self.seen[message.id] = message

    async def _do(self, call: Call, act: Any) -> None:
        number = len(self.calls) + 1
        await self._reached(number, "before")
        answer = self._answers.popleft() if self._answers else None
        if answer is None or answer.takes:
            act()
        self.calls.append(call)
        self.called.set()
        await self._reached(number, "taken")
        if self.holds is not None:
            await self.holds.wait()
        if self.delay is not None:
            await self.delay()
        if answer is not None:
            raise answer.error
        await self._reached(number, "answered")

    async def _reached(self, number: int, moment: Moment) -> None:
        if self.at_call is not None:
            await self.at_call(number, moment)


class PlatformChannel(Channel):
    """The way to the platform."""

    name = "chat"
    settings = ChannelSettings(allow_from=("*",), require_mention=False)
    streams = True
    draft_interval_s = 0.0

    def __init__(self, platform: Platform, **changed: Any) -> None:
        self.platform = platform
        for name, value in changed.items():
            setattr(self, name, value)

    async def send(self, part: OutboundPart) -> Sent:
        if part.draft_id is not None:
            await self.platform.edit(part.draft_id, part.text, is_draft=False)
            return Sent(part.draft_id)
        made = Seen("", part.to, part.text, part.thread_id, part.reply_to, key=part.key)
        return Sent(await self.platform.post(made))

    async def show_draft(self, draft: Draft) -> Sent:
        if draft.draft_id is not None:
            await self.platform.edit(draft.draft_id, draft.text, is_draft=True)
            return Sent(draft.draft_id)
        made = Seen("", draft.to, draft.text, draft.thread_id, draft.reply_to, is_draft=True)
        return Sent(await self.platform.post(made))

    async def remove_draft(self, draft: Draft) -> None:
        await self.platform.delete(draft.draft_id or "", draft.to)

    async def show_typing(self, to: str, account_id: str | None, thread_id: str | None) -> None:
        self.platform.show_typing(to)


class AskedChannel(PlatformChannel):
    """The way to a platform that can be asked for what it took."""

    async def find(self, part: OutboundPart) -> Sent | None:
        found = self.platform.find(part.key)
        return None if found is None else Sent(found)


class FrozenChannel(PlatformChannel):
    """The way to a platform on which no reply can take the place of its draft."""

    refused = 0

    async def send(self, part: OutboundPart) -> Sent:
        if part.draft_id is not None:
            self.refused += 1
            raise ChannelRefused("message can't be edited")
        return await super().send(part)


def said(text: str, message_id: str, **changed: Any) -> InboundEvent:
    """Somebody writes in a group."""
    fields = {"chat_type": ChatType.GROUP, "chat_id": "C", "sender_id": "ann", **changed}
    return InboundEvent(message_id=message_id, text=text, **fields)
