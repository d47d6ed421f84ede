"""Plain data that goes with what leaves for a chat, and what the platform tells of it later."""

from __future__ import annotations

import msgspec


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
