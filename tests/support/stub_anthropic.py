"""Anthropic's wire: what it refuses, and how it answers."""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterator, Mapping
from typing import Any

from tests.support.stub_wires import Answer, Body, Frame, first, sse


def sign(thinking: str) -> str:
    """Sign what was thought, as a provider does, so that it knows its own."""
    return f"sig{zlib.crc32(thinking.encode())}"


class Messages:
    """Anthropic's `/v1/messages`, streamed."""

    _ID = re.compile(r"[a-zA-Z0-9_-]+")

    def key(self, headers: Mapping[str, str]) -> str:
        return headers.get("x-api-key") or headers.get("authorization", "").removeprefix("Bearer ")

    def wrong_key(self, key: str) -> str:
        return "invalid x-api-key"

    def error(self, status: int, message: str) -> str:
        kinds = {400: "invalid_request_error", 401: "authentication_error", 429: "rate_limit_error"}
        kind = kinds.get(status, "overloaded_error" if status == 529 else "api_error")
        return json.dumps({"type": "error", "error": {"type": kind, "message": message}})

    def check(self, body: Body) -> str | None:
        if not isinstance(body.get("max_tokens"), int) or not body.get("stream"):
            return "max_tokens: Field required, and stream: true"
        if not body.get("messages"):
            return "messages: at least one message is required"
        messages = self._merged(body["messages"])
        if messages[0][0] != "user":
            return 'messages: first message must use the "user" role'
        if messages[-1][0] != "user":
            return (
                "This model does not support assistant message prefill. The conversation must end with a user message."
            )
        blocks = [block for _, content in messages for block in content]
        system = (
            [{"type": "text", "text": body["system"]}]
            if isinstance(body.get("system"), str)
            else body.get("system", [])
        )
        problems = (*map(self._check_block, [*blocks, *system]), self._check_calls(messages))
        return first((*problems, self._check_thinking(body, messages)))

    def _merged(self, messages: list[Body]) -> list[tuple[str, list[Body]]]:
        merged: list[tuple[str, list[Body]]] = []
        for message in messages:
            content = message["content"]
            blocks = [{"type": "text", "text": content}] if isinstance(content, str) else list(content)
            if merged and merged[-1][0] == message["role"]:
                merged[-1][1].extend(blocks)
            else:
                merged.append((message["role"], blocks))
        return merged

    def _check_block(self, block: Body) -> str | None:
        match block:
            case {"type": "text", "text": str(text)}:
                return None if text.strip() else "messages: text content blocks must be non-empty"
            case {"type": "tool_use", "id": str(call_id), "input": dict()}:
                return None if self._ID.fullmatch(call_id) else "tool_use.id: String should match '^[a-zA-Z0-9_-]+$'"
            case {"type": "thinking", "thinking": str(thinking), "signature": str(signature)}:
                return None if signature == sign(thinking) else "Invalid `signature` in `thinking` block"
            case {"type": "tool_result", "content": list(content)}:
                return first(map(self._check_block, content))
            case {"type": "tool_result" | "image" | "redacted_thinking"}:
                return None
        return f"messages: unknown or invalid block {block.get('type')!r}"

    def _check_calls(self, messages: list[tuple[str, list[Body]]]) -> str | None:
        waiting: set[str] = set()
        for role, blocks in messages:
            if not blocks:
                return "messages: all messages must have non-empty content"
            answered = [block["tool_use_id"] for block in blocks if block["type"] == "tool_result"]
            if orphans := [call_id for call_id in answered if call_id not in waiting]:
                return f"unexpected `tool_use_id` found in `tool_result` blocks: {orphans[0]}"
            if len(answered) != len(set(answered)):
                return "each tool_use must have a single result"
            if missing := waiting - set(answered):
                return f"`tool_use` ids were found without `tool_result` blocks immediately after: {min(missing)}"
            if any(block["type"] != "tool_result" for block in blocks[: len(answered)]):
                return "tool_result blocks must come first in the content of the message"
            calls = [block["id"] for block in blocks if block["type"] == "tool_use"]
            if len(calls) != len(set(calls)) or (calls and role != "assistant"):
                return "messages: `tool_use` ids must be unique, and the assistant's"
            waiting = set(calls)
        return None

    def _check_thinking(self, body: Body, messages: list[tuple[str, list[Body]]]) -> str | None:
        is_manual = body.get("thinking", {}).get("type") == "enabled"
        if not is_manual or messages[-1][1][0]["type"] != "tool_result":
            return None
        kind = messages[-2][1][0]["type"]
        if kind in ("thinking", "redacted_thinking"):
            return None
        return (
            f"messages.{len(messages) - 2}.content.0.type: Expected `thinking` or `redacted_thinking`, but found "
            f"`{kind}`. When `thinking` is enabled, a final `assistant` message must start with a thinking block"
        )

    def frames(self, body: Body, answer: Answer) -> Iterator[Frame]:
        def event(kind: str, **data: Any) -> str:
            return sse({"type": kind, **data}, kind)

        fresh = answer.input_tokens - answer.cached_tokens
        usage = {"input_tokens": fresh, "cache_read_input_tokens": answer.cached_tokens, "output_tokens": 1}
        message: Body = {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "model": answer.model or body["model"],
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": {**usage, "cache_creation_input_tokens": 0},
        }
        yield Frame(event("message_start", message=message))
        yield Frame(event("ping"))
        index = 0
        if answer.thinking:
            block: Body = {"type": "thinking", "thinking": "", "signature": ""}
            signature = {"type": "signature_delta", "signature": sign(answer.thinking)}
            delta = {"type": "thinking_delta", "thinking": answer.thinking}
            yield Frame(event("content_block_start", index=index, content_block=block))
            yield Frame(event("content_block_delta", index=index, delta=delta))
            yield Frame(event("content_block_delta", index=index, delta=signature))
            yield Frame(event("content_block_stop", index=index))
            index += 1
        if answer.texts:
            block = {"type": "text", "text": ""}
            yield Frame(event("content_block_start", index=index, content_block=block))
            for place, text in enumerate(answer.texts):
                delta = {"type": "text_delta", "text": text}
                yield Frame(event("content_block_delta", index=index, delta=delta), place)
            yield Frame(event("content_block_stop", index=index), is_end=not answer.calls)
            index += 1
        for count, call in enumerate(answer.calls):
            block = {"type": "tool_use", "id": f"toolu_{count}", "name": call.name, "input": {}}
            delta = {"type": "input_json_delta", "partial_json": call.json}
            yield Frame(event("content_block_start", index=index + count, content_block=block))
            yield Frame(event("content_block_delta", index=index + count, delta=delta))
            yield Frame(event("content_block_stop", index=index + count))
        ends = {"length": "max_tokens", "refusal": "refusal", None: "tool_use" if answer.calls else "end_turn"}
        stop = {"stop_reason": ends[answer.stop], "stop_sequence": None}
        used = {"output_tokens": answer.output_tokens}
        yield Frame(event("message_delta", delta=stop, usage=used), len(answer.texts), is_end=True)
        yield Frame(event("message_stop"), is_end=True)
