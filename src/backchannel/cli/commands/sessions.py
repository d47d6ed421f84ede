"""`backchannel sessions`: list, label, compact, reset and delete sessions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

import typer

from backchannel.cli import answers
from backchannel.cli.client import NULL, GatewayClient, connected
from backchannel.cli.live import Lines, TableView, watch_table
from backchannel.cli.naming import WHICH, find_key
from backchannel.cli.options import AsJson, Limit, Options, default_list, options_of
from backchannel.cli.output import age, clock_time, say, say_or_json, show_json
from backchannel.cli.short_forms import Long, short_key
from backchannel.cli.tables import RowTable, TableRows
from backchannel.core.text import one_line

EMPTY = "There are no sessions."
_SHORT_NAME = 12
_PAGE = 1000

T = TypeVar("T")

app = typer.Typer(help="List, change, compact and delete sessions.", rich_markup_mode=None)

Key = Annotated[str, typer.Argument(metavar="SESSION", help=f"The session: {WHICH}.")]


@default_list(app)
def list_sessions(
    ctx: typer.Context,
    kind: Annotated[
        list[str] | None, typer.Option(help="Only this kind: main, group, cron, hook, node or other. May be repeated.")
    ] = None,
    active: Annotated[
        int | None, typer.Option(min=1, metavar="MINUTES", help="Only sessions active in the last MINUTES.")
    ] = None,
    search: Annotated[str | None, typer.Option(help="Only sessions with this text in the key, label or name.")] = None,
    label: Annotated[str | None, typer.Option(help="Only sessions with exactly this label.")] = None,
    agent: Annotated[str | None, typer.Option(help="Only sessions of this agent.")] = None,
    archived: Annotated[bool, typer.Option("--archived", help="Only archived sessions.")] = False,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Update the list until Ctrl-C. Piped: a line per change.")
    ] = False,
    limit: Limit = 50,
    as_json: AsJson = False,
) -> None:
    """List the sessions, the newest first. With --json and --watch, each session is a line."""
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
        watch_table(options, view, Lines(session_line, as_json=as_json), as_json=as_json)
        return
    with connected(options) as client:
        listed = view.list(client)
    if as_json:
        show_json(listed)
        return
    SessionsSnapshot(listed.ts, listed.sessions).table(listed.ts).show()
    if listed.has_more:
        say(f"There are more: --limit {limit * 2} shows them, --search finds them.", err=True)


@app.command()
def label(
    ctx: typer.Context,
    session: Key,
    name: Annotated[str | None, typer.Argument(metavar="[LABEL]", help="The new label.")] = None,
    clear: Annotated[
        bool, typer.Option("--clear", help="Clear the label, so that another session can have it.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Set or clear a session's label."""
    if (name is None) != clear:
        raise typer.BadParameter("name a label, or give --clear", param_hint="LABEL / --clear")
    given = NULL if name is None else name
    changed = _change(options_of(ctx), session, "sessions.patch", answers.SessionPatched, label=given)
    has = "no label any more" if clear else f"the label {name!r}"
    say_or_json(f"Session {changed.key} has {has}.", changed, as_json=as_json)


@app.command()
def reset(ctx: typer.Context, session: Key, as_json: AsJson = False) -> None:
    """Start a new conversation in a session. Its key, label, model and return address stay."""
    changed = _change(options_of(ctx), session, "sessions.reset", answers.SessionPatched)
    text = f"Session {changed.key} starts over, with the session id {changed.entry.session_id}."
    say_or_json(text, changed, as_json=as_json)


@app.command()
def compact(
    ctx: typer.Context,
    session: Key,
    keep: Annotated[str | None, typer.Option(metavar="TEXT", help="What the summary must keep above all.")] = None,
    undo: Annotated[bool, typer.Option("--undo", help="Take the last summary back.")] = False,
    as_json: AsJson = False,
) -> None:
    """Summarise the older part of a session.

    The command waits for the summary. The model is shown it in place of the older part. The transcript stays whole.
    """
    if undo and keep is not None:
        raise typer.BadParameter("give one of the two", param_hint="--keep / --undo")
    options = options_of(ctx)
    key = find_key(options, session)
    with connected(options) as client:  # a model may take minutes
        asked = client.ask("sessions.compact", key=key, instructions=keep, undo=undo or None)
        done = client.wait(asked, answers.SessionCompacted)
    say_or_json(f"Session {done.key}: {_compacted(done)}.", done, as_json=as_json)


