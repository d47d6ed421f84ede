"""`backchannel up`: starts the gateway and serves until it is told to stop."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from backchannel.cli.init import write_starter
from backchannel.cli.options import AsJson, Options, options_of
from backchannel.cli.output import is_terminal, patience, say, show_json

if TYPE_CHECKING:
    from backchannel.config import Config

LOG_LEVELS = ("debug", "info", "warning", "error")


def up(
    ctx: typer.Context,
    host: Annotated[str | None, typer.Option(help="The address to listen on, instead of gateway.host.")] = None,
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="The port, instead of gateway.port; 0 takes a free one.")
    ] = None,
    init: Annotated[
        bool, typer.Option("--init", help="Write the starter configuration first if there is none.")
    ] = False,
    log_level: Annotated[
        str | None,
        typer.Option(
            metavar="LEVEL", help="debug, info, warning or error. [default: warning on a terminal, else info]"
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Start the gateway. Ctrl-C stops it; what it has accepted goes on at its next start."""
    if log_level is not None and log_level not in LOG_LEVELS:
        raise typer.BadParameter(f"expected one of {', '.join(LOG_LEVELS)}", param_hint="--log-level")
    options = options_of(ctx)
    if init and write_starter(options.where.config_file) and not as_json:
        say(f"Wrote a starter configuration: {options.where.config_file}")
    _serve(options, options.load_config(host=host, port=port), log_level)


def _serve(options: Options, config: Config, log_level: str | None) -> None:
    with patience("starting"):  # the imports are most of it
        import asyncio

        import msgspec
        import structlog
        import uvloop

        from backchannel.cli.banner import show_banner
        from backchannel.gateway.app import Gateway
        from backchannel.gateway.auth import OperatorToken
        from backchannel.gateway.health import model_problems
        from backchannel.gateway.logs import configure_logs, secrets_of
        from backchannel.gateway.serve import serve
        from backchannel.gateway.server import Listening

        is_watched = is_terminal(sys.stderr)
        level = log_level or ("warning" if is_watched else "info")
        configure_logs(level, sys.stderr, as_json=not is_watched, secrets=secrets_of(config))
        gateway = Gateway.open(config)
    log = structlog.get_logger("backchannel.up")

    def ready(place: Listening, token: OperatorToken) -> None:
        configured = gateway.config
        log.info("listening", url=place.url, agents=gateway.agents.ids(), state=str(configured.state_dir))
        tell = log.info if is_watched else log.warning  # a person sees them in the banner
        for warning in configured.warnings:
            tell("configuration", warning=str(warning), line=warning.line)
        for problem in model_problems(gateway):
            tell("configuration", warning=problem.message, hint=problem.hint)
        if gateway.store.found.runs:
            log.info("going on", **msgspec.structs.asdict(gateway.store.found))
        if options.as_json:
            show_json(
                {"url": place.url, "state": str(configured.state_dir), "agents": gateway.agents.ids()}, lines=True
            )
        else:
            show_banner(options, gateway, place, token)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(gateway, ready))
    log.info("stopped", state=str(gateway.config.state_dir))
    if not options.as_json:
        say("Stopped. What it has accepted goes on at the next start.")
