"""How the demo model takes part in exchanges: as the one asked, in turns and in announces."""

from __future__ import annotations

import re

from backchannel.agents.demo_parts import Part, fenced_texts, is_quiet, short
from backchannel.core.control_words import ANNOUNCE_SKIP, REPLY_SKIP
from backchannel.core.exchange_prompts import ANNOUNCE_LINE, TURN_LINE
from backchannel.core.headers import SESSION_MESSAGE, SYSTEM_MESSAGE

FOLLOW_UPS = {
    1: "Thank you, that helps. Is there anything else that I should know?",
    2: "You are welcome. That is all from my side; ask again whenever you like.",
}
"""What it says in the first turns; in every later one it stops."""

_TURN = re.compile(re.escape(TURN_LINE) + r"(\d+) of \d+\]")


def play_part(part: Part) -> str | None:
    """Answer a turn or an announce step; None for anything else."""
    if part.is_request:
        return None
    if part.kind == SESSION_MESSAGE and (turn := _TURN.match(part.text)):
        return FOLLOW_UPS.get(int(turn[1]), REPLY_SKIP)
    if part.kind == SYSTEM_MESSAGE and part.text.startswith(ANNOUNCE_LINE):
        return _announce(part.text)
    return None


def _announce(text: str) -> str:
    request = next(iter(fenced_texts(text)), "")
    return ANNOUNCE_SKIP if is_quiet(request) else f"I was asked: “{short(request)}”, and have answered."


def answer_request(part: Part) -> str:
    """Answer what another session, or a person through `sessions_send`, asks."""
    who = f"Hello, {part.writer}." if part.writer else "Hello."
    return (
        f"{who} You asked: “{short(part.text)}”\n\n"
        "All is well here. I am the built-in demo model, so this is all I know about it; a real model would say more."
    )
