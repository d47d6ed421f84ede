"""Sessions: one conversation of one agent, its settings, and the row that lists show."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, NamedTuple

import msgspec

from backchannel.core.messages import PendingMessages, TranscriptLines
from backchannel.core.policy.visibility import VisibleScope
from backchannel.core.stored import StoredForm
from backchannel.errors import ScopeMissing

MAX_INTEGER = 2**63 - 1
"""No database takes more."""
_RENAMING = "operator.admin"
"""The scope that renaming a session needs."""


class Address(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Where a reply goes: the `deliveryContext` of a row, and the reply address of a run."""

    channel: str
    to: str | None = None
    account_id: str | None = None
    thread_id: str | None = None


WEBCHAT = Address(channel="webchat")


class SessionStatus(StrEnum):
    IDLE = "idle"
    QUEUED = "queued"
    RUNNING = "running"


class Session(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """A session as its row says; the field names are the columns."""

    key: str
    agent_id: str
    kind: str
    session_id: str
    label: str | None
    display_name: str | None
    created_at: int
    updated_at: int
    archived_at: int | None
    deleting: bool
    """Asked to be archived as soon as its active run has ended."""
    spawned_by: str | None
    channel: str | None
    """The channel recorded for a group."""
    delivery_context: str | None
    model: str | None
    """The model chosen for this session, over its agent's."""
    thinking_level: str | None
    verbose_level: str | None
    send_policy: str | None
    system_sent: bool
    aborted_last_run: bool
    total_tokens: int | None
    context_tokens: int | None
    tokens_in: int
    tokens_out: int
    cost: float | None
    running_run: str | None
    queued: int
    held_posts: int = 0
    """Results of sub-agents that wait to wake it."""
    lives_ms: int | None = None
    """How long after its last use it is archived; it was made for one request."""
    set_aside: int = 0
    """How many of its runs are set aside; `queued` does not count them."""
    flushing: bool = False
    """Whether so many notes wait that they enter part by part; no run starts before the last has."""
    is_shared: bool = False
    """Whether more than one person has written to it in direct chats."""
    last_state: str | None = None
    """How the last run of its transcript ended; unknown where that was before this was recorded."""

    @property
    def status(self) -> SessionStatus:
        if self.running_run is not None:
            return SessionStatus.RUNNING
        return SessionStatus.QUEUED if self.queued or self.set_aside else SessionStatus.IDLE

    @property
    def is_idle(self) -> bool:
        return self.status is SessionStatus.IDLE

    @property
    def address(self) -> Address | None:
        """The return address."""
        return None if self.delivery_context is None else read_address(self.delivery_context)

    @property
    def lane_is_free(self) -> bool:
        return self.running_run is None and self.queued == 0 and not self.flushing


class EndedTranscript(NamedTuple):
    """A transcript that a reset ended, and why: `reset`, `daily` or `idle`."""

    session_id: str
    ended_at: int
    reason: str


class OpenedSession(NamedTuple):
    """What somebody who opens a session reads of it."""

    page: TranscriptLines
    pending: PendingMessages
    length: int
    """How many messages the transcript has."""
    seen: tuple[Session, list[str]] | None
    """Its row, with its runs that are not over."""
    follows: EndedTranscript | None = None
    """The transcript before this one, if a reset ended it."""


_STORED: StoredForm[Address] = StoredForm(Address)
read_address = _STORED.read


def write_address(address: Address | None, over: str | None = None) -> str | None:
    """Write an address as rows keep it; `over` is the one that it was made from."""
    return None if address is None else _STORED.write(address, over)


class SessionPatch(msgspec.Struct, frozen=True, kw_only=True):
    """What `sessions.patch` changes: UNSET leaves a field, None clears it."""

    label: str | msgspec.UnsetType | None = msgspec.UNSET
    display_name: str | msgspec.UnsetType | None = msgspec.UNSET
    send_policy: str | msgspec.UnsetType | None = msgspec.UNSET
    model: str | msgspec.UnsetType | None = msgspec.UNSET
    thinking_level: str | msgspec.UnsetType | None = msgspec.UNSET
    verbose_level: str | msgspec.UnsetType | None = msgspec.UNSET


class NewSession(msgspec.Struct, frozen=True, kw_only=True):
    """What a client that makes a session sets of it."""

    settings: SessionPatch
    may_rename: bool = True
    """Whether it may give another display name to a session that is there, as an administrator may."""

    def check_change(self, there: Session) -> None:
        """Refuse what the maker may not change of a session that is there.

        Raises:
            ScopeMissing: it would have another display name.
        """
        if not self.may_rename and self.settings.display_name not in (msgspec.UNSET, there.display_name):
            raise ScopeMissing(
                f"the scope {_RENAMING} is needed to change the displayName of a session that is there",
                scope=_RENAMING,
            )


class SessionFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which sessions a list shows; all given conditions must hold."""

    kinds: tuple[str, ...] = ()
    agent_id: str | None = None
    label: str | None = None
    search: str | None = None
    spawned_by: str | None = None
    updated_since: int | None = None
    archived: bool | None = False
    """Only those that are archived, or only those that are not; None is both."""
    visible: VisibleScope | None = None
    """What the caller may see; None is everything."""

    @property
    def is_plain(self) -> bool:
        """True if an index has the rows of a page one after the other, so that no other row is read."""
        is_narrow = self.kinds or self.label or self.search or self.spawned_by or self.visible is not None
        return not is_narrow and self.archived is not None


class Page(msgspec.Struct, frozen=True):
    """A place in a list: rows after (older than) this one. It travels in cursors, so it may be forged."""

    updated_at: Annotated[int, msgspec.Meta(ge=0, le=MAX_INTEGER)]
    key: str


class SessionIdEntry(msgspec.Struct, frozen=True, array_like=True):
    """Which session a transcript belongs to, or once did."""

    session_id: str
    key: str
    mark: str
    ended_at: int | None
    end_reason: str | None
    """`reset`, `daily`, `idle`, `deleted` or `importing`."""
    follows: str | None = None
    """The transcript that a reset ended to begin this one."""
    carries: bool = False
    """Whether it is to begin with a summary of that one."""

    @property
    def carries_from(self) -> str | None:
        """The transcript whose summary this one is to begin with."""
        return self.follows if self.carries else None

    @property
    def is_current(self) -> bool:
        return self.ended_at is None
