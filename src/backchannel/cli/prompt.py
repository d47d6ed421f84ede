"""The prompt of `backchannel chat`: reads lines, runs a few commands, and sends the rest.

Posts to the chat, such as the result of a sub-agent, are shown while the line is empty. A line that has been begun is
left alone. Posts that came meanwhile are shown above the next line.

A clock ticks while a line is read (`TickingInput`). Each tick shows new posts (`Posts`) in place of the empty prompt,
and writes the prompt again below. So the cursor stays where readline expects it.
"""

from __future__ import annotations

import contextlib
import readline
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from backchannel.cli import answers
from backchannel.cli.client import ANSWER_S, CallFailed, GatewayClient, Link
from backchannel.cli.commands.history import load_last, show_message
from backchannel.cli.commands.sessions import SessionsSnapshot
from backchannel.cli.conversation import (
    ReplyView,
    StoppedWaiting,
    ends_step,
    new_run_id,
    send_message,
)
from backchannel.cli.failures import failure_text, interleaved, load_failed, runs_of, show_failure
from backchannel.cli.finding import NoGateway
from backchannel.cli.options import Options
from backchannel.cli.output import clock_time, is_terminal, say, say_dim, say_styled, wrapped
from backchannel.cli.ticking import TickingInput
from backchannel.core.commands.control_words import is_silent
from backchannel.errors import GatewayError

T = TypeVar("T")
PROMPT = "> "
BLANK = f"\r{' ' * len(PROMPT)}\r"
SHOWN_AT_START = 6
REMEMBERED_LINES = 1000
HELP = """\
/history [N]: show the last messages
/sessions: list the sessions
/quit: end this program, like Ctrl-D
Everything else is sent. Ctrl-C aborts the reply, or ends the program when the line is empty.

The session itself knows:"""

_LISTED = 50
CHANNEL = "webchat"
BY_ITSELF = ("wake", "cron", "hook")
"""Kinds of runs that no message of the chat started. On webchat their replies have no receipt."""


class Prompt:
    """A person at a terminal, talking to one session."""

    def __init__(self, options: Options, link: Link, session: str) -> None:
        self._options = options
        self._link = link
        self._session = session
        self._posts = Posts(link, session)
        self._ticking = TickingInput(self._tick)
        self._lines = options.where.state_dir / "chat_lines"
        self._kept = ""

    def run(self) -> None:
        """Read lines until the person ends it."""
        self._greet()
        with _remembered(self._lines), self._ticking:
            while (line := self._read_line()) is not None:
                if line.strip() in ("/quit", "/exit"):
                    return
                if line.strip():
                    self._take(line)

    def _read_line(self) -> str | None:
        """Read a line; None means that the person is done."""
        while True:
            try:
                self._show_posts(self._posts.load())
                _control("\r")  # where the prompt is to stand, also after a tick that came too late and left one
                with _begun_with(self._kept), self._ticking.reading():
                    self._kept = ""
                    return input(PROMPT)
            except EOFError:
                say()
                return None
            except KeyboardInterrupt:
                say()
                if not readline.get_line_buffer().strip():
                    return None

    def _tick(self) -> None:
        """Show new posts in place of the prompt, unless a line has been begun."""
        if readline.get_line_buffer() or not is_terminal(sys.stdout):
            return
        if posted := self._posts.load_if_notified():
            _control(BLANK)
            self._show_posts(posted)
            say(PROMPT, end="")

    @staticmethod
    def _show_posts(posted: list[ChatPost]) -> None:
        for post in posted:
            show_post(post)

    def _greet(self) -> None:
        loaded = self._history(SHOWN_AT_START)
        say_dim(wrapped(f"{loaded.session_key} · /help lists commands, Ctrl-D ends") + "\n")
        self._show(loaded)

    def _take(self, line: str) -> None:
        try:
            match line.split():
                case ["/help"]:
                    say(wrapped(HELP))
                    self._say(line)
                case ["/history"]:
                    self._show(self._history(20))
                case ["/history", count] if count.isdecimal() and int(count):
                    self._show(self._history(int(count)))
                case ["/sessions"]:
                    listed = self._link.client().call("sessions.list", answers.SessionRows, limit=20)
                    SessionsSnapshot(listed.ts, listed.sessions).table(listed.ts).show()
                case _:
                    self._say(line)
        except NoGateway as gone:
            self._link.lose()
            say(gone.message, err=True)
        except GatewayError as error:
            say(self._options.spell(error.message), err=True)
        except KeyboardInterrupt:
            say()

    def _say(self, text: str) -> None:
        run_id = new_run_id()
        view = ReplyView(run_id, is_live=True)
        try:
            ended = send_message(self._link, self._session, text, view, run_id, self._keep)
        except StoppedWaiting as stopped:
            view.remark(stopped.message)
            return
        except BaseException:  # Ctrl-C too: nothing is left on the line, and the error goes on
            view.close()
            raise
        view.end(ended.reply or "")
        if ended.status != "ok":
            say_dim(failure_text(self._options, run_id, ended))
        say()

    def _keep(self, typed: str) -> str:
        """Keep early typing for the next line, where the person sees it before it is sent."""
        self._kept = f"{self._kept} {typed}".strip()
        return "it stands in your next line, and is not sent yet"

    def _history(self, limit: int) -> answers.ChatRead:
        return load_last(self._link.client(), self._session, limit)

    def _show(self, loaded: answers.ChatRead) -> None:
        failed = load_failed(self._link.client(), loaded.session_key, runs_of(loaded.messages))
        for message, ended in interleaved(loaded.messages, failed):
            show_message(message)
            for run in ended:
                show_failure(self._options, run)
        for message in loaded.pending:
            show_message(message, is_pending=True)


