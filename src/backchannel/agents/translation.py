"""Translation of requests and replies between our values and pydantic-ai's.

Providers are stricter than a transcript. Ids of tool calls are short and plain. No text is empty. A model's thinking
goes back only to the provider that signed it. `build_history` keeps to that whatever it is given;
`build_reply` reads what came back. Nothing here imports pydantic-ai before it is called.
"""

from __future__ import annotations

import binascii
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from itertools import groupby
from typing import TYPE_CHECKING, Any

from backchannel.agents.wires.content import (
    EMPTY_MESSAGE,
    LARGE_IMAGE,
    UNREADABLE_IMAGE,
    UNSEEN_IMAGE,
    signed_thinking,
    wire_call_id,
)
from backchannel.core.contracts import (
    ModelFailed,
    ModelReply,
    ModelRequest,
    TextDelta,
    ThinkingDelta,
)
from backchannel.core.delivery.received import decode_base64, encode_base64
from backchannel.core.incoming_json import TooMuchJson, check_parts
from backchannel.core.messages import (
    Block,
    ImageBlock,
    Message,
    Role,
    TextBlock,
    ThinkingBlock,
    ToolCallBlock,
    Usage,
)

if TYPE_CHECKING:
    from pydantic_ai import messages as pai
    from pydantic_ai.models import ModelRequestParameters

LONGEST_ARGUMENTS = 1024 * 1024
MOST_IN_ARGUMENTS = 25_000
"""As `check_parts` counts: they are walked through by every step that they take."""

_STOP_REASONS = {"length": "length", "tool_call": "toolUse", "content_filter": "contentFilter"}


def build_history(
    request: ModelRequest, *, provider: str, system: str, image_limit: int = sys.maxsize
) -> list[pai.ModelMessage]:
    """Build the messages of a request for `provider`, which pydantic-ai calls `system`.

    `image_limit` is how large an image may be, in characters of base64; 0 means that the model sees none.
    """
    from pydantic_ai import messages as pai

    places = _places_of_calls(request.messages)
    history: list[pai.ModelMessage] = []
    for role, group in groupby(request.messages, key=lambda message: message.role):
        if role is Role.ASSISTANT:
            said = [part for message in group for part in _reply_parts(message, provider, system)]
            if said:
                history.append(pai.ModelResponse(parts=said, provider_name=system))
            continue
        parts: list[pai.ModelRequestPart]
        if role is Role.TOOL_RESULT:
            ordered = sorted(group, key=lambda message: _place_of(message, places))
            parts = [_tool_return(message, image_limit) for message in ordered]
        else:
            parts = [pai.UserPromptPart(content=_prompt(message, image_limit)) for message in group]
        if history and isinstance(last := history[-1], pai.ModelRequest):
            last.parts = [*last.parts, *parts]  # what stood between had nothing to say
        else:
            history.append(pai.ModelRequest(parts=parts))
    return history


def build_parameters(request: ModelRequest) -> ModelRequestParameters:
    """Build what goes beside the messages: the system prompt and the tools."""
    from pydantic_ai.messages import InstructionPart
    from pydantic_ai.models import ModelRequestParameters
    from pydantic_ai.tools import ToolDefinition

    return ModelRequestParameters(
        function_tools=[
            # Not strict: providers' strict mode rewrites a schema, and the tools check what they get.
            ToolDefinition(
                name=tool.name,
                description=tool.description,
                parameters_json_schema=dict(tool.parameters),
                strict=False,
            )
            for tool in request.tools
        ],
        instruction_parts=[InstructionPart(content=request.system)] if request.system.strip() else [],
    )