def _compacted(done: answers.SessionCompacted) -> str:
    from backchannel.core.compaction.entry import compaction_line

    if done.result is not None:
        return compaction_line(done.result)
    return "the last summary was taken back" if done.undone else done.reason or "nothing was summarised"


@app.command()
def delete(ctx: typer.Context, session: Key, as_json: AsJson = False) -> None:
    """Archive a session. Its run stops, and its transcript stays. `sessions --archived` lists it."""
    changed = _change(options_of(ctx), session, "sessions.delete", answers.SessionDeleted)
    say_or_json(f"Session {changed.key} is archived. Its transcript stays.", changed, as_json=as_json)


def _change(options: Options, session: str, method: str, shape: type[T], **params: Any) -> T:
    """Change a session that exists. Without this check a misspelt key would make a new session."""
    key = find_key(options, session)
    with connected(options) as client:
        found = client.call("sessions.resolve", answers.SessionFound, key=key).key
        return client.call(method, shape, key=found, **params)


@dataclass(frozen=True, slots=True)
class SessionsView(TableView["answers.SessionRow"]):
    """The sessions that were asked for, the newest first."""

    limit: int
    wanted: dict[str, Any]

    def list(self, client: GatewayClient) -> answers.SessionRows:
        """Read the sessions, page by page."""
        from msgspec.structs import replace

        listed = client.call("sessions.list", answers.SessionRows, limit=min(self.limit, _PAGE), **self.wanted)
        found = {row.key: row for row in listed.sessions}  # one that moves up meanwhile is seen twice
        while (left := self.limit - len(found)) > 0 and listed.next_cursor is not None:
            place = {"limit": min(left, _PAGE), "cursor": listed.next_cursor}
            listed = client.call("sessions.list", answers.SessionRows, **place, **self.wanted)
            found |= {row.key: row for row in listed.sessions}
        return replace(listed, count=len(found), sessions=[*found.values()])

    def load(self, client: GatewayClient) -> SessionsSnapshot:
        listed = self.list(client)
        return SessionsSnapshot(listed.ts, listed.sessions)


@dataclass(frozen=True, slots=True)
class SessionsSnapshot:
    """The sessions at one moment."""

    ts: int
    sessions: list[answers.SessionRow]

    def table(self, now_ms: int) -> TableRows:
        columns: RowTable[answers.SessionRow] = RowTable(
            {
                "key": lambda row: short_key(row.key),
                "kind": kind_of,
                "status": status_of,
                "name": _shown_name,
                "model": lambda row: row.model,
                "tokens": tokens_of,
                "active": lambda row: age(row.updated_at, now_ms),
            },
            empty=EMPTY,
            spare=("model", "kind"),
        )
        return columns.of(self.sessions)


def kind_of(row: answers.SessionRow) -> str:
    """Show what kind of session it is."""
    return row.classification if row.spawned_by is None else "sub-agent"


def status_of(session: answers.SessionRow | answers.TreeNode) -> str:
    """Show what a session does, or that it is archived."""
    if session.archived_at is not None:
        return "archived"
    return session.activity if isinstance(session, answers.SessionRow) else session.status


def name_of(session: answers.SessionRow | answers.TreeNode) -> str | None:
    """Give the label or display name of a session."""
    return session.label or session.display_name


def _shown_name(row: answers.SessionRow) -> Long | None:
    """Show the name of a session, or whose sub-agent it is. It is cut before the key is."""
    if name := name_of(row):
        return Long(name, one_line(name, _SHORT_NAME))
    return None if row.spawned_by is None else Long(f"sub-agent of {row.spawned_by}", "sub-agent")


def tokens_of(row: answers.SessionRow) -> str:
    """Show how much of the model's context window a session has used."""
    if row.total_tokens is None:
        return ""
    return f"{row.total_tokens}/{row.context_tokens}" if row.context_tokens else str(row.total_tokens)


def session_line(session: answers.SessionRow, *, with_time: bool = True) -> str:
    """Show a session in one line: when it changed, its key, what it does and its name."""
    name = name_of(session)
    return in_line(with_time and clock_time(session.updated_at), session.key, status_of(session), name and f'"{name}"')


def in_line(*parts: str | bool | None) -> str:
    """Join the parts that are not empty to one line."""
    return "  ".join(" ".join(part.split()) for part in parts if isinstance(part, str) and part)
