"""The steps of messages that were stored before `Provenance.step` existed.

Such a message says what it is only in its text. This is the one place that reads the step from a text; everybody
else reads `Provenance.step`. Only the gateway writes provenance, so a text that looks like a step does not make one.
"""

from __future__ import annotations

import re

from msgspec.structs import replace

from backchannel.core.flows.exchange import SEND_TOOL
from backchannel.core.flows.exchange_texts import EXCHANGE_ANNOUNCE_LINE, FAILURE_LINE, LATE_LINE, TURN_LINE
from backchannel.core.flows.spawn import SPAWN_TOOL
from backchannel.core.flows.spawn_texts import POST_LINE, SPAWN_ANNOUNCE_LINE, WAKE_LINE
from backchannel.core.messages import (
    FlowStep,
    Message,
    Provenance,
    ProvenanceKind,
    Role,
    decode_message,
    encode_message,
)

_TURN = re.compile(rf"{re.escape(TURN_LINE)}([0-9]{{1,9}}) of ([0-9]{{1,9}})\]")
_EXCHANGE_LINES = (
    (EXCHANGE_ANNOUNCE_LINE, FlowStep.ANNOUNCE),
    (TURN_LINE, FlowStep.TURN),
    (LATE_LINE, FlowStep.LATE_REPLY),
    (FAILURE_LINE, FlowStep.FAILURE),
    ("", FlowStep.ASK),
)
_PROMPT_LINES = ((SPAWN_ANNOUNCE_LINE, FlowStep.ANNOUNCE), (WAKE_LINE, FlowStep.WAKE), ("", FlowStep.NOTICE))
_SESSION_LINES = ((POST_LINE, FlowStep.POST), ("", FlowStep.TASK))
_OF_TOOLS = b'"sourceTool":'
_OF_EXCHANGES, _OF_SPAWNS = b'"exchangeId":', f'"sourceTool":"{SPAWN_TOOL}"'.encode()


def is_of_flow(line: bytes) -> bool:
    """Whether a stored line may be a message of a flow; False is certain."""
    return _OF_EXCHANGES in line or _OF_SPAWNS in line


def line_with_step(line: bytes) -> bytes:
    """Name the step in a stored line that is of a flow and has none."""
    if _OF_TOOLS not in line or b'"step":' in line:  # most lines are of no tool: one look is enough
        return line
    message = decode_message(line)
    named = with_step(message)
    return line if named is message else encode_message(named)


def with_step(message: Message) -> Message:
    """Name the step of a message that is of a flow and has none; any other message is returned as it is."""
    source = message.provenance
    if source is None or source.step is not None or message.role is not Role.USER:
        return message
    lines = _lines_of(source)
    if not lines:
        return message
    text = message.text
    step = next(step for opening, step in lines if text.startswith(opening))
    turn = _TURN.match(text) if step is FlowStep.TURN else None
    numbers = (int(turn[1]), int(turn[2])) if turn else (None, None)
    return replace(message, provenance=replace(source, step=step, turn=numbers[0], max_turns=numbers[1]))


def _lines_of(source: Provenance) -> tuple[tuple[str, FlowStep], ...]:
    """Give the openings that messages of this source have, and the step that each stands for."""
    if source.source_tool == SEND_TOOL and source.exchange_id is not None:
        return _EXCHANGE_LINES
    if source.source_tool == SPAWN_TOOL:
        return {ProvenanceKind.INTERNAL_SYSTEM: _PROMPT_LINES, ProvenanceKind.INTER_SESSION: _SESSION_LINES}.get(
            source.kind, ()
        )
    return ()
