"""`backchannel tree`: show which session spawned which, with states and usage."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from backchannel.cli import answers
from backchannel.cli.client import GatewayClient, connected
from backchannel.cli.commands.runs import aside_text
from backchannel.cli.commands.sessions import EMPTY, in_line, name_of, status_of
from backchannel.cli.live import Lines, TableView, watch_table
from backchannel.cli.naming import WHICH, find_key
from backchannel.cli.options import AsJson, Limit, options_of
from backchannel.cli.output import age, as_plain, clock_time, hour_time, say, show_json
from backchannel.cli.short_forms import Long
from backchannel.cli.tables import TableRows
from backchannel.core.text import one_line

if TYPE_CHECKING:
    from backchannel.core.messages import Usage

_COLUMNS = ("session", "status", "runtime", "receipt", "tokens", "cost", "active", "name")
_SPARE = ("active", "tokens", "name", "receipt")
_SHORT_NAME = 24
_MOST = 1000
"""How many sessions the gateway shows at once."""

_UUID = re.compile(r"([0-9a-f]{8})-[0-9a-f-]{27}$")


def tree(
    ctx: typer.Context,
    key: Annotated[str | None, typer.Argument(help=f"Only this session and what it spawned: {WHICH}.")] = None,
    agent: Annotated[str | None, typer.Option(help="Only the sessions of this agent, and what they spawned.")] = None,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Update it until Ctrl-C. Piped: a line per change.")
    ] = False,
    limit: Limit = 200,
    as_json: AsJson = False,
) -> None:
    """Show which session spawned which, and the state of sub-agents.

    Tokens and cost cover a session and all that it spawned, including archived sub-agents. The receipt is the state of
    a sub-agent's delivered result.
    """
    options = options_of(ctx)
    if key is not None and agent is not None:
        raise typer.BadParameter("name a session, or give --agent", param_hint="KEY / --agent")
    view = TreeView(find_key(options, key), agent, limit)
    if watch:
        watch_table(options, view, Lines(_node_line, as_json=as_json, plain_of=_plain), as_json=as_json)
        return
    with connected(options) as client:
        snapshot = view.load(client)
    if as_json:
        show_json(snapshot.as_json())
        return
    snapshot.table(snapshot.ts).show()
    if snapshot.has_more:
        more = f"--limit {min(limit * 2, _MOST)} shows them, a" if limit < _MOST else "a"
        say(f"There are more: {more} KEY or --agent narrows it down.", err=True)


@dataclass(frozen=True, slots=True)
class Node:
    """A session, and those that it spawned."""

    session: answers.TreeNode
    children: list[Node]
    archived: list[answers.TreeNode]
    """Archived sub-agents that have no children of their own to show."""

    def as_json(self) -> dict[str, Any]:
        archived = {"archivedChildren": [_plain(child) for child in self.archived]} if self.archived else {}
        return _plain(self.session) | archived | {"children": [child.as_json() for child in self.children]}

    def all(self) -> Iterator[answers.TreeNode]:
        """Give the sessions of the whole branch."""
        yield self.session
        for child in self.children:
            yield from child.all()


def build_trees(told: answers.Trees) -> list[Node]:
    """Build the trees from the nodes of the gateway's answer."""
    by_key = {node.key: node for node in told.nodes}

    def grow(key: str) -> Node:
        children = [by_key[child] for child in by_key[key].children]
        shown = [child.key for child in children if child.children or child.archived_at is None]
        archived = [child for child in children if child.key not in shown]
        return Node(by_key[key], [grow(child) for child in shown], archived)

    return [grow(key) for key in told.roots]


def _plain(node: answers.TreeNode) -> dict[str, Any]:
    """Give a session without its children, for JSON, with its usage in full."""
    plain = as_plain(node)
    del plain["children"]
    return plain | {name: {"input": 0, "output": 0} | plain[name] for name in ("usage", "treeUsage")}


@dataclass(frozen=True, slots=True)
class TreeView(TableView["answers.TreeNode"]):
    """The sessions as trees."""

    key: str | None
    agent: str | None
    limit: int

    def load(self, client: GatewayClient) -> TreeSnapshot:
        told = client.call("sessions.tree", answers.Trees, key=self.key, agentId=self.agent, limit=self.limit)
        return TreeSnapshot(told.ts, build_trees(told), client.defaults.default_agent_id, told.truncated)


@dataclass(frozen=True, slots=True)
class TreeSnapshot:
    """The trees at one moment."""

    ts: int
    trees: list[Node]
    default_agent: str
    has_more: bool

    @property
    def sessions(self) -> list[answers.TreeNode]:
        return [session for node in self.trees for session in node.all()]

    def as_json(self) -> dict[str, Any]:
        agents = [
            {"agentId": agent, "usage": _used(nodes).as_json(), "sessions": [node.as_json() for node in nodes]}
            for agent, nodes in self._by_agent().items()
        ]
        return {"ts": self.ts, "count": len(self.sessions), "hasMore": self.has_more, "agents": agents}

    def table(self, now_ms: int) -> TableRows:
        rows = [row for agent, nodes in self._by_agent().items() for row in _group(agent, nodes, now_ms)]
        return TableRows(_COLUMNS, rows, EMPTY, _SPARE)

    def _by_agent(self) -> dict[str, list[Node]]:
        """Group the trees: the default agent first, of each agent the main session first, then the newest."""
        groups: dict[str, list[Node]] = defaultdict(list)
        for node in sorted(self.trees, key=lambda node: (node.session.kind != "main", -node.session.updated_at)):
            groups[node.session.agent_id].append(node)
        return {
            agent: groups[agent] for agent in sorted(groups, key=lambda agent: (agent != self.default_agent, agent))
        }


