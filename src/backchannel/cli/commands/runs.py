"""`backchannel runs`: list, show, wait for, stop and retry runs."""

from __future__ import annotations

from typing import Annotated

import typer

from backchannel.cli import answers
from backchannel.cli.client import ask, connected
from backchannel.cli.conversation import wait_for_run
from backchannel.cli.failures import retry_text
from backchannel.cli.naming import find_id, find_key
from backchannel.cli.options import FAILED, AsJson, Limit, Options, default_list, options_of
from backchannel.cli.output import age, clock_time, hour_time, patience, say, say_or_json, show_facts, show_json
from backchannel.cli.short_forms import short_key
from backchannel.cli.tables import RowTable, show_list
from backchannel.core.commands.control_words import describe_word, is_control_word
from backchannel.core.short_ids import IdKind
from backchannel.core.text import one_line

app = typer.Typer(help="List, show, wait for, stop and retry runs.", rich_markup_mode=None)

RunId = Annotated[str, typer.Argument(metavar="ID", help="The run's id, or its beginning, as `runs` shows it.")]
Session = Annotated[str | None, typer.Option("--session", help="Only runs of this session.")]
Status = Annotated[
    list[str] | None,
    typer.Option(
        "--status",
        metavar="STATUS",
        help="Only runs with this status: queued, running, ok, error, timeout or aborted. May be repeated.",
    ),
]


@default_list(app)
def list_runs(
    ctx: typer.Context, session: Session = None, status: Status = None, limit: Limit = 20, as_json: AsJson = False
) -> None:
    """List runs, the newest first. `runs` alone does the same."""
    options = options_of(ctx)
    key = find_key(options, session)
    listed = ask(options, "runs.list", answers.RunsListed, sessionKey=key, states=status or None, limit=limit)
    show_list(listed, RUN_LIST.of(listed.runs), as_json=as_json, limit=limit)


_WAIT_SHOWN = 160
"""A wait for a model names the model and two times before the reason."""

RUN_LIST: RowTable[answers.RunRow] = RowTable(
    {
        "id": lambda run: run.run_id,
        "session": lambda run: short_key(run.session_key),
        "status": lambda run: run.status,
        "age": lambda run: age(run.accepted_at),
        "took": lambda run: _took(run),
        "result": lambda run: one_line(result_of(run), _WAIT_SHOWN) if run.waits_for else one_line(result_of(run)),
    },
    empty="There are no runs.",
    spare=("took", "age"),
    ids="id",
)

WAIT_TEXTS = {
    "function": "waits for the program whose function is its agent",
    "agent": "waits for a gateway that has its agent",
    "gateway": "waits for the gateway that has its agent",
    "approval": "waits for a person to allow a call: see `approvals`",
}
"""What a run waits for, in words, by the word of the gateway."""


def result_of(run: answers.RunRow) -> str:
    """Show the result of a run, or what it waits for."""
    reply = run.reply or ""
    said = run.error or (describe_word(reply) if is_control_word(reply) else reply)
    waits = waits_text(run) or (retry_text(run.retry) if run.retry else "")
    return said or waits or aside_text(run.resume_at, run.waits_for)


def waits_text(run: answers.RunRow) -> str:
    """Say what a run waits for that keeps its place: money, a person, a program or a gateway; empty if it does not."""
    if run.waits_for is not None and run.waits_for.budget is not None:
        return f"waits for the budget {run.waits_for.budget}: see `budgets`"
    return WAIT_TEXTS.get(run.waiting_for or "", "")


def aside_text(resume_at: int | None, waits_for: answers.AwaitedByRun | None) -> str:
    """Say what a run waits for that is set aside; empty if it is not."""
    if resume_at is None:
        return ""
    if waits_for is None or waits_for.since is None:
        return f"set aside after crashes, tried again at {clock_time(resume_at)}"
    since, again = hour_time(waits_for.since), hour_time(resume_at)
    return f"waits for {waits_for.model} since {since}, asked again at {again}: {waits_for.error}"


