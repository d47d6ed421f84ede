"""OpenAI's two wires: what they refuse, and how they answer."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from tests.support.stub_wires import Answer, Body, Frame, first, sse


def _bearer(headers: Mapping[str, str]) -> str:
    return headers.get("authorization", "").removeprefix("Bearer ")


def _openai_error(status: int, message: str) -> str:
    kinds = {401: "invalid_request_error", 429: "requests", 400: "invalid_request_error"}
    code = "invalid_api_key" if status == 401 else None
    kind = kinds.get(status, "server_error")
    return json.dumps({"error": {"message": message, "type": kind, "param": None, "code": code}})


def _openai_wrong_key(key: str) -> str:
    shown = f"{key[:8]}{'*' * max(len(key) - 12, 0)}{key[-4:]}"
    return f"Incorrect API key provided: {shown}. You can find your API key at https://example.com."


class ChatCompletions:
    """OpenAI's `/v1/chat/completions`."""

    key = staticmethod(_bearer)
    wrong_key = staticmethod(_openai_wrong_key)
    error = staticmethod(_openai_error)

    def check(self, body: Body) -> str | None:
        messages = body.get("messages")
        if not isinstance(messages, list) or not messages:
            return "Invalid 'messages': empty array. Expected an array with minimum length 1."
        return first((self._check_calls(messages), *map(self._check_content, messages), self._check_tools(body)))

    def _check_calls(self, messages: list[Body]) -> str | None:
        waiting: list[str] = []
        for message in messages:
            if message["role"] == "tool":
                if message.get("tool_call_id") not in waiting:
                    return "messages with role 'tool' must be a response to a preceeding message with 'tool_calls'."
                waiting.remove(message["tool_call_id"])
                continue
            if waiting:
                break
            waiting = [call["id"] for call in message.get("tool_calls", [])]
            if any(len(call_id) > 40 for call_id in waiting):
                return "Invalid 'messages.tool_calls.id': string too long. Expected a maximum length of 40."
        if waiting:
            return (
                "An assistant message with 'tool_calls' must be followed by tool messages responding to each "
                f"'tool_call_id'. The following tool_call_ids did not have response messages: {', '.join(waiting)}"
            )
        return None

    def _check_content(self, message: Body) -> str | None:
        content, role = message.get("content"), message["role"]
        if role not in ("system", "developer", "user", "assistant", "tool"):
            return f"Invalid value: '{role}'."
        if content is None and not message.get("tool_calls"):
            return "Invalid value for 'content': expected a string, got null."
        if content in ([], "") and role != "assistant":
            return f"Invalid content of a {role} message: empty."
        for call in message.get("tool_calls", []):
            if not isinstance(json.loads(call["function"]["arguments"]), dict):
                return "Invalid 'tool_calls.function.arguments': expected an object."
        return None

    def _check_tools(self, body: Body) -> str | None:
        for tool in body.get("tools", []):
            if not re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", tool["function"]["name"]):
                return "Invalid 'tools.function.name': string does not match pattern."
        return None

    def frames(self, body: Body, answer: Answer) -> Iterator[Frame]:
        def chunk(delta: Body, finish: str | None = None, usage: Body | None = None) -> str:
            choices = [] if usage else [{"index": 0, "delta": delta, "finish_reason": finish}]
            model = answer.model or body["model"]
            shown = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": model}
            return sse({**shown, "choices": choices, **({"usage": usage} if usage else {})})

        yield Frame(chunk({"role": "assistant", "content": ""}))
        if answer.thinking:
            yield Frame(chunk({"reasoning_content": answer.thinking}))
        for place, text in enumerate(answer.texts):
            yield Frame(chunk({"content": text}), place)
        for index, call in enumerate(answer.calls):
            half = len(call.json) // 2
            named = {"name": call.name, "arguments": call.json[:half]}
            head = {"index": index, "id": f"call_{index}", "type": "function", "function": named}
            yield Frame(chunk({"tool_calls": [head]}))
            yield Frame(chunk({"tool_calls": [{"index": index, "function": {"arguments": call.json[half:]}}]}))
        yield Frame(chunk({}, self._finish(answer)), len(answer.texts), is_end=True)
        yield Frame(chunk({}, usage=self._usage(answer)), is_end=True)
        yield Frame(sse("[DONE]"), is_end=True)

    def whole(self, body: Body, answer: Answer) -> str:
        calls = [
            {"id": f"call_{i}", "type": "function", "function": {"name": call.name, "arguments": call.json}}
            for i, call in enumerate(answer.calls)
        ]
        message = {"role": "assistant", "content": "".join(answer.texts) or None, "tool_calls": calls or None}
        choice = {"index": 0, "message": message, "finish_reason": self._finish(answer)}
        shown = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1}
        return json.dumps(
            {**shown, "model": answer.model or body["model"], "choices": [choice], "usage": self._usage(answer)}
        )

    def _finish(self, answer: Answer) -> str:
        ends = {"length": "length", "refusal": "content_filter", None: "tool_calls" if answer.calls else "stop"}
        return ends[answer.stop]

    def _usage(self, answer: Answer) -> Body:
        return {
            "prompt_tokens": answer.input_tokens,
            "completion_tokens": answer.output_tokens,
            "total_tokens": answer.input_tokens + answer.output_tokens,
            "prompt_tokens_details": {"cached_tokens": answer.cached_tokens},
        }


