"""`backchannel approvals`: list the tool calls that wait for approval, and answer them."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Annotated, Any

import typer

from backchannel.cli import answers
from backchannel.cli.client import ask
from backchannel.cli.naming import find_id, find_key
from backchannel.cli.options import AsJson, Limit, default_list, options_of
from backchannel.cli.output import age, say, show_json
from backchannel.cli.tables import RowTable, show_list
from backchannel.core.money.budgets import BUDGET_TOOL
from backchannel.core.short_ids import IdKind
from backchannel.core.text import made_visible, one_line
from backchannel.wire.rows import ApprovalRow

app = typer.Typer(help="List tool calls that wait for an approval, and answer them.", rich_markup_mode=None)

Id = Annotated[str, typer.Argument(metavar="ID", help="The approval's id, or its beginning, as `approvals` shows it.")]
Session = Annotated[str | None, typer.Option("--session", help="Only calls of this session.")]
All = Annotated[bool, typer.Option("--all", help="Also answered calls.")]
Always = Annotated[bool, typer.Option("--always", help="Also approve later calls of this tool in this session.")]


_TABLE: RowTable[ApprovalRow] = RowTable(
    {
        "id": lambda approval: approval.id,
        "state": lambda approval: approval.state,
        "age": lambda approval: age(approval.created_at),
        "session": lambda approval: approval.session_key,
        "tool": lambda approval: approval.tool,
        "arguments": lambda approval: one_line(made_visible(json.dumps(approval.args, ensure_ascii=False))),
    },
    empty="Nothing waits for your word.",
    spare=("state", "age"),
)


@default_list(app)
def list_approvals(
    ctx: typer.Context, session: Session = None, every: All = False, limit: Limit = 20, as_json: AsJson = False
) -> None:
    """List the waiting calls, the newest first. `approvals` alone does the same."""
    options = options_of(ctx)
    state = None if every else "pending"
    key = find_key(options, session)
    listed = ask(options, "approvals.list", answers.ApprovalsListed, sessionKey=key, state=state, limit=limit)
    table = replace(_TABLE, empty="Nothing was asked for.") if every else _TABLE
    show_list(listed, table.of(listed.approvals), as_json=as_json, limit=limit)


@app.command()
def approve(ctx: typer.Context, approval_id: Id, always: Always = False, as_json: AsJson = False) -> None:
    """Approve a call."""
    _answer(ctx, approval_id, as_json, decision="approve", always=always)


@app.command()
def deny(ctx: typer.Context, approval_id: Id, as_json: AsJson = False) -> None:
    """Deny a call. The model learns it."""
    _answer(ctx, approval_id, as_json, decision="deny")


def _answer(ctx: typer.Context, approval_id: str, as_json: bool, **answer: Any) -> None:
    options = options_of(ctx)
    found = find_id(options, IdKind.APPROVAL, approval_id)
    approval = ask(options, "approvals.answer", answers.ApprovalAnswered, id=found, **answer).approval
    if as_json:
        show_json(approval)
    else:
        say(f"The {_asked(approval)} is {approval.state}.")


def _asked(approval: ApprovalRow) -> str:
    """Name what was asked for: more of a budget, or a call."""
    if approval.tool == BUDGET_TOOL and isinstance(approval.args, dict) and "budget" in approval.args:
        return f"request for more of the budget {approval.args['budget']}"
    return f"call of {approval.tool} in {approval.session_key}"
