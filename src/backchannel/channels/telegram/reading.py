"""Updates of Telegram, read as inbound events with their files.

Only the fields that are used are read, so an update with new fields is read all the same. Anything but a person's
message, or the press of a button, is skipped: edits, which are not asked for, and service messages. So are the copies
of a channel's posts that Telegram puts into the linked group, the bot's own among them. One service message is read:
the news that a group has another id now. Telegram's own button *Start* writes `/start`, which is `/help` here, also
with the parameter of a link.

A topic of a forum is a thread; the topic *General* is the group itself, because Telegram names it nowhere. A person who
writes in the name of a chat (an anonymous admin, a linked channel) is known by the id of that chat.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct

from backchannel.core.delivery.channels import FileKind, InboundEvent
from backchannel.core.delivery.received import MAX_IMAGE_BYTES
from backchannel.core.keys import ChatType
from backchannel.core.text import storable_text

GENERAL_TOPIC = "1"
"""The thread of the topic *General*; Telegram wants it left out, but for signs of typing."""

KINDS = ("message", "channel_post", "callback_query")
"""The kinds of updates that are asked for."""


class TelegramUser(Struct, frozen=True):
    id: int
    is_bot: bool = False
    first_name: str = ""
    last_name: str = ""
    username: str | None = None


class TelegramChat(Struct, frozen=True):
    id: int
    type: str
    title: str | None = None
    first_name: str = ""
    last_name: str = ""
    username: str | None = None
    is_forum: bool = False

    @property
    def name(self) -> str:
        return self.title or f"{self.first_name} {self.last_name}".strip() or self.username or ""


class _Entity(Struct, frozen=True):
    type: str
    offset: int
    length: int
    user: TelegramUser | None = None


class SentFile(Struct, frozen=True):
    """A document, a voice message, a size of a photo: what Telegram keeps, by its `file_id`."""

    file_id: str
    file_size: int | None = None
    file_name: str | None = None
    mime_type: str | None = None


class _Sticker(Struct, frozen=True):
    emoji: str = ""


class _Location(Struct, frozen=True):
    latitude: float
    longitude: float


class _Venue(Struct, frozen=True):
    title: str
    address: str
    location: _Location


class _Contact(Struct, frozen=True):
    phone_number: str
    first_name: str
    last_name: str = ""


class _Poll(Struct, frozen=True):
    question: str


class _Dice(Struct, frozen=True):
    emoji: str
    value: int


class TelegramMessage(Struct, frozen=True, rename={"sender": "from"}):
    message_id: int
    chat: TelegramChat
    sender: TelegramUser | None = None
    sender_chat: TelegramChat | None = None
    message_thread_id: int | None = None
    is_topic_message: bool = False
    is_automatic_forward: bool = False
    text: str | None = None
    caption: str | None = None
    entities: tuple[_Entity, ...] = ()
    caption_entities: tuple[_Entity, ...] = ()
    reply_to_message: _Answered | None = None
    migrate_to_chat_id: int | None = None
    migrate_from_chat_id: int | None = None
    photo: tuple[SentFile, ...] = ()
    document: SentFile | None = None
    audio: SentFile | None = None
    voice: SentFile | None = None
    video: SentFile | None = None
    video_note: SentFile | None = None
    animation: SentFile | None = None
    sticker: _Sticker | None = None
    location: _Location | None = None
    venue: _Venue | None = None
    contact: _Contact | None = None
    poll: _Poll | None = None
    dice: _Dice | None = None


class _Answered(Struct, frozen=True, rename={"sender": "from"}):
    """A message that another answers."""

    sender: TelegramUser | None = None
    forum_topic_created: Any = None


class CallbackQuery(Struct, frozen=True, rename={"sender": "from"}):
    """A press of a button. The message that has the button may be too old to be told."""

    id: str
    sender: TelegramUser
    message: TelegramMessage | None = None
    data: str | None = None


class TelegramUpdate(Struct, frozen=True):
    update_id: int
    message: TelegramMessage | None = None
    channel_post: TelegramMessage | None = None
    callback_query: CallbackQuery | None = None


class BotIdentity(NamedTuple):
    """Who we are on Telegram."""

    id: int
    username: str
    reads_groups: bool = False
    """Whether it gets all messages of groups, and not those alone that are meant for it."""


_NO_OTHERS: Mapping[str, BotIdentity] = {}


class AttachedFile(NamedTuple):
    """A file that came with a message."""

    kind: FileKind
    file: SentFile
    name: str | None


class ReadUpdate(NamedTuple):
    """A message of a person, or the press of a button."""

    event: InboundEvent
    files: tuple[AttachedFile, ...]
    press_id: str | None = None
    """The press that Telegram waits for an answer to."""


class ChatMoved(NamedTuple):
    """A group has become a supergroup, and has another id."""

    chat_id: str
    to: str


class NumberedUpdate(Struct, frozen=True):
    """The number of an update, whatever else is in it, and the chat that it is of."""

    update_id: int
    message: _Placed | None = None
    channel_post: _Placed | None = None
    callback_query: _Pressed | None = None

    @property
    def chat_id(self) -> int | None:
        pressed = None if self.callback_query is None else self.callback_query.message
        of = self.message or self.channel_post or pressed
        return None if of is None or of.chat is None else of.chat.id


class _Pressed(Struct, frozen=True):
    message: _Placed | None = None


class _Placed(Struct, frozen=True):
    chat: _ChatId | None = None


class _ChatId(Struct, frozen=True):
    id: int


class _Numbered(Struct, frozen=True):
    update_id: int


def read_number(raw: Any) -> NumberedUpdate:
    """Read the number of an update, and its chat where that can be read.

    Raises:
        msgspec.ValidationError: it has no number.
    """
    try:
        return msgspec.convert(raw, NumberedUpdate)
    except msgspec.ValidationError:
        return NumberedUpdate(msgspec.convert(raw, _Numbered).update_id)


def parse_update(raw: Any) -> TelegramUpdate:
    """Take an update apart; lone surrogates in it, which can be neither stored nor sent, are replaced.

    Raises:
        msgspec.ValidationError: it is none that can be read.
    """
    text = json.dumps(raw, ensure_ascii=False)
    storable = storable_text(text)
    return msgspec.convert(raw if storable is text else json.loads(storable), TelegramUpdate)


def read_update(
    update: TelegramUpdate, bot: BotIdentity, account_id: str, others: Mapping[str, BotIdentity] = _NO_OTHERS
) -> ReadUpdate | ChatMoved | None:
    """Make of an update what is handed in; None when there is nothing to hand in. `others` are our other bots."""
    if (press := update.callback_query) is not None:
        return _read_press(press, account_id)
    message = update.message or update.channel_post
    if message is None:
        return None
    chat_id = str(message.chat.id)
    if message.migrate_to_chat_id is not None:
        return ChatMoved(chat_id, str(message.migrate_to_chat_id))
    if message.migrate_from_chat_id is not None:
        return ChatMoved(str(message.migrate_from_chat_id), chat_id)
    text, files = _text(message), tuple(_files(message))
    if (chat_type := _CHAT_TYPES.get(message.chat.type)) is None or not (text or files) or message.is_automatic_forward:
        return None
    sender_id, sender_name, is_bot = _sender(message)
    event = InboundEvent(
        account_id=account_id,
        chat_type=chat_type,
        chat_id=chat_id,
        thread_id=_topic(message),
        chat_name=message.chat.name or None,
        sender_id=sender_id,
        sender_name=sender_name or None,
        sender_is_bot=is_bot,
        message_id=str(message.message_id),
        text=text,
        mentioned=is_mentioned(message, bot),
        mentioned_accounts=tuple(id for id, other in others.items() if is_mentioned(message, other)),
    )
    return ReadUpdate(event, files)


def _read_press(press: CallbackQuery, account_id: str) -> ReadUpdate | None:
    """Make an event of a press; None where nobody can tell which chat it belongs to."""
    message, value = press.message, press.data
    if message is None or not value or (chat_type := _CHAT_TYPES.get(message.chat.type)) is None:
        return None
    name = f"{press.sender.first_name} {press.sender.last_name}".strip()
    event = InboundEvent(
        account_id=account_id,
        chat_type=chat_type,
        chat_id=str(message.chat.id),
        thread_id=_topic(message),
        chat_name=message.chat.name or None,
        sender_id=str(press.sender.id),
        sender_name=name or None,
        sender_is_bot=press.sender.is_bot,
        message_id=f"press:{press.id}",
        text="",
        button=value,
    )
    return ReadUpdate(event, (), press.id)


_CHAT_TYPES = {
    "private": ChatType.DIRECT,
    "group": ChatType.GROUP,
    "supergroup": ChatType.GROUP,
    "channel": ChatType.CHANNEL,
}


def _topic(message: TelegramMessage) -> str | None:
    """Name the topic that a message is in. An answer outside a forum has a thread id too, which is none."""
    if not message.is_topic_message or message.message_thread_id is None:
        return None
    topic = str(message.message_thread_id)
    return None if topic == GENERAL_TOPIC else topic


def _sender(message: TelegramMessage) -> tuple[str, str, bool]:
    """Tell who writes: id, name, and whether it is a bot."""
    if (chat := message.sender_chat) is not None:
        return str(chat.id), chat.name, False
    if (user := message.sender) is not None:
        return str(user.id), f"{user.first_name} {user.last_name}".strip() or user.username or "", user.is_bot
    return str(message.chat.id), message.chat.name, False


def is_mentioned(message: TelegramMessage, bot: BotIdentity) -> bool:
    """Whether a message is meant for the bot: it names it, or answers one of its messages."""
    if _answers(message.reply_to_message, bot):
        return True
    text = message.text if message.text is not None else message.caption or ""
    units = text.encode("utf-16-le", "surrogatepass")
    name = f"@{bot.username}".lower()
    for entity in message.entities or message.caption_entities:
        start, end = entity.offset * 2, (entity.offset + entity.length) * 2  # Telegram counts in units of UTF-16
        words = units[start:end].decode("utf-16-le", "replace").lower()
        match entity.type:
            case "mention" if words == name:
                return True
            case "bot_command" if words.endswith(name):
                return True
            case "text_mention" if entity.user is not None and entity.user.id == bot.id:
                return True
    return False


def _answers(answered: _Answered | None, bot: BotIdentity) -> bool:
    """Whether a message of the bot is answered; every message in a topic answers the beginning of the topic."""
    if answered is None or answered.sender is None or answered.forum_topic_created is not None:
        return False
    return answered.sender.id == bot.id


_START = re.compile(r"\s*/start(?P<bot>(?:@\w+)?)(?:\s+[\w-]{1,64})?\s*", re.IGNORECASE | re.ASCII)
"""Alone, or with the parameter of the link that somebody followed to the bot."""


def _text(message: TelegramMessage) -> str:
    """Give the text of a message; what is neither text nor a file becomes a line that says what came."""
    if text := message.text or message.caption:
        return f"/help{start['bot']}" if (start := _START.fullmatch(text)) else text
    if (sticker := message.sticker) is not None:
        return f"[sticker {sticker.emoji}]" if sticker.emoji else "[sticker]"
    if (venue := message.venue) is not None:  # it has a location too
        return f"[place {venue.title}, {venue.address}: {_position(venue.location)}]"
    if (location := message.location) is not None:
        return f"[location {_position(location)}]"
    if (contact := message.contact) is not None:
        name = f"{contact.first_name} {contact.last_name}".strip()
        return f"[contact {name}: {contact.phone_number}]"
    if (poll := message.poll) is not None:
        return f"[poll: {poll.question}]"
    if (dice := message.dice) is not None:
        return f"[dice {dice.emoji}: {dice.value}]"
    return ""


def _position(location: _Location) -> str:
    return f"{location.latitude:.6f}, {location.longitude:.6f}"


def _files(message: TelegramMessage) -> Iterator[AttachedFile]:
    """List the files of a message. An animation comes as a document too, for older programs."""
    if message.photo:
        yield AttachedFile(FileKind.IMAGE, _best_size(message.photo), "photo.jpg")
    if message.document is not None and message.animation is None:
        is_image = (message.document.mime_type or "").startswith("image/")
        yield AttachedFile(FileKind.IMAGE if is_image else FileKind.FILE, message.document, message.document.file_name)
    named = (
        (FileKind.VIDEO, message.animation, "animation.mp4"),
        (FileKind.VIDEO, message.video, "video.mp4"),
        (FileKind.VIDEO, message.video_note, "video.mp4"),
        (FileKind.AUDIO, message.audio, None),
        (FileKind.AUDIO, message.voice, "voice.ogg"),
    )
    for kind, file, name in named:
        if file is not None:
            yield AttachedFile(kind, file, file.file_name or name)


def _best_size(sizes: tuple[SentFile, ...]) -> SentFile:
    """Choose the largest size of a photo that is not too large; Telegram lists them from small to large."""
    fitting = [size for size in sizes if (size.file_size or 0) <= MAX_IMAGE_BYTES]
    return (fitting or list(sizes))[-1]
