"""`backchannel sessions`: the conversations there are."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from backchannel.cli.options import AsJson, Limit, options_of
from backchannel.cli.output import age, say, show_json, show_table


def sessions(
    ctx: typer.Context,
    kind: Annotated[
        list[str] | None, typer.Option(help="Only these: main, group, cron, hook, node, other. May be repeated.")
    ] = None,
    active: Annotated[int | None, typer.Option(min=1, metavar="MINUTES", help="Only those active lately.")] = None,
    search: Annotated[str | None, typer.Option(help="Only those with this in their key, label or name.")] = None,
    agent: Annotated[str | None, typer.Option(help="Only those of this agent.")] = None,
    archived: Annotated[bool, typer.Option("--archived", help="Only those that were deleted.")] = False,
    limit: Limit = 50,
    as_json: AsJson = False,
) -> None:
    """List the sessions, the newest first."""
    from backchannel.cli.client import connected

    with connected(options_of(ctx)) as client:
        listed = client.call(
            "sessions.list",
            kinds=kind or None,
            activeMinutes=active,
            search=search,
            agentId=agent,
            archived=archived or None,
            limit=limit,
        )
    if as_json:
        show_json(listed)
        return
    show_sessions(listed["sessions"], listed["ts"])
    if listed["hasMore"]:
        say(f"There are more: --limit {limit * 2} shows them, --search finds them.", err=True)


def show_sessions(rows: list[dict[str, Any]], now_ms: int) -> None:
    """Print sessions as a table."""
    show_table(
        ["key", "kind", "status", "name", "model", "tokens", "active"],
        [
            [
                row["key"],
                row["kind"],
                row["status"],
                row.get("label") or row.get("displayName"),
                row.get("model"),
                tokens_of(row),
                age(row["updatedAt"], now_ms),
            ]
            for row in rows
        ],
        empty="There are no sessions.",
    )


def tokens_of(row: dict[str, Any]) -> str:
    """Show how much of the model's context window a session has used."""
    used, window = row.get("totalTokens"), row.get("contextTokens")
    if used is None:
        return ""
    return f"{used}/{window}" if window else str(used)
