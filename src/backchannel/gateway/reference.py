"""The reference of the wire, rendered from the method table.

    python -m backchannel.gateway.reference docs/reference

writes `methods.md` for people and `protocol.json` for programs; a test checks that both are up to date.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import msgspec

from backchannel.core.markdown import table
from backchannel.core.shapes import describe
from backchannel.gateway.events import AgentEvent, ChatEvent, SessionMessage, SessionsChanged
from backchannel.gateway.methods import METHODS
from backchannel.gateway.protocol import EVENTS, PROTOCOL_VERSION, WITHOUT_EFFECT, Connect, Method
from backchannel.tools.rows import DeliveryRow

_INTRO = f"""# Methods of the WebSocket protocol

Made by `python -m backchannel.gateway.reference docs/reference`; `protocol.json` beside it says the same to programs.

Clients connect to `/ws` and speak JSON text frames: `{{type: "req", id, method, params?}}` is answered by
`{{type: "res", id, ok, payload | error}}`, and `{{type: "event", event, payload, seq}}` tells what happens. The
gateway opens with the event `connect.challenge {{nonce, ts}}`; the first request is
`connect {{minProtocol, maxProtocol, client, role, nodeId?, scopes?, auth {{token}}}}`, whose range of versions must
include {PROTOCOL_VERSION}. A frame whose id cannot be told is answered with `id: null`.

- Requests of one connection run at the same time and are answered by id.
- An error is `{{code, message, details {{code, …}}, retryable?, retryAfterMs?}}`; `details.code` is a stable word.
- An unknown or wrongly typed parameter is an error that names it. Fields listed as *without effect* are accepted and
  change nothing. Null is listed where it says something else than leaving the parameter out.
- Sessions are named as people write them: `main`, a bare key of the default agent (or of `agentId`), a full key, or a
  session id. Answers show full keys.
- A scope includes those before it: `operator.read`, `operator.write`, `operator.admin`. An agent's token is bound to
  one session and may call only what is marked *agents*.
- A client that connects with `role: "node"` and a `nodeId` is a [node](../how-to/connect-a-node.md): it may call
  `node.message` and `node.history`, and nothing else.
"""

_EVENTS = """## Events

`seq` counts per connection. Events are hints and rows are the truth: after a gap or a reconnect, read again
(`chat.history` with `after`, `sessions.list`, `agent.wait`). A client that reads too slowly loses deltas first, which
leaves a gap, and is then closed.

| event | payload | who gets it |
|---|---|---|
| `connect.challenge` | `{nonce, ts}` | everyone, first |
| `agent` | `{runId, sessionKey, seq, stream, ts, data, internal?}`; streams: `lifecycle` (`phase`: `start`, `end`, `error`), `assistant` (`text` so far, `delta`), `thinking` (`delta`), `tool` (`phase`: `start`, `result`) | whoever started the run, watches its session, or subscribed to all |
| `chat` | `{runId, sessionKey, seq, state: delta \\| final \\| aborted \\| error, deltaText?, message? {role, content, timestamp}, errorMessage?, stopReason?}`; a delta carries the whole text so far | the same; of internal runs only what they post to webchat, as `final` |
| `sessions.changed` | `{sessionKey, reason, ts}` | after `sessions.subscribe` |
| `session.message` | `{sessionKey, sessionId, messageId, messageSeq, message}` | after `sessions.messages.subscribe` |
| `delivery` | `{id, state, sessionKey, exchangeId?, runId?, channel?, accountId?, to?, threadId?, attempts, error?, dueAt?, createdAt, updatedAt}`; `deliveries.get` shows text and parts | whoever watches the session, or subscribed to all |
| `tick` | `{ts}` | everyone, every `policy.tickIntervalMs` |
| `shutdown` | `{reason}` | everyone, before the connection is closed with 1012 |

A session is watched by a connection that called `chat.send`, `chat.history` or `sessions.messages.subscribe` for it. A
node hears the `chat` events of its own sessions, `tick` and `shutdown`, and no others.
"""  # noqa: E501 - table rows cannot be broken


def render_page() -> str:
    """Render the page for people."""
    sections = [_INTRO, "## Methods", *(_section(method) for method in METHODS.values()), _EVENTS]
    return "\n".join(section.rstrip() + "\n" for section in sections)


def _section(method: Method[Any]) -> str:
    lines = [f"### `{method.name}`", "", f"{method.doc} {_for_whom(method)}.", ""]
    if rows := [(field.name, field.kind, field.default) for field in describe(method.params)]:
        lines += [*table(["parameter", "type", "default"], rows), ""]
    lines.append(f"Answer: {method.answer}.")
    if ignored := WITHOUT_EFFECT.get(method.name):
        lines += ["", f"Without effect: {', '.join(f'`{name}`' for name in sorted(ignored))}."]
    return "\n".join(lines)


def _for_whom(method: Method[Any]) -> str:
    if method.for_nodes:
        return "For nodes only"
    return f"Scope: `{method.scope.value}`" + (", agents" if method.for_agents else "")


def render_protocol() -> str:
    """Render the table for programs, with JSON Schemas."""
    params = [method.params for method in METHODS.values()]
    payloads = (AgentEvent, ChatEvent, SessionMessage, SessionsChanged, DeliveryRow)
    schemas, definitions = msgspec.json.schema_components(
        [Connect, *params, *payloads], ref_template="#/definitions/{name}"
    )
    methods = {
        method.name: {
            "scope": method.scope.value,
            "agents": method.for_agents,
            "nodes": method.for_nodes,
            "description": method.doc,
            "params": schema,
            "answer": method.answer,
            "withoutEffect": sorted(WITHOUT_EFFECT.get(method.name, ())),
        }
        for method, schema in zip(METHODS.values(), schemas[1:], strict=False)
    }
    whole = {
        "protocol": PROTOCOL_VERSION,
        "connect": schemas[0],
        "methods": methods,
        "events": {
            "names": EVENTS,
            "agent": schemas[-5],
            "chat": schemas[-4],
            "session.message": schemas[-3],
            "sessions.changed": schemas[-2],
            "delivery": schemas[-1],
        },
        "definitions": definitions,
    }
    return msgspec.json.format(msgspec.json.encode(whole, order="sorted"), indent=2).decode() + "\n"


def write_reference(folder: Path) -> None:
    """Write both files."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "methods.md").write_text(render_page(), encoding="utf-8")
    (folder / "protocol.json").write_text(render_protocol(), encoding="utf-8")


if __name__ == "__main__":
    write_reference(Path(sys.argv[1] if len(sys.argv) > 1 else "docs/reference"))
