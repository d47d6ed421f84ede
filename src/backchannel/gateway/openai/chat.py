"""Chat completions: the request of `/v1/chat/completions` and its answer, whole or in chunks."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from backchannel.core.runs import Run
from backchannel.gateway.openai.following import shown_reply
from backchannel.gateway.openai.reading import Speaker, Utterance, describe_call, describe_result, read_image

DONE = b"data: [DONE]\n\n"


class TextPart(msgspec.Struct, tag_field="type", tag="text"):
    text: str


class RefusalPart(msgspec.Struct, tag_field="type", tag="refusal"):
    refusal: str


class ImageUrl(msgspec.Struct):
    url: str


class ImagePart(msgspec.Struct, tag_field="type", tag="image_url"):
    image_url: ImageUrl


class CalledFunction(msgspec.Struct):
    name: str
    arguments: str = ""


class FunctionCall(msgspec.Struct):
    """A tool call in a history of another model."""

    id: str = ""
    function: CalledFunction | None = None


class ChatMessage(msgspec.Struct):
    """One message of the client's history."""

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | list[TextPart | ImagePart | RefusalPart] | None = None
    name: str | None = None
    tool_calls: list[FunctionCall] | None = None
    tool_call_id: str | None = None

    @property
    def text(self) -> str:
        if not isinstance(self.content, list):
            return self.content or ""
        texts = [
            part.text if isinstance(part, TextPart) else part.refusal
            for part in self.content
            if not isinstance(part, ImagePart)
        ]
        return "\n".join(texts)


class StreamOptions(msgspec.Struct):
    include_usage: bool | None = None


class ChatRequest(msgspec.Struct):
    """A request; `reading.py` handles all other parameters."""

    model: str
    messages: list[ChatMessage]
    stream: bool = False
    stream_options: StreamOptions | None = None
    user: str | None = None
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh"] | None = None


_SPEAKERS = {"system": Speaker.INSTRUCTOR, "developer": Speaker.INSTRUCTOR, "user": Speaker.USER}


def read_lines(messages: list[ChatMessage]) -> list[Utterance]:
    """Read a history.

    Raises:
        InvalidRequest: one of its images cannot be taken.
    """
    calls: dict[str, str] = {}
    lines: list[Utterance] = []
    for message in messages:
        if message.role == "assistant":
            shown = {
                call.id: describe_call(call.function.name, call.function.arguments)
                for call in message.tool_calls or ()
                if call.function is not None
            }
            calls |= shown
            lines.append(Utterance(Speaker.ASSISTANT, "\n".join(filter(None, [message.text, *shown.values()]))))
        elif message.role in ("tool", "function"):
            call = calls.get(message.tool_call_id or "", message.name)
            lines.append(Utterance(Speaker.TOOL, describe_result(call, message.text), _images(message)))
        else:
            lines.append(Utterance(_SPEAKERS[message.role], message.text, _images(message)))
    return lines


def _images(message: ChatMessage) -> Any:
    if not isinstance(message.content, list):
        return ()
    return tuple(read_image(part.image_url.url) for part in message.content if isinstance(part, ImagePart))


class CompletionUsage(msgspec.Struct):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class CompletionMessage(msgspec.Struct, kw_only=True):
    role: Literal["assistant"] = "assistant"
    content: str
    refusal: None = None


class CompletionChoice(msgspec.Struct, kw_only=True):
    index: int = 0
    message: CompletionMessage
    finish_reason: Literal["stop"] = "stop"
    logprobs: None = None


class Completion(msgspec.Struct, kw_only=True):
    """A whole answer."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: CompletionUsage


def show_completion(run: Run, model: str) -> Completion:
    """Show a run that ended with ok as a whole answer."""
    return Completion(
        id=_id(run),
        created=run.accepted_at // 1000,
        model=model,
        choices=[CompletionChoice(message=CompletionMessage(content=shown_reply(run)))],
        usage=_usage(run),
    )


class Chunks:
    """The pieces of a streamed answer."""

    def __init__(self, model: str, *, with_usage: bool) -> None:
        self._model = model
        self._with_usage = with_usage

    def begin(self, run: Run) -> bytes:
        return self._chunk(run, {"role": "assistant", "content": ""})

    def piece(self, run: Run, text: str) -> bytes:
        return self._chunk(run, {"content": text})

    def end(self, run: Run) -> bytes:
        last = self._chunk(run, {}, finish="stop")
        if self._with_usage:
            last += self._event({**self._frame(run), "choices": [], "usage": _usage(run)})
        return last + DONE

    def fail(self, run: Run, error: dict[str, Any]) -> bytes:
        return self._event({"error": error}) + DONE

    def _chunk(self, run: Run, delta: dict[str, str], finish: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": finish, "logprobs": None}
        body = {**self._frame(run), "choices": [choice]}
        # A client that asked for the usage finds the field in every chunk, null before the last.
        return self._event({**body, "usage": None} if self._with_usage else body)

    def _frame(self, run: Run) -> dict[str, Any]:
        created = run.accepted_at // 1000
        return {"id": _id(run), "object": "chat.completion.chunk", "created": created, "model": self._model}

    def _event(self, body: dict[str, Any]) -> bytes:
        return b"data: " + msgspec.json.encode(body) + b"\n\n"


def _id(run: Run) -> str:
    return f"chatcmpl-{run.id}"


def _usage(run: Run) -> CompletionUsage:
    usage = run.usage
    return CompletionUsage(prompt_tokens=usage.input, completion_tokens=usage.output, total_tokens=usage.total)
