"""The OpenAPI document, `GET /openapi.json`, made from the types that the doors use.

It describes what this gateway serves: `/v1`, `/hooks` and the channels only if they are open. A schema cannot say every
rule, such as that a conversation must end with a new message; a request that breaks one gets a 400.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, get_args

import msgspec

from backchannel.channels.signing import SIGNATURE
from backchannel.core.delivery.channels import InboundAnswer, InboundEvent
from backchannel.core.policy.inbound import EARLIEST_MS
from backchannel.gateway.auth import InvokeParams
from backchannel.gateway.errors import OPENAI_AT
from backchannel.gateway.hooks import AGENT, AGENT_RULES, WAKE, HookAccepted, HookAgentParams, HookNoted, HookWakeParams
from backchannel.gateway.metrics import CONTENT_TYPE
from backchannel.gateway.openai import chat, input_items, reading, responses
from backchannel.gateway.openai.door import SESSION_HEADER, ModelList, ShownModel
from backchannel.gateway.parts import GatewayParts
from backchannel.tools.base import SessionTool
from backchannel.tools.registry import SESSION_TOOLS
from backchannel.tools.send import SessionsSendParams
from backchannel.tools.spawn import SpawnParams
from backchannel.version import __version__

Schema = dict[str, Any]
Shown = type[msgspec.Struct] | Schema | str
"""An answer: a type, a schema, or the media type of a text."""

_JSON = "application/json"
_MEANINGS = {
    200: "done",
    202: "accepted",
    400: "the request does not fit; the message names the parameter",
    401: "no valid token or signature came",
    403: "the caller may not do this, or comes from a foreign page",
    404: "what was named is not there",
    405: "this is never done; the message says why",
    409: "the idempotency key stands for another request",
    413: "the body is too large",
    422: "the run was stopped, or its time was over",
    424: "the model's provider refused or failed",
    429: "too many wrong tokens came from this address",
    500: "the gateway failed; the log says how",
    503: "the gateway cannot take it now; nothing was changed",
}
_ANYBODY = (403, 413, 429, 503)
"""Errors that any request may get."""
_LET_IN = (401, *_ANYBODY)
_POSTED = (400, 404, 409, 500, *_LET_IN)


class CallDone(msgspec.Struct):
    ok: bool


class ToolResult(msgspec.Struct):
    """The result of a tool; an outcome that the caller should handle is its `status`."""

    ok: bool
    result: dict[str, Any]


class WireError(msgspec.Struct, rename="camel"):
    """An error: a coarse word, a sentence, and in `details.code` a stable word."""

    code: str
    message: str
    details: dict[str, Any]
    retryable: bool = False
    retry_after_ms: int = 0


class CallRefused(msgspec.Struct):
    ok: bool
    error: WireError


class OpenAiError(msgspec.Struct):
    message: str
    type: str
    param: str | None
    code: str | None


class OpenAiFailed(msgspec.Struct):
    error: OpenAiError


_TYPES: tuple[type[msgspec.Struct], ...] = (
    *(CallDone, ToolResult, CallRefused, OpenAiFailed),
    *(InvokeParams, HookAgentParams, HookAccepted, HookWakeParams, HookNoted, InboundEvent, InboundAnswer),
    *(chat.ChatRequest, chat.Completion, responses.ResponsesRequest, responses.ShownResponse, ShownModel, ModelList),
    input_items.InputItems,
    *(tool.params for tool in SESSION_TOOLS),
)

_SAID: Mapping[type[msgspec.Struct], str] = {
    HookAgentParams: "message",
    HookWakeParams: "text",
    SessionsSendParams: "message",
    SpawnParams: "task",
}
"""The parameter of a request that must not be blank."""


def build_document(parts: GatewayParts) -> Schema:
    """Describe the open doors of a gateway."""
    components = _components(parts.agents.ids())
    return {
        "openapi": "3.1.0",
        "info": {"title": "Backchannel", "version": __version__, "description": "Agent sessions over HTTP."},
        "paths": dict(_paths(parts)),
        "components": {
            "schemas": components,
            "securitySchemes": {
                "operator": {"type": "http", "scheme": "bearer", "description": "An operator's or an agent's token."},
                "hook": {"type": "http", "scheme": "bearer", "description": "The token of the hooks."},
                "signature": {
                    "type": "apiKey",
                    "in": "header",
                    "name": SIGNATURE,
                    "description": "`sha256=` and the HMAC of the body with the channel's secret, in hex.",
                },
            },
        },
    }


def _components(agent_ids: Sequence[str]) -> Schema:
    _, components = msgspec.json.schema_components(_TYPES, ref_template="#/components/schemas/{name}")
    for form, said in _SAID.items():
        components[form.__name__]["properties"][said]["pattern"] = r"\S"
    components[HookAgentParams.__name__] |= AGENT_RULES
    _describe_time(components[InboundEvent.__name__]["properties"]["ts"])
    for tool in SESSION_TOOLS:
        components[tool.params.__name__] |= tool.rules
        components[_call_name(tool)] = _call(tool, components)
    for question, rules in ((chat.ChatRequest, reading.CHAT), (responses.ResponsesRequest, reading.RESPONSES)):
        _describe_question(components[question.__name__], rules, agent_ids)
    return components


def _describe_time(schema: Schema) -> None:
    """Add the least time to the schema of an event's time, which may be null."""
    (number,) = (kind for kind in schema["anyOf"] if kind["type"] == "integer")
    number["minimum"] = EARLIEST_MS


