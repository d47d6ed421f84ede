"""`backchannel up` and `init`: start the gateway, and write the starter configuration."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from backchannel.cli.apps import end_with_reloader, load_app, serve_again_on_change
from backchannel.cli.commands.page import page_address, page_link
from backchannel.cli.finding import local_address
from backchannel.cli.options import AsJson, CommandFailed, Options, options_of
from backchannel.cli.output import WordWrap, clock_time, console, is_terminal, patience, say, show_json
from backchannel.version import __version__

if TYPE_CHECKING:
    from backchannel.gateway.app import Gateway
    from backchannel.gateway.auth import OperatorToken
    from backchannel.gateway.server import ListeningServer

BESIDE = 12
"""The width of the names of facts in the banner."""
LOG_LEVELS = ("debug", "info", "warning", "error")


def init(
    ctx: typer.Context,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
    as_json: AsJson = False,
) -> None:
    """Write a commented starter configuration."""
    options = options_of(ctx)
    file = options.where.config_file
    if not write_starter(file, force=force):
        raise CommandFailed(
            f"{file} is there already, and stays as it is. To replace it: {options.command('init', '--force')}"
        )
    if as_json:
        show_json({"file": str(file)})
        return
    say(f"Wrote {file}: three agents that may talk to each other.")
    say(f"Start the gateway with: {options.command('up')}")


def write_starter(file: Path, *, force: bool = False) -> bool:
    """Write the starter file; False means that a file exists and was not changed.

    Raises:
        CommandFailed: it cannot be written.
    """
    from backchannel.config import starter_config
    from backchannel.config.locations import store_private

    try:
        return store_private(file, starter_config(), replaces=force)
    except OSError as error:
        raise CommandFailed(
            f"cannot write {file}: {error.strerror} (check its folder, or name another with --state)"
        ) from error


def up(
    ctx: typer.Context,
    host: Annotated[str | None, typer.Option(help="The address to listen on, instead of gateway.host.")] = None,
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="The port, instead of gateway.port. 0 takes a free one.")
    ] = None,
    init: Annotated[
        bool, typer.Option("--init", help="First write the starter configuration, if there is none.")
    ] = False,
    app: Annotated[
        str | None,
        typer.Option(metavar="MODULE:NAME", help="Serve the gateway of a program, such as shop:gateway."),
    ] = None,
    reload: Annotated[bool, typer.Option("--reload", help="With --app: restart when a file changes.")] = False,
    log_level: Annotated[
        str | None,
        typer.Option(
            metavar="LEVEL", help="debug, info, warning or error. [default: warning on a terminal, else info]"
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Start the gateway. Ctrl-C stops it. Accepted work continues at its next start."""
    if log_level is not None and log_level not in LOG_LEVELS:
        raise typer.BadParameter(f"expected one of {', '.join(LOG_LEVELS)}", param_hint="--log-level")
    if reload and app is None:
        raise typer.BadParameter("it watches the files of a program: name it with --app", param_hint="--reload")
    options = options_of(ctx)
    if init and write_starter(options.where.config_file) and not as_json:
        say(f"Wrote a starter configuration: {options.where.config_file}")
    if reload:
        serve_again_on_change()
        return
    end_with_reloader()
    gc.disable()  # what a start makes stays; looking through it again and again takes a seventh of the time
    config = None if app is not None else options.load_config(host=host, port=port)

    def make() -> Gateway:
        from backchannel.gateway.app import Gateway

        return load_app(app, options, host=host, port=port) if app is not None else Gateway.open(config)

    _serve(options, make, log_level)


