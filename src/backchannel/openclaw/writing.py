"""Sessions and messages as OpenClaw writes them; `entries` and `lines` read them back.

What OpenClaw has no name for (`runId`, `label`, `createdAt`) is written beside its own fields, which it leaves alone. A
system message is a `custom_message` there: something that a program put before the model.
"""

from __future__ import annotations

from typing import Any

import msgspec

from backchannel.core.keys import SessionKey
from backchannel.core.messages import Message, Role, Usage
from backchannel.core.sessions import Session
from backchannel.openclaw.lines import COMPACTION, HEADER, OWN_NOTE
from backchannel.openclaw.words import RUN_ENDS

VERSION = 3


def entry_of(session: Session) -> dict[str, Any]:
    """Write a session as its entry in `sessions.json`; what is not known is absent."""
    address = session.address
    chat_type = SessionKey.stored(session.key).chat_type
    provider, model = _model_parts(session.model)
    entry = {
        "sessionId": session.session_id,
        "updatedAt": session.updated_at,
        "createdAt": session.created_at,
        "archivedAt": session.archived_at,
        "label": session.label,
        "displayName": session.display_name,
        "chatType": None if chat_type is None else chat_type.value,
        "channel": session.channel,
        "deliveryContext": address,
        "lastChannel": address and address.channel,
        "lastTo": address and address.to,
        "lastAccountId": address and address.account_id,
        "lastThreadId": address and address.thread_id,
        "providerOverride": provider,
        "modelOverride": model,
        "modelOverrideSource": model and "user",
        "thinkingLevel": session.thinking_level,
        "verboseLevel": session.verbose_level,
        "sendPolicy": session.send_policy,
        "systemSent": session.system_sent,
        "abortedLastRun": session.aborted_last_run,
        "status": RUN_ENDS.get(session.last_state or ""),
        "inputTokens": session.tokens_in,
        "outputTokens": session.tokens_out,
        "totalTokens": session.total_tokens,
        "contextTokens": session.context_tokens,
        "estimatedCostUsd": session.cost,
        "spawnedBy": session.spawned_by,
    }
    return {name: value for name, value in entry.items() if value is not None}


def header_of(session: Session, time: str) -> dict[str, Any]:
    """Write the first line of a transcript; `time` is when it began, in ISO 8601."""
    return {"type": HEADER, "version": VERSION, "id": session.session_id, "timestamp": time, "cwd": "/"}


def line_of(message: Message, parent: str | None, time: str, first_kept: str | None = None) -> dict[str, Any]:
    """Write a message as a line; `parent` is the id of the line before it, `time` its own in ISO 8601.

    `first_kept` is the id of the first message that a summary does not cover.
    """
    envelope = {"id": message.id, "parentId": parent, "timestamp": time}
    fields = _fields_of(message)
    if message.role is not Role.SYSTEM:
        return {"type": "message", **envelope, "message": fields}
    content = fields.pop("content")
    del fields["role"]
    entry = message.compaction
    if entry is not None and entry.undoes is None:
        return {
            "type": COMPACTION,
            **envelope,
            "summary": message.text,
            "firstKeptEntryId": first_kept or message.id,
            "tokensBefore": entry.tokens_before,
            "details": {OWN_NOTE: fields},
        }
    return {
        "type": "custom_message",
        **envelope,
        "customType": OWN_NOTE,
        "content": content,
        "display": True,
        "details": fields,
    }


def _fields_of(message: Message) -> dict[str, Any]:
    fields: dict[str, Any] = msgspec.to_builtins(message)
    del fields["id"]
    fields["content"] = [_block(block) for block in fields["content"]]
    provider, model = _model_parts(message.model)
    if provider is not None:
        fields |= {"provider": provider, "model": model}
    if message.usage is not None:
        fields["usage"] = _usage(message.usage)
    return fields


def _block(block: dict[str, Any]) -> dict[str, Any]:
    if "signature" in block:
        block["thinkingSignature"] = block.pop("signature")
    return block


def _model_parts(ref: str | None) -> tuple[str | None, str | None]:
    """Take a model's name apart, where it has both parts."""
    provider, _, model = (ref or "").partition("/")
    return (provider, model) if provider.strip() and model.strip() else (None, ref)


def _usage(usage: Usage) -> dict[str, Any]:
    written: dict[str, Any] = {
        "input": usage.input,
        "output": usage.output,
        "cacheRead": usage.cache_read,
        "cacheWrite": usage.cache_write,
        "totalTokens": usage.input + usage.output + usage.cache_read + usage.cache_write,
    }
    if usage.cost is not None:
        written["cost"] = {"input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0, "total": usage.cost}
    return written
