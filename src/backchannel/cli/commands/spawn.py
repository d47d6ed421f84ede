"""`backchannel spawn`: start a sub-agent as an agent does, and show its work.

The call has an idempotency key, so after a lost connection it is simply repeated. What follows is read from rows: the
runs by waiting for them, the receipt from the status of the requester. An agent's token can do that too. An operator's
token also sees the text as it is written, the announce, and the post.
"""

from __future__ import annotations

import sys
from typing import Annotated, TypeVar

import typer

from backchannel.cli import answers
from backchannel.cli.client import CallFailed, GatewayClient, Link, Payload
from backchannel.cli.conversation import (
    ReplyView,
    invoke,
    new_run_id,
    receipt_seen,
    show_heading,
    show_said,
    wait_for_news,
    wait_for_run,
)
from backchannel.cli.finding import NoGateway
from backchannel.cli.naming import find_key
from backchannel.cli.options import EXIT_INTERRUPTED, FAILED, AsJson, Options, options_of
from backchannel.cli.output import is_terminal, patience, say, say_dim, show_json
from backchannel.core.commands.control_words import describe_word, is_control_word

T = TypeVar("T")
_NOT_PERMITTED = ("forbidden", "scope_missing", "session_not_found")


def spawn(
    ctx: typer.Context,
    task: Annotated[str, typer.Argument(metavar="TASK", help="The whole task. The sub-agent sees nothing else.")],
    as_session: Annotated[
        str | None,
        typer.Option(
            "--as", metavar="KEY", help="Spawn as this session. [default: the operator, for the main session]"
        ),
    ] = None,
    agent: Annotated[
        str | None, typer.Option(metavar="ID", help="The agent that does it. [default: the session's]")
    ] = None,
    model: Annotated[str | None, typer.Option(metavar="REF", help="Its model, as provider/model.")] = None,
    thinking: Annotated[str | None, typer.Option(metavar="LEVEL", help="How much it thinks.")] = None,
    label: Annotated[str | None, typer.Option(help="Its label. No other session of the agent may have it.")] = None,
    timeout: Annotated[
        float | None, typer.Option(min=0, metavar="SECONDS", help="Its time limit. [default: none]")
    ] = None,
    cleanup: Annotated[
        str | None,
        typer.Option(
            metavar="HOW", help="delete: archive it when its result has arrived. keep: later. [default: keep]"
        ),
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Show its work and its announce, until the result is delivered.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Start a sub-agent, as an agent would. Says where to watch it. The result comes back by itself.

    With --json it prints the result of sessions_spawn. Exits with 1 if it is refused, or if a followed run fails.
    """
    if follow and as_json:
        raise typer.BadParameter("choose one: --json prints the result of sessions_spawn", param_hint="--follow")
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
        spawning = SubAgentStart(link, args, caller=find_key(options, as_session))
        try:
            result = spawning.start()
            is_ok = _show(result, options, as_json=as_json, is_followed=follow)
            if is_ok and not as_json and (place := spawning.destination()):
                say_dim(f"Its result goes {place}.", err=True)
            if is_ok and follow:
                is_ok = spawning.follow(result).status == "ok"
        except KeyboardInterrupt:
            say("Not watching any longer. What was accepted goes on; the tree shows it.", err=True)
            raise typer.Exit(EXIT_INTERRUPTED) from None
    if not is_ok:
        raise typer.Exit(FAILED)


def _show(result: answers.SpawnSeen, options: Options, *, as_json: bool, is_followed: bool) -> bool:
    """Print the result of the call; True means that the sub-agent was started."""
    is_started = result.status == "accepted"
    if as_json:
        show_json(result)
    elif not is_started:
        say(options.spell(result.error or ""), err=True)
    else:
        key = result.child_session_key
        say(f"Started {key} with {result.model}; its run is {result.run_id}.")
        if not is_followed:
            say_dim(f"See it at work with: {options.command('tree', '--watch')}", err=True)
            say_dim(f"Read what it says with: {options.command('history', key)}", err=True)
    return is_started


class SubAgentStart:
    """A sub-agent that is started, and the steps that follow."""

    def __init__(self, link: Link, args: Payload, *, caller: str | None) -> None:
        self._link = link
        self._args = {name: value for name, value in args.items() if value is not None}
        self._caller = caller
        self._key = new_run_id()
        self._shown: dict[str, _Step] = {}

    def start(self) -> answers.SpawnSeen:
        """Start it, and give what `sessions_spawn` returned.

        Raises:
            CallFailed: the gateway refused the call.
        """
        return self._link.ask(self._put)

    def _put(self, client: GatewayClient) -> answers.SpawnSeen:
        with patience("waiting for the gateway (sessions_spawn)"):
            return invoke(client, "sessions_spawn", answers.SpawnSeen, self._args, self._caller, self._key)

    def destination(self) -> str | None:
        """Say where its result will be posted: to the requester's chat, and into its session; None if not permitted."""
        return self._link.ask(self._find_destination)

    def _find_destination(self, client: GatewayClient) -> str | None:
        requester = self._caller or client.defaults.main_session_key
        try:
            session = client.call("sessions.describe", answers.SessionDescribed, key=requester).session
        except CallFailed:
            return None
        if session is None:
            return f"into {requester}"
        address = session.delivery_context
        if address is None:
            return f"into {session.key}"
        return f"to {address.channel}{f' {address.to}' if address.to else ''} and into {session.key}"

    def follow(self, result: answers.SpawnSeen) -> answers.RunWaited:
        """Show its work, its announce, its post and the receipt; give how its run ended."""
        return self._link.ask(lambda client: _SpawnView(client, result, self._caller, self._shown).run())


class _Step:
    """A run of the sub-agent as it is shown: on a terminal as it is written, elsewhere when it has ended."""

    def __init__(self, name: str, session: str, run_id: str) -> None:
        self._name = name
        self._session = session
        self._run_id = run_id
        self._ended: answers.RunWaited | None = None
        self._is_live = is_terminal(sys.stdout)
        if self._is_live:
            show_heading(name, session)
        self._view = ReplyView(run_id, is_live=self._is_live)

    def follow(self, client: GatewayClient) -> answers.RunWaited:
        """Wait for its end, without a time limit, and return it; it is shown once."""
        if self._ended is None:
            try:
                self._ended = wait_for_run(client, self._run_id, on_event=self._view.hear)
            except (NoGateway, KeyboardInterrupt):
                self._view.close()
                raise
            self._show(self._ended)
        return self._ended

    def _show(self, ended: answers.RunWaited) -> None:
        said = ended.reply or ""
        is_word = is_control_word(said)
        is_whole = ended.status == "ok" and bool(said)
        remark = describe_word(said) if is_word else "" if is_whole else f"({ended.error or 'no text'})"
        if not self._is_live:
            self._view.close()
            show_said(self._name, self._session, remark or said)
            return
        self._view.end("" if is_word else said)
        if remark:
            self._view.remark(remark)
        say()


class _SpawnView:
    """The sub-agent as one connection sees it. `shown`, its runs that were shown, outlives the connection."""

    def __init__(
        self, client: GatewayClient, result: answers.SpawnSeen, caller: str | None, shown: dict[str, _Step]
    ) -> None:
        self._client = client
        self._child = result.child_session_key
        self._run_id = result.run_id
        self._caller = caller
        self._shown = shown

    def run(self) -> answers.RunWaited:
        """Show the steps as they come."""
        for session in (self._child, self._caller or "main"):
            self._call_if_permitted("sessions.messages.subscribe", answers.EventsSubscribed, key=session)
        ended = self._step("run", self._run_id).follow(self._client)
        listed = self._call_if_permitted("runs.list", answers.RunsListed, sessionKey=self._child)
        for run in listed.runs if listed else ():
            if run.kind == "announce" and run.spawn_id is not None:
                self._step("announce", run.run_id).follow(self._client)
        self._show_post()
        return ended

    def _step(self, name: str, run_id: str) -> _Step:
        if name not in self._shown:
            self._shown[name] = _Step(name, self._child, run_id)
        return self._shown[name]

    def _show_post(self) -> None:
        """Show the post, and the receipt once it is settled or has to wait for a retry."""
        requester, receipt = self._receipt()
        with patience("waiting for the receipt"):
            while receipt is not None and receipt_seen(receipt).is_on_its_way:
                wait_for_news(self._client)
                requester, receipt = self._receipt()
        if receipt is None:
            return
        if isinstance(receipt, answers.ReceiptRow) and receipt.text:
            show_said("post", requester, receipt.text)
        receipt_seen(receipt).show()

    def _receipt(self) -> tuple[str, answers.ReceiptRow | answers.Flow | None]:
        """Load the receipt, and the session that gets the result. A session with very many children lists only some."""
        status = invoke(self._client, "session_status", answers.StatusSeen, {}, self._caller)
        known = [child.spawn.receipt for child in status.children if child.key == self._child and child.spawn]
        if not known:
            return status.key, None
        whole = self._call_if_permitted("deliveries.get", answers.ReceiptRow, id=known[0].id)
        return status.key, whole or known[0]

    def _call_if_permitted(self, method: str, shape: type[T], **params: object) -> T | None:
        """Make a request that not every token may make; None if this one may not."""
        try:
            return self._client.call(method, shape, **params)
        except CallFailed as refused:
            if refused.reason not in _NOT_PERMITTED:
                raise
            return None
