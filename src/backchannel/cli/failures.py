"""Runs without an answer, shown among the messages in `chat` and `history`."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING, TypeAlias

from backchannel.cli import answers
from backchannel.cli.client import CallFailed, GatewayClient
from backchannel.cli.options import Options
from backchannel.cli.output import is_terminal, say, say_dim
from backchannel.core.text import one_line

if TYPE_CHECKING:
    from backchannel.core.messages import Message

_FAILED = ("error", "timeout", "aborted")
_RETRIED = ("error", "timeout")
_REASON_SHOWN = 300
_OTHERS = 50
"""The most failed runs between two messages that are shown."""
HowEnded: TypeAlias = "answers.RunWaited | answers.ChatStarted | answers.RunRow"


def load_failed(client: GatewayClient, session: str, ids: Collection[str]) -> list[answers.RunRow]:
    """Load the newest runs of a session that gave no answer, the oldest first."""
    if not ids:
        return []
    wanted = {"sessionKey": session, "states": _FAILED, "limit": len(ids) + _OTHERS}
    try:
        runs = client.call("runs.list", answers.RunsListed, **wanted).runs
    except CallFailed as refused:
        if refused.is_retryable:
            raise
        return []  # a session that was deleted: nothing can be done about its runs
    return [run for run in reversed(runs) if run.run_id in ids]


def runs_of(messages: Sequence[Message]) -> set[str]:
    """Name the runs that messages belong to."""
    return {message.run_id for message in messages if message.run_id is not None}


def interleaved(
    messages: Sequence[Message], failed: Sequence[answers.RunRow]
) -> Iterator[tuple[Message, list[answers.RunRow]]]:
    """Give the messages in order. The last message of a failed run comes with that run."""
    last = {message.run_id: message.id for message in messages}
    for message in messages:
        yield message, [run for run in failed if last.get(run.run_id) == message.id]


def show_failure(options: Options, run: answers.RunRow) -> None:
    """Print the end of a run without an answer, and how to retry it."""
    say_dim(failure_text(options, run.run_id, run))
    if is_terminal(sys.stdout):
        say()


def failure_text(options: Options, run_id: str, ended: HowEnded) -> str:
    """Say in a line how a run without an answer ended."""
    how = options.spell(how_it_ended(ended))
    return f"{how} · {options.command('runs', 'retry', run_id)}" if ended.status in _RETRIED else how


def retry_text(retry: answers.RetryRow) -> str:
    """Say that a model call is retried, the number of the retry, and why."""
    return f"asked again, {retry.attempt + 1} of {retry.attempts}: {one_line(retry.error, _REASON_SHOWN)}"


def how_it_ended(ended: HowEnded) -> str:
    """Say why there is no whole reply."""
    if ended.status == "aborted":
        return "(aborted)"
    error = None if isinstance(ended, answers.ChatStarted) else ended.error
    return f"The run ended as {ended.status}: {error or 'no reason was given'}"
