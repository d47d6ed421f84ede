"""The prompt of `backchannel chat`: reads lines, knows a few commands, and sends the rest to the session."""

from __future__ import annotations

import contextlib
import readline
from collections.abc import Iterator
from pathlib import Path

from backchannel.cli.chat import how_it_ended
from backchannel.cli.client import CallFailed, NoGateway, Payload
from backchannel.cli.conversation import ReplyView, StoppedWaiting, ask, new_run_id
from backchannel.cli.link import Link
from backchannel.cli.messages import load_last, show_message
from backchannel.cli.options import Options
from backchannel.cli.output import say, say_dim
from backchannel.cli.sessions import show_sessions
from backchannel.errors import GatewayError

PROMPT = "> "
SHOWN_AT_START = 6
REMEMBERED_LINES = 1000
HELP = """\
/history [N]  show the last messages
/sessions     list the sessions
/new          start the conversation over; the old transcript is kept
/quit         end this program, as Ctrl-D does
Everything else is sent as it is. Ctrl-C aborts the reply, or ends the program when the line is empty."""


class Prompt:
    """A person at a terminal, talking to one session."""

    def __init__(self, options: Options, link: Link, session: str) -> None:
        self._link = link
        self._session = session
        self._lines = options.where.state_dir / "chat_lines"

    def run(self) -> None:
        """Read lines until the person has had enough."""
        self._greet()
        with _remembered(self._lines):
            while (line := _read_line()) is not None:
                if line.strip() in ("/quit", "/exit"):
                    return
                if line.strip():
                    self._take(line)

    def _greet(self) -> None:
        loaded = self._history(SHOWN_AT_START)
        say_dim(f"{loaded['sessionKey']} · /help lists commands, Ctrl-D ends\n")
        self._show(loaded)

    def _take(self, line: str) -> None:
        try:
            match line.split():
                case ["/help"]:
                    say(HELP)
                case ["/history"]:
                    self._show(self._history(20))
                case ["/history", count] if count.isdecimal() and int(count):
                    self._show(self._history(int(count)))
                case ["/sessions"]:
                    listed = self._link.client().call("sessions.list", limit=20)
                    show_sessions(listed["sessions"], listed["ts"])
                case ["/new"]:
                    self._start_over()
                case _:
                    self._say(line)
        except NoGateway as gone:
            self._link.lose()
            say(gone.message, err=True)
        except GatewayError as error:
            say(error.message, err=True)
        except KeyboardInterrupt:
            say()

    def _say(self, text: str) -> None:
        run_id = new_run_id()
        view = ReplyView(run_id, is_live=True)
        try:
            ended = ask(self._link, self._session, text, view, run_id)
        except StoppedWaiting as stopped:
            view.remark(stopped.message)
            return
        except BaseException:
            view.close()
            raise
        view.end(ended.get("reply") or "")
        if ended["status"] != "ok":
            say_dim(how_it_ended(ended))
        say()

    def _start_over(self) -> None:
        try:
            self._link.client().call("sessions.reset", key=self._session)
        except CallFailed as refused:
            if refused.reason != "session_not_found":
                raise
        say_dim("This is a new conversation.")

    def _history(self, limit: int) -> Payload:
        try:
            return load_last(self._link.client(), self._session, limit, with_tools=False)
        except CallFailed as refused:
            if refused.reason != "session_not_found":
                raise
            return {"sessionKey": self._session, "messages": [], "pending": []}  # the first message makes it

    @staticmethod
    def _show(loaded: Payload) -> None:
        for message in loaded["messages"]:
            show_message(message)
        for message in loaded["pending"]:
            show_message(message, is_pending=True)


def _read_line() -> str | None:
    """Read a line; None means that the person is done."""
    while True:
        try:
            return input(PROMPT)
        except EOFError:
            say()
            return None
        except KeyboardInterrupt:
            say()
            if not readline.get_line_buffer().strip():
                return None


@contextlib.contextmanager
def _remembered(file: Path) -> Iterator[None]:
    """Keep the lines of earlier talks at hand, in the state folder if there is one."""
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
