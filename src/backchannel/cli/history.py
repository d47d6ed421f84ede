"""`backchannel history`: what was said in a session, and what is being said."""

from __future__ import annotations

from typing import Annotated

import typer

from backchannel.cli.client import CallFailed, Client, Link, NoGateway, Payload, connected
from backchannel.cli.naming import WHICH, find_key
from backchannel.cli.options import AsJson, Limit, Options, options_of
from backchannel.cli.output import say_dim, show_json


def history(
    ctx: typer.Context,
    key: Annotated[str, typer.Argument(help=f"The session: {WHICH}.")] = "main",
    limit: Limit = 20,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with what comes, until Ctrl-C.")] = False,
    tools: Annotated[bool, typer.Option("--tools", help="Also show calls of tools and their results.")] = False,
    everything: Annotated[
        bool, typer.Option("--all", help="Also show what only models are told: prompts of exchanges, control words.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show the last messages of a session, oldest first. With --json and --follow, a message a line."""
    options = options_of(ctx)
    key = find_key(options, key)
    if follow:
        Following(options, key, with_tools=tools, as_stored=everything, as_json=as_json).run(limit)
        return
    from backchannel.cli.messages import load_last, show_message

    with connected(options) as client:
        loaded = load_last(client, key, limit, with_tools=tools, as_stored=everything)
    if as_json:
        show_json(loaded)
        return
    for message in loaded["messages"]:
        show_message(message, with_tools=tools, as_stored=everything)
    for message in loaded["pending"]:
        show_message(message, with_tools=tools, as_stored=everything, is_pending=True)
    if "pendingLeftOut" in loaded:
        say_dim(f"{loaded['pendingLeftOut']} more wait behind them.", err=True)
    if loaded["hasMore"]:
        say_dim(f"There are older ones: --limit {limit * 2} shows them.", err=True)


class Following:
    """Shows each message of a session once, over restarts of the gateway."""

    def __init__(self, options: Options, key: str, *, with_tools: bool, as_stored: bool, as_json: bool) -> None:
        self._options = options
        self._key = key
        self._with_tools = with_tools
        self._as_stored = as_stored
        self._as_json = as_json
        self._last: str | None = None

    def run(self, limit: int) -> None:
        """Show the last messages, then each one that comes."""
        with Link(self._options, lambda text: say_dim(text, err=True)) as link:
            while True:
                try:
                    self._follow(link.client(), limit)
                except NoGateway:
                    link.lose()

    def _follow(self, client: Client, limit: int) -> None:
        # Subscribing comes first: what enters the transcript in between is then seen twice, never missed.
        client.call("sessions.messages.subscribe", key=self._key)
        seen = {message["id"] for message in self._catch_up(client, limit)}
        while True:
            for event in client.events():
                if event["event"] == "session.message" and event["payload"]["messageId"] not in seen:
                    self._show(event["payload"]["message"])

    def _catch_up(self, client: Client, limit: int) -> list[Payload]:
        from backchannel.cli.messages import load_last

        shown: list[Payload] = []
        has_more = self._last is not None
        while has_more:
            try:
                page = client.call("chat.history", sessionKey=self._key, after=self._last)
            except CallFailed as refused:
                if refused.reason != "not_found":
                    raise
                self._last = None  # the session was reset: its new transcript is read from its end
                break
            shown += page["messages"]
            has_more = page["hasMore"]
            self._show_all(page["messages"])
        if self._last is None:
            shown = load_last(client, self._key, limit, with_tools=self._with_tools, as_stored=self._as_stored)[
                "messages"
            ]
            self._show_all(shown)
        return shown

    def _show_all(self, messages: list[Payload]) -> None:
        for message in messages:
            self._show(message)

    def _show(self, message: Payload) -> None:
        from backchannel.cli.messages import is_shown, show_message

        self._last = message["id"]
        if not is_shown(message, with_tools=self._with_tools, as_stored=self._as_stored):
            return
        if self._as_json:
            show_json(message, lines=True)
        else:
            show_message(message, with_tools=self._with_tools, as_stored=self._as_stored)