def read_delta(event: pai.ModelResponseStreamEvent) -> TextDelta | ThinkingDelta | None:
    """Read what an event of the stream adds to the text or the thinking, if anything."""
    from pydantic_ai import messages as pai

    match event:
        case pai.PartStartEvent(part=pai.TextPart(content=str(text))) if text:
            return TextDelta(text)
        case pai.PartDeltaEvent(delta=pai.TextPartDelta(content_delta=str(text))) if text:
            return TextDelta(text)
        case pai.PartStartEvent(part=pai.ThinkingPart(content=str(text))) if text:
            return ThinkingDelta(text)
        case pai.PartDeltaEvent(delta=pai.ThinkingPartDelta(content_delta=str(text))) if text:
            return ThinkingDelta(text)
    return None


def begins_call(event: pai.ModelResponseStreamEvent) -> bool:
    """Whether an event of the stream is the first of a tool call."""
    from pydantic_ai import messages as pai

    return isinstance(event, pai.PartStartEvent) and isinstance(event.part, pai.ToolCallPart)


def build_reply(response: pai.ModelResponse, provider: str) -> ModelReply:
    """Build the reply from a stream that was read to its end.

    Raises:
        ModelFailed: the stream ended before the provider said that it is complete.
    """
    details = response.provider_details or {}
    # Some adapters make up a reason for a stream that just ended; what the provider itself said is in the details.
    if not details.get("finish_reason") and "refusal" not in details:
        raise ModelFailed(f"{provider} broke off in the middle of its reply", retryable=True)
    if response.finish_reason == "error":
        raise ModelFailed(f"{provider} ended its reply with an error", retryable=True)
    content = tuple(block for part in response.parts if (block := _read_part(part)) is not None)
    if not content and isinstance(refusal := details.get("refusal"), str) and refusal:
        content = (TextBlock(text=refusal),)
    stop_reason = _STOP_REASONS.get(response.finish_reason or "stop", "stop")
    if stop_reason == "stop" and any(isinstance(block, ToolCallBlock) for block in content):
        stop_reason = "toolUse"  # some endpoints say `stop` whatever was asked for
    used = response.usage
    return ModelReply(
        content=content,
        usage=Usage(
            input=max(0, used.input_tokens - used.cache_read_tokens - used.cache_write_tokens),
            output=used.output_tokens,
            cache_read=used.cache_read_tokens,
            cache_write=used.cache_write_tokens,
        ),
        model=f"{provider}/{response.model_name}",
        stop_reason=stop_reason,
    )


# --- What we said, in their words ---


def _places_of_calls(messages: Sequence[Message]) -> dict[str, int]:
    """Number the tool calls: their results go out in the same order."""
    places: dict[str, int] = {}
    for message in messages:
        for call in message.tool_calls:
            places.setdefault(call.id, len(places))
    return places


def _place_of(result: Message, places: dict[str, int]) -> int:
    place = places.get(result.tool_call_id or "")
    if place is None:
        raise ModelFailed(f"the tool result {result.id!r} answers no call of the request", retryable=False)
    return place


def _reply_parts(message: Message, provider: str, system: str) -> list[pai.ModelResponsePart]:
    from pydantic_ai import messages as pai

    parts: list[pai.ModelResponsePart] = []
    for block in message.content:
        match block:
            case TextBlock(text=text) if text.strip():
                parts.append(pai.TextPart(content=text))
            case ThinkingBlock() if (signed := signed_thinking(block, message, provider)) is not None:
                part_id, signature = signed
                parts.append(
                    pai.ThinkingPart(
                        content=block.thinking,
                        id=part_id or None,
                        signature=signature,
                        provider_name=system,
                    )
                )
            case ToolCallBlock():
                parts.append(
                    pai.ToolCallPart(
                        tool_name=block.name,
                        args=block.arguments if isinstance(block.arguments, dict) else _raw(block.arguments),
                        tool_call_id=wire_call_id(block.id),
                    )
                )
    return parts


def _raw(arguments: Any) -> str:
    """Show arguments that are no object as the text that came; pydantic-ai wraps it in one."""
    return arguments if isinstance(arguments, str) else json.dumps(arguments)


