"""The condition of the gateway: its present problems, in one table of checks.

A problem is something that an operator can do something about. Only one of them, `storage`, keeps messages from being
accepted; with any other the gateway works and is *degraded*. A new check is a function in `CHECKS`, or in `_COUNTED` if
it needs the database.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from backchannel.agents.registry import MissingAgent
from backchannel.config.defaults import needs_default_model
from backchannel.config.schema import DEMO_MODEL
from backchannel.config.schema_models import fallbacks_of, primary_of
from backchannel.core.contracts import FollowingClock
from backchannel.core.money.budgets import BudgetState, spent_share
from backchannel.core.money.texts import problem_text
from backchannel.core.records import Troubles
from backchannel.errors import Unavailable, UnknownModel
from backchannel.gateway.parts import GatewayParts
from backchannel.runtime.cluster.lease import differences
from backchannel.wire.rows import HealthProblem

RECENT_MS = 24 * 3_600_000
"""How long a failed run counts."""
RECENT_STALL_S = 600.0
RECENT_CLOCK_S = 3600.0
CLOCK_TOLERANCE_MS = 1000
LOW_DISK_BYTES = 256 * 1024 * 1024

OK, DEGRADED, UNAVAILABLE = "ok", "degraded", "unavailable"


@dataclass(frozen=True, slots=True)
class Amounts:
    """How much there is, as the database tells it."""

    troubles: Troubles
    awaited: dict[str, int]
    """How many runs wait for each agent that no gateway at work has."""
    runs: dict[str, int]
    sessions: dict[str, int]
    approvals: int
    pairings: int
    budgets: list[BudgetState]


@dataclass(frozen=True, slots=True)
class ConditionSeen:
    """What the checks look at, read once."""

    parts: GatewayParts
    amounts: Amounts | None
    """None while the database cannot be read."""
    free_bytes: int
    refusal: str | None
    """Why nothing can be stored, if that is so."""


@dataclass(frozen=True, slots=True)
class Condition:
    """How the gateway is."""

    amounts: Amounts | None
    """None while the database cannot be read."""
    problems: list[HealthProblem]
    refusal: str | None
    free_bytes: int

    @property
    def word(self) -> str:
        if self.refusal is not None:
            return UNAVAILABLE
        return DEGRADED if self.problems else OK


async def examine(parts: GatewayParts) -> Condition:
    """Find out what is wrong; also while the database is away, as far as it is known without it."""
    refusal, amounts = None, None
    try:
        await parts.store.check_writable()
    except Unavailable as refused:
        refusal = refused.message
    try:
        amounts = await _read_amounts(parts)
    except Unavailable as unread:
        refusal = refusal or unread.message
    await asyncio.to_thread(parts.sandboxes.problems)  # tries what was installed since; then it is known
    seen = ConditionSeen(
        parts=parts,
        amounts=amounts,
        free_bytes=await asyncio.to_thread(_free_bytes, parts.config.state_dir),
        refusal=refusal,
    )
    problems = [_without_secrets(problem, parts) for problem in _found(seen)]
    return Condition(amounts, problems, refusal, seen.free_bytes)


async def _read_amounts(parts: GatewayParts) -> Amounts:
    store = parts.store
    return Amounts(
        troubles=await store.troubles(parts.clock.now_ms() - RECENT_MS),
        awaited=await _awaited(parts),
        runs=await store.run_counts(),
        sessions=await store.session_counts(),
        approvals=await store.approvals_pending(),
        pairings=await store.pairings_pending(),
        budgets=await store.budgets(),
    )


def _found(seen: ConditionSeen) -> Iterator[HealthProblem]:
    for check in CHECKS:
        yield from check(seen)
    if seen.amounts is not None:
        for counted in _COUNTED:
            yield from counted(seen.parts, seen.amounts)


async def _awaited(parts: GatewayParts) -> dict[str, int]:
    """Count the runs of agents that no gateway at work has."""
    agents = parts.agents
    known = {*agents.ids(), *agents.elsewhere}
    return await parts.store.runs_without_agent({agent_id for agent_id in known if agents.missing(agent_id) is None})


def _without_secrets(problem: HealthProblem, parts: GatewayParts) -> HealthProblem:
    """Hide what others said of what is wrong with them, as far as it is secret."""
    return msgspec.structs.replace(problem, message=parts.secrets.hide(problem.message))


def _free_bytes(folder: Path) -> int:
    return shutil.disk_usage(folder).free


def _storage(seen: ConditionSeen) -> Iterator[HealthProblem]:
    if seen.refusal is not None:
        cause = "If the database is away, start it; if a disk is full, free some space."
        hint = f"{cause} What is refused meanwhile is not lost: its sender was told."
        yield HealthProblem(code="storage", message=f"Nothing can be accepted: {seen.refusal}.", hint=hint)


def _database(seen: ConditionSeen) -> Iterator[HealthProblem]:
    for code, message, hint in seen.parts.store.driver.problems():
        yield HealthProblem(code=code, message=message, hint=hint)


def _disk(seen: ConditionSeen) -> Iterator[HealthProblem]:
    if seen.free_bytes < LOW_DISK_BYTES:
        message = f"{seen.free_bytes // 1_048_576} MiB are left on the disk of {seen.parts.config.state_dir}."
        yield HealthProblem(code="disk_low", message=message, hint="Free some space before it is full.")


def _models(seen: ConditionSeen) -> Iterator[HealthProblem]:
    yield from model_problems(seen.parts)


def model_problems(parts: GatewayParts) -> Iterator[HealthProblem]:
    """Find the models that cannot be asked, and the demo model where it is hardly meant."""
    users: dict[str, list[str]] = {}
    for user, ref in named_models(parts):
        users.setdefault(ref, []).append(user)
    for ref, names in users.items():
        try:
            parts.models.check(ref)
        except UnknownModel as unusable:
            message = f"{unusable.message}; it is the model of {', '.join(dict.fromkeys(names))}."
            hint = "Runs fail until the model can be asked; restart the gateway with the key, or name another model."
            yield HealthProblem(code="model_unusable", message=message, hint=hint)
    if (reason := _why_demo_is_wrong(parts)) is not None:
        hint = f"Set the key, or name the model; agents.defaults.model: {DEMO_MODEL.ref!r} says that the demo is meant."
        yield HealthProblem(code="demo_model", message=reason, hint=hint)


def named_models(parts: GatewayParts) -> Iterator[tuple[str, str]]:
    """Give each model that is named for an agent or a cron job, after whose it is."""
    agents = parts.agents
    for settings in (agents.get(id) for id in agents.ids() if not agents.is_function(id)):
        rows = (settings.row, settings.subagent_row, settings.summary_row)
        yield from ((settings.id, ref) for row in rows if row is not None for ref in row.refs)
    for job in parts.config.cron.jobs:
        named = (primary_of(job.model), *(fallbacks_of(job.model) or ()))
        yield from ((f"cron:{job.id}", ref) for ref in named if ref is not None)


def _why_demo_is_wrong(parts: GatewayParts) -> str | None:
    """Say why it is hardly meant that the demo model answers; None if it does not, or nothing speaks against it.

    Without any model or key a newcomer is served by it. One who had a model before, or names one for other agents, has
    lost a key.
    """
    config = parts.config
    if not needs_default_model(config) or config.default_model.ref != DEMO_MODEL.ref:
        return None
    listed = config.agents.list
    unnamed = [agent.id for agent in listed if agent.model is None and not parts.agents.is_function(agent.id)]
    others = [ref for ref in (primary_of(agent.model) for agent in listed) if ref not in (None, DEMO_MODEL.ref)]
    if not unnamed or not (others or parts.last_model):
        return None
    told = f"at an earlier start it was {parts.last_model}" if parts.last_model else f"others have {others[0]}"
    return f"The demo model answers for {', '.join(unnamed)}, and {told}: {config.default_model.why}."


def _sandboxes(seen: ConditionSeen) -> Iterator[HealthProblem]:
    yield from sandbox_problems(seen.parts)


def sandbox_problems(parts: GatewayParts) -> Iterator[HealthProblem]:
    """Find the agents whose sessions should run sandboxed, and cannot."""
    for problem, agents in parts.sandboxes.problems().items():
        message = f"No sandbox can be made for {', '.join(agents)}: {problem}."
        hint = "Their sandboxed sessions get no tools with outside effects until it can."
        yield HealthProblem(code="sandbox_missing", message=message, hint=hint)


def _loop(seen: ConditionSeen) -> Iterator[HealthProblem]:
    stall = seen.parts.runtime.watchdog.long_stall
    if stall is not None and (ago_s := asyncio.get_running_loop().time() - stall[0]) < RECENT_STALL_S:
        message = f"The gateway answered nobody for {stall[1]:.1f} s, {ago_s / 60:.0f} minutes ago."
        hint = "If the gateway itself was busy, the log says with what. An overloaded machine looks the same."
        yield HealthProblem(code="loop_stalled", message=message, hint=hint)


def _clock(seen: ConditionSeen) -> Iterator[HealthProblem]:
    set_back_at = seen.parts.runtime.clock_set_back_at
    if set_back_at is not None and seen.parts.clock.monotonic() - set_back_at < RECENT_CLOCK_S:
        hint = "Timers and retries keep their pace; make sure that only one program sets that clock."
        yield HealthProblem(code="clock_set_back", message="The clock was set back in the last hour.", hint=hint)
    ahead_ms = seen.parts.clock.ahead_ms if isinstance(seen.parts.clock, FollowingClock) else None
    if ahead_ms is not None and abs(ahead_ms) > CLOCK_TOLERANCE_MS:
        way = "ahead of" if ahead_ms > 0 else "behind"
        message = f"This machine's clock is {abs(ahead_ms) / 1000:.1f} s {way} the database's."
        hint = "The gateway uses the database's clock. Correct this machine's clock for its log and other programs."
        yield HealthProblem(code="clock_differs", message=message, hint=hint)


def _gateways_alike(seen: ConditionSeen) -> Iterator[HealthProblem]:
    peers, own = seen.parts.runtime.duties.peers, seen.parts.store.number
    mine = next((peer.member for peer in peers if peer.number == own), None)
    if mine is None:
        return
    for peer in peers:
        for what in differences(mine, peer.member):
            message = f"The gateway {peer.member.name} on the same database has another {what} than this one."
            hint = "Bring them to the same version and configuration: each decides by its own."
            yield HealthProblem(code="gateways_differ", message=message, hint=hint)


def _channels(seen: ConditionSeen) -> Iterator[HealthProblem]:
    unsent = seen.parts.runtime.outbox.reach.down
    for channel, error in unsent.items():
        message = f"Messages do not reach the channel {channel}: {error}."
        hint = f"{_waiting_for(channel, seen)} Check the other end of the channel."
        yield HealthProblem(code="channel_down", message=message, hint=hint)
    yield from channel_problems(seen.parts)
    for channel, error in seen.parts.keeper.down().items():
        if channel not in unsent and seen.parts.keeper.health_of(channel).is_usable:
            message = f"Nothing comes in from the channel {channel}: {error}."
            hint = "It is started again by itself; look after the channel's other end, and at the log."
            yield HealthProblem(code="channel_down", message=message, hint=hint)


def channel_problems(parts: GatewayParts) -> Iterator[HealthProblem]:
    """Find the channels whose platform refuses their credentials."""
    for channel, error in parts.keeper.down().items():
        if not parts.keeper.health_of(channel).is_usable:
            mend = f"Correct what it says, or channels.{channel}"
            hint = f"{mend}, and restart the gateway; meanwhile it is tried again once a minute."
            message = f"The channel {channel} cannot be used: {error}."
            yield HealthProblem(code="channel_unusable", message=message, hint=hint)


def _caches(seen: ConditionSeen) -> Iterator[HealthProblem]:
    for fall in seen.parts.caches.falls(seen.parts.clock.now_ms()):
        read = f"{fall.share:.0%} of the last {fall.requests} requests of {fall.session_key}"
        message = f"Only {read} was read from the provider's cache: {fall.reason}."
        hint = "The rest is paid in full each time; the timeline of its runs tells it of each request."
        yield HealthProblem(code="cache_missed", message=message, hint=hint)


def _mcp_servers(seen: ConditionSeen) -> Iterator[HealthProblem]:
    if (servers := seen.parts.mcp_servers) is None:
        return
    for name, why in servers.down().items():
        hint = "Calls of its tools fail meanwhile; see what it wrote in the log, and its settings under mcp.servers."
        yield HealthProblem(code="mcp_server_down", message=f"The MCP server {name} is down: {why}.", hint=hint)


def _services(seen: ConditionSeen) -> Iterator[HealthProblem]:
    if seen.refusal is not None:
        return  # without the database, none of them can work
    for name, health in seen.parts.supervisor.health().items():
        if not health.is_up and name not in _TOLD_OTHERWISE and not name.startswith(("channel:", "mcp:")):
            message = f"The service {name} is down: {health.error or 'it is being started'}."
            hint = "The gateway restarts it by itself; the log has the traceback."
            yield HealthProblem(code="service_down", message=message, hint=hint)


_TOLD_OTHERWISE = ("database",)
"""Services whose failures other checks tell."""


def _waiting_for(channel: str, seen: ConditionSeen) -> str:
    if seen.amounts is None:
        return "What waits to be sent there is tried again."
    if waiting := seen.amounts.troubles.waiting.get(channel, 0):
        told = _count(waiting, "delivery waits and is", "deliveries wait and are")
        return f"{told} tried again."
    return "Nothing waits to be sent there; the next delivery tries it again."


def _deliveries(parts: GatewayParts, amounts: Amounts) -> Iterator[HealthProblem]:
    counts = amounts.troubles.deliveries
    if failed := counts.get("failed", 0):
        message = f"{_count(failed, 'delivery', 'deliveries')} did not arrive."
        hint = "`backchannel deliveries --status failed` lists them; `… retry --failed` sends all again."
        yield HealthProblem(code="deliveries_failed", message=message, hint=hint)
    if uncertain := counts.get("uncertain", 0):
        message = f"Of {_count(uncertain, 'delivery', 'deliveries')} nobody knows whether they arrived."
        hint = "`backchannel deliveries --status uncertain` lists them; a retry may post one twice."
        yield HealthProblem(code="deliveries_uncertain", message=message, hint=hint)


def _models_down(parts: GatewayParts, amounts: Amounts) -> Iterator[HealthProblem]:
    """Find the models that are left alone after a failure, and the runs that wait for one."""
    calls = parts.runtime.model_calls
    for down in calls.all_down():
        message = f"{down.model} is left alone since {_clock_time(down.since)}: {down.error}."
        hint = f"It is tried again from {_clock_time(down.until)} on. Runs ask their next model, or wait."
        yield HealthProblem(code="model_down", message=message, hint=hint)
    if waiting := amounts.troubles.runs_waiting:
        message = f"{_count(waiting, 'run waits', 'runs wait')} for a model."
        hint = (
            "`backchannel runs --status queued` tells for which, and `backchannel runs retry <id>` tries one at once."
        )
        yield HealthProblem(code="runs_waiting", message=message, hint=hint)


def _runs(parts: GatewayParts, amounts: Amounts) -> Iterator[HealthProblem]:
    if failed := amounts.troubles.runs_failed:
        message = f"{_count(failed, 'run', 'runs')} failed in the last 24 hours."
        hint = "`backchannel runs --status error --status timeout` lists them, and `runs show <id>` tells why."
        yield HealthProblem(code="runs_failed", message=message, hint=hint)
    if aside := amounts.troubles.runs_set_aside:
        died = "in which the process died again and again"
        message = f"{_count(aside, f'run {died} waits', f'runs {died} wait')} for another try."
        until = _clock_time(amounts.troubles.next_resume_at)
        hint = f"The next is tried at {until}; `backchannel runs retry <id>` starts one at once."
        yield HealthProblem(code="runs_set_aside", message=message, hint=hint)


def _budgets(parts: GatewayParts, amounts: Amounts) -> Iterator[HealthProblem]:
    """Find the budgets of which much or all is spent, each by its fullest subject, and the runs that wait for one."""
    for state in amounts.budgets:
        budget = state.budget
        row = max(state.rows, key=lambda each: (each.denied, spent_share(budget, each)), default=None)
        share = 0.0 if row is None else spent_share(budget, row)
        if row is not None and (row.denied or share >= min(1, budget.warns_at)):
            code = "budget_used_up" if row.denied or share >= 1 else "budget_low"
            hint = f"`backchannel budgets` shows it, and `backchannel budgets reset {budget.name}` begins it anew."
            yield HealthProblem(code=code, message=problem_text(state, row), hint=hint)
        if state.waiting:
            message = f"{_count(state.waiting, 'run waits', 'runs wait')} for the budget {budget.name}."
            hint = "`backchannel approvals` lists what owners are asked. Others wait for the calls under way."
            yield HealthProblem(code="runs_waiting_for_budget", message=message, hint=hint)


def _agents(parts: GatewayParts, amounts: Amounts) -> Iterator[HealthProblem]:
    for agent_id, count in amounts.awaited.items():
        if parts.agents.missing(agent_id) is MissingAgent.AGENT:
            waiting = _count(count, "run waits", "runs wait")
            message = f"{waiting} for the agent {agent_id}, which no running gateway has."
            hint = "Start the gateway that has it, or add the agent to the configuration of one that runs."
            yield HealthProblem(code="agent_missing", message=message, hint=hint)
            continue
        message = f"{_count(count, 'run waits', 'runs wait')} for the program whose function is the agent {agent_id}."
        hint = "Start that program."
        if agent_id in parts.agents.ids():
            hint = f"Start that program; `backchannel agents forget {agent_id}` lets its model answer instead."
        yield HealthProblem(code="function_missing", message=message, hint=hint)


def _cron(parts: GatewayParts, amounts: Amounts) -> Iterator[HealthProblem]:
    if jobs := amounts.troubles.jobs_stopped:
        hint = "`backchannel cron` tells why; add the job again with a schedule that has a next time."
        yield HealthProblem(code="cron_stopped", message=f"Jobs without a next time: {', '.join(jobs)}.", hint=hint)
    for job_id, why in amounts.troubles.jobs_failing.items():
        message = f"The `when` command of the job {job_id} could not do its work: {why}."
        hint = (
            "The job does not run meanwhile. Try the command in the agent's workspace, and correct `cron.jobs[].when`."
        )
        yield HealthProblem(code="cron_when_failing", message=message, hint=hint)


CHECKS: tuple[Callable[[ConditionSeen], Iterator[HealthProblem]], ...] = (
    _storage,
    _database,
    _disk,
    _models,
    _sandboxes,
    _loop,
    _clock,
    _gateways_alike,
    _channels,
    _mcp_servers,
    _caches,
    _services,
)
"""What is found without the database, too."""
_COUNTED: tuple[Callable[[GatewayParts, Amounts], Iterator[HealthProblem]], ...] = (
    _deliveries,
    _runs,
    _models_down,
    _budgets,
    _agents,
    _cron,
)
"""What is found among the amounts that it tells."""


def _count(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"


def _clock_time(ms: int | None) -> str:
    return "once" if ms is None else datetime.fromtimestamp(ms / 1000, UTC).strftime("%H:%M:%S UTC")