def _serve(options: Options, make: Callable[[], Gateway], log_level: str | None) -> None:
    with patience("starting"):  # the imports are most of it
        import asyncio

        import msgspec
        import structlog
        import uvloop

        from backchannel.agents.cgroups import divide_own_group
        from backchannel.agents.loading import end_without_loading
        from backchannel.agents.programs import keep_descriptors
        from backchannel.gateway.condition import model_problems, sandbox_problems
        from backchannel.gateway.logs import configure_logs, secrets_of
        from backchannel.gateway.server import serve

        keep_descriptors()
        divide_own_group()
        gateway = make()
        is_watched = is_terminal(sys.stderr)
        level = log_level or ("warning" if is_watched else "info")
        configure_logs(level, sys.stderr, as_json=not is_watched, secrets=secrets_of(gateway.config))
    log = structlog.get_logger("backchannel.up")

    def ready(place: ListeningServer, token: OperatorToken) -> None:
        gc.enable()
        configured = gateway.config
        log.info("listening", url=place.url, agents=gateway.agents.ids(), state=str(configured.state_dir))
        log_warning = log.info if is_watched else log.warning  # a person sees them in the banner
        for warning in configured.warnings:
            log_warning("configuration", warning=str(warning), line=warning.line)
        for problem in (*model_problems(gateway.parts), *sandbox_problems(gateway.parts)):
            log_warning("configuration", warning=problem.message, hint=problem.hint)
        if gateway.store.found.runs:
            log.info("going on", **msgspec.structs.asdict(gateway.store.found))
        with suppress(BrokenPipeError):  # nobody reads it: no reason to stop serving
            if options.as_json:
                facts = {"url": place.url, "state": str(configured.state_dir), "agents": gateway.agents.ids()}
                show_json(facts, lines=True)
            else:
                show_banner(options, gateway, place, token)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(gateway, ready))
    log.info("stopped", state=str(gateway.config.state_dir))
    if not options.as_json:
        say("Stopped. What it has accepted goes on at the next start.")
    end_without_loading()


def show_banner(options: Options, gateway: Gateway, place: ListeningServer, token: OperatorToken) -> None:
    """Say where the gateway is, who answers there, and what to try."""
    facts = dict(_facts(options, gateway, place, token))
    warnings = [options.spell(warning) for warning in _warnings(gateway)]
    if is_terminal(sys.stdout):
        _show_on_terminal(facts, warnings, place.url, next_things(options, gateway))
        return
    say(f"Backchannel {__version__} is running at {place.url}")
    for name, text in facts.items():
        say(f"{name}: {text}")
    for warning in warnings:
        say(f"warning: {warning}")
    for command, _ in next_things(options, gateway):
        say(f"try: {command}")


def _facts(
    options: Options, gateway: Gateway, place: ListeningServer, token: OperatorToken
) -> Iterator[tuple[str, str]]:
    from backchannel.config import needs_default_model

    config = gateway.config
    is_shown = token.is_new and is_terminal(sys.stdout)  # never where it may be kept as a log
    address = local_address(place.url, token.token)
    yield (
        "page",
        page_link(address) if is_shown else f"{page_address(address.url)} (to log in: {options.command('open')})",
    )
    yield "agents", ", ".join(_agents(gateway))
    model, found = gateway.agents.get(gateway.agents.default_id).model, config.default_model
    is_found = needs_default_model(config) and model == found.ref
    yield "model", f"{model} ({found.why if is_found else 'as configured'})"
    yield (
        "config",
        str(config.file) if config.file else f"none, the defaults hold; to have one: {options.command('init')}",
    )
    yield "state", str(config.state_dir)
    yield "database", gateway.store.database.name
    if gateway.channels:
        yield "channels", ", ".join(gateway.channels)
    if gateway.store.found.runs:
        yield "runs", _unfinished(gateway)
    if config.gateway.auth.token:
        yield "token", "as configured"
    elif is_shown:
        yield "token", f"in the page's address, shown this once; kept in {config.state_dir / 'token'}"
    else:
        yield "token", f"kept in {config.state_dir / 'token'}"


def _warnings(gateway: Gateway) -> Iterator[str]:
    from backchannel.gateway.condition import model_problems, sandbox_problems

    yield from map(str, gateway.config.warnings)
    for problem in (*model_problems(gateway.parts), *sandbox_problems(gateway.parts)):
        yield f"{problem.message} {problem.hint}"


