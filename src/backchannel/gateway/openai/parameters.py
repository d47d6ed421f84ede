"""What each parameter of a request does: it has its effect, it is refused, or the answer names it as without effect.

Models' settings belong to the agent. Clients send `temperature` and its like with every request, so refusing them would
shut most clients out; the answer's header `x-backchannel-ignored` lists them instead. What a client could not do
without, such as `tools` of its own or a JSON schema for the reply, is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar

import msgspec

from backchannel.errors import InvalidRequest

IGNORED_HEADER = "x-backchannel-ignored"

R = TypeVar("R", bound=msgspec.Struct)


class Rule(NamedTuple):
    """Which values of a parameter change nothing, and what is said of the others."""

    is_harmless: Callable[[Any], bool]
    instead: str


def _one_of(*values: object) -> Callable[[Any], bool]:
    return lambda value: any(type(value) is type(known) and value == known for known in values)


_OWN_TOOLS = "an agent uses its own tools (tools.allow in its configuration)"
_TEXT_ONLY = "a reply is plain text; ask for JSON in a message and check it yourself"
_TOOLS: Mapping[str, Rule] = {
    "tools": Rule(_one_of([]), _OWN_TOOLS),
    "tool_choice": Rule(_one_of("none", "auto"), _OWN_TOOLS),
}

CHAT: Mapping[str, Rule] = {
    **_TOOLS,
    "functions": Rule(_one_of([]), _OWN_TOOLS),
    "function_call": Rule(_one_of("none", "auto"), _OWN_TOOLS),
    "n": Rule(_one_of(1), "one reply is given to a request; ask again for another"),
    "stop": Rule(_one_of([], ""), "a reply ends where the agent ends it; cut it yourself"),
    "response_format": Rule(_one_of({"type": "text"}), _TEXT_ONLY),
    "logprobs": Rule(_one_of(False), "they are not known"),
    "top_logprobs": Rule(_one_of(0), "they are not known"),
    "modalities": Rule(_one_of(["text"], []), _TEXT_ONLY),
    "audio": Rule(_one_of(), _TEXT_ONLY),
    "web_search_options": Rule(_one_of(), _OWN_TOOLS),
}
RESPONSES: Mapping[str, Rule] = {
    **_TOOLS,
    "text": Rule(lambda text: isinstance(text, dict) and text.get("format") in (None, {"type": "text"}), _TEXT_ONLY),
    "top_logprobs": Rule(_one_of(0), "they are not known"),
    "background": Rule(_one_of(False), "leave it out; a run goes on also when its client has gone away"),
    "conversation": Rule(_one_of(), "continue a session with previous_response_id, or name one with user"),
    "prompt": Rule(_one_of(), "write the agent's instructions into its configuration, or send instructions"),
}


def read_request(body: bytes, form: type[R], rules: Mapping[str, Rule]) -> tuple[R, tuple[str, ...]]:
    """Read a request; also names the parameters in it that have no effect. Null is as if it were left out.

    Raises:
        InvalidRequest: it does not fit, or asks for what cannot be given; the message names the parameter.
    """
    try:
        given = msgspec.json.decode(body)
        if not isinstance(given, dict):
            raise InvalidRequest('the body must be an object, such as {"model": "main", …}')
        given = {name: value for name, value in given.items() if value is not None}
        request = msgspec.convert(given, form)
    except (ValueError, RecursionError) as error:  # msgspec's own are among them, and what is not UTF-8
        raise InvalidRequest(f"the body does not fit: {error}") from None
    for name, rule in rules.items():
        if name in given and not rule.is_harmless(given[name]):
            raise InvalidRequest(f"{name}: this is not served here: {rule.instead}", param=name)
    return request, tuple(sorted(name for name in given.keys() - rules.keys() - set(form.__struct_fields__)))
