"""Rules for cron jobs, the same for configured jobs and jobs added at run time.

A job is listed together with all others, again and again, so nothing in it may be as long as a whole request. Rows of
older gateways may hold more, and are listed all the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from backchannel.config.schedules import job_id_problem
from backchannel.config.schema_doors import CronJob
from backchannel.core.runs import MAX_RUN_S
from backchannel.core.text import STORED_LIMIT

MAX_MESSAGE_BYTES = 256 * 1024
"""As much as a message from `/hooks` may be: both come with nobody watching."""
MAX_PLACE_LENGTH = 1024

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
    for name in ("to", "account_id"):
        place = job.deliver and getattr(job.deliver, name)
        if place and len(place) > MAX_PLACE_LENGTH:
            path = ("deliver", "to" if name == "to" else "accountId")
            yield JobProblem(path, place, f"it has {len(place):,} characters, and may have {MAX_PLACE_LENGTH:,}")


def is_job_name(name: str) -> bool:
    """Whether lists can show a name as it is."""
    return 0 < len(name) <= STORED_LIMIT and _UNSEEN.search(name) is None
