"""Platforms that the contract of channels is tried on.

Each can refuse, be busy and fall silent, and people write there. A class of this module that is not abstract is in
`WORLDS`, and so in the contract. As a `GroupWorld` it gets the tests of groups, as a `HeldWorld` those of a kept
connection.
"""

from __future__ import annotations

import asyncio
import json
import runpy
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from inspect import isabstract
from pathlib import Path
from typing import Any, Self

import pytest

from backchannel.core.delivery.channels import (
    Channel,
    ChannelBusy,
    ChannelError,
    ChannelMoved,
    ChannelRefused,
    ChannelSilent,
    ChannelUnusable,
    InboundTaker,
    OutboundPart,
    Sent,
)
from backchannel.core.delivery.delivery import Post
from backchannel.core.delivery.outgoing import PartProof
from backchannel.core.keys import ChatType
from backchannel.core.sessions import Address
from backchannel.gateway.app import Gateway
from tests.support import telegram as telegram_api
from tests.support.far_end import FarEnd, Fault, event, signed
from tests.support.gateways import MAIN
from tests.support.platform import Answer, AskedChannel, Platform, said
from tests.support.servers import Break
from tests.support.telegram import ANN, BOB, BOT_NAME, EVE, GROUP, TOKEN, Telegram, entity

EXAMPLE = Path(__file__).parent.parent.parent / "examples" / "custom_channel.py"
PigeonChannel: Any = runpy.run_path(str(EXAMPLE), run_name="example")["PigeonChannel"]


class PlatformWorld(ABC):
    """A platform, and the channel that leads to it."""

    name: str
    chat: str
    other_chat: str = "another-chat"
    takes_key: bool
    can_find: bool = False
    """Whether the platform can be asked for what it took."""
    proves: bool = False
    """Whether the platform tells later what became of a part, as `prove` does."""
    settings: dict[str, Any]
    """The channels of the configuration."""
    own: tuple[Channel, ...] = ()

    @classmethod
    @asynccontextmanager
    async def opened(cls) -> AsyncIterator[Self]:
        """Start the platform, if it needs that."""
        yield cls()

    @property
    @abstractmethod
    def texts(self) -> list[str]:
        """What people read, in order."""

    @abstractmethod
    def refuse(self) -> None:
        """Let the platform refuse the next part for good."""

    @abstractmethod
    def be_busy(self, retry_after_s: float) -> None:
        """Let the platform ask to be tried again later."""

    @abstractmethod
    def fall_silent(self) -> None:
        """Let the platform take the next part and not answer."""

    @abstractmethod
    def lose(self) -> None:
        """Let the next part get lost on its way to the platform, without an answer."""

    @abstractmethod
    async def say(self, gateway: Gateway, text: str, message_id: str) -> None:
        """Write something on the platform."""

    def limit(self, length: int) -> None:
        """Let messages have this length at most."""
        for channel in self.own:
            channel.max_text_length = length
        for settings in self.settings.values():
            settings["maxTextLength"] = length

    def receive(self, chat: str | None = None, text: str = "hello") -> Post:
        return Post(session_key=MAIN, address=Address(channel=self.name, to=chat or self.chat), text=text)

    # What not every platform has; a test of it is skipped where it raises.

    def be_busy_for_all(self, retry_after_s: float) -> None:
        """Let the platform ask that nothing at all is sent by this account for a while."""
        pytest.skip(f"{self.name} has no limit of a whole account")

    def move(self, to: str) -> None:
        """Let the platform answer the next part with the id that the chat has now."""
        pytest.skip(f"{self.name} gives no chat another id")

    async def announce_move(self, gateway: Gateway, to: str) -> None:
        """Let the platform tell that the chat has another id now."""
        await gateway.inbound.taker(self.name).moved("default", self.chat, to)

    async def prove(self, gateway: Gateway, key: str, failed: str | None = None) -> bool:
        """Let the platform tell later what became of a part; returns whether a receipt has changed."""
        raise NotImplementedError

    def read_reactions(self) -> list[tuple[str, str]]:
        """List the emojis that we put on messages, with the ids of these."""
        pytest.skip(f"{self.name} has no reactions")

    def fail_reaction(self) -> None:
        """Let the platform refuse the next emoji."""
        raise NotImplementedError

    def read_drafts(self) -> list[str]:
        """List what people read of drafts, in order, edits included."""
        pytest.skip(f"{self.name} shows no drafts")

    def lose_draft(self) -> None:
        """Let the platform take the next draft and not answer."""
        pytest.skip(f"{self.name} shows no drafts")


