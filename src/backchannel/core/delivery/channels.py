"""The contract of a channel: sending, receiving, lifecycle and health.

A channel is a subclass of `Channel` that has a `name` and a `send`; everything else may be left out. It answers each
part of a delivery in one of five ways. The receipt depends on the answer:

- `Sent`: the platform took the part.
- `ChannelRefused`: the platform did not take it, and never will.
- `ChannelBusy`: the platform did not take it, and may later.
- `ChannelMoved`: the platform did not take it, and the chat has another id now.
- `ChannelSilent`: nobody knows. In doubt, use this one. A wrong `ChannelBusy` may post a message twice.

`core/delivery/delivery.py` decides what follows. Three abilities of a channel settle a doubt. The first one that it has
is used (`core/delivery/attempts.py` has the rules):

- The platform takes keys: `takes_key`, perhaps only for a while (`key_lives_s`).
- It can be asked: `find`.
- A later event proves what happened: `InboundTaker.proved`.

People's messages are handed in as `InboundEvent`s, by `run` or by `post`, and their files as `IncomingFile`s.
`ChannelSettings` is what all of them share in the configuration.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, ClassVar, NamedTuple, Protocol, TypeAlias

import msgspec

from backchannel.core.delivery.outgoing import Button, OutboundFile, PartProof
from backchannel.core.keys import MAX_KEY_LENGTH, ChatType, SessionKey, ThreadWord
from backchannel.core.sessions import WEBCHAT
from backchannel.core.settings import AtLeastOne, Settings, setting
from backchannel.core.supervision import ServiceHealth
from backchannel.core.text import quoted
from backchannel.errors import NotFound

DEFAULT_ACCOUNT = "default"
"""The account of a channel that has only one."""

_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,63}\Z")
_RESERVED = (WEBCHAT.channel, "internal", "unknown")

_Id: TypeAlias = Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_KEY_LENGTH)]


class ChannelSettings(Settings, frozen=True, kw_only=True):
    """What can be set for every channel. A channel that brings none answers nobody."""

    TAG: ClassVar[str] = "What connects the platform."

    allow_from: Annotated[tuple[str, ...], setting("Sender ids that are answered, or `*`. Owners always are.")] = ()
    owners: Annotated[tuple[str, ...], setting("Sender ids that may use owner commands.")] = ()
    max_text_length: Annotated[
        AtLeastOne | None, setting("Longer texts are sent in parts. Unset: the adapter's limit.")
    ] = None
    require_mention: Annotated[
        bool, setting("In groups: answer only messages that mention the agent; others are recorded.")
    ] = True
    media_max_mb: Annotated[
        int, setting("The largest file to fetch, in MB; pictures at most 10. 0: fetch none.", ge=0, le=100)
    ] = 20
    max_file_mb: Annotated[int, setting("The largest file that an agent sends, in MB. 0: none.", ge=0, le=20)] = 20
    ack_reaction: Annotated[
        str | None,
        setting("An emoji that is put on each message that will be answered, as a sign of receipt."),
    ] = None
    allow_bots: Annotated[bool, setting("Read messages of other bots.")] = False
    pairing: Annotated[
        bool,
        setting("Answer a stranger's direct message with a code. An owner admits the stranger by it."),
    ] = False


class OutboundPart(msgspec.Struct, frozen=True, kw_only=True):
    """One part of a delivery, ready to be sent."""

    delivery_id: str
    key: str
    """Its idempotency key, the same however often it is sent. It is made of the delivery, the part and the purpose.

    A platform that takes only short keys gets a hash of it.
    """
    to: str
    """The chat, as the channel wrote it."""
    text: str
    account_id: str | None = None
    thread_id: str | None = None
    reply_to: str | None = None
    """The platform's id of the message that it answers, where it is to quote that: in groups, in the first part."""
    draft_id: str | None = None
    """The platform's id of the message whose place it takes, a draft mostly: it is edited, and nothing new is posted.

    Buttons that it had are gone then, unless the part has some.
    """
    buttons: tuple[Button, ...] = ()
    """Shown under the message, on a channel that `has_buttons`."""
    file: OutboundFile | None = None
    """The file that it sends, with the text as its caption, on a channel with `max_file_bytes`."""