class Responses:
    """OpenAI's `/v1/responses`, streamed."""

    key = staticmethod(_bearer)
    wrong_key = staticmethod(_openai_wrong_key)
    error = staticmethod(_openai_error)

    def check(self, body: Body) -> str | None:
        if not body.get("input") or not body.get("stream"):
            return "Invalid 'input': empty array, or not a stream."
        waiting: set[str] = set()
        seen: set[str] = set()
        for item in body["input"]:
            match item.get("type", "message"):
                case "function_call":
                    if len(item["call_id"]) > 64 or item["call_id"] in seen:
                        return "Invalid 'input.call_id': too long, or used before."
                    waiting.add(item["call_id"])
                    seen.add(item["call_id"])
                case "function_call_output":
                    if item["call_id"] not in waiting:
                        return f"No tool call found for function call output with call_id {item['call_id']}."
                    waiting.discard(item["call_id"])
                case "reasoning":
                    if not item.get("encrypted_content"):
                        return f"Item '{item.get('id')}' of type 'reasoning' was not found: store is false."
                case "message" if not item.get("content"):
                    return "Invalid 'input.content': empty."
        return f"No tool output found for function call {min(waiting)}." if waiting else None

    def frames(self, body: Body, answer: Answer) -> Iterator[Frame]:
        number = iter(range(1_000_000))

        def event(kind: str, **data: Any) -> str:
            return sse({"type": kind, "sequence_number": next(number), **data}, kind)

        response: Body = {
            "id": "resp_1",
            "object": "response",
            "created_at": 1,
            "model": answer.model or body["model"],
            "output": [],
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": [],
        }
        yield Frame(event("response.created", response={**response, "status": "in_progress"}))
        index = 0
        if answer.thinking:
            item = {"id": "rs_1", "type": "reasoning", "summary": []}
            place = {"item_id": "rs_1", "output_index": index, "summary_index": 0}
            part = {"type": "summary_text", "text": ""}
            yield Frame(event("response.output_item.added", output_index=index, item=item))
            yield Frame(event("response.reasoning_summary_part.added", **place, part=part))
            yield Frame(event("response.reasoning_summary_text.delta", **place, delta=answer.thinking))
            done = {**item, "summary": [{**part, "text": answer.thinking}], "encrypted_content": "gAAAA-enc"}
            yield Frame(event("response.output_item.done", output_index=index, item=done))
            index += 1
        if answer.texts:
            item = {"id": "msg_1", "type": "message", "role": "assistant", "status": "in_progress", "content": []}
            yield Frame(event("response.output_item.added", output_index=index, item=item))
            spot = {"item_id": "msg_1", "output_index": index, "content_index": 0, "logprobs": []}
            for count, text in enumerate(answer.texts):
                yield Frame(event("response.output_text.delta", **spot, delta=text), count)
            index += 1
        for count, call in enumerate(answer.calls):
            item = {"id": f"fc_{count}", "type": "function_call", "call_id": f"call_{count}", "name": call.name}
            started = {**item, "arguments": "", "status": "in_progress"}
            spot = {"item_id": f"fc_{count}", "output_index": index + count}
            yield Frame(event("response.output_item.added", output_index=index + count, item=started))
            yield Frame(event("response.function_call_arguments.delta", **spot, delta=call.json))
            yield Frame(event("response.function_call_arguments.done", **spot, name=call.name, arguments=call.json))
        kind = "response.incomplete" if answer.stop == "length" else "response.completed"
        reason = {"reason": "max_output_tokens"} if answer.stop == "length" else None
        usage = {
            "input_tokens": answer.input_tokens,
            "input_tokens_details": {"cached_tokens": answer.cached_tokens},
            "output_tokens": answer.output_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": answer.input_tokens + answer.output_tokens,
        }
        ended = {**response, "status": kind.partition(".")[2], "incomplete_details": reason, "usage": usage}
        yield Frame(event(kind, response=ended), len(answer.texts), is_end=True)
