"""The prompt of `backchannel chat`: reads lines, knows a few commands, and sends the rest to the session.

What is posted to the chat meanwhile, such as the result of a sub-agent, is shown while the line is empty. A line that
somebody has begun to type is left alone; what came in between is shown above the next one.

A clock ticks while a line is read. Each tick shows what was posted in the place of the empty prompt and writes the
prompt again below, so that whoever edits the line finds the cursor where it was.
"""

from __future__ import annotations

import contextlib
import readline
import sys
from collections.abc import Iterator
from pathlib import Path

from backchannel.cli.chat import how_it_ended
from backchannel.cli.client import CallFailed, Link, NoGateway, Payload
from backchannel.cli.conversation import ReplyView, StoppedWaiting, ask, new_run_id
from backchannel.cli.messages import load_last, show_message
from backchannel.cli.options import Options
from backchannel.cli.output import is_terminal, say, say_dim
from backchannel.cli.posts import Posts, show_post
from backchannel.cli.sessions import show_sessions
from backchannel.cli.ticking import Ticking
from backchannel.errors import GatewayError

PROMPT = "> "
BLANK = f"\r{' ' * len(PROMPT)}\r"
SHOWN_AT_START = 6
REMEMBERED_LINES = 1000
HELP = """\
/history [N]: show the last messages
/sessions: list the sessions
/quit: end this program, as Ctrl-D does
Everything else is sent as it is. Ctrl-C aborts the reply, or ends the program when the line is empty.

The session itself knows:"""


class Prompt:
    """A person at a terminal, talking to one session."""

    def __init__(self, options: Options, link: Link, session: str) -> None:
        self._options = options
        self._link = link
        self._session = session
        self._posts = Posts(link, session)
        self._ticking = Ticking(self._tick)
        self._lines = options.where.state_dir / "chat_lines"

    def run(self) -> None:
        """Read lines until the person has had enough."""
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
                with self._ticking.reading():
                    return input(PROMPT)
            except EOFError:
                say()
                return None
            except KeyboardInterrupt:
                say()
                if not readline.get_line_buffer().strip():
                    return None

    def _tick(self) -> None:
        """Show what is posted in the place of the prompt, unless somebody has begun to type."""
        if readline.get_line_buffer() or not is_terminal(sys.stdout):
            return
        if posted := self._posts.load_if_told():
            _control(BLANK)
            self._show_posts(posted)
            say(PROMPT, end="")

    @staticmethod
    def _show_posts(posted: list[Payload]) -> None:
        for post in posted:
            show_post(post)

    def _greet(self) -> None:
        loaded = self._history(SHOWN_AT_START)
        say_dim(f"{loaded['sessionKey']} · /help lists commands, Ctrl-D ends\n")
        self._show(loaded)

    def _take(self, line: str) -> None:
        try:
            match line.split():
                case ["/help"]:
                    say(HELP)
                    self._say(line)
                case ["/history"]:
                    self._show(self._history(20))
                case ["/history", count] if count.isdecimal() and int(count):
                    self._show(self._history(int(count)))
                case ["/sessions"]:
                    listed = self._link.client().call("sessions.list", limit=20)
                    show_sessions(listed["sessions"], listed["ts"])
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
            ended = ask(self._link, self._session, text, view, run_id)
        except StoppedWaiting as stopped:
            view.remark(stopped.message)
            return
        except BaseException:  # Ctrl-C too: nothing is left on the line, and the error goes on
            view.close()
            raise
        view.end(ended.get("reply") or "")
        if ended["status"] != "ok":
            say_dim(self._options.spell(how_it_ended(ended)))
        say()

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


def _control(keys: str) -> None:
    """Move the cursor of the terminal, which `say` lets no text do."""
    if is_terminal(sys.stdout):
        sys.stdout.write(keys)
        sys.stdout.flush()


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
