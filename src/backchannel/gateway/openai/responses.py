"""Responses: what a client asks at `/v1/responses`, and the answer, whole or as events.

A response is a run, and its id names it. `previous_response_id` continues the session of that run.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from backchannel.core.messages import ImageBlock
from backchannel.core.runs import Run, RunState
from backchannel.errors import InvalidRequest
from backchannel.gateway.openai.conversation import Line, Speaker, describe_call, describe_result
from backchannel.gateway.openai.errors import describe_failure
from backchannel.gateway.openai.following import shown_reply
from backchannel.gateway.openai.images import read_image

ID_PREFIX = "resp_"

_STATUSES = {
    RunState.QUEUED: "queued",
    RunState.RUNNING: "in_progress",
    RunState.OK: "completed",
    RunState.ABORTED: "cancelled",
}


class InputText(msgspec.Struct, tag_field="type", tag="input_text"):
    text: str


class OutputText(msgspec.Struct, tag_field="type", tag="output_text"):
    text: str


class Refusal(msgspec.Struct, tag_field="type", tag="refusal"):
    refusal: str


class InputImage(msgspec.Struct, tag_field="type", tag="input_image"):
    image_url: str | None = None
    file_id: str | None = None


Content = str | list[InputText | OutputText | Refusal | InputImage]


class InputItem(msgspec.Struct):
    """One item of the input: a message, or a call of a tool elsewhere, or what came of it."""

    type: Literal["message", "function_call", "function_call_output", "reasoning"] = "message"
    role: Literal["system", "developer", "user", "assistant"] | None = None
    content: Content | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    output: Content | None = None


class Reasoning(msgspec.Struct):
    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh"] | None = None


class ResponsesRequest(msgspec.Struct):
    """What a client asks; `parameters.py` says what becomes of everything else that it may send."""

    model: str
    input: str | list[InputItem]
    instructions: str | None = None
    previous_response_id: str | None = None
    stream: bool = False
    store: bool = True
    user: str | None = None
    reasoning: Reasoning | None = None


_SPEAKERS = {
    "system": Speaker.INSTRUCTOR,
    "developer": Speaker.INSTRUCTOR,
    "user": Speaker.USER,
    "assistant": Speaker.ASSISTANT,
}


def read_lines(request: ResponsesRequest) -> list[Line]:
    """Read the input.

    Raises:
        InvalidRequest: an item cannot be taken.
    """
    lines = [] if request.instructions is None else [Line(Speaker.INSTRUCTOR, request.instructions)]
    if isinstance(request.input, str):
        return [*lines, Line(Speaker.USER, request.input)]
    calls: dict[str, str] = {}
    for item in request.input:
        match item.type:
            case "message":
                if item.role is None:
                    raise InvalidRequest("input: a message needs a role", param="input")
                lines.append(Line(_SPEAKERS[item.role], _text(item.content), _images(item.content)))
            case "function_call":
                call = describe_call(item.name or "a tool", item.arguments or "")
                calls[item.call_id or ""] = call
                lines.append(Line(Speaker.ASSISTANT, call))
            case "function_call_output":
                result = describe_result(calls.get(item.call_id or ""), _text(item.output))
                lines.append(Line(Speaker.TOOL, result, _images(item.output)))
            case "reasoning":
                pass  # another model's own notes: OpenAI's are encrypted, and of no use to another
    return lines


def _text(content: Content | None) -> str:
    if not isinstance(content, list):
        return content or ""
    texts = [
        part.refusal if isinstance(part, Refusal) else part.text for part in content if not isinstance(part, InputImage)
    ]
    return "\n".join(texts)


def _images(content: Content | None) -> tuple[ImageBlock, ...]:
    if not isinstance(content, list):
        return ()
    return tuple(_image(part) for part in content if isinstance(part, InputImage))


def _image(part: InputImage) -> ImageBlock:
    if part.image_url is None:
        raise InvalidRequest("file_id: no files are kept here: send the image itself as image_url", param="file_id")
    return read_image(part.image_url)


def response_id(run: Run) -> str:
    return f"{ID_PREFIX}{run.id}"


def show_response(run: Run, model: str, previous: str | None = None) -> dict[str, Any]:
    """Show a run, as far as it has come."""
    is_done = run.state is RunState.OK
    failed = run.state in (RunState.ERROR, RunState.TIMEOUT)
    return {
        "id": response_id(run),
        "object": "response",
        "created_at": run.accepted_at // 1000,
        "status": _STATUSES.get(run.state, "failed"),
        "error": _error(run) if failed else None,
        "incomplete_details": None,
        "instructions": run.instructions,
        "metadata": {},
        "model": model,
        "output": [_message(run, shown_reply(run))] if is_done else [],
        "parallel_tool_calls": False,
        "previous_response_id": previous,
        "temperature": None,
        "text": {"format": {"type": "text"}},
        "tool_choice": "none",
        "tools": [],
        "top_p": None,
        "usage": _usage(run) if run.is_finished else None,
    }


def _error(run: Run) -> dict[str, Any]:
    failure = describe_failure(run)
    return {"code": failure["code"] or "server_error", "message": failure["message"]}


def _message(run: Run, text: str, status: str = "completed") -> dict[str, Any]:
    content = [_part(text)] if status == "completed" else []
    return {"type": "message", "id": _item_id(run), "role": "assistant", "status": status, "content": content}


def _part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _item_id(run: Run) -> str:
    return f"msg_{run.id}"


def _usage(run: Run) -> dict[str, Any]:
    usage = run.usage
    return {
        "input_tokens": usage.input,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": usage.output,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage.total,
    }


class ResponseEvents:
    """The events of a streamed answer."""

    def __init__(self, model: str, previous: str | None) -> None:
        self._model = model
        self._previous = previous
        self._number = 0
        self._text = ""

    def begin(self, run: Run) -> bytes:
        return (
            self._about(run, "response.created")
            + self._about(run, "response.in_progress")
            + self._event("response.output_item.added", output_index=0, item=_message(run, "", "in_progress"))
            + self._in_item(run, "response.content_part.added", part=_part(""))
        )

    def piece(self, run: Run, text: str) -> bytes:
        self._text += text
        return self._in_item(run, "response.output_text.delta", delta=text, logprobs=[])

    def end(self, run: Run) -> bytes:
        # The item holds what was streamed, which may be more than the last step's text: the two must agree.
        whole = show_response(run, self._model, self._previous) | {"output": [_message(run, self._text)]}
        return (
            self._in_item(run, "response.output_text.done", text=self._text, logprobs=[])
            + self._in_item(run, "response.content_part.done", part=_part(self._text))
            + self._event("response.output_item.done", output_index=0, item=_message(run, self._text))
            + self._event("response.completed", response=whole)
        )

    def fail(self, run: Run, error: dict[str, Any]) -> bytes:
        if not run.is_finished:
            return self._event("error", code=error["code"], message=error["message"], param=None)
        shown = show_response(run, self._model, self._previous)
        failed = {"status": "failed", "error": {"code": error["code"] or "server_error", "message": error["message"]}}
        return self._event("response.failed", response=shown | failed)

    def _about(self, run: Run, kind: str) -> bytes:
        shown = show_response(run, self._model, self._previous) | {"status": "in_progress", "output": [], "usage": None}
        return self._event(kind, response=shown)

    def _in_item(self, run: Run, kind: str, **more: Any) -> bytes:
        return self._event(kind, item_id=_item_id(run), output_index=0, content_index=0, **more)

    def _event(self, kind: str, **more: Any) -> bytes:
        body = {"type": kind, "sequence_number": self._number, **more}
        self._number += 1
        return f"event: {kind}\ndata: ".encode() + msgspec.json.encode(body) + b"\n\n"
