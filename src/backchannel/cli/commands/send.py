"""`backchannel send`: send a message as an agent does, and show what follows.

The message has an idempotency key, so after a lost connection it is simply sent again. What follows the reply is read
with `exchanges.get`. Events only say when to read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from backchannel.cli import answers
from backchannel.cli.client import CallFailed, GatewayClient, Link, Payload
from backchannel.cli.conversation import ReceiptSeen, invoke, new_run_id, receipt_seen, show_said, wait_for_news
from backchannel.cli.naming import WHICH, find_key
from backchannel.cli.options import EXIT_INTERRUPTED, FAILED, AsJson, options_of
from backchannel.cli.output import Spinner, patience, say, say_dim, show_json
from backchannel.core.commands.control_words import describe_word, is_control_word, is_silent

_WAITS_FOR = "waiting for what follows"


def send(
    ctx: typer.Context,
    session: Annotated[str, typer.Argument(metavar="SESSION", help=f"The session: {WHICH}.")],
    message: Annotated[str, typer.Argument(metavar="MESSAGE", help="The message.")],
    wait: Annotated[
        float,
        typer.Option(min=0, max=3600, metavar="SECONDS", help="How long to wait for the reply. 0 does not wait."),
    ] = 30,
    as_session: Annotated[
        str | None, typer.Option("--as", metavar="KEY", help="Send as this session. [default: the operator]")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Send a message into a session, as an agent would. Shows the reply, the turns after it, and the receipt.

    With --json it only prints the result of sessions_send. Exits with 1 if there is no reply.
    """
    options = options_of(ctx)
    caller = find_key(options, as_session)
    target = find_key(options, session, caller)
    with Link(options, lambda text: say_dim(text, err=True)) as link:
        sending = MessageSending(link, target, message, wait_s=wait, caller=caller)
        try:
            result = sending.send()
            if as_json:
                show_json(result)
            elif _show(result):
                sending.follow(result)
        except KeyboardInterrupt:
            say("Not watching any longer. What was accepted goes on; the history shows it.", err=True)
            raise typer.Exit(EXIT_INTERRUPTED) from None
    if result.status not in ("ok", "accepted"):
        raise typer.Exit(FAILED)


def _show(result: answers.SendSeen) -> bool:
    """Print the result of the call; True means that more follows."""
    match result.status:
        case "ok":
            reply = result.reply or ""
            is_remark = is_silent(reply)
            said = describe_word(reply) if is_remark else reply
            show_said("reply", result.session_key, said, is_remark=is_remark)
            return True
        case "accepted":
            say(f"{result.session_key} has the message; its run is {result.run_id}.")
        case _:
            say(result.error or "", err=True)
    if result.delivery is not None:
        ReceiptSeen(result.delivery.id, result.delivery.status).show()
    return False


class MessageSending:
    """A message to a session, and the exchange that follows."""

    def __init__(self, link: Link, session: str, text: str, *, wait_s: float, caller: str | None) -> None:
        self._link = link
        self._caller = caller
        self._key = new_run_id()
        self._args: Payload = {"sessionKey": session, "message": text, "timeoutSeconds": wait_s}
        self._shown: set[str] = set()

    def send(self) -> answers.SendSeen:
        """Send the message, and give what `sessions_send` returned.

        Raises:
            CallFailed: the gateway refused the call.
            NoGateway: there was none from the start.
        """
        return self._link.ask(self._put)

    def _put(self, client: GatewayClient) -> answers.SendSeen:
        with patience(f"waiting for {self._args['sessionKey']}"):
            return invoke(client, "sessions_send", answers.SendSeen, self._args, self._caller, self._key)

    def follow(self, result: answers.SendSeen) -> None:
        """Show the turns, the announce and the receipt, until the receipt is settled or has to wait for a retry."""
        self._link.ask(lambda client: _ExchangeView(client, result, self._caller, self._shown).run()).show()


class _ExchangeView:
    """The exchange as one connection sees it. `shown`, the runs that were shown, outlives the connection."""

    def __init__(self, client: GatewayClient, result: answers.SendSeen, caller: str | None, shown: set[str]) -> None:
        self._client = client
        self._result = result
        self._caller = caller
        self._shown = shown
        self._spinner = Spinner(_WAITS_FOR)

    def run(self) -> ReceiptSeen:
        """Show the steps as they come, and return the receipt at the end."""
        try:
            return self._follow()
        except CallFailed as refused:
            if refused.is_retryable:
                raise
            return self._follow_receipt()  # a token that may not see the exchange sees the receipt at most
        finally:
            self._spinner.end()

    def _follow(self) -> ReceiptSeen:
        exchange = self._load()
        for party in (exchange.target, exchange.requester):
            if party is not None:
                self._client.call("sessions.messages.subscribe", answers.EventsSubscribed, key=party.session_key)
        while True:  # it is read once more after subscribing, so that nothing is missed in between
            exchange = self._load()
            self._show_runs(exchange.runs)
            receipt = receipt_seen(exchange.receipt)
            if not receipt.is_on_its_way:
                return receipt
            wait_for_news(self._client)

    def _load(self) -> answers.ExchangeShown:
        return self._client.call("exchanges.get", answers.ExchangeFound, runId=self._result.run_id).exchange

    def _show_runs(self, runs: Sequence[answers.RunRow]) -> None:
        """Show the turns and announces that have ended; the reply of the first run is shown already."""
        turns = 0
        for run in runs:
            turns += run.kind == "turn"
            if run.kind == "primary" or run.ended_at is None or run.run_id in self._shown:
                continue
            self._shown.add(run.run_id)
            self._spinner.end()
            said = run.reply or f"({run.error or 'no text'})"
            is_remark = run.reply is None or is_control_word(said)
            said = describe_word(said) if is_control_word(said) else said
            name = f"turn {turns}" if run.kind == "turn" else run.kind
            show_said(name, run.session_key, said, is_remark=is_remark)
            self._spinner = Spinner(_WAITS_FOR)

    def _follow_receipt(self) -> ReceiptSeen:
        assert self._result.delivery is not None, "it was accepted"
        receipt = ReceiptSeen(self._result.delivery.id, self._result.delivery.status)
        while receipt.is_on_its_way:
            args = {"sessionKey": self._result.session_key}
            try:
                status = invoke(self._client, "session_status", answers.StatusSeen, args, self._caller)
            except CallFailed as refused:
                if refused.is_retryable:
                    raise
                break
            mine = [known for known in status.receipts if known.id == receipt.id]
            if not mine:
                break
            receipt = receipt_seen(mine[0])
            if receipt.is_on_its_way:
                wait_for_news(self._client)
        return receipt
