"""Snapshots for `watch`: sessions, runs, deliveries, and the state of the gateway.

Rows are read again when an event says that something changed, at most four times a second. Problems are read less
often, because finding them needs a commit.

Events say what a running session does: asking a model, writing, using a tool, waiting for another session. For a run
whose start was missed the transcript says it: its last message has calls without a result.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from backchannel.cli import answers
from backchannel.cli.client import ANSWER_S, GatewayClient, Payload, convert
from backchannel.cli.commands.runs import waits_text
from backchannel.cli.failures import retry_text
from backchannel.cli.live import LOOK_AGAIN_S

if TYPE_CHECKING:
    from backchannel.core.messages import Message

SENDS = "sessions_send"
MESSAGES_READ = 30
"""How many messages are read to find a run's calls without a result."""
_MOST_READ = 20
"""The most transcripts that are read at once."""


class RunActivity:
    """The activity of each running run, from events, and from transcripts where events were missed."""

    def __init__(self) -> None:
        self._said: dict[str, str] = {}
        self._calls: dict[str, dict[str, str]] = {}
        """The open calls of each run, by their ids, in words."""

    def hear(self, event: Payload) -> bool:
        """Take an event; True if a run began or ended something."""
        if event["event"] != "agent":
            return False
        told = event["payload"]
        run_id, data = told["runId"], told["data"]
        match told["stream"], data.get("phase"):
            case "tool", "start":
                self._calls.setdefault(run_id, {})[data["toolCallId"]] = describe_call(data["name"], data.get("args"))
            case "tool", _:
                self._calls.get(run_id, {}).pop(data["toolCallId"], None)
                self._said[run_id] = ""
            case "lifecycle", "start":
                self._said[run_id] = ""
            case "lifecycle", _:
                self._forget(run_id)
            case "retry", _:
                self._said[run_id] = retry_text(convert(data, answers.RetryRow))
            case stream, _:
                return self._say(run_id, "writes" if stream == "assistant" else "thinks")
        return True

    def _say(self, run_id: str, word: str) -> bool:
        is_new = self._said.get(run_id) != word
        self._said[run_id] = word
        return is_new

    def _forget(self, run_id: str) -> None:
        self._said.pop(run_id, None)
        self._calls.pop(run_id, None)

    def load(self, client: GatewayClient, runs: list[answers.RunRow]) -> None:
        """Read the activity of runs without events, and forget runs that have ended."""
        living = {run.run_id for run in runs}
        for run_id in (self._said.keys() | self._calls.keys()) - living:
            self._forget(run_id)
        unheard = [run for run in runs if run.run_id not in self._said.keys() | self._calls.keys()][:_MOST_READ]
        asked = [client.ask("tools.invoke", tool="sessions_history", args=_last(run)) for run in unheard]
        for run, request in zip(unheard, asked, strict=True):
            result = client.wait(request, answers.ToolInvoked, ANSWER_S).result
            self._said[run.run_id] = ""
            self._calls[run.run_id] = _open_calls(convert(result, answers.MessagesSeen).messages)

    def lose(self) -> None:
        """Forget the activity: events may have been missed."""
        self._said.clear()
        self._calls.clear()

    def of(self, run: answers.RunRow, model: str | None) -> str:
        """Describe the activity of a running run, on a session with this model."""
        if waits := waits_text(run):
            return waits
        calls = list(self._calls.get(run.run_id, {}).values())
        if calls:
            return f"{calls[0]} and {len(calls) - 1} more" if len(calls) > 1 else calls[0]
        if said := self._said.get(run.run_id):
            return said
        model = run.model or model
        return retry_text(run.retry) if run.retry else f"asks {model}" if model else "at work"


def _last(run: answers.RunRow) -> Payload:
    return {"sessionKey": run.session_key, "limit": MESSAGES_READ, "includeTools": True}


def describe_call(name: str, arguments: Any) -> str:
    """Describe a tool call. A send names its target, since it mostly waits for the answer."""
    target = arguments.get("sessionKey") or arguments.get("label") if isinstance(arguments, dict) else None
    if name == SENDS and isinstance(target, str):
        return f"waits for {target}" if arguments.get("timeoutSeconds") != 0 else f"sends to {target}"
    return f"uses {name}"


