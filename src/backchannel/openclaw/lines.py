"""Lines of transcripts, of every generation, read as messages.

    {"type": "message", "id", "parentId", "timestamp", "message": {role, content, …}}   today's
    {"type": "message", "timestamp", "message": {…}}                                    before lines had ids
    {role, content, …}                                                                  before they had more, and ours

Summaries and messages of extensions to the model become notes. Other lines (a change of the model, the state of an
extension) are only counted. A transcript with branches is read in the order in which it was written.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from backchannel.core.budget import text_tokens
from backchannel.core.delivery.received import is_media_name
from backchannel.core.messages import (
    Block,
    Chat,
    CompactionEntry,
    FlowStep,
    ImageBlock,
    Message,
    Provenance,
    ProvenanceKind,
    Role,
    Sender,
    TextBlock,
    ThinkingBlock,
    ToolCallBlock,
    Usage,
    encode_message,
    text_content,
)
from backchannel.openclaw.values import NotJson, count_in, decode, is_deep, number_in, text_in, time_in

_T = TypeVar("_T")

HEADER = "session"
"""The type of a transcript's first line."""
OWN_NOTE = "backchannel.system"
"""The `customType` of notes that were exported from here."""
COMPACTION = "compaction"
"""The type of a summary of older messages."""
LONGEST_ID = 256
LONGEST_TYPE = 40

_NOT_MESSAGES = frozenset([HEADER, "model_change", "thinking_level_change", "custom", "label", "session_info"])
_UNKNOWN_MODEL = "openclaw/unknown"
_SUMMARIES = {COMPACTION: "compaction summary", "branch_summary": "branch summary"}
_ROLES = {
    "user": Role.USER,
    "assistant": Role.ASSISTANT,
    "toolResult": Role.TOOL_RESULT,
    "toolresult": Role.TOOL_RESULT,
    "tool_result": Role.TOOL_RESULT,
    "tool": Role.TOOL_RESULT,
    "system": Role.SYSTEM,
}
_NOTE_ROLES = {
    "custom": "custom",
    "hookMessage": "hook message",
    "compactionSummary": "compaction summary",
    "branchSummary": "branch summary",
}
_FROM_OUTSIDE = Provenance(kind=ProvenanceKind.EXTERNAL_USER)
_PROVENANCE_KINDS = {kind.value: kind for kind in ProvenanceKind}
_STEPS = {step.value: step for step in FlowStep}


class ReadMessage(msgspec.Struct, frozen=True):
    """A message. Its own `id` is empty until the store has found one that no other message has."""

    id: str | None
    message: Message
    size: int
    left_out: int
    """How many blocks of an unknown sort it had."""
    first_kept: str | None = None
    """Of OpenClaw's compaction: the id of the first message that it does not cover."""


class OtherLine(msgspec.Struct, frozen=True):
    """A line that is no message."""

    type: str
    is_known: bool


class UnreadableLine(msgspec.Struct, frozen=True):
    """A line that cannot be read."""

    reason: str


def read_line(data: bytes, *, before: int) -> ReadMessage | OtherLine | UnreadableLine:
    """Read one line; a message without a time counts as said at the time of the one `before` it."""
    try:
        line = decode(data)
    except NotJson as error:
        return UnreadableLine(f"not JSON: {error}")
    if not isinstance(line, dict):
        return UnreadableLine("no object")
    try:
        return _read(line, before)
    except _Unreadable as error:
        return UnreadableLine(str(error))
    except RecursionError:
        return UnreadableLine("it is nested too deeply")


class _Unreadable(ValueError):
    """The line should be a message and is none; the message says why."""


def _read(line: dict[str, Any], before: int) -> ReadMessage | OtherLine:
    kind = line.get("type", "")
    if not isinstance(kind, str):
        return OtherLine("without a type", is_known=False)
    at = _time(before, line)
    if kind == "message" or (not kind and isinstance(line.get("message"), dict)):
        inner = line.get("message")
        if not isinstance(inner, dict):
            raise _Unreadable("a message line without a message")
        return _read_message(line.get("id", inner.get("id")), _message(inner, _time(at, inner), is_wrapped=True))
    if not kind and "role" in line:
        return _read_message(line.get("id"), _message(line, at, is_wrapped=False))
    if kind == "custom_message":
        return _read_message(line.get("id"), _custom_message(line, at))
    if kind == COMPACTION and text_in(line, "summary"):
        return _compaction(line, at)
    if kind in _SUMMARIES and text_in(line, "summary"):
        return _read_message(line.get("id"), _note(line, at, _SUMMARIES[kind]))
    return OtherLine(kind[:LONGEST_TYPE] or "without a type", kind in _NOT_MESSAGES or kind in _SUMMARIES)


