"""Buttons under a message, and proofs of its arrival."""

from __future__ import annotations

import msgspec


class Button(msgspec.Struct, frozen=True):
    """A button under a message. A press of it is an inbound event with the value."""

    label: str
    value: str
    """The command that it stands for, at most 64 bytes."""


_BUTTONS = msgspec.json.Decoder(tuple[Button, ...])


def write_buttons(buttons: tuple[Button, ...]) -> str | None:
    """Write buttons as their row stores them."""
    return msgspec.json.encode(buttons).decode() if buttons else None


def read_buttons(stored: str | None) -> tuple[Button, ...]:
    """Read buttons as their row stores them."""
    return () if stored is None else _BUTTONS.decode(stored)


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
