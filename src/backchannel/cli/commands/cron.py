"""`backchannel cron`: list, add, run and remove scheduled jobs."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Annotated

import msgspec
import typer

from backchannel.cli import answers
from backchannel.cli.client import ask, connected
from backchannel.cli.naming import find_id
from backchannel.cli.options import AsJson, Options, default_list, options_of
from backchannel.cli.output import age, clock_time, say_or_json, until
from backchannel.cli.tables import RowTable, show_list
from backchannel.core.short_ids import IdKind
from backchannel.core.text import one_line

app = typer.Typer(help="List, add, run and remove cron jobs.", rich_markup_mode=None)

Id = Annotated[str, typer.Argument(metavar="ID", help="The job's id, or its beginning, as `cron` shows it.")]


@default_list(app)
def list_jobs(ctx: typer.Context, as_json: AsJson = False) -> None:
    """List the jobs, the next one first. `cron` alone does the same."""
    options = options_of(ctx)
    jobs = _all_jobs(options)
    add = options.command("cron", "add", "ID", "every 1h", "MESSAGE")
    table = replace(_TABLE, empty=f"There are no cron jobs. Add one with: {add}")
    show_list({"jobs": jobs}, table.of(jobs), as_json=as_json)


_TABLE: RowTable[answers.JobShown] = RowTable(
    {
        "id": lambda job: job.id,
        "schedule": lambda job: job.schedule,
        "tz": lambda job: job.tz,
        "next": lambda job: _next(job),
        "last run": lambda job: _last_run(job),
        "skipped": lambda job: _skipped(job),
    },
    empty="There are no cron jobs.",
)


def _all_jobs(options: Options) -> list[answers.JobShown]:
    """Read all jobs, page by page: a page must fit into a frame."""
    jobs: list[answers.JobView] = []
    offset: int | None = 0
    with connected(options) as client:
        while offset is not None:
            page = client.call("cron.list", answers.JobPage, offset=offset)
            jobs += page.jobs
            offset = page.next_offset
    return [_shown(job) for job in jobs]


def _shown(job: answers.JobView) -> answers.JobShown:
    return msgspec.structs.replace(job.backchannel, message=job.payload.message)


def _next(job: answers.JobShown) -> str:
    """Say when a job comes next."""
    if job.next_at is None:
        return job.status
    now = int(time.time() * 1000)
    when = f"in {until(job.next_at, now)}" if job.next_at > now else "now"
    return f"{when} ({clock_time(job.next_at)})"


def _last_run(job: answers.JobShown) -> str:
    error = one_line(job.last_error or "")
    shown = f": {error}" if error else ""
    if job.last_run is None:
        return shown.lstrip(": ")
    return f"{job.last_run.status}, {age(job.last_run.accepted_at)} ago{shown}"


def _skipped(job: answers.JobShown) -> str | None:
    """Say how often a job was skipped, for which reason, and what its command last said."""
    if not job.skips:
        return str(job.skipped) if job.skipped else None
    return ", ".join(_skips(reason, each) for reason, each in job.skips.items())


def _skips(reason: str, skips: answers.SkipsShown) -> str:
    why = f": {one_line(skips.why)}" if skips.why else ""
    return f"{skips.count} {reason} ({age(skips.last_at)} ago{why})"


@app.command()
def add(
    ctx: typer.Context,
    job_id: Annotated[str, typer.Argument(metavar="ID", help="The job's id. Its session is `cron:<id>`.")],
    schedule: Annotated[
        str, typer.Argument(metavar="SCHEDULE", help='When: "0 9 * * *", "every 10m" (s, m, h, d) or an ISO time.')
    ],
    message: Annotated[str, typer.Argument(metavar="MESSAGE", help="The message to the agent.")],
    tz: Annotated[str | None, typer.Option(help="The schedule's time zone, such as Europe/Berlin. Unset: UTC.")] = None,
    agent: Annotated[str | None, typer.Option(help="The agent that runs it. Unset: the default agent.")] = None,
    channel: Annotated[str | None, typer.Option(help="Deliver the reply over this channel. Needs --to.")] = None,
    to: Annotated[str | None, typer.Option(help="The chat that the reply goes to.")] = None,
    account: Annotated[str | None, typer.Option(help="The account on that channel.")] = None,
    model: Annotated[str | None, typer.Option(help="The model, as provider/model. Unset: the agent's own.")] = None,
    timeout: Annotated[float | None, typer.Option(metavar="SECONDS", help="Time limit of a run.")] = None,
    when: Annotated[
        str | None,
        typer.Option(
            metavar="COMMAND",
            help="Run this command first. The job runs only if it exits with 0 and writes something, which takes the "
            "place of {output} in the message.",
        ),
    ] = None,
    when_timeout: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="Time limit of that command. Unset: 120.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Add a job. It survives restarts of the gateway."""
    if (channel is None) != (to is None) or (account is not None and channel is None):
        raise typer.BadParameter("--channel and --to belong together, and --account to both")
    if when is None and when_timeout is not None:
        raise typer.BadParameter("--when-timeout belongs to --when")
    options = options_of(ctx)
    job = ask(
        options,
        "cron.add",
        answers.JobView,
        id=job_id,
        schedule=schedule,
        message=message,
        tz=tz,
        agentId=agent,
        deliver=None if channel is None else {"channel": channel, "to": to, "accountId": account},
        model=model,
        timeoutSeconds=timeout,
        when=None if when is None else {"command": when, "timeoutSeconds": when_timeout},
    )
    added = _shown(job)
    fire = options.command("cron", "run", job_id)
    text = f"Job {job_id} is added and comes {_next(added)}. Run it now with: {fire}"
    say_or_json(text, {"job": added}, as_json=as_json)


@app.command()
def run(ctx: typer.Context, job_id: Id, as_json: AsJson = False) -> None:
    """Run a job now, if its `when` command agrees. Its next time stays the same."""
    options = options_of(ctx)
    job_id = find_id(options, IdKind.JOB, job_id)
    fired = ask(options, "cron.run", answers.JobFired, id=job_id)
    if not fired.ran:
        shown = options.command("cron")
        said = f"Job {job_id} has nothing to do: its command said no. See what it said with: {shown}"
        say_or_json(said, fired, as_json=as_json)
        return
    wait = options.command("runs", "wait", fired.run_id)
    say_or_json(f"Job {job_id} runs. Wait for it with: {wait}", fired, as_json=as_json)


@app.command()
def remove(ctx: typer.Context, job_id: Id, as_json: AsJson = False) -> None:
    """Remove a job of `cron add`. Remove jobs of the configuration there."""
    options = options_of(ctx)
    job_id = find_id(options, IdKind.JOB, job_id)
    removed = ask(options, "cron.remove", answers.JobRemoved, id=job_id)
    say_or_json(f"Job {job_id} is removed. Its session and its runs stay.", removed, as_json=as_json)