def _call_name(tool: type[SessionTool]) -> str:
    return f"Call_{tool.name}"


def _call(tool: type[SessionTool], components: Schema) -> Schema:
    """Describe a call of one tool: the common parameters and its own arguments."""
    every = components[InvokeParams.__name__]
    needs_args = bool(components[tool.params.__name__].get("required"))
    return {
        **every,
        "title": tool.name,
        "description": tool.description,
        "properties": {**every["properties"], "tool": {"const": tool.name}, "args": _ref(tool.params)},
        "required": ["tool", "args"] if needs_args else ["tool"],
    }


def _describe_question(schema: Schema, rules: Mapping[str, reading.Rule], agent_ids: Sequence[str]) -> None:
    """Add what the types of a request to `/v1` cannot say: the models, the refusals, and that null means absent."""
    schema["properties"]["model"] = {"description": "The agent.", "anyOf": [{"enum": agent_ids}, {"type": "string"}]}
    for name, kind in schema["properties"].items():
        if name not in schema["required"] and {"type": "null"} not in kind.get("anyOf", ()):
            schema["properties"][name] = {"anyOf": [kind, {"type": "null"}]}
    for name, rule in rules.items():
        schema["properties"][name] = {"description": f"Others are refused: {rule.instead}.", **rule.schema()}


def _ref(kind: type[msgspec.Struct] | str) -> Schema:
    return {"$ref": f"#/components/schemas/{kind if isinstance(kind, str) else kind.__name__}"}


# --- The doors ---


def _paths(parts: GatewayParts) -> Iterator[tuple[str, Schema]]:
    yield "/", {"get": _operation("The page, for people", {200: "text/html"}, _ANYBODY, who=None)}
    yield "/healthz", {"get": _operation("Whether the process answers", {200: CallDone}, _ANYBODY, who=None)}
    ready: dict[int, Shown] = {200: CallDone, 503: {"anyOf": [_ref(CallDone), _ref(CallRefused)]}}
    yield "/readyz", {"get": _operation("Whether messages can be accepted", ready, _ANYBODY, who=None)}
    yield "/metrics", {"get": _operation("Figures for Prometheus", {200: CONTENT_TYPE}, _LET_IN)}
    yield "/openapi.json", {"get": _operation("This description", {200: {"type": "object"}}, _LET_IN)}
    sent = _operation("A file that an agent sent", {200: "application/octet-stream"}, (404, *_LET_IN))
    named = [{"name": name, "in": "path", "required": True, "schema": _NAME} for name in ("file", "name")]
    yield "/media/{file}/{name}", {"get": {**sent, "parameters": named}}
    calls = {"oneOf": [_ref(_call_name(tool)) for tool in SESSION_TOOLS]}
    yield "/tools/invoke", {"post": _operation("Call a session tool", {200: ToolResult}, _POSTED, body=calls)}
    if parts.config.hooks.enabled:
        agent = _operation("Start a run", {202: HookAccepted}, _POSTED, body=_ref(HookAgentParams), who="hook")
        yield AGENT, {"post": agent}
        wake = _operation("Leave a note", {200: HookNoted}, _POSTED, body=_ref(HookWakeParams), who="hook")
        yield WAKE, {"post": wake}
    if posted := [name for name, channel in parts.channels.items() if channel.takes_posts]:
        inbound = _operation(
            "Hand in a message of a chat", {200: InboundAnswer}, _POSTED, body=_ref(InboundEvent), who="signature"
        )
        name = {"name": "name", "in": "path", "required": True, "schema": {"enum": posted}}
        yield "/channels/{name}/inbound", {"post": {**inbound, "parameters": [name]}}
    if parts.config.gateway.http.chat_completions:
        yield from _openai_paths(parts.agents.default_id)