def _compaction(line: dict[str, Any], at: int) -> ReadMessage:
    """Read a summary of older messages: ours as it was, OpenClaw's with the place that it names."""
    details = line.get("details")
    own = details.get(OWN_NOTE) if isinstance(details, dict) else None
    if isinstance(own, dict):
        fields = own | {"role": Role.SYSTEM.value, "content": line.get("summary")}
        return _read_message(line.get("id"), _message(fields, _time(at, own), is_wrapped=False))
    read = _read_message(line.get("id"), _note(line, at, _SUMMARIES[COMPACTION]))
    entry = CompactionEntry(
        through_message_id="",
        messages=0,
        tokens_before=count_in(line, "tokensBefore") or 0,
        tokens_after=text_tokens(read.message.text),
        model=_UNKNOWN_MODEL,
    )
    message = msgspec.structs.replace(read.message, compaction=entry)
    return msgspec.structs.replace(read, message=message, first_kept=_string(line, "firstKeptEntryId"))


def _time(otherwise: int, raw: dict[str, Any]) -> int:
    at = time_in(raw, "timestamp")
    return otherwise if at is None else at


class _Draft(msgspec.Struct):
    message: Message
    left_out: int = 0


def _read_message(id: object, draft: _Draft) -> ReadMessage:
    try:
        size = len(encode_message(draft.message))
    except (ValueError, OverflowError, RecursionError) as error:
        raise _Unreadable(f"it cannot be kept ({error})") from None
    return ReadMessage(_usable_id(id), draft.message, size, draft.left_out)


def _usable_id(id: object) -> str | None:
    is_usable = isinstance(id, str) and 0 < len(id) <= LONGEST_ID and id.isprintable()
    return id if is_usable and isinstance(id, str) else None


def _message(raw: dict[str, Any], at: int, *, is_wrapped: bool) -> _Draft:
    word = str(raw.get("role"))
    if word in _NOTE_ROLES:
        return _note(raw, at, _NOTE_ROLES[word])
    if word == "bashExecution":
        return _user_message(at, f"$ {text_in(raw, 'command') or ''}\n{text_in(raw, 'output') or ''}".strip())
    role = _ROLES.get(word)
    if role is None:
        raise _Unreadable(f"the role {word[:LONGEST_TYPE]!r} is unknown")
    content, left_out = _content(raw.get("content"))
    provenance = _provenance(raw.get("provenance"))
    if provenance is None and role is Role.SYSTEM and is_wrapped:
        provenance = _FROM_OUTSIDE  # it is not the gateway that said this
    message = Message(
        id="",
        role=role,
        content=content,
        timestamp=at,
        run_id=_string(raw, "runId"),
        provenance=provenance,
        label=_string(raw, "label"),
        sender=_own(raw.get("sender"), Sender),
        chat=_own(raw.get("chat"), Chat),
        model=_model(raw),
        usage=_usage(raw.get("usage")),
        stop_reason=_string(raw, "stopReason"),
        tool_call_id=_string(raw, "toolCallId", "toolUseId", "tool_call_id"),
        tool_name=_string(raw, "toolName"),
        is_error=raw["isError"] if isinstance(raw.get("isError"), bool) else None,
        compaction=_own(raw.get("compaction"), CompactionEntry),
        moved=_string(raw, "moved"),
    )
    return _Draft(message, left_out)


def _own(value: object, kind: type[_T]) -> _T | None:
    """Read what only an export of ours has."""
    try:
        return None if value is None else msgspec.convert(value, kind)
    except msgspec.ValidationError:
        return None


def _user_message(at: int, text: str) -> _Draft:
    return _Draft(Message(id="", role=Role.USER, content=text_content(text), timestamp=at))