def _control(keys: str) -> None:
    """Move the cursor of the terminal, which `say` lets no text do."""
    if is_terminal(sys.stdout):
        sys.stdout.write(keys)
        sys.stdout.flush()


@contextlib.contextmanager
def _begun_with(text: str) -> Iterator[None]:
    """Put a text into the next line."""
    readline.set_startup_hook((lambda: readline.insert_text(text)) if text else None)
    try:
        yield
    finally:
        readline.set_startup_hook(None)


@contextlib.contextmanager
def _remembered(file: Path) -> Iterator[None]:
    """Keep the history of lines, in the state folder if there is one."""
    with contextlib.suppress(OSError):
        readline.read_history_file(file)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            if file.parent.is_dir():
                readline.set_history_length(REMEMBERED_LINES)
                file.touch(mode=0o600)
                readline.write_history_file(file)


@dataclass(frozen=True, slots=True)
class ChatPost:
    """A post to the chat, and its time."""

    id: str
    at: int
    text: str


class Posts:
    """What is posted to a session's chat beside the replies: results of sub-agents, announces, what woken agents say.

    Events only say that there is something new; what it is stands in the session's receipts and runs. Each is given
    once, from now on and over restarts of the gateway.
    """

    def __init__(self, link: Link, session: str) -> None:
        self._link = link
        self._session = session
        self._watched: GatewayClient | None = None
        self._seen: set[str] | None = None

    def load(self) -> list[ChatPost]:
        """Load new posts, the oldest first; none while the gateway is away."""
        return self._ask(only_if_notified=False)

    def load_if_notified(self) -> list[ChatPost]:
        """Load new posts if an event has come."""
        return self._ask(only_if_notified=True)

    def _ask(self, *, only_if_notified: bool) -> list[ChatPost]:
        client = self._link.at_hand()
        if client is None:
            return []
        try:
            is_notified = self._is_notified(client)
            return self._fresh(client) if is_notified or not only_if_notified else []
        except NoGateway:
            self._link.lose()
        except CallFailed as refused:
            if refused.is_retryable:
                self._watched = None  # it is read anew
                self._link.leave_alone()
            elif refused.reason == "session_not_found":
                self._seen = self._seen or set()  # whatever is posted to a session that is to come is new
            # Otherwise the token may write and not read: it gets replies, and nothing else.
        return []

    def _is_notified(self, client: GatewayClient) -> bool:
        """True if something may have ended in the session. A new connection may have missed it."""
        if client is not self._watched:
            _request(client, "sessions.messages.subscribe", answers.EventsSubscribed, key=self._session)
            self._watched = client
            return True
        is_notified = False
        while events := list(client.events(0)):
            is_notified = is_notified or any(map(ends_step, events))
        return is_notified

    def _fresh(self, client: GatewayClient) -> list[ChatPost]:
        found = [*self._sent(client), *self._spoken(client)]
        fresh = [] if self._seen is None else [post for post in found if post.id not in self._seen]
        self._seen = (self._seen or set()) | {post.id for post in found}
        return sorted(fresh, key=lambda post: post.at)

    def _sent(self, client: GatewayClient) -> list[ChatPost]:
        wanted = {"sessionKey": self._session, "state": "sent", "limit": _LISTED}
        return [
            ChatPost(receipt.id, receipt.updated_at, receipt.text or "")
            for receipt in reversed(_request(client, "deliveries.list", answers.DeliveriesListed, **wanted).deliveries)
            if receipt.channel == CHANNEL
        ]

    def _spoken(self, client: GatewayClient) -> list[ChatPost]:
        wanted = {"sessionKey": self._session, "states": ["ok"], "limit": _LISTED}
        return [
            ChatPost(run.run_id, run.ended_at or 0, run.reply or "")
            for run in reversed(_request(client, "runs.list", answers.RunsListed, **wanted).runs)
            if run.kind in BY_ITSELF and not is_silent(run.reply)
        ]


def _request(client: GatewayClient, method: str, shape: type[T], **params: object) -> T:
    """Make a request without the spinner of `Client.call`, which would be drawn over the prompt."""
    return client.wait(client.ask(method, **params), shape, ANSWER_S)


def show_post(post: ChatPost) -> None:
    """Print a post, and its time."""
    say_styled("posted", end=" ", fg="cyan", bold=True)
    say_dim(clock_time(post.at))
    say(f"{wrapped(post.text)}\n")
