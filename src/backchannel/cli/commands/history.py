"""`backchannel history`: show and follow the messages of a session, as people read them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Annotated

import typer

from backchannel.cli import answers
from backchannel.cli.client import CallFailed, GatewayClient, Link, connected, convert
from backchannel.cli.conversation import ends_step
from backchannel.cli.failures import interleaved, load_failed, runs_of, show_failure
from backchannel.cli.finding import NoGateway
from backchannel.cli.naming import WHICH, find_key
from backchannel.cli.options import AsJson, Limit, Options, options_of
from backchannel.cli.output import WordWrap, as_plain, clock_time, is_terminal, say, say_dim, say_styled, show_json
from backchannel.core.text import shown_name

if TYPE_CHECKING:
    from backchannel.core.messages import Block, Message

_COLOURS = {"user": "green", "assistant": "cyan", "system": "yellow", "toolResult": "magenta"}


def _refuse_session(ctx: typer.Context, key: str | None) -> None:
    """Refuse `--session`, which `chat` and `runs` have, and say how to name the session here."""
    if key is not None:
        raise typer.BadParameter(f"the session is an argument here: {options_of(ctx).command('history', key)}")


def history(
    ctx: typer.Context,
    key: Annotated[str, typer.Argument(help=f"The session: {WHICH}.")] = "main",
    limit: Limit = 20,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Show new messages until Ctrl-C.")] = False,
    tools: Annotated[bool, typer.Option("--tools", help="Also show tool calls and their results.")] = False,
    everything: Annotated[
        bool, typer.Option("--all", help="Also show texts for models only: prompts of exchanges, control words.")
    ] = False,
    pending: Annotated[
        bool, typer.Option("--pending", help="Show every waiting message, not only the first 100.")
    ] = False,
    as_json: AsJson = False,
    session: Annotated[str | None, typer.Option("--session", "-s", hidden=True, callback=_refuse_session)] = None,
) -> None:
    """Show the last messages of a session, oldest first.

    It also shows runs without an answer. With --json and --follow, each message is a line.
    """
    options = options_of(ctx)
    key = find_key(options, key)
    if follow:
        _Following(options, key, with_tools=tools, as_stored=everything, as_json=as_json).run(limit)
        return

    with connected(options) as client:
        loaded = _load(client, key, limit, with_tools=tools, as_stored=everything)
        failed = load_failed(client, loaded.session_key, runs_of(loaded.messages))
        if pending:
            loaded = _with_all_pending(client, loaded, with_tools=tools, as_stored=everything)
    if as_json:
        show_json(as_plain(loaded) | {"failedRuns": failed})
        return
    if loaded.follows is not None and not loaded.has_more:
        say_dim(f"{_begun(loaded.follows)} The earlier transcript is {loaded.follows.session_id}.", err=True)
    for message, ended in interleaved(loaded.messages, failed):
        show_message(message, with_tools=tools, as_stored=everything)
        for run in ended:
            show_failure(options, run)
    for message in loaded.pending:
        show_message(message, with_tools=tools, as_stored=everything, is_pending=True)
    if loaded.pending_left_out:
        say_dim(f"{loaded.pending_left_out} more wait behind them: --pending shows them.", err=True)
    if loaded.has_more:
        say_dim(f"There are older ones: --limit {limit * 2} shows them.", err=True)


def _begun(before: answers.FollowedTranscript) -> str:
    """Say why a conversation began anew."""
    why = {"daily": "by itself, for a new day", "idle": "by itself, after a pause"}.get(before.reason, "by a reset")
    return f"This conversation began anew {clock_time(before.ended_at)}, {why}."


def _with_all_pending(
    client: GatewayClient, loaded: answers.ChatRead, *, with_tools: bool, as_stored: bool
) -> answers.ChatRead:
    """Load the rest of the waiting messages, a page at a time."""
    from msgspec.structs import replace

    page, waiting = loaded, list(loaded.pending)
    while page.pending_next is not None:
        page = client.call(
            "chat.history", answers.ChatRead, sessionKey=loaded.session_key, limit=1, pendingCursor=page.pending_next
        )
        waiting += [each for each in page.pending if is_shown(each, with_tools=with_tools, as_stored=as_stored)]
    return replace(loaded, pending=waiting, pending_left_out=None, pending_next=None)


class _Following:
    """Shows each message of a session once, over restarts of the gateway."""

    def __init__(self, options: Options, key: str, *, with_tools: bool, as_stored: bool, as_json: bool) -> None:
        self._options = options
        self._key = key
        self._with_tools = with_tools
        self._as_stored = as_stored
        self._as_json = as_json
        self._last: str | None = None
        self._runs: set[str] = set()
        """Runs whose messages were shown, and whose end was not."""

    def run(self, limit: int) -> None:
        """Show the last messages, then each one that comes."""
        with Link(self._options, lambda text: say_dim(text, err=True)) as link:
            while True:
                try:
                    self._follow(link.client(), limit, link.worked)
                except NoGateway:
                    link.lose()
                except CallFailed as refused:
                    link.hold_off(refused)

    def _follow(self, client: GatewayClient, limit: int, on_read: Callable[[], None]) -> None:
        # Subscribing comes first: what enters the transcript in between is then seen twice, never missed.
        client.call("sessions.messages.subscribe", answers.EventsSubscribed, key=self._key)
        seen = {message.id for message in self._catch_up(client, limit)}
        on_read()
        while True:
            for event in client.events():
                if event["event"] == "session.message" and event["payload"]["messageId"] not in seen:
                    self._show(_read(event["payload"]["message"]))
                elif event["event"] == "agent" and event["payload"]["runId"] in self._runs and ends_step(event):
                    self._runs.discard(event["payload"]["runId"])
                    self._show_failed(client, [event["payload"]["runId"]])

    def _catch_up(self, client: GatewayClient, limit: int) -> list[Message]:
        """Show the messages after the last one that was shown; without one, the last messages."""
        shown: list[Message] = []
        has_more = self._last is not None
        while has_more:
            try:
                page = client.call("chat.history", answers.ChatRead, sessionKey=self._key, after=self._last)
            except CallFailed as refused:
                if refused.reason != "not_found":
                    raise
                self._last = None  # the session was reset: its new transcript is read from its end
                break
            shown += page.messages
            has_more = page.has_more
            self._show_all(page.messages)
        if self._last is None:
            last = _load(client, self._key, limit, with_tools=self._with_tools, as_stored=self._as_stored)
            shown = last.messages
            self._show_all(shown)
        self._show_failed(client, self._runs)
        return shown

    def _show_all(self, messages: list[Message]) -> None:
        for message in messages:
            self._show(message)

    def _show_failed(self, client: GatewayClient, ids: Collection[str]) -> None:
        """Show once that each of these runs gave no answer. JSON has messages only."""
        if not self._as_json:
            for run in load_failed(client, self._key, ids):
                self._runs.discard(run.run_id)
                show_failure(self._options, run)

    def _show(self, message: Message) -> None:
        self._last = message.id
        if not is_shown(message, with_tools=self._with_tools, as_stored=self._as_stored):
            return
        if message.run_id is not None:
            self._runs.add(message.run_id)
        if self._as_json:
            show_json(message, lines=True)
        else:
            show_message(message, with_tools=self._with_tools, as_stored=self._as_stored)


def _read(message: object) -> Message:
    """Read a message that an event brought."""
    from backchannel.core.messages import Message

    return convert(message, Message)


def _load(client: GatewayClient, session: str, limit: int, *, with_tools: bool, as_stored: bool) -> answers.ChatRead:
    """Load the last messages of a session that exists, or of a main session, which need not exist yet.

    Raises:
        CallFailed: no session has this key, which may be mistyped.
    """
    from backchannel.core.keys import SessionKey

    loaded = load_last(client, session, limit, with_tools=with_tools, as_stored=as_stored)
    is_main = SessionKey.parse(loaded.session_key).path in (("main",), (client.defaults.main_key,))
    if loaded.session_id is None and not is_main:
        client.call("sessions.resolve", answers.SessionFound, key=session)  # refused, unless it was made since
    return loaded


def load_last(
    client: GatewayClient, session: str, limit: int, *, with_tools: bool = False, as_stored: bool = False
) -> answers.ChatRead:
    """Load the last `limit` messages of a session that are shown to people.

    A session that does not exist yet has no messages and no id.
    """
    from msgspec.structs import replace

    def shown(messages: list[Message]) -> list[Message]:
        return [message for message in messages if is_shown(message, with_tools=with_tools, as_stored=as_stored)]

    history = client.call("chat.history", answers.ChatRead, sessionKey=session, limit=limit)
    oldest, wanted, has_more = history.messages, shown(history.messages), history.has_more
    while len(wanted) < limit and has_more:
        older = client.call("chat.history", answers.ChatRead, sessionKey=session, limit=limit, before=oldest[0].id)
        oldest, wanted, has_more = older.messages, shown(older.messages) + wanted, older.has_more
    has_more = has_more or len(wanted) > limit
    return replace(history, messages=wanted[-limit:], pending=shown(history.pending), has_more=has_more)


def is_shown(message: Message, *, with_tools: bool = False, as_stored: bool = False) -> bool:
    """True if a message says something to people; tool results, bare calls and control words do not."""
    if message.role == "toolResult":
        return with_tools
    return bool(text_of(message, with_tools=with_tools, as_stored=as_stored))


def text_of(message: Message, *, with_tools: bool = False, as_stored: bool = False) -> str:
    """Give the text of a message as people read it, or as it is stored. With tools, add its calls."""
    from backchannel.core.compaction.entry import compaction_line
    from backchannel.core.readable import text_for_people

    if message.compaction is not None and not as_stored:
        line = compaction_line(message.compaction)
        return f"{line}\n{message.text}" if with_tools else line
    said = message.text if as_stored else text_for_people(message)
    shown = [said, *(_block(block, with_tools) for block in message.content)]
    return "\n".join(text for text in shown if text)


def _block(block: Block, with_tools: bool) -> str:
    import msgspec

    from backchannel.core.messages import ImageBlock, ToolCallBlock

    match block:
        case ImageBlock(file=None):  # of one that lies in a file, a line of the text tells
            return f"[image {block.mime_type}]"
        case ToolCallBlock() if with_tools:
            return f"→ {block.name} {msgspec.json.encode(block.arguments).decode()}"
    return ""


def _writer(message: Message) -> str:
    """Name the writer of a message. The role `user` does not mean that a user wrote it."""
    role, provenance, sender = message.role.value, message.provenance, message.sender
    if role == "toolResult":
        return f"{message.tool_name or 'tool'}{' failed' if message.is_error else ''}"
    if provenance is not None and provenance.kind == "inter_session" and provenance.source_session_key:
        return provenance.source_session_key
    if provenance is not None and provenance.kind == "internal_system":
        return "system"
    return role if sender is None else shown_name(sender.name or sender.id) or role


def show_message(
    message: Message, *, with_tools: bool = False, as_stored: bool = False, is_pending: bool = False
) -> None:
    """Print a message: who, when and what."""
    who = _writer(message)
    when = "not read yet" if is_pending else clock_time(message.timestamp)
    text = text_of(message, with_tools=with_tools, as_stored=as_stored)
    if is_terminal(sys.stdout):
        say_styled(who, end=" ", fg=_COLOURS.get(message.role), bold=True)
        say_dim(when)
        say(WordWrap().feed(text) + "\n")
    else:
        say(f"[{when}] {who}: {text}")
