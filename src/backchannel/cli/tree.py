"""`backchannel tree`: which session spawned which, how its sub-agents are doing, and what all that has used."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from math import inf
from typing import Annotated, TypeAlias

import typer

from backchannel.cli.client import CallFailed, GatewayClient, Payload, connected
from backchannel.cli.live import watch_table
from backchannel.cli.naming import WHICH, find_key
from backchannel.cli.options import AsJson, Limit, options_of
from backchannel.cli.output import Long, Rows, age, one_line, say, show_json, show_table
from backchannel.cli.sessions import EMPTY, SessionsView, line_of, receipt_of, state_of, title_of

PAGE = 1000
COLUMNS = ("session", "status", "runtime", "receipt", "tokens", "cost", "active", "name")
SPARE = ("active", "tokens", "name", "receipt")
SHORT_NAME = 24
SETTLED = ("sent", "skipped", "no_channel", "suppressed", "cancelled", "dropped")
"""The states of a receipt that are final."""

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
        say(f"There are more: --limit {limit * 2} shows them, a KEY or --agent narrows it down.", err=True)


@dataclass(frozen=True, slots=True)
class Node:
    """A session, and those that it spawned."""

    session: Payload
    children: list[Node]

    def as_json(self) -> Payload:
        return self.session | {"children": [child.as_json() for child in self.children]}

    def nodes(self) -> Iterator[Node]:
        """This one, and all below it."""
        yield self
        for child in self.children:
            yield from child.nodes()

    def all(self) -> Iterator[Payload]:
        """The sessions of the whole branch."""
        return (node.session for node in self.nodes())

    def stamp(self) -> _Stamp:
        """A value that differs whenever the branch has changed."""
        return (self.session["key"], self.session["updatedAt"], *(child.stamp() for child in self.children))

    @property
    def archived(self) -> list[Payload]:
        """The sub-agents that were archived, and are not shown for the sake of their own."""
        shown = {child.session["key"] for child in self.children}
        return [child for child in self.session.get("archivedChildren", ()) if child["key"] not in shown]


def build_trees(sessions: Iterable[Payload]) -> list[Node]:
    """Put each session under the one that spawned it; one whose parent is not among them stands for itself."""
    by_key = {session["key"]: session for session in sessions}
    spawned: dict[str, list[str]] = defaultdict(list)
    for key, session in by_key.items():
        spawned[session.get("spawnedBy", "")].append(key)
    placed: set[str] = set()

    def grow(key: str) -> Node:
        placed.add(key)
        return Node(by_key[key], [grow(child) for child in spawned[key] if child not in placed])

    tops = [key for key, session in by_key.items() if session.get("spawnedBy") not in by_key]
    trees = [grow(key) for key in tops]
    return trees + [grow(key) for key in by_key if key not in placed]  # a circle, which only a damaged row can make


_Stamp: TypeAlias = tuple[object, ...]


@dataclass(slots=True)
class TreeView:
    """The sessions as trees, each with its status, which is loaded again only where something changed."""

    key: str | None
    agent: str | None
    limit: int
    columns: tuple[str, ...] = COLUMNS
    spare: tuple[str, ...] = SPARE
    empty: str = EMPTY
    _statuses: dict[str, tuple[_Stamp, Payload]] = field(default_factory=dict)

    def load(self, client: GatewayClient) -> TreeSnapshot:
        found, ts, has_more = self._one_branch(client) if self.key is not None else self._all(client)
        trees = build_trees(found)
        self._ask_all(client, [node for tree in trees for node in tree.nodes()])
        default: str = client.hello["snapshot"]["sessionDefaults"]["defaultAgentId"]
        return TreeSnapshot(ts, trees, default, has_more)

    def _all(self, client: GatewayClient) -> tuple[list[Payload], int, bool]:
        listed = SessionsView(self.limit, {"agentId": self.agent}).list(client)
        found = {row["key"]: row for row in listed["sessions"]}
        if self.agent is None:
            return [*found.values(), *_missing_parents(client, found)], listed["ts"], listed["hasMore"]
        spawned, has_more = _descendants(client, list(found))
        found |= {row["key"]: row for row in spawned}
        return list(found.values()), listed["ts"], has_more or listed["hasMore"]

    def _one_branch(self, client: GatewayClient) -> tuple[list[Payload], int, bool]:
        root = client.call("sessions.describe", key=self.key)["session"]
        spawned, has_more = _descendants(client, [root["key"]])
        now: int = client.call("status")["ts"]
        return [root, *spawned], now, has_more

    def _ask_all(self, client: GatewayClient, nodes: list[Node]) -> None:
        """Load the status of each session that has changed, in as few requests as possible."""
        stamps = {node.session["key"]: node.stamp() for node in nodes}
        unknown = [key for key, stamp in stamps.items() if self._statuses.get(key, (None,))[0] != stamp]
        asked = [{"tool": "session_status", "args": {"sessionKey": key}} for key in unknown]
        answers = client.call_each("tools.invoke", asked)
        fresh = {key: _from_status(answer["result"]) for key, answer in zip(unknown, answers, strict=True)}
        statuses = {key: fresh[key] if key in fresh else self._statuses[key][1] for key in stamps}
        for node in reversed(nodes):  # those below come first
            node.session.update(statuses[node.session["key"]])
            node.children.sort(key=_started, reverse=True)  # else those at work would change places all the time
            below = (child.session["treeUsage"] for child in node.children)
            node.session.setdefault("treeUsage", add_usage([node.session["usage"], *below]))
        # What is still going on is asked again the next time, and so is all above it.
        self._statuses = {
            node.session["key"]: (stamps[node.session["key"]], statuses[node.session["key"]])
            for node in nodes
            if not any(_is_open(session) for session in node.all())
        }


def _started(node: Node) -> float:
    """When a sub-agent began; one that waits still is the newest."""
    return float(node.session.get("spawn", {}).get("startedAt", inf))


def _from_status(status: Payload) -> Payload:
    """Take from a session's status what a tree shows besides its row; one that is archived has none."""
    nothing = {"input": 0, "output": 0}
    usages: Payload = {name: nothing | status[name] for name in ("usage", "treeUsage") if name in status}
    archived = [child for child in status.get("children", ()) if "archivedAt" in child]
    return {
        "usage": nothing,
        **usages,
        **({"spawn": status["spawn"]} if "spawn" in status else {}),
        **({"archivedChildren": archived} if archived else {}),
    }


