"""The shape of a request: all that its messages follow, as short digests.

The shape of a session's last request is stored with its transcript. If the next one differs, its messages do not just
extend the last request, and the provider's cache misses. `difference` names the reason, which is stored with the reply.
"""

from __future__ import annotations

from hashlib import blake2b

import msgspec

from backchannel.core.cut import Cut
from backchannel.core.stored import StoredForm


class RequestShape(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """What surrounds the messages of a request, and how they are read."""

    model: str
    system: str
    tools: str
    thinking: str | None = None
    cut: str | None = None
    """The cut as it is stored."""
    is_shared: bool = False
    hides_pictures: bool = False
    asked_by: str | None = None
    """The run that has its own part last, though others came after it."""


_ORDERED = "a run that others spoke after goes on"
_ORDERED_BEFORE = "the run that was asked before stood last, though others spoke after it"
_STORED: StoredForm[RequestShape] = StoredForm(RequestShape)
write_shape = _STORED.write


def digest(text: str | bytes) -> str:
    """Make a short digest, for comparing only."""
    return blake2b(text.encode() if isinstance(text, str) else text, digest_size=8).hexdigest()


def difference(stored: str | None, now: RequestShape, cut: Cut) -> str | None:
    """Name the reason that a request does not extend the last one; None if it does, or if there was none."""
    if stored is None:
        return None
    last = _STORED.read(stored)
    if last == now:
        return None
    reasons = [
        (last.model != now.model, f"the model changed from {last.model} to {now.model}"),
        (last.system != now.system, "the system prompt changed"),
        (last.tools != now.tools, "the tools changed"),
        (last.thinking != now.thinking, "the thinking level changed"),
        (last.cut != now.cut, cut.reason or "the view begins at the first message again"),
        (last.is_shared != now.is_shared, "several people write to this session now"),
        (last.hides_pictures != now.hides_pictures, "pictures were tried and not taken"),
        (last.asked_by != now.asked_by, _ORDERED if now.asked_by is not None else _ORDERED_BEFORE),
    ]
    return "; ".join(reason for differs, reason in reasons if differs)
