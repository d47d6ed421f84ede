"""`backchannel deliveries`: list outbound messages, and retry, reroute, drop or confirm them."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from backchannel.cli import answers
from backchannel.cli.client import ask, connected
from backchannel.cli.naming import find_id, find_key
from backchannel.cli.options import FAILED, AsJson, Limit, Options, default_list, options_of
from backchannel.cli.output import age, clock_time, say, show_facts, show_json, until
from backchannel.cli.tables import RowTable, show_list
from backchannel.core.short_ids import IdKind
from backchannel.core.text import one_line

app = typer.Typer(help="Show deliveries to chats, and retry, re-route or drop them.", rich_markup_mode=None)

Id = Annotated[str, typer.Argument(metavar="ID", help="The delivery's id, or its beginning, as `deliveries` shows it.")]
OneId = Annotated[
    str | None, typer.Argument(metavar="[ID]", help="The delivery's id, or its beginning, as `deliveries` shows it.")
]
Failed = Annotated[bool, typer.Option("--failed", help="All failed deliveries.")]
Uncertain = Annotated[bool, typer.Option("--uncertain", help="All uncertain deliveries. Some may have arrived.")]
Session = Annotated[str | None, typer.Option("--session", help="Only deliveries of this session.")]
Status = Annotated[
    str | None,
    typer.Option(
        "--status",
        metavar="STATUS",
        help="Only deliveries with this status: pending, sending, sent, failed, uncertain, dropped, suppressed, "
        "no_channel, skipped or cancelled.",
    ),
]


@default_list(app)
def list_deliveries(
    ctx: typer.Context, session: Session = None, status: Status = None, limit: Limit = 20, as_json: AsJson = False
) -> None:
    """List deliveries, the newest first. `deliveries` alone does the same."""
    options = options_of(ctx)
    key = find_key(options, session)
    listed = ask(options, "deliveries.list", answers.DeliveriesListed, sessionKey=key, state=status, limit=limit)
    show_list(listed, DELIVERY_LIST.of(listed.deliveries), as_json=as_json, limit=limit)


DELIVERY_LIST: RowTable[answers.ReceiptRow] = RowTable(
    {
        "id": lambda delivery: delivery.id,
        "state": lambda delivery: delivery.state,
        "age": lambda delivery: age(delivery.created_at),
        "to": lambda delivery: place_of(delivery),
        "parts": lambda delivery: _progress(delivery),
        "next try": lambda delivery: until(delivery.due_at),
        "error or text": lambda delivery: one_line(delivery.error or delivery.text or ""),
    },
    empty="There are no deliveries.",
    spare=("parts", "age", "next try"),
    ids="id",
)


def place_of(delivery: answers.ReceiptRow) -> str:
    """Show the address of a delivery."""
    place = " ".join(part for part in (delivery.channel, delivery.account_id, delivery.to) if part is not None)
    return f"{place} thread {delivery.thread_id}" if delivery.thread_id is not None else place


def _progress(delivery: answers.ReceiptRow) -> str:
    is_given_up = delivery.state == "dropped"  # else the dropped parts are those for the chat that it went to before
    parts = [part for part in delivery.parts if is_given_up or part.state != "dropped"]
    sent = sum(part.state == "sent" for part in parts)
    return f"{sent}/{len(parts)}" if parts else ""


@app.command()
def show(ctx: typer.Context, delivery_id: Id, as_json: AsJson = False) -> None:
    """Show one delivery: its text, and the state of each part."""
    _call(options_of(ctx), as_json, "deliveries.get", delivery_id)


@app.command()
def retry(
    ctx: typer.Context,
    delivery_id: OneId = None,
    failed: Failed = False,
    uncertain: Uncertain = False,
    as_json: AsJson = False,
) -> None:
    """Retry failed or uncertain deliveries. Parts that arrived are not sent again."""
    _change(options_of(ctx), as_json, "deliveries.retry", delivery_id, _states(failed, uncertain))


@app.command()
def reroute(
    ctx: typer.Context,
    delivery_id: Id,
    channel: Annotated[str, typer.Argument(metavar="CHANNEL", help="The channel to use.")],
    to: Annotated[str, typer.Argument(metavar="TO", help="The chat's id on that channel.")],
    account: Annotated[str | None, typer.Option("--account", help="The account on that channel.")] = None,
    thread: Annotated[str | None, typer.Option("--thread", help="The thread in that chat.")] = None,
    as_json: AsJson = False,
) -> None:
    """Send a failed or uncertain delivery to another chat. All parts are sent."""
    options = options_of(ctx)
    place = {"channel": channel, "to": to, "accountId": account, "threadId": thread}
    _call(options, as_json, "deliveries.reroute", delivery_id, **place)


@app.command()
def drop(
    ctx: typer.Context,
    delivery_id: OneId = None,
    failed: Failed = False,
    uncertain: Uncertain = False,
    as_json: AsJson = False,
) -> None:
    """Drop failed or uncertain deliveries."""
    _change(options_of(ctx), as_json, "deliveries.drop", delivery_id, _states(failed, uncertain))


@app.command()
def confirm(ctx: typer.Context, delivery_id: Id, as_json: AsJson = False) -> None:
    """Confirm that an uncertain part arrived. The parts after it are then sent."""
    _call(options_of(ctx), as_json, "deliveries.confirm", delivery_id)


def _states(failed: bool, uncertain: bool) -> list[str]:
    return [state for state, is_meant in (("failed", failed), ("uncertain", uncertain)) if is_meant]


def _change(options: Options, as_json: bool, method: str, delivery_id: str | None, states: list[str]) -> None:
    if (delivery_id is None) == (not states):
        raise typer.BadParameter("give one id, or --failed, --uncertain or both", param_hint="ID")
    if delivery_id is not None:
        _call(options, as_json, method, delivery_id)
        return
    answer = _change_all(options, method, states)
    if as_json:
        show_json(answer)
        return
    done = "in line to be sent again" if method == "deliveries.retry" else "given up"
    say(f"{answer.count} {'delivery' if answer.count == 1 else 'deliveries'} {done}.")
    for refused in answer.refused:
        say(f"{refused.id}: {refused.error}", err=True)
    if answer.refused:
        raise typer.Exit(FAILED)


def _change_all(options: Options, method: str, states: list[str]) -> answers.DeliveriesMended:
    """Go through all deliveries in these states, a page at a time."""
    pages: list[answers.DeliveriesMended] = []
    with connected(options) as client:
        for state in states:
            pages.append(client.call(method, answers.DeliveriesMended, state=state))
            while cursor := pages[-1].next_cursor:
                pages.append(client.call(method, answers.DeliveriesMended, state=state, cursor=cursor))
    refused = [entry for page in pages for entry in page.refused]
    return answers.DeliveriesMended(count=sum(page.count for page in pages), refused=refused)


def _call(options: Options, as_json: bool, method: str, delivery_id: str, **params: Any) -> None:
    whole = find_id(options, IdKind.DELIVERY, delivery_id)
    shown = ask(options, method, answers.ReceiptRow, id=whole, **params)
    if as_json:
        show_json(shown)
    else:
        _show(shown)


def _show(delivery: answers.ReceiptRow) -> None:
    show_facts(
        {
            "delivery": delivery.id,
            "state": delivery.state,
            "session": delivery.session_key,
            "run": delivery.run_id,
            "to": place_of(delivery),
            "made": clock_time(delivery.created_at),
            "changed": clock_time(delivery.updated_at),
            "next try": clock_time(delivery.due_at) if delivery.due_at is not None else None,
            "attempts": delivery.attempts,
            "error": delivery.error,
            "parts": "\n".join(_part(part) for part in delivery.parts),
            "text": delivery.text,
        }
    )


def _part(part: answers.PartRow) -> str:
    line = f"{part.n} {part.state}"
    if part.message_id is not None:
        line += f" as {part.message_id}"
    return f"{line}: {part.error}" if part.error is not None else line