def _took(run: answers.RunRow) -> str:
    return "" if run.duration_ms is None else f"{run.duration_ms / 1000:.1f}s"


@app.command()
def show(ctx: typer.Context, run_id: RunId, as_json: AsJson = False) -> None:
    """Show one run: its state, its usage and its end."""
    options = options_of(ctx)
    run_id = find_id(options, IdKind.RUN, run_id)
    if as_json:
        show_json(ask(options, "runs.get", answers.RunShown, runId=run_id))
    else:
        told = ask(options, "runs.timeline", answers.TimelineShown, runId=run_id)
        _show(options, told.run, _asked_ms(told.entries))


def _asked_ms(entries: list[answers.TimelineEntry]) -> int:
    """Count how long a run waited for approvals in all. Overlapping waits count once."""
    total, until = 0, 0
    for entry in entries:
        if entry.approval_id is not None and entry.ended_at is not None:
            total += max(0, entry.ended_at - max(entry.at, until))
            until = max(until, entry.ended_at)
    return total


def _show(options: Options, run: answers.RunRow, asked_ms: int) -> None:
    show_facts(
        {
            "run": run.run_id,
            "session": run.session_key,
            "status": run.status,
            "accepted": clock_time(run.accepted_at),
            "started": None if run.started_at is None else clock_time(run.started_at),
            "waits": waits_text(run) or aside_text(run.resume_at, run.waits_for) or None,
            "took": _took(run) + (f", {asked_ms / 1000:.1f}s of it waiting for an approval" if asked_ms else ""),
            "steps": run.step,
            "model": run.model,
            "tokens": f"{run.usage.input} in, {run.usage.output} out",
            "cost": None if run.usage.cost is None else f"${run.usage.cost:.4f}",
            "error": options.spell(run.error or ""),
            "reply": run.reply,
        }
    )


@app.command()
def retry(ctx: typer.Context, run_id: RunId, as_json: AsJson = False) -> None:
    """Retry a run that failed or is set aside."""
    options = options_of(ctx)
    run_id = find_id(options, IdKind.RUN, run_id)
    shown = ask(options, "runs.retry", answers.RunShown, runId=run_id)
    wait = options.command("runs", "wait", run_id)
    say_or_json(f"Run {run_id} is {shown.run.status}. Wait for it with: {wait}", shown, as_json=as_json)


@app.command()
def abort(ctx: typer.Context, run_id: RunId, as_json: AsJson = False) -> None:
    """Stop a queued or running run. Its text stays, and its sub-agents continue."""
    options = options_of(ctx)
    run_id = find_id(options, IdKind.RUN, run_id)
    with connected(options) as client:
        run = client.call("runs.get", answers.RunShown, runId=run_id).run
        aborted = client.call("chat.abort", answers.ChatAborted, sessionKey=run.session_key, runId=run_id)
    if as_json:
        show_json(aborted)
    elif aborted.aborted:
        say(f"Run {run_id} is stopped.")
    else:
        say(f"Run {run_id} had ended already: {run.status}.")


@app.command()
def wait(
    ctx: typer.Context,
    run_id: RunId,
    timeout: Annotated[float, typer.Option(min=0, metavar="SECONDS", help="The longest wait.")] = 600,
    as_json: AsJson = False,
) -> None:
    """Wait for the end of a run and print its reply. Exits with 1 if the run failed."""
    options = options_of(ctx)
    run_id = find_id(options, IdKind.RUN, run_id)
    with connected(options) as client, patience(f"waiting for run {run_id}"):
        ended = wait_for_run(client, run_id, timeout)
    if as_json:
        show_json(ended)
    elif ended.status == "ok":
        say(ended.reply or "")
    else:
        still = "running" if ended.running else aside_text(ended.resume_at, ended.waits_for) or "queued"
        say(options.spell(ended.error or "") or f"The run is still {still} after {timeout:g} s.", err=True)
    if ended.status != "ok":
        raise typer.Exit(FAILED)
