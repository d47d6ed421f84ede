"""`backchannel tree`: which session spawned which, and what each has used."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

import typer

from backchannel.cli.options import AsJson, Limit, options_of
from backchannel.cli.output import Rows, age, say, show_json, show_table
from backchannel.cli.sessions import EMPTY, SessionsView, name_of, status_of

if TYPE_CHECKING:
    from backchannel.cli.client import Client, Payload

PAGE = 1000
COLUMNS = ("session", "status", "name", "active", "tokens", "cost")


def tree(
    ctx: typer.Context,
    key: Annotated[
        str | None, typer.Argument(help="Only this session and what it spawned: a key, `main`, or a session id.")
    ] = None,
    agent: Annotated[str | None, typer.Option(help="Only the sessions of this agent, and what they spawned.")] = None,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Keep it up to date until Ctrl-C; piped, a line per change.")
    ] = False,
    limit: Limit = 200,
    as_json: AsJson = False,
) -> None:
    """Show the sessions under those that spawned them, by agent, with all the tokens and money they have used."""
    options = options_of(ctx)
    if key is not None and agent is not None:
        raise typer.BadParameter("name a session, or give --agent", param_hint="KEY / --agent")
    view = TreeView(key, agent, limit)
    if watch:
        from backchannel.cli.watch import watch as keep_watching

        keep_watching(options, view, as_json=as_json)
        return
    from backchannel.cli.client import connected

    with connected(options) as client:
        picture = view.load(client)
    if as_json:
        show_json(picture.as_json())
        return
    show_table(COLUMNS, picture.rows(picture.ts), empty=EMPTY)
    if picture.has_more:
        say(f"There are more: --limit {limit * 2} shows them, a KEY or --agent narrows it down.", err=True)


@dataclass(frozen=True, slots=True)
class Node:
    """A session, and those that it spawned."""

    session: Payload
    children: list[Node]

    def as_json(self) -> Payload:
        return self.session | {"children": [child.as_json() for child in self.children]}

    def all(self) -> Iterator[Payload]:
        """The sessions of the whole branch."""
        yield self.session
        for child in self.children:
            yield from child.all()


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


@dataclass(slots=True)
class TreeView:
    """The sessions as trees, with what they have used; that is asked again only for sessions that changed."""

    key: str | None
    agent: str | None
    limit: int
    columns: tuple[str, ...] = COLUMNS
    spare: tuple[str, ...] = ()
    empty: str = EMPTY
    _used: dict[str, tuple[int, Payload]] = field(default_factory=dict)

    def load(self, client: Client) -> TreePicture:
        found, ts, has_more = self._one_branch(client) if self.key is not None else self._all(client)
        self._add_usage(client, found)
        default: str = client.hello["snapshot"]["sessionDefaults"]["defaultAgentId"]
        return TreePicture(ts, build_trees(found), default, has_more)

    def _all(self, client: Client) -> tuple[list[Payload], int, bool]:
        listed = SessionsView(self.limit, {"agentId": self.agent}).list(client)
        found = {row["key"]: row for row in listed["sessions"]}
        if self.agent is None:
            return [*found.values(), *_missing_parents(client, found)], listed["ts"], listed["hasMore"]
        spawned, has_more = _descendants(client, list(found))
        found |= {row["key"]: row for row in spawned}
        return list(found.values()), listed["ts"], has_more or listed["hasMore"]

    def _one_branch(self, client: Client) -> tuple[list[Payload], int, bool]:
        root = client.call("sessions.describe", key=self.key)["session"]
        spawned, has_more = _descendants(client, [root["key"]])
        now: int = client.call("status")["ts"]
        return [root, *spawned], now, has_more

    def _add_usage(self, client: Client, sessions: list[Payload]) -> None:
        unknown = [row["key"] for row in sessions if not self._is_known(row)]
        asked = [{"tool": "session_status", "args": {"sessionKey": key}} for key in unknown]
        told = client.call_each("tools.invoke", asked)
        fresh = {key: answer["result"].get("usage", {}) for key, answer in zip(unknown, told, strict=True)}
        for row in sessions:
            usage = fresh[row["key"]] if row["key"] in fresh else self._used[row["key"]][1]
            row["usage"] = {"input": 0, "output": 0} | usage
        self._used = {row["key"]: (row["updatedAt"], row["usage"]) for row in sessions}

    def _is_known(self, row: Payload) -> bool:
        known = self._used.get(row["key"])
        return known is not None and known[0] == row["updatedAt"] and row["status"] == "idle"


def _descendants(client: Client, keys: list[str]) -> tuple[list[Payload], bool]:
    """Load what sessions spawned, one generation at a time; also tell whether some were left out."""
    found: dict[str, Payload] = {}
    has_more = False
    while keys:
        pages = client.call_each("sessions.list", [{"spawnedBy": key, "limit": PAGE} for key in keys])
        has_more = has_more or any(page["hasMore"] for page in pages)
        fresh = {row["key"]: row for page in pages for row in page["sessions"] if row["key"] not in found}
        found |= fresh
        keys = list(fresh)
    return list(found.values()), has_more


def _missing_parents(client: Client, found: dict[str, Payload]) -> Iterator[Payload]:
    """Load the sessions that spawned others and are not in the list themselves: older ones, and archived ones."""
    from backchannel.cli.client import CallFailed

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
class TreePicture:
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
            {"agentId": agent, "usage": add_usage(nodes), "sessions": [node.as_json() for node in nodes]}
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


def add_usage(nodes: Iterable[Node]) -> Payload:
    """Add up what whole branches have used; a cost that nobody knows is left out."""
    used = [session["usage"] for node in nodes for session in node.all()]
    total: Payload = {name: sum(usage[name] for usage in used) for name in ("input", "output")}
    costs = [usage["cost"] for usage in used if "cost" in usage]
    return total | ({"cost": sum(costs)} if costs else {})


def _group(agent: str, nodes: list[Node], now_ms: int) -> Iterator[list[object]]:
    yield [agent, "", "", "", *_shown_usage(add_usage(nodes))]
    for guide, node, is_top in _guided(nodes):
        session = node.session
        spawner = f"spawned by {session['spawnedBy']}" if is_top and "spawnedBy" in session else None
        yield [
            guide + session["key"],
            status_of(session),
            name_of(session) or spawner,
            age(session["updatedAt"], now_ms),
            *_shown_usage(session["usage"]),
        ]


def _guided(nodes: list[Node], lead: str = "") -> Iterator[tuple[str, Node, bool]]:
    """Give each session the lines that lead to it."""
    for node in nodes:
        is_last = node is nodes[-1]
        yield lead + ("└─ " if is_last else "├─ "), node, not lead
        yield from _guided(node.children, lead + ("   " if is_last else "│  "))


def _shown_usage(usage: Payload) -> tuple[str, str]:
    tokens = usage["input"] + usage["output"]
    return str(tokens) if tokens else "", f"${usage['cost']:.4f}" if "cost" in usage else ""