class GroupWorld(PlatformWorld):
    """A platform that has groups with threads."""

    group: str
    thread_key: str

    @abstractmethod
    async def say_in_group(
        self, gateway: Gateway, text: str, message_id: str, *, mentioned: bool = False, thread: str | None = None
    ) -> None:
        """Write something in the group, or in one of its threads."""

    @property
    @abstractmethod
    def places(self) -> list[tuple[str, str | None]]:
        """Where each text was posted: chat and thread."""


class ButtonWorld(PlatformWorld):
    """A platform with buttons under messages. Ann is an owner there, Bob may speak, and a stranger may be paired."""

    @abstractmethod
    def have_owner(self) -> None:
        """Let Ann be an owner, Bob speak, and others be strangers who are sent a code."""

    @abstractmethod
    def buttons(self, at: int) -> dict[str, str]:
        """Tell the values of the buttons of a message, by their labels; `at` is its place in `texts`."""

    @abstractmethod
    async def press(self, gateway: Gateway, at: int, value: str, press_id: str, *, by_owner: bool = True) -> str:
        """Press a button as Ann, or as Bob; returns what is said to whoever pressed."""

    @abstractmethod
    async def meet(self, gateway: Gateway) -> None:
        """Let a stranger write."""


class FileWorld(PlatformWorld):
    """A platform that takes files."""

    @abstractmethod
    def take_files(self) -> None:
        """Let files be sent."""

    @property
    @abstractmethod
    def files(self) -> list[tuple[str, bytes]]:
        """The files that people got, by name and content."""

    @abstractmethod
    def refuse_files(self) -> None:
        """Let the platform refuse the next file."""

    @abstractmethod
    def lose_file(self) -> None:
        """Let the platform take the next file, and not answer."""


class HeldWorld(PlatformWorld):
    """A platform whose channel keeps a connection open."""

    @abstractmethod
    def write_away(self, text: str, message_id: str) -> None:
        """Write something while no gateway runs."""

    @abstractmethod
    def cut(self) -> None:
        """Break the connection, more often than a channel puts up with silently."""

    @abstractmethod
    def refuse_login(self, refuses: bool) -> None:
        """Let the platform refuse our credentials from now on, or take them again."""

    @abstractmethod
    async def refused_twice(self) -> None:
        """Wait until our credentials were refused twice: then the first time was noticed."""


class BridgeWorld(GroupWorld, ButtonWorld, FileWorld):
    name, chat, takes_key, proves = "desk", "Chat-1", True, True
    group, thread_key = "Group-1", "agent:main:desk:group:group-1:thread:T1"

    @classmethod
    @asynccontextmanager
    async def opened(cls) -> AsyncIterator[Self]:
        async with FarEnd() as far_end:
            yield cls(far_end)

    def __init__(self, far_end: FarEnd) -> None:
        self._far_end = far_end
        self.settings = {"desk": far_end.settings()}

    @property
    def texts(self) -> list[str]:
        return self._far_end.texts

    def refuse(self) -> None:
        self._far_end.then(Fault(404, body="no such chat"))

    def be_busy(self, retry_after_s: float) -> None:
        self._far_end.then(Fault(429, headers={"Retry-After": str(retry_after_s)}))

    def fall_silent(self) -> None:
        self._far_end.then(Fault(500, takes=True))

    def lose(self) -> None:
        self._far_end.then(Fault(500))

    async def prove(self, gateway: Gateway, key: str, failed: str | None = None) -> bool:
        told = {"state": "sent"} if failed is None else {"state": "failed", "reason": failed}
        body, headers = signed({"receipt": {"key": key, **told}})
        answer: Any = await gateway.inbound.post("desk", body, headers)
        return bool(answer.changed)

    async def say(self, gateway: Gateway, text: str, message_id: str) -> None:
        body, headers = signed(event(text=text, messageId=message_id))
        await gateway.inbound.post("desk", body, headers)

    async def say_in_group(
        self, gateway: Gateway, text: str, message_id: str, *, mentioned: bool = False, thread: str | None = None
    ) -> None:
        place = {"chatType": "group", "chatId": self.group, "mentioned": mentioned, "threadId": thread and "T1"}
        body, headers = signed(event(text=text, messageId=message_id, **place))
        await gateway.inbound.post("desk", body, headers)

    @property
    def places(self) -> list[tuple[str, str | None]]:
        return [(message.to, message.thread_id) for message in self._far_end.messages]

    def take_files(self) -> None:
        self.settings = {"desk": self._far_end.settings(files=True)}

    @property
    def files(self) -> list[tuple[str, bytes]]:
        return [(message.file[0], message.file[2]) for message in self._far_end.messages if message.file]

    def refuse_files(self) -> None:
        self._far_end.then(None, Fault(404, body="no files here"))

    def lose_file(self) -> None:
        self._far_end.then(None, Fault(500, takes=True))

    def have_owner(self) -> None:
        rules = {"allowFrom": ["bob"], "owners": ["ann"], "pairing": True, "buttons": True}
        self.settings = {"desk": self._far_end.settings(**rules)}

    def buttons(self, at: int) -> dict[str, str]:
        return dict(self._far_end.messages[at].buttons)

    async def press(self, gateway: Gateway, at: int, value: str, press_id: str, *, by_owner: bool = True) -> str:
        who = {"senderId": "ann" if by_owner else "bob", "messageId": press_id}
        body, headers = signed(event(text="", button=value, **who))
        answer: Any = await gateway.inbound.post("desk", body, headers)
        return answer.reply or ""

    async def meet(self, gateway: Gateway) -> None:
        await self.say(gateway, "hello", "owner-1")  # an owner's chat is known when the owner has written
        body, headers = signed(event(senderId="eve", chatId="Eve", messageId="eve-1"))
        await gateway.inbound.post("desk", body, headers)


