"""Rules for cron jobs, the same for configured jobs and jobs added at run time.

A job is listed together with all others, again and again, so nothing in it may be as long as a whole request. Rows of
older gateways may hold more, and are listed all the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from backchannel.config.schedules import job_id_problem
from backchannel.config.schema_doors import CronJob, CronWhen
from backchannel.core.policy.checks import OUTPUT_PLACE
from backchannel.core.runs import MAX_RUN_S
from backchannel.core.text import STORED_LIMIT

MAX_MESSAGE_BYTES = 256 * 1024
"""As much as a message from `/hooks` may be: both come with nobody watching."""
MAX_PLACE_LENGTH = 1024
MAX_COMMAND_BYTES = 16 * 1024
"""Of a command of `when`, which lists show. A longer one is a script in the workspace."""

_UNSEEN = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
"""What ends a line, moves the cursor of a terminal, or turns a text around."""


class JobProblem(NamedTuple):
    """What is wrong with one setting of a job."""

    path: tuple[str, ...]
    value: str
    what: str


def job_problems(job: CronJob) -> Iterator[JobProblem]:
    """Find what a job cannot be; whether its schedule, agent, model and channel exist is asked elsewhere."""
    if problem := job_id_problem(job.id):
        yield JobProblem(("id",), job.id, problem)
    if job.name is not None and not is_job_name(job.name):
        what = f"expected one line of 1 to {STORED_LIMIT} characters, without control characters"
        yield JobProblem(("name",), job.name, what)
    if (size := len(job.message.encode())) > MAX_MESSAGE_BYTES:
        yield JobProblem(("message",), f"{size:,} bytes", f"expected at most {MAX_MESSAGE_BYTES:,}")
    if job.timeout_seconds is not None and not 0 < job.timeout_seconds <= MAX_RUN_S:
        yield JobProblem(("timeoutSeconds",), f"{job.timeout_seconds:g}", f"expected at most {MAX_RUN_S} seconds")
    if job.when is not None:
        yield from _when_problems(job, job.when)
    for name in ("to", "account_id"):
        place = job.deliver and getattr(job.deliver, name)
        if place and len(place) > MAX_PLACE_LENGTH:
            path = ("deliver", "to" if name == "to" else "accountId")
            yield JobProblem(path, place, f"it has {len(place):,} characters, and may have {MAX_PLACE_LENGTH:,}")


def _when_problems(job: CronJob, when: CronWhen) -> Iterator[JobProblem]:
    size = len(when.command.encode(errors="replace"))
    if not when.command.strip() or "\0" in when.command or size > MAX_COMMAND_BYTES:
        what = f"expected a shell command of at most {MAX_COMMAND_BYTES:,} bytes"
        yield JobProblem(("when", "command"), f"{size:,} bytes", what)
    if (places := job.message.count(OUTPUT_PLACE)) > 1:
        yield JobProblem(("message",), f"{OUTPUT_PLACE} {places} times", "expected it once at most")


def is_job_name(name: str) -> bool:
    """Whether lists can show a name as it is."""
    return 0 < len(name) <= STORED_LIMIT and _UNSEEN.search(name) is None
