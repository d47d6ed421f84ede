"""`backchannel sessions`: the conversations there are, their labels, and starting one over.

A row of a sub-agent has `spawn`, as `session_status` shows it; other sessions have none.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from backchannel.cli.client import NULL, GatewayClient, Payload, connected
from backchannel.cli.live import watch_table
from backchannel.cli.naming import WHICH, find_key, short_key
from backchannel.cli.options import AsJson, Limit, Options, options_of
from backchannel.cli.output import Long, Rows, age, clock_time, one_line, say, say_or_json, show_json, show_table

SPARE = ("model", "kind")
COLUMNS = ("key", "kind", "status", "name", "model", "tokens", "active")
EMPTY = "There are no sessions."
SHORT_NAME = 12
PAGE = 1000

app = typer.Typer(help="List, label, reset and delete sessions.", rich_markup_mode=None)

Key = Annotated[str, typer.Argument(metavar="SESSION", help=f"The session: {WHICH}.")]


@app.callback(invoke_without_command=True)
@app.command("list")
def list_sessions(
    ctx: typer.Context,
    kind: Annotated[
        list[str] | None, typer.Option(help="Only these: main, group, cron, hook, node, other. May be repeated.")
    ] = None,
    active: Annotated[int | None, typer.Option(min=1, metavar="MINUTES", help="Only those active lately.")] = None,
    search: Annotated[str | None, typer.Option(help="Only those with this in their key, label or name.")] = None,
    label: Annotated[str | None, typer.Option(help="Only those with exactly this label.")] = None,
    agent: Annotated[str | None, typer.Option(help="Only those of this agent.")] = None,
    archived: Annotated[bool, typer.Option("--archived", help="Only those that were deleted.")] = False,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Keep the list up to date until Ctrl-C; piped, a line per change.")
    ] = False,
    limit: Limit = 50,
    as_json: AsJson = False,
) -> None:
    """List the sessions, the newest first. With --json and --watch, a session a line."""
    if ctx.invoked_subcommand is not None:
        return
    options = options_of(ctx)
    view = SessionsView(
        limit,
        {
            "kinds": kind or None,
            "activeMinutes": active,
            "search": search,
            "label": label,
            "agentId": agent,
            "archived": archived or None,
        },
    )
    if watch:
        watch_table(options, view, line_of, as_json=as_json)
        return
    with connected(options) as client:
        listed = view.list(client)
    if as_json:
        show_json(listed)
        return
    show_sessions(listed["sessions"], listed["ts"])
    if listed["hasMore"]:
        say(f"There are more: --limit {limit * 2} shows them, --search finds them.", err=True)


@app.command()
def label(
    ctx: typer.Context,
    session: Key,
    name: Annotated[str | None, typer.Argument(metavar="[LABEL]", help="Its label from now on.")] = None,
    clear: Annotated[bool, typer.Option("--clear", help="Take its label away, so that another can have it.")] = False,
    as_json: AsJson = False,
) -> None:
    """Give a session a label, or take it away."""
    if (name is None) != clear:
        raise typer.BadParameter("name a label, or give --clear", param_hint="LABEL / --clear")
    changed = _change(options_of(ctx), session, "sessions.patch", label=NULL if name is None else name)
    has = "no label any more" if clear else f"the label {name!r}"
    say_or_json(f"Session {changed['key']} has {has}.", changed, as_json=as_json)


@app.command()
def reset(ctx: typer.Context, session: Key, as_json: AsJson = False) -> None:
    """Start a session over. Its transcript ends, and its key, label, model and address stay."""
    changed = _change(options_of(ctx), session, "sessions.reset")
    text = f"Session {changed['key']} starts over, with the session id {changed['entry']['sessionId']}."
    say_or_json(text, changed, as_json=as_json)


@app.command()
def delete(ctx: typer.Context, session: Key, as_json: AsJson = False) -> None:
    """Archive a session. What it works on is stopped; its transcript stays, and can be read with --archived."""
    changed = _change(options_of(ctx), session, "sessions.delete")
    say_or_json(f"Session {changed['key']} is archived. Its transcript stays.", changed, as_json=as_json)


def _change(options: Options, session: str, method: str, **params: Any) -> Payload:
    """Change a session that exists; without this check a misspelt key would make a new one."""
    key = find_key(options, session)
    with connected(options) as client:
        found = client.call("sessions.describe", key=key)["session"]["key"]
        return client.call(method, key=found, **params)


@dataclass(frozen=True, slots=True)
class SessionsView:
    """The sessions that fit, the newest first."""

    limit: int
    wanted: dict[str, Any]
    columns: tuple[str, ...] = COLUMNS
    spare: tuple[str, ...] = SPARE
    empty: str = EMPTY

    def list(self, client: GatewayClient) -> Payload:
        """Ask for them, page by page if there are many."""
        listed = client.call("sessions.list", limit=min(self.limit, PAGE), **self.wanted)
        found = {row["key"]: row for row in listed["sessions"]}  # one that moves up meanwhile is seen twice
        while (left := self.limit - len(found)) > 0 and "nextCursor" in listed:
            listed = client.call("sessions.list", limit=min(left, PAGE), cursor=listed["nextCursor"], **self.wanted)
            found |= {row["key"]: row for row in listed["sessions"]}
        return listed | {"count": len(found), "sessions": [*found.values()]}

    def load(self, client: GatewayClient) -> SessionsSnapshot:
        listed = self.list(client)
        return SessionsSnapshot(listed["ts"], listed["sessions"])


@dataclass(frozen=True, slots=True)
class SessionsSnapshot:
    """The sessions at one moment."""

    ts: int
    sessions: list[Payload]

    def rows(self, now_ms: int) -> Rows:
        return [
            [
                short_key(row["key"]),
                "sub-agent" if "spawnedBy" in row else row["kind"],
                status_of(row),
                _shown_name(row),
                row.get("model"),
                tokens_of(row),
                age(row["updatedAt"], now_ms),
            ]
            for row in self.sessions
        ]


def show_sessions(rows: list[Payload], now_ms: int) -> None:
    """Print sessions as a table."""
    show_table(COLUMNS, SessionsSnapshot(now_ms, rows).rows(now_ms), empty=EMPTY, spare=SPARE)


def status_of(row: Payload) -> str:
    """Show what a session does, or that it is archived."""
    return "archived" if "archivedAt" in row else str(row["status"])


def name_of(row: Payload) -> str | None:
    """What a session is called, if anything."""
    return row.get("label") or row.get("displayName")


def _shown_name(row: Payload) -> Long | None:
    """What a session is called, or whose sub-agent it is; where there is no room it gives way to the key."""
    if name := name_of(row):
        return Long(name, one_line(name, SHORT_NAME))
    return Long(f"sub-agent of {row['spawnedBy']}", "sub-agent") if "spawnedBy" in row else None


def tokens_of(row: Payload) -> str:
    """Show how much of the model's context window a session has used."""
    used, window = row.get("totalTokens"), row.get("contextTokens")
    if used is None:
        return ""
    return f"{used}/{window}" if window else str(used)


