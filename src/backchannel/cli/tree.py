"""`backchannel tree`: which session spawned which, how its sub-agents are doing, and what all that has used."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Annotated

import typer

from backchannel.cli.client import GatewayClient, Payload, connected
from backchannel.cli.live import watch_table
from backchannel.cli.naming import WHICH, find_key
from backchannel.cli.options import AsJson, Limit, options_of
from backchannel.cli.output import Long, Rows, age, one_line, say, show_json, show_table
from backchannel.cli.sessions import EMPTY, line_of, receipt_of, state_of, title_of

COLUMNS = ("session", "status", "runtime", "receipt", "tokens", "cost", "active", "name")
SPARE = ("active", "tokens", "name", "receipt")
SHORT_NAME = 24
MOST = 1000
"""How many sessions the gateway shows at once."""

_UUID = re.compile(r"([0-9a-f]{8})-[0-9a-f-]{27}$")


def tree(
    ctx: typer.Context,
    key: Annotated[str | None, typer.Argument(help=f"Only this session and what it spawned: {WHICH}.")] = None,
    agent: Annotated[str | None, typer.Option(help="Only the sessions of this agent, and what they spawned.")] = None,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Keep it up to date until Ctrl-C; piped, a line per change.")
    ] = False,
    limit: Limit = 200,
    as_json: AsJson = False,
) -> None:
    """Show who spawned whom, and how sub-agents are doing.

    Tokens and cost are those of a session and of all that it spawned, archived sub-agents included. The receipt tells
    what became of a sub-agent's result.
    """
    options = options_of(ctx)
    if key is not None and agent is not None:
        raise typer.BadParameter("name a session, or give --agent", param_hint="KEY / --agent")
    view = TreeView(find_key(options, key), agent, limit)
    if watch:
        watch_table(options, view, line_of, as_json=as_json)
        return
    with connected(options) as client:
        snapshot = view.load(client)
    if as_json:
        show_json(snapshot.as_json())
        return
    show_table(COLUMNS, snapshot.rows(snapshot.ts), empty=EMPTY, spare=SPARE)
    if snapshot.has_more:
        more = f"--limit {min(limit * 2, MOST)} shows them, a" if limit < MOST else "a"
        say(f"There are more: {more} KEY or --agent narrows it down.", err=True)


@dataclass(frozen=True, slots=True)
class Node:
    """A session, and those that it spawned."""

    session: Payload
    children: list[Node]
    archived: list[Payload]
    """Sub-agents that were archived, and are not shown for the sake of their own."""

    def as_json(self) -> Payload:
        archived = {"archivedChildren": self.archived} if self.archived else {}
        return self.session | archived | {"children": [child.as_json() for child in self.children]}

    def all(self) -> Iterator[Payload]:
        """The sessions of the whole branch."""
        yield self.session
        for child in self.children:
            yield from child.all()


def build_trees(told: Payload) -> list[Node]:
    """Put the nodes that the gateway tells of under each other."""
    by_key = {node["key"]: node for node in told["nodes"]}

    def grow(key: str) -> Node:
        children = [by_key[child] for child in by_key[key]["children"]]
        shown = [child["key"] for child in children if child["children"] or "archivedAt" not in child]
        archived = [_session(child) for child in children if child["key"] not in shown]
        return Node(_session(by_key[key]), [grow(child) for child in shown], archived)

    return [grow(key) for key in told["roots"]]


def _session(node: Payload) -> Payload:
    """Take a session out of its tree, with what it has used in full."""
    nothing = {"input": 0, "output": 0}
    usages = {name: nothing | node[name] for name in ("usage", "treeUsage")}
    return {name: value for name, value in node.items() if name != "children"} | usages


@dataclass(frozen=True, slots=True)
class TreeView:
    """The sessions as trees."""

    key: str | None
    agent: str | None
    limit: int
    columns: tuple[str, ...] = COLUMNS
    spare: tuple[str, ...] = SPARE
    empty: str = EMPTY

    def load(self, client: GatewayClient) -> TreeSnapshot:
        told = client.call("sessions.tree", key=self.key, agentId=self.agent, limit=self.limit)
        default: str = client.hello["snapshot"]["sessionDefaults"]["defaultAgentId"]
        return TreeSnapshot(told["ts"], build_trees(told), default, told.get("truncated", False))


@dataclass(frozen=True, slots=True)
class TreeSnapshot:
    """The trees at one moment."""

    ts: int
    trees: list[Node]
    default_agent: str
    has_more: bool

    @property
    def sessions(self) -> list[Payload]:
        return [session for node in self.trees for session in node.all()]

    def as_json(self) -> Payload:
        agents = [
            {"agentId": agent, "usage": _used(nodes), "sessions": [node.as_json() for node in nodes]}
            for agent, nodes in self._by_agent().items()
        ]
        return {"ts": self.ts, "count": len(self.sessions), "hasMore": self.has_more, "agents": agents}

    def rows(self, now_ms: int) -> Rows:
        return [row for agent, nodes in self._by_agent().items() for row in _group(agent, nodes, now_ms)]

    def _by_agent(self) -> dict[str, list[Node]]:
        """Group the trees: the default agent first, of each agent the main session first, then the newest."""
        groups: dict[str, list[Node]] = defaultdict(list)
        for node in sorted(self.trees, key=lambda node: (node.session["kind"] != "main", -node.session["updatedAt"])):
            groups[node.session["agentId"]].append(node)
        return {
            agent: groups[agent] for agent in sorted(groups, key=lambda agent: (agent != self.default_agent, agent))
        }


def add_usage(used: Iterable[Payload]) -> Payload:
    """Add up usages; an unknown cost is left out."""
    each = list(used)
    total: Payload = {name: sum(usage.get(name, 0) for usage in each) for name in ("input", "output")}
    costs = [usage["cost"] for usage in each if "cost" in usage]
    return total | ({"cost": sum(costs)} if costs else {})


def _used(nodes: Iterable[Node]) -> Payload:
    return add_usage(node.session["treeUsage"] for node in nodes)


def _group(agent: str, nodes: list[Node], now_ms: int) -> Iterator[list[object]]:
    yield [agent, "", "", "", *_shown_usage(_used(nodes)), "", ""]
    yield from _branch_rows(nodes, [], "", now_ms)


def _branch_rows(nodes: list[Node], archived: list[Payload], lead: str, now_ms: int) -> Iterator[list[object]]:
    """Draw sessions, each with its own below it; those that are archived share one line."""
    for node in nodes:
        is_last = node is nodes[-1] and not archived
        yield _row(node.session, lead + ("└─ " if is_last else "├─ "), now_ms, is_top=not lead)
        yield from _branch_rows(node.children, node.archived, lead + ("   " if is_last else "│  "), now_ms)
    if archived:
        used = add_usage(child["usage"] for child in archived)
        yield [f"{lead}└─ {len(archived)} archived", "", "", "", *_shown_usage(used), "", ""]


def _row(session: Payload, guide: str, now_ms: int, *, is_top: bool) -> list[object]:
    spawner = f"spawned by {session['parentKey']}" if is_top and "parentKey" in session else None
    return [
        Long(guide + session["key"], guide + _short_key(session)),
        state_of(session),
        _runtime_of(session, now_ms),
        receipt_of(session),
        *_shown_usage(session["treeUsage"]),
        age(session["updatedAt"], now_ms),
        _short_title(title_of(session) or spawner),
    ]


def _shown_usage(usage: Payload) -> tuple[str, str]:
    tokens = usage["input"] + usage["output"]
    return str(tokens) if tokens else "", f"${usage['cost']:.4f}" if "cost" in usage else ""


def _runtime_of(session: Payload, now_ms: int) -> str:
    """Show how long a sub-agent took, or has been at work so far."""
    from backchannel.core.spawn_texts import show_duration

    spawn = session.get("spawn", {})
    if "runtimeMs" in spawn:
        return show_duration(spawn["runtimeMs"])
    return show_duration(max(0, now_ms - spawn["startedAt"])) if "startedAt" in spawn else ""


def _short_title(title: str | None) -> Long | None:
    """Give a title a short form."""
    if title is None:
        return None
    return Long(" ".join(title.split()), one_line(title, SHORT_NAME))


def _short_key(session: Payload) -> str:
    """Cut the key of a sub-agent to what distinguishes it from its neighbours."""
    key: str = session["key"]
    home = f"agent:{session['agentId']}:"
    is_at_home = session.get("parentKey", "").startswith(home)
    return _UUID.sub(r"\1…", key.removeprefix(home) if is_at_home else key)