def _unfinished(gateway: Gateway) -> str:
    """Say what is left from earlier: `3 go on: 1 interrupted, 2 queued; 1 waits for the function agent clerk`."""
    found, agents = gateway.store.found, gateway.agents
    kinds = {"interrupted": found.interrupted, "queued": found.queued}
    kinds |= {f"of {name}": count for name, count in found.of_functions.items() if not agents.is_awaited(name)}
    told = []
    if going := sum(kinds.values()):
        counts = ", ".join(f"{count} {kind}" for kind, count in kinds.items() if count)
        told.append(f"{going} {'goes' if going == 1 else 'go'} on: {counts}")
    for name, count in found.of_functions.items():
        if agents.is_awaited(name):
            told.append(f"{count} {'waits' if count == 1 else 'wait'} for the function agent {name}")
    if found.set_aside and found.resume_at is not None:
        told.append(f"{found.set_aside} set aside after crashes until {clock_time(found.resume_at)}")
    return "; ".join(told)


def _agents(gateway: Gateway) -> Iterator[str]:
    usual = gateway.agents.get(gateway.agents.default_id).model
    for agent_id in gateway.agents.ids():
        notes = ["default"] if agent_id == gateway.agents.default_id else []
        if gateway.agents.is_awaited(agent_id):
            notes.append("function, waits for its program")
        elif gateway.agents.is_function(agent_id):
            notes.append("function")
        elif (model := gateway.agents.get(agent_id).model) != usual:
            notes.append(model)
        yield f"{agent_id} ({', '.join(notes)})" if notes else agent_id


def next_things(options: Options, gateway: Gateway) -> list[tuple[str, str]]:
    """Three commands to try next, each with what it does."""
    default = gateway.agents.default_id
    other = next((agent_id for agent_id in gateway.agents.ids() if agent_id != default), None)
    main = gateway.scheme.shown(str(gateway.scheme.main(other or default)))
    waits = f", which waits for its program (else: {options.command('agents', 'forget', default)})"
    return [
        (options.command("chat"), f"talk to {default}{waits if gateway.agents.is_awaited(default) else ''}"),
        (options.command("chat", "--session", main, "What can you do?"), f"ask {other or default} one thing"),
        (options.command("sessions"), "see the sessions"),
    ]


def _wrapped(text: str, width: int) -> str:
    """Wrap a fact of the banner at its words. A path stays whole, because people copy it."""
    return WordWrap(width - BESIDE - 1).feed(text).replace("\n", "\n" + " " * BESIDE)


def _show_on_terminal(facts: dict[str, str], warnings: list[str], url: str, tries: list[tuple[str, str]]) -> None:
    from rich.text import Text

    out = console()
    out.print(Text.assemble(("Backchannel ", "bold"), f"{__version__} is running at ", (url, "bold cyan")))
    out.print()
    for name, text in facts.items():
        out.print(Text.assemble((f"  {name}".ljust(BESIDE), "dim"), _wrapped(text, out.width)), soft_wrap=True)
    for warning in warnings:
        out.print(Text.assemble(("  warning".ljust(BESIDE), "yellow"), _wrapped(warning, out.width)), soft_wrap=True)
    out.print()
    out.print("Try next, in another terminal:")
    width = max(len(command) for command, _ in tries)
    has_room = width + max(len(what) for _, what in tries) + 6 <= out.width
    for command, what in tries:
        shown, remark = (command, "green"), (f"# {what}", "dim")
        gap = " " * (width - len(command) + 2)
        out.print(Text.assemble("  ", shown, gap, remark) if has_room else Text.assemble("  ", remark), soft_wrap=True)
        if not has_room:  # a command keeps a line of its own, to be copied
            out.print(Text.assemble("  ", shown), soft_wrap=True)
    out.print()
    out.print(Text("Ctrl-C stops it; what it has accepted goes on at the next start.", "dim"))