class MoodyPigeons(PigeonChannel):  # type: ignore[misc]  # an example, loaded by its path
    """The example's channel over a platform that fails when it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.errors: deque[ChannelError] = deque()
        self.breaks: deque[Exception] = deque()
        self.running: asyncio.Future[None] | None = None
        self.refusals = 0
        self.refused_twice = asyncio.Event()
        self.taken: list[OutboundPart] = []

    async def run(self, inbound: InboundTaker) -> None:
        if self.breaks:
            self.refusals += isinstance(self.breaks[0], ChannelUnusable)
            if self.refusals > 1:
                self.refused_twice.set()
            raise self.breaks[0] if isinstance(self.breaks[0], ChannelUnusable) else self.breaks.popleft()
        self.running = asyncio.ensure_future(super().run(inbound))
        try:
            await self.running
        except asyncio.CancelledError:
            if not self.breaks:
                raise
            raise OSError("the connection broke") from None

    async def send(self, part: OutboundPart) -> Sent:
        error = self.errors.popleft() if self.errors else None
        if error is None or (isinstance(error, ChannelSilent) and error.reason != "lost"):
            self.taken.append(part)
        if error is not None:
            raise error
        sent: Sent = await super().send(part)
        return sent


class PigeonWorld(GroupWorld, HeldWorld):
    name, chat, takes_key = "pigeon", "chat-7", False
    group, thread_key = "Roof-1", "agent:main:pigeon:group:roof-1:thread:T1"

    def __init__(self) -> None:
        self._channel = MoodyPigeons()
        self.settings, self.own = {}, (self._channel,)

    @property
    def texts(self) -> list[str]:
        return [part.text for part in self._channel.taken]

    def refuse(self) -> None:
        self._channel.errors.append(ChannelRefused("no such chat"))

    def be_busy(self, retry_after_s: float) -> None:
        self._channel.errors.append(ChannelBusy("later", retry_after_s))

    def fall_silent(self) -> None:
        self._channel.errors.append(ChannelSilent("no answer"))

    def lose(self) -> None:
        self._channel.errors.append(ChannelSilent("lost"))

    def be_busy_for_all(self, retry_after_s: float) -> None:
        self._channel.errors.append(ChannelBusy("flood", retry_after_s, is_account_wide=True))

    def move(self, to: str) -> None:
        self._channel.errors.append(ChannelMoved("upgraded", to))

    async def say(self, gateway: Gateway, text: str, message_id: str) -> None:
        self._channel.written.put_nowait({"sender_id": "ann", "message_id": message_id, "text": text})

    async def say_in_group(
        self, gateway: Gateway, text: str, message_id: str, *, mentioned: bool = False, thread: str | None = None
    ) -> None:
        place = {"chat_type": ChatType.GROUP, "chat_id": self.group, "thread_id": thread and "T1"}
        written = {"sender_id": "ann", "message_id": message_id, "text": text, "mentioned": mentioned, **place}
        self._channel.written.put_nowait(written)

    @property
    def places(self) -> list[tuple[str, str | None]]:
        return [(part.to, part.thread_id) for part in self._channel.taken]

    def write_away(self, text: str, message_id: str) -> None:
        self._channel.written.put_nowait({"sender_id": "ann", "message_id": message_id, "text": text})

    def cut(self) -> None:
        self._channel.breaks.append(OSError("the connection broke"))
        self._interrupt()

    def refuse_login(self, refuses: bool) -> None:
        if refuses:
            self._channel.breaks.append(ChannelUnusable("Unauthorized"))
            self._interrupt()
        else:
            self._channel.breaks.clear()

    async def refused_twice(self) -> None:
        await self._channel.refused_twice.wait()

    def _interrupt(self) -> None:
        if self._channel.running is not None:
            self._channel.running.cancel()


class StreamingWorld(PlatformWorld):
    """A platform on which replies grow, and which can be asked for what it took."""

    name, chat, takes_key, can_find, proves = "chat", "C", False, True, True

    def __init__(self) -> None:
        self.platform = Platform()
        self.settings, self.own = {}, (AskedChannel(self.platform),)

    @property
    def texts(self) -> list[str]:
        return [seen.text for seen in self.platform.seen.values() if not seen.is_draft]

    def refuse(self) -> None:
        self.platform.then(Answer(ChannelRefused("no such chat")))

    def be_busy(self, retry_after_s: float) -> None:
        self.platform.then(Answer(ChannelBusy("later", retry_after_s)))

    def fall_silent(self) -> None:
        self.platform.then(Answer(ChannelSilent("no answer"), takes=True))

    def lose(self) -> None:
        self.platform.then(Answer(ChannelSilent("no answer")))

    async def prove(self, gateway: Gateway, key: str, failed: str | None = None) -> bool:
        return await gateway.inbound.taker(self.name).proved(PartProof(key=key, failed=failed))

    def be_busy_for_all(self, retry_after_s: float) -> None:
        self.platform.then(Answer(ChannelBusy("flood", retry_after_s, is_account_wide=True)))

    def move(self, to: str) -> None:
        self.platform.then(Answer(ChannelMoved("upgraded", to)))

    def read_drafts(self) -> list[str]:
        return [call.text for call in self.platform.calls if call.is_draft and call.text]

    def lose_draft(self) -> None:
        self.fall_silent()

    async def say(self, gateway: Gateway, text: str, message_id: str) -> None:
        direct = said(text, message_id, chat_type=ChatType.DIRECT)
        await gateway.inbound.receive("chat", direct)


class TelegramWorld(GroupWorld, HeldWorld, ButtonWorld, FileWorld):
    name, chat, other_chat, takes_key = "telegram", str(ANN), str(BOB), False
    group, thread_key = str(GROUP), f"agent:main:telegram:group:{GROUP}:topic:12"

    @classmethod
    @asynccontextmanager
    async def opened(cls) -> AsyncIterator[Self]:
        async with Telegram() as telegram:
            yield cls(telegram)

    def __init__(self, telegram: Telegram) -> None:
        self._telegram = telegram
        self.settings = {"telegram": telegram.settings()}
        self._loses_draft = False
        self._presses: dict[str, dict[str, Any]] = {}

    @property
    def texts(self) -> list[str]:
        return self._telegram.texts[1 if self._loses_draft else 0 :]

    def refuse(self) -> None:
        self._telegram.then("sendMessage", telegram_api.Fault(400, "Bad Request: no such chat"))

    def be_busy(self, retry_after_s: float) -> None:
        said = f"Too Many Requests: retry after {retry_after_s}"
        self._telegram.then("sendMessage", telegram_api.Fault(429, said, retry_after=int(retry_after_s)))

    def fall_silent(self) -> None:
        self._telegram.then("sendMessage", Break(takes=True))

    def lose(self) -> None:
        self._telegram.then("sendMessage", Break(takes=False))

    def be_busy_for_all(self, retry_after_s: float) -> None:
        pytest.skip("Telegram does not say that it means all; a second chat shows it, in telegram/test_telegram.py")

    def move(self, to: str) -> None:
        said = "Bad Request: group chat was upgraded to a supergroup chat"
        self._telegram.then("sendMessage", telegram_api.Fault(400, said, migrate_to=int(to)))

    async def announce_move(self, gateway: Gateway, to: str) -> None:
        self._telegram.say(migrate_to_chat_id=int(to))
        await self._telegram.drained()

    def read_drafts(self) -> list[str]:
        lost = self._telegram.texts[:1] if self._loses_draft else []
        return lost + [text for post in self._telegram.posts for text in post.edits]

    def lose_draft(self) -> None:
        self._loses_draft = True
        self.fall_silent()

    async def say(self, gateway: Gateway, text: str, message_id: str) -> None:
        self._telegram.say(text, message_id=int(message_id))

    async def say_in_group(
        self, gateway: Gateway, text: str, message_id: str, *, mentioned: bool = False, thread: str | None = None
    ) -> None:
        words = f"@{BOT_NAME} {text}" if mentioned else text
        more: dict[str, Any] = {}
        if mentioned:
            more["entities"] = [entity(words, f"@{BOT_NAME}", "mention")]
        if thread is not None:
            self._telegram.topics.add((GROUP, 12))
            more |= {"message_thread_id": 12, "is_topic_message": True}
        self._telegram.say(words, chat=GROUP, message_id=int(message_id), **more)

    @property
    def places(self) -> list[tuple[str, str | None]]:
        posts = self._telegram.posts
        return [(str(post.chat_id), None if post.thread_id is None else str(post.thread_id)) for post in posts]

    def read_reactions(self) -> list[tuple[str, str]]:
        calls = self._telegram.called("setMessageReaction")
        return [(fields["message_id"], json.loads(fields["reaction"])[0]["emoji"]) for fields in calls]

    def fail_reaction(self) -> None:
        self._telegram.then("setMessageReaction", telegram_api.Fault(400, "Bad Request: REACTION_INVALID"))

    def write_away(self, text: str, message_id: str) -> None:
        self._telegram.say(text, message_id=int(message_id))

    def cut(self) -> None:
        self._telegram.then("getUpdates", *[Break(takes=False)] * 2)
        self._telegram.time_over()

    def refuse_login(self, refuses: bool) -> None:
        self._telegram.token = "revoked" if refuses else TOKEN
        self._telegram.time_over()

    async def refused_twice(self) -> None:
        before = len(self._telegram.called("getMe"))
        await self._telegram.until(lambda: len(self._telegram.called("getMe")) >= before + 2)

    def take_files(self) -> None:
        self.settings = {"telegram": self._telegram.settings(streaming=False)}

    @property
    def files(self) -> list[tuple[str, bytes]]:
        return [(post.file[1], post.file[2]) for post in self._telegram.posts if post.file]

    def refuse_files(self) -> None:
        self._telegram.then("sendDocument", telegram_api.Fault(400, "Bad Request: no files here"))

    def lose_file(self) -> None:
        self._telegram.then("sendDocument", Break(takes=True))

    def have_owner(self) -> None:
        rules = {"allowFrom": [str(BOB)], "owners": [str(ANN)], "pairing": True, "streaming": False}
        self.settings = {"telegram": self._telegram.settings(**rules)}

    def buttons(self, at: int) -> dict[str, str]:
        return self._telegram.posts[at].buttons

    async def press(self, gateway: Gateway, at: int, value: str, press_id: str, *, by_owner: bool = True) -> str:
        if press_id not in self._presses:
            self._telegram.press(self._telegram.posts[at], value, sender=ANN if by_owner else BOB)
            self._presses[press_id] = self._telegram.updates[-1]["callback_query"]
        else:
            self._telegram.update(callback_query=self._presses[press_id])
        id = self._presses[press_id]["id"]
        self._telegram.pressed.pop(id, None)
        await self._telegram.until(lambda: id in self._telegram.pressed)
        return self._telegram.pressed[id]

    async def meet(self, gateway: Gateway) -> None:
        self._telegram.say("hello")
        self._telegram.say("hello", sender=EVE)


WORLDS: list[type[PlatformWorld]] = [
    world
    for world in list(globals().values())
    if isinstance(world, type) and issubclass(world, PlatformWorld) and not isabstract(world)
]
"""All platforms of this module."""