def _note(raw: dict[str, Any], at: int, label: str) -> _Draft:
    """Make a note of what was put before the model by another program than the gateway."""
    content, left_out = _content(raw.get("content", raw.get("summary")))
    label = text_in(raw, "customType") or label
    message = Message(
        id="", role=Role.SYSTEM, content=content, timestamp=at, provenance=_FROM_OUTSIDE, label=label[:LONGEST_ID]
    )
    return _Draft(message, left_out)


def _custom_message(line: dict[str, Any], at: int) -> _Draft:
    details = line.get("details")
    if line.get("customType") == OWN_NOTE and isinstance(details, dict):
        own = details | {"role": Role.SYSTEM.value, "content": line.get("content")}
        return _message(own, _time(at, details), is_wrapped=False)
    return _note(line, at, "custom message")


# --- Content ---


def _content(raw: object) -> tuple[tuple[Block, ...], int]:
    """Read content; also returns how many blocks were left out."""
    if isinstance(raw, str):
        return text_content(raw), 0
    if raw is None:
        return (), 0
    if not isinstance(raw, list):
        raise _Unreadable("its content is neither text nor a list of blocks")
    blocks = [_block(entry) for entry in raw]
    known = tuple(block for block in blocks if block is not None)
    return known, len(blocks) - len(known)


def _block(raw: object) -> Block | None:
    if isinstance(raw, str):
        return TextBlock(text=raw)
    if not isinstance(raw, dict):
        return None
    match raw.get("type"):
        case "text" if isinstance(raw.get("text"), str):
            return TextBlock(text=raw["text"])
        case "thinking":
            return _thinking(raw)
        case "toolCall" | "toolUse" | "tool_use" | "functionCall":
            return _tool_call(raw)
        case "image":
            return _image(raw)
    return None


def _thinking(raw: dict[str, Any]) -> Block | None:
    thinking = raw.get("thinking", "")
    if not isinstance(thinking, str):
        return None
    signature = _string(raw, "thinkingSignature", "signature")
    if raw.get("redacted") is True or (signature or "").startswith('{"'):
        signature = None  # a whole item of the provider's, which would not be taken back as a signature
    return ThinkingBlock(thinking=thinking, signature=signature)


def _tool_call(raw: dict[str, Any]) -> Block | None:
    id, name = raw.get("id"), raw.get("name")
    arguments = raw.get("arguments", raw.get("input", {}))
    if not isinstance(id, str) or not isinstance(name, str) or is_deep(arguments):
        return None
    return ToolCallBlock(id=id, name=name, arguments=arguments)


def _image(raw: dict[str, Any]) -> Block | None:
    source = raw["source"] if isinstance(raw.get("source"), dict) else raw
    mime_type = _string(source, "mimeType", "media_type")
    if mime_type is None:
        return None
    file = _string(source, "file")
    return ImageBlock(
        mime_type=mime_type,
        data=_string(source, "data"),
        url=_string(source, "url"),
        file=file if file is not None and is_media_name(file) else None,
    )


def _string(raw: dict[str, Any], *names: str) -> str | None:
    return next((value for name in names if isinstance(value := raw.get(name), str)), None)


# --- What stands beside the content ---


def _model(raw: dict[str, Any]) -> str | None:
    model, provider = _string(raw, "model"), _string(raw, "provider")
    return f"{provider}/{model}" if model and provider else model


def _usage(raw: object) -> Usage | None:
    if not isinstance(raw, dict):
        return None
    cost = raw.get("cost")
    return Usage(
        input=count_in(raw, "input") or 0,
        output=count_in(raw, "output") or 0,
        cache_read=count_in(raw, "cacheRead") or 0,
        cache_write=count_in(raw, "cacheWrite") or 0,
        cost=number_in(cost, "total") if isinstance(cost, dict) else number_in(raw, "cost"),
    )


def _provenance(raw: object) -> Provenance | None:
    if not isinstance(raw, dict):
        return None
    kind = _PROVENANCE_KINDS.get(str(raw.get("kind")))
    if kind is None:
        return None
    return Provenance(
        kind=kind,
        source_session_key=_string(raw, "sourceSessionKey"),
        source_channel=_string(raw, "sourceChannel"),
        source_tool=_string(raw, "sourceTool"),
        exchange_id=_string(raw, "exchangeId"),
        step=_STEPS.get(str(raw.get("step"))),
        turn=count_in(raw, "turn"),
        max_turns=count_in(raw, "maxTurns"),
    )