@dataclass(frozen=True, slots=True)
class UsedInAll:
    """Usage of several sessions. Usage without a known cost is left out of the cost."""

    input: int
    output: int
    cost: float | None

    @classmethod
    def of(cls, used: Iterable[Usage]) -> UsedInAll:
        each = list(used)
        costs = [usage.cost for usage in each if usage.cost is not None]
        return cls(
            sum(usage.input for usage in each), sum(usage.output for usage in each), sum(costs) if costs else None
        )

    def as_json(self) -> dict[str, Any]:
        cost = {} if self.cost is None else {"cost": self.cost}
        return {"input": self.input, "output": self.output} | cost


def _used(nodes: Iterable[Node]) -> UsedInAll:
    return UsedInAll.of(node.session.tree_usage for node in nodes)


def _group(agent: str, nodes: list[Node], now_ms: int) -> Iterator[list[object]]:
    yield [agent, "", "", "", *_shown_usage(_used(nodes)), "", ""]
    yield from _branch_rows(nodes, [], "", now_ms)


def _branch_rows(nodes: list[Node], archived: list[answers.TreeNode], lead: str, now_ms: int) -> Iterator[list[object]]:
    """Draw sessions with their children below. Archived sessions share one line."""
    for node in nodes:
        is_last = node is nodes[-1] and not archived
        yield _row(node.session, lead + ("└─ " if is_last else "├─ "), now_ms, is_top=not lead)
        yield from _branch_rows(node.children, node.archived, lead + ("   " if is_last else "│  "), now_ms)
    if archived:
        used = UsedInAll.of(child.usage for child in archived)
        yield [f"{lead}└─ {len(archived)} archived", "", "", "", *_shown_usage(used), "", ""]


def _row(session: answers.TreeNode, guide: str, now_ms: int, *, is_top: bool) -> list[object]:
    spawner = f"spawned by {session.parent_key}" if is_top and session.parent_key is not None else None
    return [
        Long(guide + session.key, guide + _short_key(session)),
        state_of(session),
        _runtime_of(session, now_ms),
        receipt_of(session),
        *_shown_usage(session.tree_usage),
        age(session.updated_at, now_ms),
        _short_title(_joined(title_of(session) or spawner, wait_of(session))),
    ]


def _shown_usage(usage: Usage | UsedInAll) -> tuple[str, str]:
    tokens = usage.input + usage.output
    return str(tokens) if tokens else "", "" if usage.cost is None else f"${usage.cost:.4f}"


def state_of(session: answers.TreeNode) -> str:
    """Show the state of a session. Of a finished sub-agent, show how its run ended."""
    spawn = session.spawn
    if spawn is None or session.archived_at is not None:
        return status_of(session)
    if spawn.state == "announce":
        return "announcing"
    if spawn.resume_at is not None:
        return f"until {hour_time(spawn.resume_at)}"
    if spawn.waits_for is not None:
        return "waits"
    is_busy = session.status != "idle"  # with its task, or with a later message
    return session.status if spawn.state == "done" and is_busy else spawn.run_status


def receipt_of(session: answers.TreeNode) -> str:
    """Show the receipt's state of a sub-agent's result; empty while there is no result."""
    spawn = session.spawn
    return spawn.receipt.state if spawn is not None and spawn.state == "done" else ""


def wait_of(session: answers.TreeNode) -> str:
    """Say what the run of a sub-agent waits for that is set aside; empty if it is not."""
    spawn = session.spawn
    return "" if spawn is None or session.archived_at is not None else aside_text(spawn.resume_at, spawn.waits_for)


def title_of(session: answers.TreeNode) -> str | None:
    """Give the name of a session. A sub-agent without a name has its task."""
    return name_of(session) or (session.spawn.task if session.spawn else None)


def _node_line(session: answers.TreeNode) -> str:
    """Show a session in one line: when it changed, its key, what it does, its receipt and its title."""
    receipt, title = receipt_of(session), title_of(session)
    return in_line(
        clock_time(session.updated_at),
        session.key,
        state_of(session),
        receipt and f"receipt {receipt}",
        title and f'"{title}"',
        wait_of(session),
    )


def _runtime_of(session: answers.TreeNode, now_ms: int) -> str:
    """Show how long a sub-agent took, or has been at work so far."""
    from backchannel.core.flows.spawn_texts import show_duration

    spawn = session.spawn
    if spawn is None or spawn.started_at is None:
        return ""
    if spawn.at_work_since is not None:
        return show_duration(max(0, now_ms - spawn.at_work_since))
    return "" if spawn.runtime_ms is None else show_duration(spawn.runtime_ms)


def _joined(title: str | None, wait: str) -> str | None:
    return "; ".join(filter(None, (wait, title))) or None


def _short_title(title: str | None) -> Long | None:
    """Give a title a short form."""
    if title is None:
        return None
    return Long(" ".join(title.split()), one_line(title, _SHORT_NAME))


def _short_key(session: answers.TreeNode) -> str:
    """Cut the key of a sub-agent to what distinguishes it from its neighbours."""
    home = f"agent:{session.agent_id}:"
    is_at_home = (session.parent_key or "").startswith(home)
    return _UUID.sub(r"\1…", session.key.removeprefix(home) if is_at_home else session.key)
