"""`backchannel chat`: talking to an agent, line by line or with one message."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from backchannel.cli.client import Link
from backchannel.cli.conversation import ReplyView, StoppedWaiting, new_run_id, send_message
from backchannel.cli.failures import failure_text
from backchannel.cli.naming import WHICH, find_key
from backchannel.cli.options import EXIT_INTERRUPTED, FAILED, AsJson, CommandFailed, Options, options_of
from backchannel.cli.output import is_terminal, say, say_dim, show_json


def chat(
    ctx: typer.Context,
    message: Annotated[str | None, typer.Argument(help="Send this, print the reply and end. A pipe works too.")] = None,
    session: Annotated[str, typer.Option("--session", "-s", help=f"The session to talk to: {WHICH}.")] = "main",
    as_json: AsJson = False,
) -> None:
    """Talk to an agent. Ctrl-C aborts its reply, Ctrl-D ends the program, /help lists commands."""
    options = options_of(ctx)
    if message is None and is_terminal(sys.stdin):
        if as_json:
            raise typer.BadParameter("a conversation is not printed as JSON: pass a message", param_hint="--json")
        from backchannel.cli.prompt import Prompt

        with _link(options) as link:
            Prompt(options, link, find_key(options, session)).run()
        return
    text = sys.stdin.read() if message is None else message
    if not text.strip():
        raise CommandFailed("There is no message: pass one, or pipe one in.")
    with _link(options) as link:
        _say_once(options, link, find_key(options, session), text)


def _link(options: Options) -> Link:
    return Link(options, lambda text: say_dim(text, err=True))


def _say_once(options: Options, link: Link, session: str, text: str) -> None:
    run_id = new_run_id()
    view = ReplyView(run_id, is_live=is_terminal(sys.stdout) and not options.as_json)
    try:
        ended = send_message(link, session, text, view, run_id)
    except StoppedWaiting as stopped:
        view.close()
        say(stopped.message, err=True)
        raise typer.Exit(EXIT_INTERRUPTED) from None
    view.end("" if options.as_json else ended.reply or "")
    if options.as_json:
        show_json(ended)
    elif ended.status != "ok":
        say(failure_text(options, run_id, ended), err=True)
    if ended.status != "ok":
        raise typer.Exit(EXIT_INTERRUPTED if ended.status == "aborted" else FAILED)
