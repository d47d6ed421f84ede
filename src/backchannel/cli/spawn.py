"""`backchannel spawn`: a sub-agent for one task, as an agent starts it, and a view of how it gets on."""

from __future__ import annotations

from typing import Annotated

import typer

from backchannel.cli.client import Link, Payload
from backchannel.cli.naming import find_key
from backchannel.cli.options import FAILED, INTERRUPTED, AsJson, Options, options_of
from backchannel.cli.output import say, say_dim, show_json


def spawn(
    ctx: typer.Context,
    task: Annotated[str, typer.Argument(metavar="TASK", help="What to do, in full: it sees nothing else.")],
    as_session: Annotated[
        str | None,
        typer.Option(
            "--as", metavar="KEY", help="Spawn as this session. [default: the operator, for the main session]"
        ),
    ] = None,
    agent: Annotated[str | None, typer.Option(metavar="ID", help="Under this agent. [default: the session's]")] = None,
    model: Annotated[str | None, typer.Option(metavar="REF", help="Its model, as provider/model.")] = None,
    thinking: Annotated[str | None, typer.Option(metavar="LEVEL", help="How much it thinks.")] = None,
    label: Annotated[str | None, typer.Option(help="A name for it, which no other session of the agent has.")] = None,
    timeout: Annotated[
        float | None, typer.Option(min=0, metavar="SECONDS", help="The longest that it may work. [default: no limit]")
    ] = None,
    cleanup: Annotated[
        str | None,
        typer.Option(
            metavar="HOW", help="delete: archive it as soon as its result has arrived. keep: later. [default: keep]"
        ),
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Show its work and what it announces, until its result is delivered.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Start a sub-agent, as an agent would. Says where to see it; its result comes back by itself.

    With --json it prints the result of sessions_spawn. Exits with 1 if it is refused, or, followed, did not end ok.
    """
    from backchannel.cli.spawning import Spawning

    if follow and as_json:
        raise typer.BadParameter(
            "choose one: --json prints what sessions_spawn returns, at once", param_hint="--follow"
        )
    args = {
        "task": task,
        "agentId": agent,
        "model": model,
        "thinking": thinking,
        "label": label,
        "runTimeoutSeconds": timeout,
        "cleanup": cleanup,
    }
    options = options_of(ctx)
    with Link(options, lambda text: say_dim(text, err=True)) as link:
        spawning = Spawning(link, args, caller=find_key(options, as_session))
        try:
            result = spawning.start()
            is_ok = _show(result, options, as_json=as_json, is_followed=follow)
            if is_ok and follow:
                is_ok = spawning.follow(result)["status"] == "ok"
        except KeyboardInterrupt:
            say("Not watching any longer. What was accepted goes on; the tree shows it.", err=True)
            raise typer.Exit(INTERRUPTED) from None
    if not is_ok:
        raise typer.Exit(FAILED)


def _show(result: Payload, options: Options, *, as_json: bool, is_followed: bool) -> bool:
    """Print what came back; True means that it was started."""
    is_started = bool(result["status"] == "accepted")
    if as_json:
        show_json(result)
    elif not is_started:
        say(result["error"], err=True)
    else:
        key = result["childSessionKey"]
        say(f"Started {key} with {result['model']}; its run is {result['runId']}.")
        if not is_followed:
            say_dim(f"See it at work with: {options.command('tree', '--watch')}", err=True)
            say_dim(f"Read what it says with: {options.command('history', key)}", err=True)
    return is_started