def _open_calls(messages: Sequence[Message]) -> dict[str, str]:
    answered = set()
    for message in reversed(messages):
        if message.role == "toolResult":
            answered.add(message.tool_call_id)
        elif message.role == "assistant":
            calls = [call for call in message.tool_calls if call.id not in answered]
            return {call.id: describe_call(call.name, call.arguments) for call in calls}
        else:
            return {}
    return {}


STATUS_S = 2.0
"""The greatest age of the problems shown."""
FAILED_FOR_MS = 24 * 3_600_000
"""How long a failed run is shown, as in `status`."""
_MOST = 100
"""The most rows of each kind that are read. `status` has the counts of all."""

_RUNS = (("running",), ("queued",), ("error", "timeout"))
_DELIVERIES = ("failed", "uncertain", "sending", "pending")


@dataclass(frozen=True, slots=True)
class Counts:
    """Counts of the rows that were read; where not all were read, the counts of `status`."""

    running: int
    queued: int
    set_aside: int
    failed: int
    deliveries: dict[str, int]
    """How many are waiting, failed and uncertain."""

    @property
    def runs(self) -> int:
        return self.running + self.queued + self.set_aside + self.failed


@dataclass(frozen=True, slots=True)
class OverviewSnapshot:
    """All that is shown, at one moment."""

    url: str
    ts: int
    status: answers.Status
    counts: Counts
    sessions: list[answers.SessionRow]
    has_more_sessions: bool
    runs: list[answers.RunRow]
    """Those at work, those that failed lately, and those that wait, in this order."""
    deliveries: list[answers.ReceiptRow]
    """Those that failed or are uncertain, then those that wait, in this order."""
    doing: dict[str, str]
    """The activity of each running run."""
    others: Others
    """More runs and deliveries, where each end is shown."""

    def run_of(self, session_key: str) -> answers.RunRow | None:
        """The run that a session works on."""
        running = (run for run in self.runs if run.status == "running" and run.session_key == session_key)
        return next(running, None)


@dataclass(frozen=True, slots=True)
class Others:
    """The newest of any state, and those that were open at the last look."""

    runs: list[answers.RunRow] = field(default_factory=list)
    deliveries: list[answers.ReceiptRow] = field(default_factory=list)


