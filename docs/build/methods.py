"""The page and the file of the WebSocket protocol, made from the tables of methods and events."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
from docs.build.answers import Shapes, meanings, paragraphs, show_value, table

from backchannel.gateway.calls import Method
from backchannel.gateway.openclaw.empty import EmptyMethod
from backchannel.gateway.table import EVENTS, METHODS
from backchannel.openclaw.rows import SessionRow
from backchannel.version import PROTOCOL_VERSION
from backchannel.wire.frames import Connect
from backchannel.wire.shapes import describe

_METHODS_INTRO = f"""# Methods of the WebSocket protocol

Made by `make reference`; `protocol.json` beside it says the same to programs.

Clients connect to `/ws` and speak JSON text frames. A request `{{type: "req", id, method, params?}}` is answered by
`{{type: "res", id, ok, payload | error}}`. An event is `{{type: "event", event, payload, seq}}`. The gateway opens with
the event `connect.challenge {{nonce, ts}}`. The first request is
`connect {{minProtocol, maxProtocol, client, role, nodeId?, scopes?, auth {{token}}}}`. Its range of versions must
include {PROTOCOL_VERSION}. A frame without a readable id is answered with `id: null`.

- Requests of one connection run at the same time and are answered by id.
- An error is `{{code, message, details {{code, …}}, retryable?, retryAfterMs?}}`; `details.code` is a stable word.
- A parameter of the wrong type is an error that names it, and so is an unknown parameter. Methods that are *shared with
  OpenClaw* ignore unknown parameters: OpenClaw's clients send some that mean nothing here. Null is listed only where it
  differs from leaving the parameter out.
- Sessions are named as people write them: `main`, a bare key of the default agent (or of `agentId`), a full key, or a
  session id. Answers show full keys.
- A scope includes those before it: `operator.read`, `operator.write`, `operator.admin`. An agent's token is bound to
  one session and may call only what is marked *agents*.
- A client that connects with `role: "node"` and a `nodeId` is a [node](../how-to/connect-a-node.md): it may call
  `node.message` and `node.history`, and nothing else.
"""

_EVENTS = """## Events