def _descendants(client: GatewayClient, keys: list[str]) -> tuple[list[Payload], bool]:
    """Load what sessions spawned, one generation at a time; also return whether some were left out."""
    found: dict[str, Payload] = {}
    has_more = False
    while keys:
        pages = client.call_each("sessions.list", [{"spawnedBy": key, "limit": PAGE} for key in keys])
        has_more = has_more or any(page["hasMore"] for page in pages)
        fresh = {row["key"]: row for page in pages for row in page["sessions"] if row["key"] not in found}
        found |= fresh
        keys = list(fresh)
    return list(found.values()), has_more


def _missing_parents(client: GatewayClient, found: dict[str, Payload]) -> Iterator[Payload]:
    """Load the sessions that spawned others and are not in the list themselves: older ones, and archived ones."""
    known = set(found)
    missing = [row["spawnedBy"] for row in found.values() if "spawnedBy" in row]
    while missing:
        key = missing.pop()
        if key in known:
            continue
        known.add(key)
        try:
            parent = client.call("sessions.describe", key=key)["session"]
        except CallFailed as refused:
            if refused.reason != "session_not_found":
                raise
            continue
        yield parent
        missing += [parent["spawnedBy"]] if "spawnedBy" in parent else []


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
    spawner = f"spawned by {session['spawnedBy']}" if is_top and "spawnedBy" in session else None
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


def _is_open(session: Payload) -> bool:
    """Whether a session is still to change by itself."""
    spawn = session.get("spawn")
    if session["status"] != "idle":
        return True
    return spawn is not None and (spawn["state"] != "done" or spawn["receipt"]["state"] not in SETTLED)


def _short_title(title: str | None) -> Long | None:
    """Give a title a short form."""
    if title is None:
        return None
    return Long(" ".join(title.split()), one_line(title, SHORT_NAME))


def _short_key(session: Payload) -> str:
    """Cut the key of a sub-agent to what distinguishes it from its neighbours."""
    key: str = session["key"]
    home = f"agent:{session['agentId']}:"
    is_at_home = session.get("spawnedBy", "").startswith(home)
    return _UUID.sub(r"\1…", key.removeprefix(home) if is_at_home else key)