def _tool_return(message: Message, image_limit: int) -> pai.ToolReturnPart:
    from pydantic_ai import messages as pai

    content: Any = _prompt(message, image_limit)
    return pai.ToolReturnPart(
        tool_name=message.tool_name or "unknown",
        content=content,
        tool_call_id=wire_call_id(message.tool_call_id or ""),
        outcome="failed" if message.is_error else "success",
    )


def _prompt(message: Message, image_limit: int) -> str | list[pai.UserContent]:
    """Show what a person or a tool said: its text, or its text and images; never nothing."""
    text = "\n".join(block.text for block in message.content if isinstance(block, TextBlock) and block.text.strip())
    # One that the model cannot see would have every later request of the session refused, too.
    images = [_image(block, image_limit) for block in message.content if isinstance(block, ImageBlock)]
    if not images:
        return text or EMPTY_MESSAGE
    return [text, *images] if text else images


def _image(block: ImageBlock, limit: int) -> pai.UserContent:
    from pydantic_ai import messages as pai

    if not limit:
        return UNSEEN_IMAGE
    if len(block.data or "") > limit:
        return LARGE_IMAGE
    try:
        if block.data:
            return _encoded_content()(block.data, block.mime_type)
        if block.url and block.url.startswith("data:"):
            return pai.BinaryContent.from_data_uri(block.url)
    except (binascii.Error, ValueError):
        return UNREADABLE_IMAGE
    if block.url:
        return pai.ImageUrl(url=block.url, media_type=block.mime_type)
    return UNREADABLE_IMAGE


@cache
def _encoded_content() -> Callable[[str, str], pai.BinaryContent]:
    from pydantic_ai import messages as pai

    class EncodedBinaryContent(pai.BinaryContent):
        """Content whose base64 is known, so that a large picture is not encoded once more on the event loop."""

        @property
        def base64(self) -> str:
            known: str = self.__dict__["_encoded"]  # no field: it would be part of the message
            return known

    def make(encoded: str, media_type: str) -> pai.BinaryContent:
        content = EncodedBinaryContent(data=decode_base64(encoded), media_type=media_type)
        content.__dict__["_encoded"] = encoded
        return content

    return make


# --- What they said, in our words ---


def _read_part(part: pai.ModelResponsePart) -> Block | None:
    from pydantic_ai import messages as pai

    match part:
        case pai.TextPart() if part.content:
            return TextBlock(text=part.content)
        case pai.ThinkingPart() if part.content or part.signature:
            return ThinkingBlock(thinking=part.content, signature=_signed(part))
        case pai.ToolCallPart():
            return ToolCallBlock(id="", name=part.tool_name, arguments=read_arguments(part.args))
        case pai.FilePart() if part.content.media_type.startswith("image/"):
            data = encode_base64(part.content.data)
            return ImageBlock(mime_type=part.content.media_type, data=data)
    return None


def _signed(part: pai.ThinkingPart) -> str | None:
    """Keep the id with the signature, where the provider gave one: it wants both back. Neither holds a `:`."""
    if not part.signature:
        return None
    return f"{part.id}:{part.signature}" if part.id else part.signature


def read_arguments(args: str | Mapping[str, Any] | None) -> dict[str, Any] | str:
    """Read the arguments of a call; what is not a JSON object stays the text that came, or one that says why."""
    if isinstance(args, Mapping):
        return dict(args)
    if not args or not args.strip():
        return {}
    if len(args) > LONGEST_ARGUMENTS:
        return f"(left out: longer than {LONGEST_ARGUMENTS:,} characters)"
    try:
        check_parts(args.encode("utf-8", "replace"), MOST_IN_ARGUMENTS)
        arguments = json.loads(args)
    except TooMuchJson as error:
        return f"(left out: {error})"
    except (ValueError, RecursionError):  # no JSON, or nested too deep for the parser
        return args
    return arguments if isinstance(arguments, dict) else args