`seq` counts per connection. An event is a hint; the rows are the truth. After a gap or a reconnect, read again
(`chat.history` with `after`, `sessions.list`, `agent.wait`). A client that reads too slowly first loses deltas, which
leaves a gap. Then it is disconnected.
"""

_AUDIENCES = {
    "connect.challenge": "every client, first",
    "agent": "the client that started the run; clients that watch its session, or subscribed to all",
    "chat": "the same; of an internal run only the last event",
    "sessions.changed": "after `sessions.subscribe`",
    "session.message": (
        "after `sessions.messages.subscribe` for its session, or `sessions.subscribe`; tool results only after the "
        "former"
    ),
    "delivery": "clients that watch the session, or subscribed to all",
    "approval": "the same",
    "plugin.approval.requested": "the same",
    "plugin.approval.resolved": "the same",
    "tick": "every client, each `policy.tickIntervalMs`",
    "shutdown": "every client, before the connection is closed with 1012",
}
"""Which clients get an event."""

_AFTER_EVENTS = """Messages of `chat.history` and `session.message` have all that
[every message has](tools.md#messages). They also have `__openclaw {id, seq, runId?, idempotencyKey?}`. `seq` is the
message's place in its transcript, from 1, like `messageSeq`. A message that a run answers has the `idempotencyKey`
`<runId>:user`. Other messages of a run have its `runId`. Notes, of the role `system`, have `command: true`: OpenClaw's
clients show no others.

A connection watches a session once it has called `chat.send`, `chat.history` or `sessions.messages.subscribe` for it. A
node gets the `chat` events of its own sessions, `tick` and `shutdown`.
"""

_SHAPES = """## Shapes

The parts that several answers and events have. A field with a question mark may be absent.
"""


def render_methods() -> str:
    """Render the page for people."""
    shapes = _shapes()
    sections = [_METHODS_INTRO, "## Methods"]
    sections += [_method_section(method, shapes) for method in METHODS.values() if not _is_openclaws(method)]
    sections.append("## Methods for OpenClaw's clients\n\nOther clients do not need these methods.")
    sections += [_method_section(method, shapes) for method in METHODS.values() if _is_openclaws(method)]
    sections += [*_event_sections(shapes), _SHAPES, *_shape_sections(shapes)]
    return "\n".join(section.rstrip() + "\n" for section in sections)


def _is_openclaws(method: Method[Any, Any]) -> bool:
    return ".openclaw." in method.handler.__module__


def _shapes() -> Shapes:
    answers = [method.answer for method in METHODS.values() if not isinstance(method, EmptyMethod)]
    return Shapes([*answers, *EVENTS.values()], always=[SessionRow])


def _method_section(method: Method[Any, Any], shapes: Shapes) -> str:
    summary, *more = paragraphs(method.doc)
    lines = [f"### `{method.name}`", "", f"{summary} {_for_whom(method)}.", ""]
    for paragraph in more:
        lines += [paragraph, ""]
    said = meanings(method.params)
    if rows := [(*row[:3], row.meaning or said.get(row.name.strip("`"), "")) for row in describe(method.params)]:
        columns, width = ["parameter", "type", "default", ""], 4 if any(row[3] for row in rows) else 3
        lines += [*table(columns[:width], [row[:width] for row in rows]), ""]
    lines.append(f"Answer: {_answer(method, shapes)}.")
    if notes := _notes(method, shapes):
        lines += ["", *notes]
    if method.is_shared and not _is_openclaws(method):
        lines += ["", "Shared with OpenClaw: other parameters are ignored."]
    return "\n".join(lines)


def _answer(method: Method[Any, Any], shapes: Shapes, *, links: bool = True) -> str:
    if isinstance(method, EmptyMethod):
        return f"`{show_value(method.fixed)}`"
    shown = _shape(shapes, method.answer) if links else f"`{shapes.show(method.answer)}`"
    return shown if method.first is None else f"first `{shapes.show(method.first)}`, then {shown}"


def _shape(shapes: Shapes, type_: Any) -> str:
    """Write a type, with links to the structs that it names."""
    shape, names = shapes.show(type_), shapes.links(type_)
    links = ", ".join(f"[{name}](#{name.lower()})" for name in names)
    return links if [shape] == names else f"`{shape}` ({links})" if links else f"`{shape}`"


def _notes(method: Method[Any, Any], shapes: Shapes) -> list[str]:
    return [] if isinstance(method, EmptyMethod) else shapes.notes(method.answer)


def _for_whom(method: Method[Any, Any]) -> str:
    if method.for_nodes:
        return "For nodes only"
    return f"Scope: `{method.scope.value}`" + (", agents" if method.for_agents else "")


def _event_sections(shapes: Shapes) -> Iterator[str]:
    rows = [(f"`{event}`", _shape(shapes, payload), _AUDIENCES[event]) for event, payload in EVENTS.items()]
    yield _EVENTS
    yield "\n".join(table(["event", "payload", "who gets it"], rows))
    for event, payload in EVENTS.items():
        if payload not in shapes.apart and (notes := shapes.notes(payload)):
            yield "\n".join([f"The event `{event}`. {' '.join(paragraphs(payload.__doc__ or ''))}", "", *notes])
    yield _AFTER_EVENTS


def _shape_sections(shapes: Shapes) -> Iterator[str]:
    for struct in shapes.apart:
        said = (struct.__doc__ or "") if not (struct.__doc__ or "").startswith(f"{struct.__name__}(") else ""
        lines = [f"### {struct.__name__}", "", *([*paragraphs(said), ""] if said else [])]
        yield "\n".join([*lines, *table(["field", "type", ""], shapes.rows(struct))])


def render_protocol() -> str:
    """Render the table for programs, with JSON Schemas."""
    shapes = _shapes()
    params = [method.params for method in METHODS.values()]
    (connect, *schemas), definitions = msgspec.json.schema_components(
        [Connect, *params, *EVENTS.values()], ref_template="#/definitions/{name}"
    )
    methods = {
        method.name: {
            "scope": method.scope.value,
            "agents": method.for_agents,
            "nodes": method.for_nodes,
            "description": paragraphs(method.doc)[0],
            "params": schema,
            "answer": _answer(method, shapes, links=False),
            "shared": method.is_shared,
        }
        for method, schema in zip(METHODS.values(), schemas, strict=False)
    }
    whole = {
        "protocol": PROTOCOL_VERSION,
        "connect": connect,
        "methods": methods,
        "events": {
            "names": tuple(EVENTS),
            **dict(zip(EVENTS, schemas[len(METHODS) :], strict=True)),
        },
        "definitions": definitions,
    }
    return msgspec.json.format(msgspec.json.encode(whole, order="sorted"), indent=2).decode() + "\n"
