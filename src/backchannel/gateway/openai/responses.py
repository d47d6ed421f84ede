"""Responses: the request of `/v1/responses` and its answer, whole or as events.

A response is a run, and its id names it. `previous_response_id` continues the session of that run.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec
from msgspec.structs import replace

from backchannel.core.messages import ImageBlock
from backchannel.core.runs import Run, RunState
from backchannel.errors import InvalidRequest
from backchannel.gateway.openai.following import describe_failure, shown_reply
from backchannel.gateway.openai.reading import Speaker, Utterance, describe_call, describe_result, read_image

ID_PREFIX = "resp_"

Status = Literal["queued", "in_progress", "completed", "failed", "cancelled"]

_STATUSES: Mapping[RunState, Status] = {
    RunState.QUEUED: "queued",
    RunState.RUNNING: "in_progress",
    RunState.OK: "completed",
    RunState.ABORTED: "cancelled",
}


class InputText(msgspec.Struct, tag_field="type", tag="input_text"):
    text: str


class OutputText(msgspec.Struct, tag_field="type", tag="output_text"):
    text: str


class RefusalContent(msgspec.Struct, tag_field="type", tag="refusal"):
    refusal: str


class InputImage(msgspec.Struct, tag_field="type", tag="input_image"):
    image_url: str | None = None
    file_id: str | None = None


Content = str | list[InputText | OutputText | RefusalContent | InputImage]


class InputItem(msgspec.Struct):
    """One item of the input: a message, a tool call elsewhere, or its result."""

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
    """A request; `reading.py` handles all other parameters."""

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


def read_lines(request: ResponsesRequest) -> list[Utterance]:
    """Read the input.

    Raises:
        InvalidRequest: an item cannot be taken.
    """
    lines = [] if request.instructions is None else [Utterance(Speaker.INSTRUCTOR, request.instructions)]
    if isinstance(request.input, str):
        return [*lines, Utterance(Speaker.USER, request.input)]
    calls: dict[str, str] = {}
    for item in request.input:
        match item.type:
            case "message":
                if item.role is None:
                    raise InvalidRequest("input: a message needs a role", param="input")
                lines.append(Utterance(_SPEAKERS[item.role], _text(item.content), _images(item.content)))
            case "function_call":
                call = describe_call(item.name or "a tool", item.arguments or "")
                calls[item.call_id or ""] = call
                lines.append(Utterance(Speaker.ASSISTANT, call))
            case "function_call_output":
                result = describe_result(calls.get(item.call_id or ""), _text(item.output))
                lines.append(Utterance(Speaker.TOOL, result, _images(item.output)))
            case "reasoning":
                pass  # another model's own notes: OpenAI's are encrypted, and of no use to another
    return lines


def _text(content: Content | None) -> str:
    if not isinstance(content, list):
        return content or ""
    texts = [
        part.refusal if isinstance(part, RefusalContent) else part.text
        for part in content
        if not isinstance(part, InputImage)
    ]
    return "\n".join(texts)


def _images(content: Content | None) -> tuple[ImageBlock, ...]:
    if not isinstance(content, list):
        return ()
    return tuple(_image(part) for part in content if isinstance(part, InputImage))


def _image(part: InputImage) -> ImageBlock:
    if part.image_url is None:
        raise InvalidRequest(
            "file_id: this gateway stores no files: send the image itself as image_url", param="file_id"
        )
    return read_image(part.image_url)


def response_id(run: Run) -> str:
    return f"{ID_PREFIX}{run.id}"


class AnswerPart(msgspec.Struct, kw_only=True):
    type: Literal["output_text"] = "output_text"
    text: str
    annotations: tuple[()] = ()
    logprobs: tuple[()] = ()


class AnswerItem(msgspec.Struct, kw_only=True):
    """The message of a response."""

    type: Literal["message"] = "message"
    id: str
    role: Literal["assistant"] = "assistant"
    status: Literal["in_progress", "completed"]
    content: list[AnswerPart]


class ResponseFailure(msgspec.Struct):
    code: str
    message: str


class ResponseUsage(msgspec.Struct):
    input_tokens: int
    output_tokens: int
    total_tokens: int
    input_tokens_details: dict[str, int]
    output_tokens_details: dict[str, int]


class ShownResponse(msgspec.Struct, kw_only=True):
    """A run as it is now. Fields that no setting of a request decides have neutral values."""

    id: str
    object: Literal["response"] = "response"
    created_at: int
    status: Status
    model: str
    error: ResponseFailure | None
    instructions: str | None
    output: list[AnswerItem]
    previous_response_id: str | None
    usage: ResponseUsage | None
    incomplete_details: None = None
    metadata: dict[str, str] = msgspec.field(default_factory=dict)
    parallel_tool_calls: bool = False
    temperature: None = None
    text: dict[str, dict[str, str]] = msgspec.field(default_factory=lambda: {"format": {"type": "text"}})
    tool_choice: Literal["none"] = "none"
    tools: tuple[()] = ()
    top_p: None = None


def show_response(run: Run, model: str, previous: str | None = None) -> ShownResponse:
    """Show a run."""
    failed = run.state in (RunState.ERROR, RunState.TIMEOUT)
    return ShownResponse(
        id=response_id(run),
        created_at=run.accepted_at // 1000,
        status=_STATUSES.get(run.state, "failed"),
        model=model,
        error=_failure(describe_failure(run)) if failed else None,
        instructions=run.instructions,
        output=[_message(run, shown_reply(run))] if run.state is RunState.OK else [],
        previous_response_id=previous,
        usage=_usage(run) if run.is_finished else None,
    )


def _failure(error: dict[str, Any]) -> ResponseFailure:
    return ResponseFailure(code=error["code"] or "server_error", message=error["message"])


def _message(run: Run, text: str) -> AnswerItem:
    return AnswerItem(id=_item_id(run), status="completed", content=[AnswerPart(text=text)])


def _item_id(run: Run) -> str:
    return f"msg_{run.id}"


def _usage(run: Run) -> ResponseUsage:
    usage = run.usage
    return ResponseUsage(
        input_tokens=usage.input,
        output_tokens=usage.output,
        total_tokens=usage.total,
        input_tokens_details={"cached_tokens": 0, "cache_write_tokens": 0},
        output_tokens_details={"reasoning_tokens": 0},
    )


class ResponseEvents:
    """The events of a streamed answer."""

    def __init__(self, model: str, previous: str | None) -> None:
        self._model = model
        self._previous = previous
        self._number = 0
        self._text = ""

    def begin(self, run: Run) -> bytes:
        empty = AnswerItem(id=_item_id(run), status="in_progress", content=[])
        return (
            self._about(run, "response.created")
            + self._about(run, "response.in_progress")
            + self._event("response.output_item.added", output_index=0, item=empty)
            + self._in_item(run, "response.content_part.added", part=AnswerPart(text=""))
        )

    def piece(self, run: Run, text: str) -> bytes:
        self._text += text
        return self._in_item(run, "response.output_text.delta", delta=text, logprobs=[])

    def end(self, run: Run) -> bytes:
        # The item holds what was streamed, which may be more than the last step's text: the two must agree.
        whole = replace(show_response(run, self._model, self._previous), output=[_message(run, self._text)])
        return (
            self._in_item(run, "response.output_text.done", text=self._text, logprobs=[])
            + self._in_item(run, "response.content_part.done", part=AnswerPart(text=self._text))
            + self._event("response.output_item.done", output_index=0, item=_message(run, self._text))
            + self._event("response.completed", response=whole)
        )

    def fail(self, run: Run, error: dict[str, Any]) -> bytes:
        if not run.is_finished:
            return self._event("error", code=error["code"], message=error["message"], param=None)
        shown = show_response(run, self._model, self._previous)
        return self._event("response.failed", response=replace(shown, status="failed", error=_failure(error)))

    def _about(self, run: Run, kind: str) -> bytes:
        shown = show_response(run, self._model, self._previous)
        return self._event(kind, response=replace(shown, status="in_progress", output=[], usage=None))

    def _in_item(self, run: Run, kind: str, **more: Any) -> bytes:
        return self._event(kind, item_id=_item_id(run), output_index=0, content_index=0, **more)

    def _event(self, kind: str, **more: Any) -> bytes:
        body = {"type": kind, "sequence_number": self._number, **more}
        self._number += 1
        return f"event: {kind}\ndata: ".encode() + msgspec.json.encode(body) + b"\n\n"
