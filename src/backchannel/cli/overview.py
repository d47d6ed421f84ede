"""What `watch` shows: the sessions, runs and deliveries that there are at one moment, and how the gateway is.

Rows are read again when an event says that something is new, four times a second at most. What is wrong is asked less
often, because finding it out commits: it is tried whether something can be stored.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field

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
    status: Payload
    counts: Counts
    sessions: list[Payload]
    has_more_sessions: bool
    runs: list[Payload]
    """Those at work, those that failed lately, and those that wait, in this order."""
    deliveries: list[Payload]
    """Those that failed or are uncertain, then those that wait, in this order."""
    doing: dict[str, str]
    """What each run at work does."""
    others: Others
    """What else there is or was, where every end is told."""

    def run_of(self, session_key: str) -> Payload | None:
        """The run that a session works on."""
        running = (run for run in self.runs if run["status"] == "running" and run["sessionKey"] == session_key)
        return next(running, None)


@dataclass(frozen=True, slots=True)
class Others:
    """The newest of any state, and what was open at the last look."""

    runs: list[Payload] = field(default_factory=list)
    deliveries: list[Payload] = field(default_factory=list)


class Overview:
    """Reads what `watch` shows."""

    def __init__(self, *, is_every_end_told: bool = False) -> None:
        self._is_every_end_told = is_every_end_told
        self._doing = Doing()
        self._client: GatewayClient | None = None
        self._heard: int | None = None
        self._status: Payload = {}
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
            self._status = client.wait(asked, ANSWER_S)
        sessions = client.wait(listed, ANSWER_S)
        now: int = sessions["ts"]
        running, queued, failed = (client.wait(request, ANSWER_S) for request in runs)
        failed["runs"] = [run for run in failed["runs"] if run.get("endedAt", 0) > now - FAILED_FOR_MS]
        found = dict(zip(_DELIVERIES, (client.wait(request, ANSWER_S) for request in deliveries), strict=True))
        waiting = {delivery["id"]: delivery for page in found.values() for delivery in page["deliveries"]}
        self._doing.load(client, running["runs"])
        models = {session["key"]: session.get("model") for session in sessions["sessions"]}
        doing = {run["runId"]: self._doing.of(run, models.get(run["sessionKey"])) for run in running["runs"]}
        return OverviewSnapshot(
            url=client.url,
            ts=now,
            status=self._status,
            counts=_count(self._status, running, queued, failed, found),
            sessions=sorted(sessions["sessions"], key=_busy_first),
            has_more_sessions=sessions["hasMore"],
            runs=_in_order(running["runs"], queued["runs"], failed["runs"]),
            deliveries=list(waiting.values()),
            doing=doing | _asking(client.wait(approvals, ANSWER_S)["approvals"]),
            others=self._others(client, [*running["runs"], *queued["runs"]], list(waiting.values())),
        )

    def _others(self, client: GatewayClient, runs: list[Payload], deliveries: list[Payload]) -> Others:
        """Read what ended: what is new, however quick it was, and what was open before, however old it is."""
        if not self._is_every_end_told:
            return Others()
        asked = client.ask("runs.list", limit=MOST), client.ask("deliveries.list", limit=MOST)
        others = Others(client.wait(asked[0], ANSWER_S)["runs"], client.wait(asked[1], ANSWER_S)["deliveries"])
        open_ = {run["runId"] for run in runs}, {delivery["id"] for delivery in deliveries}
        gone = [was - now for was, now in zip(self._open, open_, strict=True)]
        self._open = open_
        others.runs.extend(_found(client, "runs.get", "runId", gone[0] - {run["runId"] for run in others.runs}))
        known = {delivery["id"] for delivery in others.deliveries}
        others.deliveries.extend(_found(client, "deliveries.get", "id", gone[1] - known))
        return others


def _found(client: GatewayClient, method: str, name: str, ids: set[str]) -> Iterator[Payload]:
    for request in [client.ask(method, **{name: id_}) for id_ in sorted(ids)]:
        answer = client.wait(request, ANSWER_S)
        yield answer.get("run", answer)


def _asking(approvals: list[Payload]) -> dict[str, str]:
    """Tell of runs that a person has to answer what they ask for."""
    return {
        approval["runId"]: f"waits for approval of {approval['tool']}: /approve {approval['id']}"
        for approval in approvals
    }


def _count(
    status: Payload, running: Payload, queued: Payload, failed: Payload, deliveries: dict[str, Payload]
) -> Counts:
    told = status["runs"]
    aside = told["setAside"] if queued["hasMore"] else sum("resumeAt" in run for run in queued["runs"])
    unsettled: dict[str, int] = {"waiting": deliveries["pending"]["count"] + deliveries["sending"]["count"]}
    unsettled |= {state: deliveries[state]["count"] for state in ("failed", "uncertain")}
    is_cut = any(page["hasMore"] for page in deliveries.values())
    return Counts(
        running=told["running"] if running["hasMore"] else running["count"],
        queued=(told["queued"] if queued["hasMore"] else queued["count"]) - aside,
        set_aside=aside,
        failed=told["failed"] if failed["hasMore"] else len(failed["runs"]),
        deliveries=status["deliveries"] if is_cut else unsettled,
    )


def _busy_first(session: Payload) -> int:
    return ("running", "queued").index(session["status"]) if session["status"] != "idle" else 2


def _in_order(running: list[Payload], queued: list[Payload], failed: list[Payload]) -> list[Payload]:
    """Put runs in the order in which they matter. One that failed while they were read is not at work as well."""
    ended = {run["runId"] for run in failed}
    aside = [run for run in queued if "resumeAt" in run]
    waiting = [run for run in queued if "resumeAt" not in run]
    return [*(run for run in running if run["runId"] not in ended), *failed, *aside, *waiting]
