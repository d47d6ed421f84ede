"""What it takes to follow work that goes on by itself: hearing of its steps, and showing them and the receipt."""

from __future__ import annotations

import sys
import time

from backchannel.cli.client import Client, Payload
from backchannel.cli.output import is_terminal, say, say_dim, say_styled

LOOK_AGAIN_S = 1.0
"""How often the receipt is looked at though nothing was told."""

_OPEN = ("pending", "sending")


def is_on_its_way(receipt: Payload) -> bool:
    """Whether more is to be seen soon; a delivery that waits for its next attempt may take an hour."""
    return receipt["state"] in _OPEN and not receipt.get("error")


def ends_step(event: Payload) -> bool:
    """Whether an event says that a run has ended or a receipt has changed."""
    payload = event["payload"]
    match event["event"]:
        case "agent":
            return payload["stream"] == "lifecycle" and bool(payload["data"]["phase"] != "start")
        case "delivery":
            return True
    return False


def wait_for_news(client: Client) -> None:
    """Return when a step has ended, or after a while."""
    deadline = time.monotonic() + LOOK_AGAIN_S
    while (left_s := deadline - time.monotonic()) > 0:
        if any(ends_step(event) for event in client.events(left_s)):
            return


def invoke(client: Client, tool: str, args: Payload, caller: str | None, key: str | None = None) -> Payload:
    """Call a session tool as a session, or as the operator, and give its result."""
    request = client.ask("tools.invoke", tool=tool, args=args, sessionKey=caller, idempotencyKey=key)
    result: Payload = client.wait(request)["result"]  # for as long as the tool was told to wait
    return result


def show_said(step: str, session: str, text: str, *, is_remark: bool = False) -> None:
    """Print what a session said in a step of an exchange."""
    if not is_terminal(sys.stdout):
        say(f"{step} {session}: {text}")
        return
    show_heading(step, session)
    (say_dim if is_remark else say)(text + "\n")


def show_heading(step: str, session: str) -> None:
    """Print, on a terminal, who speaks and in which step."""
    say_styled(session, end=" ", fg="cyan", bold=True)
    say_dim(step)


def show_receipt(receipt: Payload) -> None:
    """Print what became of the text that a chat is told."""
    reason = f": {receipt['error']}" if receipt.get("error") else ""
    say(f"receipt {receipt['id']}: {receipt['state']}{reason}")
