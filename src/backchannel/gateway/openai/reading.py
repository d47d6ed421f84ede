"""Requests to an agent: the new part of the history, images, and parameters.

Clients send the whole conversation each time. A session that remembers it takes the part after the last reply; a new
one gets all of it. `system` and `developer` messages are always instructions for this request. Images are never
fetched, and their content decides their type.

Each parameter has an effect, is refused, or is ignored. Settings of models belong to the agent. Clients send
`temperature` and the like with every request, so these are ignored, and the header `x-backchannel-ignored` lists them.
Parameters that a client depends on, such as its own `tools` or a JSON schema for the reply, are refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum, auto
from typing import Any, NamedTuple, TypeVar

import msgspec

from backchannel.core.incoming_json import check_parts
from backchannel.core.messages import Block, ImageBlock, text_content
from backchannel.errors import InvalidRequest
from backchannel.gateway.fields import MAX_IMAGES, read_base64


class Speaker(Enum):
    INSTRUCTOR = auto()
    USER = auto()
    ASSISTANT = auto()
    TOOL = auto()


class Utterance(msgspec.Struct, frozen=True):
    """A message of the history, in either API's form."""

    speaker: Speaker
    text: str
    images: tuple[ImageBlock, ...] = ()


class Question(msgspec.Struct, frozen=True):
    """The input of an agent: a message, and instructions for this run."""

    content: tuple[Block, ...]
    instructions: str | None


def build_question(lines: Sequence[Utterance], *, remembers: bool) -> Question:
    """Make the message of a run; with `remembers` the session knows the history up to the last reply.

    Raises:
        InvalidRequest: nothing new was said.
    """
    instructions = [line.text for line in lines if line.speaker is Speaker.INSTRUCTOR and line.text.strip()]
    said = [line for line in lines if line.speaker is not Speaker.INSTRUCTOR]
    start = max((i + 1 for i, line in enumerate(said) if line.speaker is Speaker.ASSISTANT), default=0)
    earlier, new = [] if remembers else said[:start], said[start:]
    images = [image for line in (*earlier, *new) for image in line.images]
    text = "\n\n".join(line.text for line in new if line.text)
    if not text.strip() and not any(line.images for line in new):
        raise InvalidRequest(
            "the conversation must end with something new: a message of the user, or a tool's result", param="messages"
        )
    if len(images) > MAX_IMAGES:
        raise InvalidRequest(f"a request has at most {MAX_IMAGES} images", param="messages")
    return Question((*text_content(_with_earlier(earlier, text)), *images), "\n\n".join(instructions) or None)


def _with_earlier(earlier: Sequence[Utterance], text: str) -> str:
    shown, count = [], 0
    for line in earlier:
        marks = [f"[image {count + n}]" for n in range(1, len(line.images) + 1)]
        count += len(marks)
        if words := " ".join([line.text, *marks]).strip():
            shown.append(f"{line.speaker.name.lower()}: {words}")
    if not shown:
        return text
    return "Earlier in this conversation:\n\n" + "\n\n".join(shown) + "\n\nNow:\n\n" + text


def describe_call(name: str, arguments: str) -> str:
    """Show a call of a client's tool, which the agent does not have."""
    return f"[called {name}({arguments})]"


def describe_result(call: str | None, text: str) -> str:
    """Show the result of such a tool."""
    return f"[result of {call or 'a tool'}]\n{text}"


_EXPECTED = "expected the image itself, as data:image/png;base64,… (PNG, JPEG, GIF or WebP)"


def read_image(url: str) -> ImageBlock:
    """Read an image from its data URL. Its first bytes say its type, whatever the URL says.

    Raises:
        InvalidRequest: it is somewhere else, too large, or no image that models can see.
    """
    if url[:5].lower() != "data:":
        raise _refused(f"images are not downloaded: {_EXPECTED}")
    head, _, data = url.partition(",")
    if not head.lower().endswith(";base64"):
        raise _refused(f"the image is not in base64: {_EXPECTED}")
    return read_base64(data, "image_url", _EXPECTED)


def _refused(message: str) -> InvalidRequest:
    return InvalidRequest(f"image_url: {message}", param="image_url")


IGNORED_HEADER = "x-backchannel-ignored"

R = TypeVar("R", bound=msgspec.Struct)


class Rule(NamedTuple):
    """The values of a parameter without effect, and the refusal of others."""

    harmless: tuple[Any, ...]
    instead: str
    field: str | None = None
    """The field of an object that counts; it may be missing."""

    def allows(self, value: Any) -> bool:
        if self.field is not None:
            if not isinstance(value, dict):
                return False
            value = value.get(self.field)
        return any(value == each and isinstance(value, bool) == isinstance(each, bool) for each in self.harmless)

    def schema(self) -> dict[str, Any]:
        """Describe the accepted values; null means absent."""
        if self.field is None:
            return {"enum": [*self.harmless, None]}
        return {"type": ["object", "null"], "properties": {self.field: {"enum": list(self.harmless)}}}


_OWN_TOOLS = "an agent uses its own tools (tools.allow in its configuration)"
_TEXT_ONLY = "a reply is plain text; ask for JSON in a message and check it yourself"
_TOOLS: Mapping[str, Rule] = {
    "tools": Rule(([],), _OWN_TOOLS),
    "tool_choice": Rule(("none", "auto"), _OWN_TOOLS),
}

CHAT: Mapping[str, Rule] = {
    **_TOOLS,
    "functions": Rule(([],), _OWN_TOOLS),
    "function_call": Rule(("none", "auto"), _OWN_TOOLS),
    "n": Rule((1,), "one reply is given to a request; ask again for another"),
    "stop": Rule(([], ""), "a reply ends where the agent ends it; cut it yourself"),
    "response_format": Rule(({"type": "text"},), _TEXT_ONLY),
    "logprobs": Rule((False,), "they are not known"),
    "top_logprobs": Rule((0,), "they are not known"),
    "modalities": Rule((["text"], []), _TEXT_ONLY),
    "audio": Rule((), _TEXT_ONLY),
    "web_search_options": Rule((), _OWN_TOOLS),
}
RESPONSES: Mapping[str, Rule] = {
    **_TOOLS,
    "text": Rule((None, {"type": "text"}), _TEXT_ONLY, field="format"),
    "top_logprobs": Rule((0,), "they are not known"),
    "background": Rule((False,), "leave it out; a run goes on also when its client has gone away"),
    "conversation": Rule((), "continue a session with previous_response_id, or name one with user"),
    "prompt": Rule((), "write the agent's instructions into its configuration, or send instructions"),
}


def read_request(body: bytes, form: type[R], rules: Mapping[str, Rule]) -> tuple[R, tuple[str, ...]]:
    """Read a request; also returns the parameters without effect. Null means absent.

    Raises:
        InvalidRequest: it does not fit, or asks for what cannot be given; the message names the parameter.
    """
    try:
        check_parts(body)
        given = msgspec.json.decode(body)
        if not isinstance(given, dict):
            raise InvalidRequest('the body must be an object, such as {"model": "main", …}')
        given = {name: value for name, value in given.items() if value is not None}
        request = msgspec.convert(given, form)
    except (ValueError, RecursionError) as error:  # msgspec's own are among them, and what is not UTF-8
        raise InvalidRequest(f"the body does not fit: {error}") from None
    for name, rule in rules.items():
        if name in given and not rule.allows(given[name]):
            raise InvalidRequest(f"{name}: not supported here: {rule.instead}", param=name)
    return request, tuple(sorted(name for name in given.keys() - rules.keys() - set(form.__struct_fields__)))
