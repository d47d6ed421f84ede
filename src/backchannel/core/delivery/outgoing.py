"""Buttons and files of a message, and proofs of its arrival."""

from __future__ import annotations

import msgspec

from backchannel.core.stored import StoredForm


class Button(msgspec.Struct, frozen=True):
    """A button under a message. A press of it is an inbound event with the value."""

    label: str
    value: str
    """The command that it stands for, at most 64 bytes."""


_BUTTONS: StoredForm[tuple[Button, ...]] = StoredForm(tuple[Button, ...])


def write_buttons(buttons: tuple[Button, ...]) -> str | None:
    """Write buttons as their row stores them."""
    return _BUTTONS.write(buttons) if buttons else None


def read_buttons(stored: str | None) -> tuple[Button, ...]:
    """Read buttons as their row stores them."""
    return () if stored is None else _BUTTONS.read(stored)


class TakenFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file that an agent sends: its content as it was when the agent said so."""

    name: str
    content: bytes
    caption: str | None = None


class FileCopy(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The kept copy of a file that an agent sends."""

    name: str
    """As people see it, cleaned."""
    mime_type: str
    """By its content."""
    size: int
    file: str
    """Its name in the media folder."""
    caption: str | None = None


_FILE: StoredForm[FileCopy] = StoredForm(FileCopy)
_FILES: StoredForm[tuple[FileCopy, ...]] = StoredForm(tuple[FileCopy, ...])


def write_files(files: tuple[FileCopy, ...]) -> str | None:
    """Write files as their row stores them."""
    return _FILES.write(files) if files else None


def read_files(stored: str | None) -> tuple[FileCopy, ...]:
    """Read files as their row stores them."""
    return () if stored is None else _FILES.read(stored)


def write_file(file: FileCopy) -> str:
    """Write a file as the row of its part stores it."""
    return _FILE.write(file)


def read_file(stored: str) -> FileCopy:
    """Read a file as the row of its part stores it."""
    return _FILE.read(stored)


class OutboundFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file that a part hands to the platform; the text of the part is its caption."""

    name: str
    mime_type: str
    content: bytes


class PartProof(msgspec.Struct, frozen=True, kw_only=True):
    """What a platform says later of a part that we sent: it was posted, or it failed.

    The part is named by its key, or by the platform's id of the message.
    """

    account_id: str | None = None
    """Which of our accounts sent it; None is the default one."""
    key: str | None = None
    message_id: str | None = None
    chat_id: str | None = None
    """The chat of the message, where an id alone does not tell."""
    failed: str | None = None
    """The platform's reason, if the part was not posted. None: it was."""