def _openai_paths(agent_id: str) -> Iterator[tuple[str, Schema]]:
    key = {"type": "string", "minLength": 1, "maxLength": 256}
    headers = [
        {"name": SESSION_HEADER, "in": "header", "schema": {"type": "string"}, "description": "The session."},
        {"name": "Idempotency-Key", "in": "header", "schema": key, "description": "The run's id."},
    ]
    asked = (*_POSTED, 422, 424)
    said = [{"role": "user", "content": "hello"}]
    for name, body, answer, example in (
        ("chat/completions", chat.ChatRequest, chat.Completion, {"model": agent_id, "messages": said}),
        ("responses", responses.ResponsesRequest, responses.ShownResponse, {"model": agent_id, "input": said}),
    ):
        operation = _operation("Ask an agent", {200: answer}, asked, body=_ref(body), error=OpenAiFailed)
        streamed = {"schema": {"description": "With `stream: true`: server-sent events, as OpenAI's API has them."}}
        operation["responses"]["200"]["content"]["text/event-stream"] = streamed
        operation["requestBody"]["content"][_JSON]["examples"] = {"hello": {"value": example}}
        yield f"{OPENAI_AT}{name}", {"post": {**operation, "parameters": headers}}
    yield from _response_paths()
    agent = _operation("Show an agent", {200: ShownModel}, (404, *_LET_IN), error=OpenAiFailed)
    yield f"{OPENAI_AT}models/{{id}}", {"get": {**agent, "parameters": [_ID]}}
    models = _operation("List the agents", {200: ModelList}, _LET_IN, error=OpenAiFailed)
    yield f"{OPENAI_AT}models", {"get": models}


_NAME: Schema = {"type": "string", "minLength": 1}
_ID: Schema = {"name": "id", "in": "path", "required": True, "schema": _NAME}


def _response_paths() -> Iterator[tuple[str, Schema]]:
    at, one = f"{OPENAI_AT}responses/{{id}}", (404, *_LET_IN)
    shown = _operation("Show a response again", {200: responses.ShownResponse}, one, error=OpenAiFailed)
    yield at, {"get": {**shown, "parameters": [_ID]}}
    page = {
        "after": {"type": "string", "minLength": 1},
        "limit": {"type": "integer", "minimum": 1, "maximum": input_items.MOST_ITEMS},
        "order": {"enum": list(get_args(input_items.Order))},
    }
    asked = [{"name": name, "in": "query", "schema": schema} for name, schema in page.items()]
    items = {200: input_items.InputItems}
    listed = _operation("List what a response has answered", items, (400, *one), error=OpenAiFailed)
    yield f"{at}/input_items", {"get": {**listed, "parameters": [_ID, *asked]}}


def _operation(
    summary: str,
    answers: Mapping[int, Shown],
    failures: Sequence[int],
    *,
    body: Schema | None = None,
    who: str | None = "operator",
    error: type[msgspec.Struct] = CallRefused,
) -> Schema:
    """Describe one way to use a door."""
    shown: dict[int, Shown] = {**dict.fromkeys(failures, error), **answers}
    operation: Schema = {
        "summary": summary,
        "responses": {str(status): _answer(status, shown[status]) for status in sorted(shown)},
        "security": [] if who is None else [{who: []}],
    }
    if body is not None:
        operation["requestBody"] = {"required": True, "content": {_JSON: {"schema": body}}}
    return operation


def _answer(status: int, shown: Shown) -> Schema:
    if isinstance(shown, str):
        content: Schema = {shown: {"schema": {"type": "string"}}}
    else:
        content = {_JSON: {"schema": shown if isinstance(shown, dict) else _ref(shown)}}
    return {"description": _MEANINGS[status], "content": content}
