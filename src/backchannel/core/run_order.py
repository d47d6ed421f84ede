"""The order of a transcript for a model: runs together, results behind their calls."""

from __future__ import annotations

from collections.abc import Sequence

from backchannel.core.messages import Role
from backchannel.core.requests import Line


def in_order(lines: Sequence[Line], asking: str | None) -> list[Line]:
    """Put the parts of each run at the place of its last part, and results behind their calls.

    The run that asks comes last.
    """
    ends = _ends(lines, asking)
    called: dict[str, tuple[int, int]] = {}
    places: list[tuple[int, int]] = []
    for i, (_, message) in enumerate(lines):
        place = ends.get(message.run_id or "", i), i
        if message.role is Role.TOOL_RESULT:
            place = called.pop(message.tool_call_id or "", place)
        elif message.role is Role.ASSISTANT:
            for call in message.tool_calls:
                called.setdefault(call.id, place)
        places.append(place)
    return [lines[i] for i in sorted(range(len(lines)), key=places.__getitem__)]


def _ends(lines: Sequence[Line], asking: str | None) -> dict[str, int]:
    """Find the last place of each run whose parts do not stand together, or that asks and is not the last."""
    ends: dict[str, int] = {}
    parted: set[str] = set()
    newest: str | None = None
    for i, (_, message) in enumerate(lines):
        run_id = message.run_id
        if run_id is None or message.role is Role.TOOL_RESULT:
            continue  # a note belongs to no run, and separates nothing; a result follows its call
        if run_id != newest and run_id in ends:
            parted.add(run_id)
        ends[run_id], newest = i, run_id
    if asking in ends and asking != newest:
        parted.add(asking)
        ends[asking] = len(lines)
    return {run_id: ends[run_id] for run_id in parted}


def settled_places(ordered: Sequence[Line]) -> set[int]:
    """Find the places that split both orders alike: what is put after one also comes after it in the transcript."""
    lowest, settled = 1 << 62, set[int]()
    for seq, _ in reversed(ordered):
        if seq < lowest:
            lowest = seq
            settled.add(seq)
    return settled