def state_of(session: Payload) -> str:
    """Show what a session does; of a sub-agent that is done, how its run ended."""
    spawn = session.get("spawn")
    if spawn is None or "archivedAt" in session:
        return status_of(session)
    if spawn["state"] == "announce":
        return "announcing"
    if "resumeAt" in spawn:
        return f"until {time.strftime('%H:%M', time.localtime(spawn['resumeAt'] / 1000))}"
    is_busy = session["status"] != "idle"  # with its task, or with a later message
    return str(session["status"] if spawn["state"] == "done" and is_busy else spawn["runStatus"])


def receipt_of(session: Payload) -> str:
    """Show what became of a sub-agent's result; empty while there is none."""
    spawn = session.get("spawn")
    return str(spawn["receipt"]["state"]) if spawn is not None and spawn["state"] == "done" else ""


def title_of(session: Payload) -> str | None:
    """What a session is called: its name, or of a sub-agent without one its task."""
    return name_of(session) or session.get("spawn", {}).get("task")


def line_of(session: Payload, *, with_time: bool = True) -> str:
    """Show a session in one line: when it changed, its key, what it does, its receipt and its title."""
    receipt, title = receipt_of(session), title_of(session)
    parts = [
        with_time and clock_time(session["updatedAt"]),
        session["key"],
        state_of(session),
        receipt and f"receipt {receipt}",
        title and f'"{title}"',
    ]
    return "  ".join(" ".join(part.split()) for part in parts if part)