class Overview:
    """Reads what `watch` shows."""

    def __init__(self, *, is_every_end_told: bool = False) -> None:
        self._is_every_end_told = is_every_end_told
        self._doing = RunActivity()
        self._client: GatewayClient | None = None
        self._heard: int | None = None
        self._status: answers.Status | None = None
        self._asked = 0.0
        self._is_status_old = True
        self._open: tuple[set[str], set[str]] = (set(), set())

    @property
    def look_again_s(self) -> float:
        """After how long to read again without news. Soon, if the last read skipped the problems."""
        return STATUS_S if self._is_status_old else LOOK_AGAIN_S

    def is_news(self, event: Payload) -> bool:
        seq: int | None = event.get("seq")
        if self._heard is not None and seq != self._heard + 1:
            self._doing.lose()
        self._heard = seq
        return self._doing.hear(event) or event["event"] in ("sessions.changed", "delivery", "approval")

    def load(self, client: GatewayClient) -> OverviewSnapshot:
        if client is not self._client:  # of another life of the gateway nothing holds any more
            self._client, self._asked, self._heard = client, 0.0, None
            self._doing.lose()
        self._is_status_old = time.monotonic() - self._asked < STATUS_S
        if not self._is_status_old:
            self._asked = time.monotonic()
        return self._read(client)

    def _read(self, client: GatewayClient) -> OverviewSnapshot:
        asked = client.ask("status") if not self._is_status_old else None
        listed = client.ask("sessions.list", limit=_MOST)
        runs = [client.ask("runs.list", states=list(states), limit=_MOST) for states in _RUNS]
        deliveries = [client.ask("deliveries.list", state=state, limit=_MOST) for state in _DELIVERIES]
        approvals = client.ask("approvals.list", state="pending")
        if asked is not None:
            self._status = client.wait(asked, answers.Status, ANSWER_S)
        assert self._status is not None, "the first look asks for it"
        sessions = client.wait(listed, answers.SessionRows, ANSWER_S)
        running, queued, failed = (client.wait(request, answers.RunsListed, ANSWER_S) for request in runs)
        failed = _lately(failed, sessions.ts)
        pages = [client.wait(request, answers.DeliveriesListed, ANSWER_S) for request in deliveries]
        waiting = {delivery.id: delivery for page in pages for delivery in page.deliveries}
        self._doing.load(client, running.runs)
        models = {session.key: session.model for session in sessions.sessions}
        doing = {run.run_id: self._doing.of(run, models.get(run.session_key)) for run in running.runs}
        return OverviewSnapshot(
            url=client.url,
            ts=sessions.ts,
            status=self._status,
            counts=_count(self._status, running, queued, failed, dict(zip(_DELIVERIES, pages, strict=True))),
            sessions=sorted(sessions.sessions, key=_busy_first),
            has_more_sessions=sessions.has_more,
            runs=_in_order(running.runs, queued.runs, failed.runs),
            deliveries=list(waiting.values()),
            doing=doing | _asking(client.wait(approvals, answers.ApprovalsListed, ANSWER_S).approvals),
            others=self._others(client, [*running.runs, *queued.runs], list(waiting.values())),
        )

    def _others(
        self, client: GatewayClient, runs: list[answers.RunRow], deliveries: list[answers.ReceiptRow]
    ) -> Others:
        """Read what ended: new rows, however quick they were, and rows that were open before."""
        if not self._is_every_end_told:
            return Others()
        asked = client.ask("runs.list", limit=_MOST), client.ask("deliveries.list", limit=_MOST)
        listed = client.wait(asked[0], answers.RunsListed, ANSWER_S).runs
        sent = client.wait(asked[1], answers.DeliveriesListed, ANSWER_S).deliveries
        open_ = {run.run_id for run in runs}, {delivery.id for delivery in deliveries}
        gone = [was - now for was, now in zip(self._open, open_, strict=True)]
        self._open = open_
        ended = sorted(gone[0] - {run.run_id for run in listed})
        settled = sorted(gone[1] - {delivery.id for delivery in sent})
        runs_asked = [client.ask("runs.get", runId=run_id) for run_id in ended]
        deliveries_asked = [client.ask("deliveries.get", id=delivery_id) for delivery_id in settled]
        listed += [client.wait(request, answers.RunShown, ANSWER_S).run for request in runs_asked]
        sent += [client.wait(request, answers.ReceiptRow, ANSWER_S) for request in deliveries_asked]
        return Others(listed, sent)


def _lately(failed: answers.RunsListed, now_ms: int) -> answers.RunsListed:
    """Leave out runs that failed too long ago."""
    from msgspec.structs import replace

    return replace(failed, runs=[run for run in failed.runs if (run.ended_at or 0) > now_ms - FAILED_FOR_MS])


def _asking(approvals: list[answers.ApprovalRow]) -> dict[str, str]:
    """Describe runs that wait for an approval."""
    return {approval.run_id: f"waits for approval of {approval.tool}: /approve {approval.id}" for approval in approvals}


def _count(
    status: answers.Status,
    running: answers.RunsListed,
    queued: answers.RunsListed,
    failed: answers.RunsListed,
    deliveries: dict[str, answers.DeliveriesListed],
) -> Counts:
    told = status.runs
    aside = (
        told["setAside"]
        if queued.has_more
        else sum(run.resume_at is not None and run.waits_for is None for run in queued.runs)
    )
    unsettled = {"waiting": deliveries["pending"].count + deliveries["sending"].count}
    unsettled |= {state: deliveries[state].count for state in ("failed", "uncertain")}
    is_cut = any(page.has_more for page in deliveries.values())
    return Counts(
        running=told["running"] if running.has_more else running.count,
        queued=(told["queued"] if queued.has_more else queued.count) - aside,
        set_aside=aside,
        failed=told["failed"] if failed.has_more else len(failed.runs),
        deliveries=status.deliveries if is_cut else unsettled,
    )


def _busy_first(session: answers.SessionRow) -> int:
    return ("running", "queued", "idle").index(session.activity)


def _in_order(
    running: list[answers.RunRow], queued: list[answers.RunRow], failed: list[answers.RunRow]
) -> list[answers.RunRow]:
    """Sort runs by how much they matter. A run that failed during the read is not also running."""
    ended = {run.run_id for run in failed}
    aside = [run for run in queued if run.resume_at is not None]
    waiting = [run for run in queued if run.resume_at is None]
    return [*(run for run in running if run.run_id not in ended), *failed, *aside, *waiting]
