"""What `watch` shows: the sessions, runs and deliveries that there are at one moment, and how the gateway is.

Rows are read again when an event says that something is new, four times a second at most. What is wrong is asked less
often, because finding it out commits: it is tried whether something can be stored.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from backchannel.cli import answers
from backchannel.cli.client import ANSWER_S, GatewayClient, Payload
from backchannel.cli.doing import Doing
from backchannel.cli.live import LOOK_AGAIN_S

STATUS_S = 2.0
"""How old the news of what is wrong may be."""
FAILED_FOR_MS = 24 * 3_600_000
"""For how long a run that failed is shown, as in `status`."""
MOST = 100
"""How many of each are read; the counts of all come from `status`."""

_RUNS = (("running",), ("queued",), ("error", "timeout"))
_DELIVERIES = ("failed", "uncertain", "sending", "pending")


@dataclass(frozen=True, slots=True)
class Counts:
    """How many there are of each, counted in what was read; where that is not all, as `status` told last."""

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
    """What there is to see at one moment."""

    url: str
    ts: int
    status: answers.Status
    counts: Counts
    sessions: list[answers.Row]
    has_more_sessions: bool
    runs: list[answers.RunRow]
    """Those at work, those that failed lately, and those that wait, in this order."""
    deliveries: list[answers.ReceiptRow]
    """Those that failed or are uncertain, then those that wait, in this order."""
    doing: dict[str, str]
    """What each run at work does."""
    others: Others
    """What else there is or was, where every end is told."""

    def run_of(self, session_key: str) -> answers.RunRow | None:
        """The run that a session works on."""
        running = (run for run in self.runs if run.status == "running" and run.session_key == session_key)
        return next(running, None)


@dataclass(frozen=True, slots=True)
class Others:
    """The newest of any state, and what was open at the last look."""

    runs: list[answers.RunRow] = field(default_factory=list)
    deliveries: list[answers.ReceiptRow] = field(default_factory=list)


class Overview:
    """Reads what `watch` shows."""

    def __init__(self, *, is_every_end_told: bool = False) -> None:
        self._is_every_end_told = is_every_end_told
        self._doing = Doing()
        self._client: GatewayClient | None = None
        self._heard: int | None = None
        self._status: answers.Status | None = None
        self._asked = 0.0
        self._is_status_old = True
        self._open: tuple[set[str], set[str]] = (set(), set())

    @property
    def look_again_s(self) -> float:
        """After how long to look though no news came: soon, if what is wrong was not asked the last time."""
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
        listed = client.ask("sessions.list", limit=MOST)
        runs = [client.ask("runs.list", states=list(states), limit=MOST) for states in _RUNS]
        deliveries = [client.ask("deliveries.list", state=state, limit=MOST) for state in _DELIVERIES]
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
        """Read what ended: what is new, however quick it was, and what was open before, however old it is."""
        if not self._is_every_end_told:
            return Others()
        asked = client.ask("runs.list", limit=MOST), client.ask("deliveries.list", limit=MOST)
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
    """Leave out what failed too long ago."""
    from msgspec.structs import replace

    return replace(failed, runs=[run for run in failed.runs if (run.ended_at or 0) > now_ms - FAILED_FOR_MS])


def _asking(approvals: list[answers.ApprovalRow]) -> dict[str, str]:
    """Tell of runs that a person has to answer what they ask for."""
    return {approval.run_id: f"waits for approval of {approval.tool}: /approve {approval.id}" for approval in approvals}


def _count(
    status: answers.Status,
    running: answers.RunsListed,
    queued: answers.RunsListed,
    failed: answers.RunsListed,
    deliveries: dict[str, answers.DeliveriesListed],
) -> Counts:
    told = status.runs
    aside = told["setAside"] if queued.has_more else sum(run.resume_at is not None for run in queued.runs)
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


def _busy_first(session: answers.Row) -> int:
    return ("running", "queued").index(session.status) if session.status != "idle" else 2


def _in_order(
    running: list[answers.RunRow], queued: list[answers.RunRow], failed: list[answers.RunRow]
) -> list[answers.RunRow]:
    """Put runs in the order in which they matter. One that failed while they were read is not at work as well."""
    ended = {run.run_id for run in failed}
    aside = [run for run in queued if run.resume_at is not None]
    waiting = [run for run in queued if run.resume_at is None]
    return [*(run for run in running if run.run_id not in ended), *failed, *aside, *waiting]
