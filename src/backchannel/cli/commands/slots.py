"""`backchannel slots`: list work that has or waits for a slot, and end it."""

from __future__ import annotations

from typing import Annotated

import typer

from backchannel.cli import answers
from backchannel.cli.client import ask
from backchannel.cli.naming import find_id
from backchannel.cli.options import AsJson, default_list, options_of
from backchannel.cli.output import age, say, say_or_json, show_json
from backchannel.cli.short_forms import short_key
from backchannel.cli.tables import RowTable
from backchannel.core.short_ids import IdKind

app = typer.Typer(help="List active and waiting work, and end it.", rich_markup_mode=None)

Id = Annotated[str, typer.Argument(metavar="ID", help="The id, or its beginning, as `slots` shows it.")]


@default_list(app)
def list_slots(ctx: typer.Context, as_json: AsJson = False) -> None:
    """List work that holds a slot or waits for one, the longest first. `slots` alone does the same."""
    listed = ask(options_of(ctx), "slots.list", answers.SlotsListed)
    if as_json:
        show_json(listed)
        return
    _COUNTS.of(listed.kinds).show()
    say()
    USES.of(listed.slots).show()
    if listed.has_more:
        say("… and more.")


_COUNTS: RowTable[answers.SlotCount] = RowTable(
    {
        "kind": lambda count: count.kind,
        "used": lambda count: count.used,
        "of": lambda count: count.limit,
        "kept for each agent": lambda count: count.own,
        "waiting": lambda count: count.waiting,
    },
    empty="There are no slots.",
)
USES: RowTable[answers.SlotUse] = RowTable(
    {
        "id": lambda use: use.id,
        "kind": lambda use: use.kind,
        "state": lambda use: "waits" if use.is_waiting else "works",
        "for": lambda use: age(use.since),
        "agent": lambda use: use.agent_id,
        "session": lambda use: short_key(use.session_key),
        "what": lambda use: use.what,
    },
    empty="Nothing is at work.",
    spare=("agent",),
    ids="id",
)


@app.command()
def end(ctx: typer.Context, slot_id: Id, as_json: AsJson = False) -> None:
    """End a command with everything that it started, a call, or a run.

    The model learns that the operator ended it.
    """
    options = options_of(ctx)
    ended = ask(options, "slots.end", answers.SlotEnded, id=find_id(options, IdKind.SLOT, slot_id))
    say_or_json("It was ended.", ended, as_json=as_json)
