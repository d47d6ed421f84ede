"""`backchannel status` and `doctor`: the gateway's state, and problems with what to do."""

from __future__ import annotations

import typer

from backchannel.cli import answers
from backchannel.cli.client import connected
from backchannel.cli.commands.channels import state_word
from backchannel.cli.commands.config import look_for_problems, show_findings
from backchannel.cli.commands.slots import USES
from backchannel.cli.finding import NoGateway, find_gateway
from backchannel.cli.options import DEGRADED, FAILED, AsJson, Options, options_of
from backchannel.cli.output import age, as_plain, counted, say, say_styled, show_facts, show_json
from backchannel.cli.tables import TableRows
from backchannel.core.text import one_line

SLOTS_SHOWN = 10
UNREAD = "unknown while the database cannot be read"
_COLOURS = {"degraded": "yellow", "unavailable": "red"}


def status(ctx: typer.Context, as_json: AsJson = False) -> None:
    """Show problems and activity. Exits with 1 if the gateway cannot accept messages, and with 5 if it is degraded."""
    options = options_of(ctx)
    with connected(options) as client:
        state, health = client.call("status", answers.Status), client.call("health", answers.Health)
        slots = client.call("slots.list", answers.SlotsListed)
    if as_json:
        show_json(as_plain(state) | {"health": health, "slots": slots})
    else:
        _show(options, state, slots)
    if not health.ok:
        raise typer.Exit(FAILED)
    if state.status != "ok":
        raise typer.Exit(DEGRADED)


def _show(options: Options, state: answers.Status, slots: answers.SlotsListed) -> None:
    show_facts(
        {
            "gateway": f"{find_gateway(options).url} (version {state.version})",
            "gateways": _gateways(state.gateways),
            "health": state.status,
            "up for": age(state.ts - state.uptime_ms, state.ts),
            "agents": ", ".join(
                f"{agent} (default)" if agent == state.default_agent_id else agent for agent in state.agents
            ),
            "model": state.model,
            "runs": _runs(state.runs),
            "channels": "\n".join(_channel(channel, state.ts) for channel in state.channels),
            "services": "\n".join(_service(each, state.ts) for each in state.services if _is_shown(each)) or None,
            "deliveries": _deliveries(state.deliveries),
            "approvals": f"{state.approvals['pending']} waiting (backchannel approvals)"
            if state.approvals.get("pending")
            else None,
            "strangers": f"{state.pairings['pending']} waiting to be let in (backchannel pairing)"
            if state.pairings.get("pending")
            else None,
            "search": f"{state.search['unindexed']:,} older messages are still being indexed" if state.search else None,
            "sandbox": state.sandbox,
            "connections": state.connections,
            "slots": ", ".join(_slots(each) for each in slots.kinds if each.used or each.waiting) or "none used",
        }
    )
    if slots.slots:
        say()
        USES.of(slots.slots[:SLOTS_SHOWN]).show()
        if len(slots.slots) > SLOTS_SHOWN:
            say(f"… and {len(slots.slots) - SLOTS_SHOWN} more: {options.command('slots')}")
    if state.problems:
        say()
        say_styled(f"{counted(len(state.problems), 'problem')}:", fg=_COLOURS[state.status])
        _problems(options, state).show()


def _problems(options: Options, state: answers.Status) -> TableRows:
    rows = [[found.code, options.spell(f"{found.message} {found.hint}")] for found in state.problems]
    empty = "The gateway runs, and nothing is wrong with it."
    return TableRows(["problem", "what is wrong, and what to do"], rows, empty)


def _runs(counts: dict[str, int]) -> str:
    if not counts:
        return UNREAD
    return f"{counts['running']} running, {counts['queued']} queued, {counts['failed']} failed in 24 hours"


def _deliveries(counts: dict[str, int]) -> str:
    return ", ".join(f"{counts[word]} {word}" for word in ("waiting", "failed", "uncertain")) if counts else UNREAD


def _slots(count: answers.SlotCount) -> str:
    waiting = f", {count.waiting} waiting" if count.waiting else ""
    return f"{count.kind} {count.used} of {count.limit}{waiting}"


def _gateways(gateways: list[answers.GatewayState]) -> str | None:
    """Name the gateways on the database, if there are several."""
    return "\n".join(each.name for each in gateways) if len(gateways) > 1 else None


def _channel(channel: answers.ChannelState, now_ms: int) -> str:
    error = f": {one_line(channel.last_error, 120)}" if channel.status == "down" and channel.last_error else ""
    return f"{channel.name} {state_word(channel)} for {age(channel.since, now_ms)}{error}"


def _is_shown(service: answers.ServiceState) -> bool:
    """Show what is not up, or failed since it is; channels have a line of their own."""
    has_failed = service.last_error_at is not None and service.last_error_at >= service.since
    return (has_failed or not service.up) and not service.name.startswith("channel:")


def _service(service: answers.ServiceState, now_ms: int) -> str:
    error = f": {one_line(service.last_error, 120)}" if service.last_error else ""
    if service.up:
        return f"{service.name}{error} ({age(service.last_error_at or now_ms, now_ms)} ago)"
    wait_s = max(0, (service.next_try_at or now_ms) - now_ms) / 1000
    again = f" (next try in {wait_s:.0f} s)" if service.next_try_at is not None else ""
    return f"{service.name} down for {age(service.since, now_ms)}{error}{again}"


def doctor(ctx: typer.Context, as_json: AsJson = False) -> None:
    """Find problems on this machine and in the gateway.

    Checks the configuration, what it needs on this machine, and the gateway if it runs. Exits with 1 if the
    configuration has errors, and with 5 if only the gateway has a problem.
    """
    options = options_of(ctx)
    checked = look_for_problems(options)
    state = None if checked.errors else _state_of_gateway(options)  # a wrong file does not say where it is
    problems = state.problems if state else []
    if as_json:
        gateway = "unknown" if checked.errors else "absent" if state is None else "running"
        sandbox = state.sandbox if state else None
        show_json({**checked.shown, "gateway": gateway, "problems": problems, "sandbox": sandbox})
    else:
        show_findings(options, checked)
        if not checked.errors:
            _show_problems(options, state)
    if checked.errors:
        raise typer.Exit(FAILED)
    if problems:
        raise typer.Exit(DEGRADED)


def _state_of_gateway(options: Options) -> answers.Status | None:
    """Ask the gateway for its state; None when no gateway runs."""
    try:
        with connected(options) as client:
            return client.call("status", answers.Status)
    except NoGateway:
        return None


def _show_problems(options: Options, state: answers.Status | None) -> None:
    say()
    if state is None:
        say(f"No gateway runs here. Start one with: {options.command('up')}")
        return
    _problems(options, state).show()
    if state.sandbox is not None:
        say(f"In sandboxes, {state.sandbox}.")