class Draft(msgspec.Struct, frozen=True, kw_only=True):
    """A reply as far as it is written, to be shown while it grows."""

    key: str = ""
    """The idempotency key of its first post. No part of a delivery has the same."""
    to: str
    """The chat, as the channel wrote it."""
    text: str
    """Not longer than one message."""
    account_id: str | None = None
    thread_id: str | None = None
    reply_to: str | None = None
    """The platform's id of the message that it answers, as in the part that takes its place."""
    draft_id: str | None = None
    """The platform's id of the message that shows it, which is edited; None: it is posted."""


class Sent(msgspec.Struct, frozen=True):
    """The platform took the part."""

    message_id: str | None = None
    """Its own id of the message, where it gives one."""


class ChannelError(Exception):
    """A part was not sent, or perhaps not; `reason` is the channel's own words, without secrets."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class ChannelRefused(ChannelError):
    """The platform did not take the part, and would not take it again: no such chat, bad token."""


class DraftGone(ChannelRefused):
    """The draft that was to be edited is not there any more: somebody deleted it."""


class ChannelBusy(ChannelError):
    """The platform surely did not take the part, and may later: a rate limit, no connection at all.

    With `is_account_wide` everything that goes out by this account waits, and not this chat alone.
    """

    def __init__(self, reason: str, retry_after_s: float | None = None, *, is_account_wide: bool = False) -> None:
        super().__init__(reason)
        self.retry_after_s = retry_after_s
        self.is_account_wide = is_account_wide


class ChannelMoved(ChannelError):
    """The platform did not take the part: the chat has another id now, `to`, and everything for it goes there."""

    def __init__(self, reason: str, to: str) -> None:
        super().__init__(reason)
        self.to = to


class ChannelSilent(ChannelError):
    """It is not known whether the platform took the part: no answer, a broken one, a fault at its end."""


class ChannelUnusable(ChannelError):
    """The platform refuses the channel's credentials: nothing works until a person has corrected them.

    `remedy` is what the person has to do, where that is something else: `install it`.
    """

    def __init__(self, reason: str, remedy: str | None = None) -> None:
        super().__init__(reason)
        self.remedy = remedy


class InboundId(NamedTuple):
    """What an inbound message is known by."""

    channel: str
    account_id: str
    chat_id: str
    message_id: str


class InboundEvent(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """A message that somebody wrote on a platform."""

    channel: Annotated[str, msgspec.Meta(max_length=MAX_KEY_LENGTH)] = ""
    """May be left out: what a channel hands in came over that channel."""
    account_id: _Id = DEFAULT_ACCOUNT
    chat_type: ChatType
    chat_id: _Id
    thread_id: _Id | None = None
    chat_name: str | None = None
    sender_id: _Id
    sender_name: str | None = None
    sender_is_bot: bool = False
    message_id: _Id
    text: str
    mentioned: bool = False
    mentioned_accounts: tuple[_Id, ...] = ()
    """Which other accounts of ours it mentions, or answers, by their ids."""
    button: _Id | None = None
    """The value of the button that was pressed. A press is an event with an id of its own; `text` does not count."""
    ts: int | None = None
    """When it was written, in milliseconds since 1970."""

    @property
    def identity(self) -> InboundId:
        return InboundId(self.channel, self.account_id, self.chat_id, self.message_id)


class InboundAnswer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """What became of an inbound event; it is committed."""

    ok: bool
    verdict: str
    session_key: str
    run_id: str | None = None
    command: str | None = None
    reason: str | None = None
    """Why it was ignored or only recorded."""
    reply: str | None = None
    """What is said to whoever pressed a button. It is posted nowhere."""
    repeat: bool = False
    """Whether the same event had come before; it was handled then."""


class FileKind(StrEnum):
    """What a platform says that a file is."""

    IMAGE = "image"
    AUDIO = "audio"
    VIDEO = "video"
    FILE = "file"


@dataclass(frozen=True, slots=True)
class IncomingFile:
    """A file that somebody sent with a message; all but `fetch` is what the platform says of it, where it does."""

    kind: FileKind
    name: str | None
    size: int | None
    mime_type: str | None
    fetch: Callable[[], Awaitable[bytes]]
    """Gets its content. It is called only for a message that is new and whose sender is no stranger.

    Raises:
        ChannelRefused: the platform does not give it: too large, gone. The message is taken without it.
        ChannelBusy: it asks to be left alone first; after a wait of up to a minute it is fetched.
        ChannelSilent: it does not give it now. Nothing is taken; the message is to be handed in again.
    """


class InboundTaker(Protocol):
    """Takes what comes over one channel."""

    def __call__(self, event: InboundEvent, files: Sequence[IncomingFile] = ()) -> Awaitable[InboundAnswer]:
        """Take an event, and the files that came with it, once for each message id.

        Raises:
            InvalidRequest: the event cannot be used, and will not be when it comes again.
            Unavailable: nothing was taken, and it may be handed in again.
        """
        ...

    def moved(self, account_id: str, chat_id: str, to: str) -> Awaitable[None]:
        """Take the news that a chat has another id now: its sessions, and all that is in line for it, follow it.

        Raises:
            InvalidRequest: it names no chat.
            Unavailable: nothing was taken, and it may be handed in again.
        """
        ...

    def proved(self, proof: PartProof) -> Awaitable[bool]:
        """Take the news that a part of ours was posted, or was not: an echo, a status of the platform.

        It may come before `send` has its answer, late, or several times. Returns whether a receipt has changed.

        Raises:
            Unavailable: nothing was taken, and it may be handed in again.
        """
        ...


class ChannelHealth(ServiceHealth, frozen=True, kw_only=True):
    """The state of a channel."""

    is_connecting: bool = False
    """Not up yet, but nothing has failed either: the platform has not answered since the start."""
    is_usable: bool = True
    """False: the platform refuses the credentials, and a person has to correct them."""


class Channel(ABC):
    """A way to one platform."""

    name: str
    """Its name in settings, keys and addresses."""
    max_text_length: int = 4000
    """How long one message may be, by `text_length`; longer texts are sent in parts."""
    takes_key: bool = False
    """Whether a part may safely be sent twice: the platform knows its key."""
    key_lives_s: float | None = None
    """How long the platform remembers a key, with a margin; None: for ever. After that time it is asked by `find`."""
    find_after_s: float = 1.0
    """How long after a send the platform surely shows what it took: `find` is not asked before."""
    takes_posts: bool = False
    """Whether the platform posts to `/channels/<name>/inbound`; then there is a `post`."""
    max_file_bytes: int = 0
    """How large a file may be that it sends; 0: it sends none, and a line of text tells of the file."""
    has_buttons: bool = False
    """Whether parts may have buttons; then `send` can edit a message (`draft_id`), and presses are handed in."""
    streams: bool = False
    """Whether replies are shown while they grow; then there are `show_draft` and `remove_draft`."""
    draft_interval_s: float = 1.0
    """How often a draft is shown anew at most, and how long a reply has grown before it is shown first."""
    typing_interval_s: float = 4.0
    """How often `show_typing` is asked while a run works."""
    thread_word: ThreadWord = "thread"
    """What the platform calls a thread, for the keys of their sessions."""
    settings: ChannelSettings = ChannelSettings()
    """Who may speak on it."""
    own_names: Collection[str] = ()
    """The ids and names of our own accounts on the platform, where they are known: what they write is not answered."""

    @abstractmethod
    def send(self, part: OutboundPart) -> Awaitable[Sent]:
        """Hand a part to the platform.

        Raises:
            ChannelRefused: it did not take the part, and would not take it again.
            ChannelBusy: it did not take the part, and may later.
            ChannelMoved: it did not take the part, because the chat has another id.
            ChannelSilent: it is not known whether it took the part.
        """

    def find(self, part: OutboundPart) -> Awaitable[Sent | None]:
        """Ask the platform whether a part is there that was sent without an answer.

        `Sent` says that it is there. None says that it surely is not and will not come: the part is sent again. A
        channel without this method cannot be asked.

        Raises:
            ChannelBusy, ChannelSilent: it cannot be asked now. It is asked again later, a few times.
            ChannelRefused: it cannot tell. The part is `uncertain`.
        """
        raise NotImplementedError(f"the channel {self.name!r} cannot be asked")

    def show_draft(self, draft: Draft) -> Awaitable[Sent]:
        """Post a draft, or edit the message that shows it; the answer has the platform's id of that message.

        Raises:
            ChannelError: as `send`.
        """
        raise NotImplementedError(f"the channel {self.name!r} has streams = True, and no show_draft")

    def remove_draft(self, draft: Draft) -> Awaitable[None]:
        """Delete the message that shows a draft: no reply takes its place. One that is gone already is removed.

        Raises:
            ChannelError: as `send`.
        """
        raise NotImplementedError(f"the channel {self.name!r} has streams = True, and no remove_draft")

    def show_typing(self, to: str, account_id: str | None, thread_id: str | None) -> Awaitable[None] | None:
        """Show in a chat that a reply is being written; None if the platform has no such thing."""
        return None

    def react(self, to: str, account_id: str, message_id: str, emoji: str) -> Awaitable[None] | None:
        """Put an emoji on a message of a person, as a sign of receipt; None if the platform has no such thing."""
        return None

    def text_length(self, text: str) -> int:
        """Measure a text as the platform does, for `max_text_length`; a character counts at least one."""
        return len(text)

    def names_of(self, account_id: str) -> Collection[str]:
        """List the names of one of our accounts: `/new@name` is carried out where its own account got it."""
        return self.own_names

    def direct_chat(self, person_id: str) -> str | None:
        """Return the chat of a person with us, where the platform names it by the person; None: it does not."""
        return None

    def twins(self, id: InboundId) -> Collection[InboundId]:
        """List by what else a message is known, should other accounts of ours read it too.

        What several of them bring to one session is taken once. None, where the platform numbers messages for each
        account by itself.
        """
        return ()

    def run(self, inbound: InboundTaker) -> Awaitable[None] | None:
        """Hand in what people write, until it is cancelled; None if there is nothing to do.

        It runs while the gateway does. When it fails it is logged and started again, after a back-off.

        Raises:
            ChannelUnusable: the platform refuses the credentials. It is tried again once a minute.
        """
        return None

    def test(self) -> Awaitable[str] | None:
        """Ask the platform who we are there; returns one line for a person, such as `@my_bot, id 42`.

        None: it can only be tried by sending.

        Raises:
            ChannelError: it cannot be asked, or refuses the credentials.
        """
        return None

    def post(self, body: bytes, headers: Mapping[str, str], inbound: InboundTaker) -> Awaitable[object]:
        """Take what was posted to the channel, which checks itself who posts; returns the answer, written as JSON.

        Raises:
            BadSignature: it does not come from the platform.
            InvalidRequest: it cannot be read.
        """
        raise NotFound(f"the channel {self.name!r} takes no posts")

    def close(self) -> Awaitable[None] | None:
        """Close connections, after the last part was sent."""
        return None

    def health(self) -> ChannelHealth | None:
        """Tell what the channel itself knows about its connection; None: judge by `run` and by what is sent."""
        return None


def has_connection(channel: Channel) -> bool:
    """Whether a channel keeps a connection: it has a `run` of its own."""
    return type(channel).run is not Channel.run


def can_find(channel: Channel) -> bool:
    """Whether a channel can be asked for what it may have sent: it has a `find` of its own."""
    return type(channel).find is not Channel.find


def file_limit(channel: Channel) -> int:
    """How large a file may be that goes out over a channel, in bytes, by its platform and its settings."""
    return min(channel.max_file_bytes, channel.settings.max_file_mb * 1024 * 1024)


def no_channel(name: str, there: Iterable[str] | None = None, hint: str = "") -> str:
    """Say that no channel has a name, and which `there` are; None: that is not for the reader."""
    listed = "" if there is None else f" ({hint}there are: {', '.join(there) or 'none'})"
    return f"no channel {quoted(name, 64)} is configured{listed}"


def channel_name_problem(name: str) -> str | None:
    """Say why a channel cannot have a name; None if it can."""
    if not _NAME.match(name):
        return "a channel's name is small letters, digits, `_`, `.` and `-`, at most 64"
    if name in _RESERVED or SessionKey.parse(f"agent:main:{name}:group:1").channel != name:
        return "this word has a meaning of its own; give the channel another name"
    return None
