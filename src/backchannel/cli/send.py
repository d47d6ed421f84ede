"""`backchannel send`: a message into a session as an agent sends it, and a view of all that comes of it."""

from __future__ import annotations

from typing import Annotated

import typer

from backchannel.cli.client import Link, Payload
from backchannel.cli.naming import WHICH, find_key
from backchannel.cli.options import FAILED, INTERRUPTED, AsJson, options_of
from backchannel.cli.output import say, say_dim, show_json


def send(
    ctx: typer.Context,
    session: Annotated[str, typer.Argument(metavar="SESSION", help=f"The session: {WHICH}.")],
    message: Annotated[str, typer.Argument(metavar="MESSAGE", help="What to say.")],
    wait: Annotated[
        float,
        typer.Option(min=0, max=3600, metavar="SECONDS", help="How long to wait for the reply. 0 does not wait."),
    ] = 30,
    as_session: Annotated[
        str | None, typer.Option("--as", metavar="KEY", help="Send as this session. [default: the operator]")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Send a message into a session, as an agent would. Shows the reply, the turns that follow, and the receipt.

    With --json it prints the result of sessions_send and does not follow. Exits with 1 if there is no reply.
    """
    from backchannel.cli.exchange import Sending

    options = options_of(ctx)
    caller = find_key(options, as_session)
    target = find_key(options, session, caller)
    with Link(options, lambda text: say_dim(text, err=True)) as link:
        sending = Sending(link, target, message, wait_s=wait, caller=caller)
        try:
            result = sending.send()
            if as_json:
                show_json(result)
            elif _show(result):
                sending.follow(result)
        except KeyboardInterrupt:
            say("Not watching any longer. What was accepted goes on; the history shows it.", err=True)
            raise typer.Exit(INTERRUPTED) from None
    if result["status"] not in ("ok", "accepted"):
        raise typer.Exit(FAILED)


def _show(result: Payload) -> bool:
    """Print what came back; True means that there is more to see."""
    from backchannel.cli.following import show_receipt, show_said
    from backchannel.core.control_words import in_words, is_silent

    match result["status"]:
        case "ok":
            is_remark = is_silent(result["reply"])
            said = in_words(result["reply"]) if is_remark else result["reply"]
            show_said("reply", result["sessionKey"], said, is_remark=is_remark)
            return True
        case "accepted":
            say(f"{result['sessionKey']} has the message; its run is {result['runId']}.")
        case _:
            say(result["error"], err=True)
    if "delivery" in result:
        show_receipt({"id": result["delivery"]["id"], "state": result["delivery"]["status"]})
    return False
