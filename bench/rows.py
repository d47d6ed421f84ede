"""The rows there are. A new one is an async generator that yields figures and curves, and a line here."""

from __future__ import annotations

from collections.abc import Callable

from bench.budgets import budgeted_runs
from bench.footprint import footprint
from bench.hands import commands
from bench.lockout import lockout
from bench.measures import Findings
from bench.page import page_views
from bench.postgres import on_postgres
from bench.reads import session_lists, transcript_ends
from bench.runs import many_runs, one_run, waiting_runs
from bench.search import searches
from bench.sends import many_sends, one_send
from bench.spawns import many_spawns, one_spawn
from bench.starts import idle_memory, starts
from bench.tool_rounds import mcp_rounds
from bench.tools import lists_with_messages, restricted_lists
from bench.transactions import transactions
from bench.wires import runs_on_wires
from bench.world import BenchWorld

ROWS: dict[str, Callable[[BenchWorld], Findings]] = {
    "run": one_run,
    "budgets": budgeted_runs,
    "wire": runs_on_wires,
    "rate": many_runs,
    "list": session_lists,
    "list-messages": lists_with_messages,
    "list-as": restricted_lists,
    "history": transcript_ends,
    "search": searches,
    "waiting": waiting_runs,
    "send": one_send,
    "send-many": many_sends,
    "spawn": one_spawn,
    "spawn-many": many_spawns,
    "exec": commands,
    "mcp-round": mcp_rounds,
    "start": starts,
    "memory": idle_memory,
    "lockout": lockout,
    "page": page_views,
    "postgres": on_postgres,
    "transactions": transactions,
    "footprint": footprint,
}
