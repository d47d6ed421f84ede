"""Approvals that `backchannel chat` asks the person at the keyboard for.

Only keys that are typed after a question was shown answer it. Earlier keys are dropped. Several lines at once, as in a
paste, answer nothing. While the answer is read, a clock looks for events (`TickingInput`). A question that is settled
elsewhere leaves the screen, and a line says by whom. Other events wait until the question is over.
"""

from __future__ import annotations

import json
import os
import select
import sys
import termios
from collections import deque
from collections.abc import Callable
from typing import Protocol, TypeAlias

from backchannel.cli import answers
from backchannel.cli.client import CallFailed, GatewayClient, Payload, convert
from backchannel.cli.finding import NoGateway
from backchannel.cli.output import is_terminal, say
from backchannel.cli.ticking import TickingInput
from backchannel.core.text import made_visible, one_line

CALL_SHOWN = 600
"""The longest text of a tool call that is shown."""
_NAME_SHOWN = 80
_TYPED_AT_MOST = 65536
_PROMPT = "Let it? y = yes, a = always in this session, n = no, then Enter: "
_CLEAR_LINE = "\r\x1b[K"
_ANSWERS: dict[str, Payload] = {
    "y": {"decision": "approve"},
    "a": {"decision": "approve", "always": True},
    "n": {"decision": "deny"},
}
_WORDS = {"yes": "y", "always": "a", "no": "n", **{letter: letter for letter in _ANSWERS}}

Keep: TypeAlias = Callable[[str], str]
"""Takes early typing, and says what happens to it."""


def drop_typed(typed: str) -> str:
    return "it is dropped"


class QuestionView(Protocol):
    """The place where the questions of a run are shown."""

    def remark(self, text: str) -> None:
        """Print a line of its own."""
        ...

    def hear(self, event: Payload) -> None:
        """Take an event that is not a question."""
        ...


class _SettledElsewhere(Exception):
    """Somebody else answered, or nobody can any more."""

    def __init__(self, settled: answers.ApprovalRow) -> None:
        super().__init__(settled.id)
        self.settled = settled


class Questions:
    """The questions of one run."""

    def __init__(self, client: GatewayClient, run_id: str, view: QuestionView, keep: Keep = drop_typed) -> None:
        self._client = client
        self._run_id = run_id
        self._view = view
        self._keep = keep
        self._asked: set[str] = set()
        self._held: deque[Payload] = deque()
        """Events that came while a question was open."""

    def hear(self, event: Payload) -> None:
        """Take an event: ask a question, and give everything else to the view."""
        if event["event"] == "approval":
            self._ask(convert(event["payload"], answers.ApprovalRow))
        else:
            self._view.hear(event)

    def ask_pending(self, session: str) -> None:
        """Ask the questions that are older than this connection."""
        wanted = {"sessionKey": session, "state": "pending"}
        for approval in self._client.call("approvals.list", answers.ApprovalsListed, **wanted).approvals:
            self._ask(approval)

    def _ask(self, approval: answers.ApprovalRow) -> None:
        if approval.run_id != self._run_id or approval.state != "pending" or approval.id in self._asked:
            return
        self._asked.add(approval.id)
        call = f"{approval.tool} {json.dumps(approval.args, ensure_ascii=False)}"
        self._view.remark(f"The agent asks to call {one_line(made_visible(call), CALL_SHOWN)}")
        if len(call) > CALL_SHOWN:
            self._view.remark(f"That is its beginning: it has {len(call)} characters (approvals --json shows all)")
        if not (is_terminal(sys.stdin) and is_terminal(sys.stdout)):
            self._view.remark(f"It waits: {_elsewhere(approval.id)}")
            return
        self._read(approval)
        while self._held:
            self.hear(self._held.popleft())

    def _read(self, approval: answers.ApprovalRow) -> None:
        """Read the answer, unless it is given elsewhere first."""
        if typed := take_typed():
            self._view.remark(f"(What you typed before does not answer this: {self._keep(typed)}.)")
        try:
            answer = self._read_answer(approval.id)
        except _SettledElsewhere as elsewhere:
            sys.stdout.write(_CLEAR_LINE)
            self._view.remark(how_settled(elsewhere.settled))
            return
        except NoGateway:
            sys.stdout.write(_CLEAR_LINE)  # it is asked again when the gateway is back
            raise
        if answer is None:
            self._view.remark(f"It waits: {_elsewhere(approval.id)}. Ctrl-C stops the run")
            return
        try:
            self._client.call("approvals.answer", answers.ApprovalAnswered, id=approval.id, **_ANSWERS[answer])
        except CallFailed as refused:  # somebody else answered, or this token may not
            if refused.is_retryable:
                raise
            self._view.remark(f"{refused.message}; your answer was not needed")

    def _read_answer(self, approval_id: str) -> str | None:
        """Ask until the answer is a known one; None when the input has ended.

        Raises:
            _SettledElsewhere: it is not needed any more.
        """

        def look() -> None:
            if (settled := self._settled(approval_id)) is not None:
                raise _SettledElsewhere(settled)

        look()
        with TickingInput(look) as ticking:
            while True:
                try:
                    with ticking.reading():
                        typed = input(_PROMPT).strip()
                except EOFError:
                    return None
                if rest := take_typed():  # pasted: a line of it that happens to be "y" answers nothing
                    pasted = self._keep(f"{typed} {rest}")
                    self._view.remark(f"(Several lines at once do not answer this: {pasted}.)")
                    continue
                if typed.lower() in _WORDS:  # whole words: "abort" does not mean "a"
                    return _WORDS[typed.lower()]
                say("Write y, a or n; anything else can be said when the agent has answered.")

    def _settled(self, approval_id: str) -> answers.ApprovalRow | None:
        """Find the event that settled a question. All events are kept for later."""
        while events := list(self._client.events(0)):
            self._held.extend(events)
        for event in self._held:
            payload = event["payload"]
            if event["event"] == "approval" and payload["id"] == approval_id and payload["state"] != "pending":
                return convert(payload, answers.ApprovalRow)
        return None


def _elsewhere(approval_id: str) -> str:
    return f"backchannel approvals approve {approval_id}, or deny"


def how_settled(approval: answers.ApprovalRow) -> str:
    """Say who answered a question, or that nobody can any more."""
    if approval.answered_by is None:
        return "The question is over: its time ended, or its run was stopped."
    return f"Answered elsewhere: {approval.state} by {one_line(made_visible(approval.answered_by), _NAME_SHOWN)}."


def take_typed() -> str:
    """Remove typed keys that were not read, also of an unfinished line; returns the visible text."""
    keyboard = sys.stdin.fileno()
    settings = termios.tcgetattr(keyboard)
    at_once = termios.tcgetattr(keyboard)
    at_once[3] &= ~(termios.ICANON | termios.ECHO)  # otherwise a line without its end could not be read
    at_once[6][termios.VMIN], at_once[6][termios.VTIME] = 0, 0
    termios.tcsetattr(keyboard, termios.TCSANOW, at_once)
    typed = b""
    try:
        while select.select([keyboard], [], [], 0)[0] and (piece := os.read(keyboard, 4096)):
            typed = (typed + piece)[:_TYPED_AT_MOST]
    finally:
        termios.tcsetattr(keyboard, termios.TCSANOW, settings)
    words = typed.decode(errors="replace").split()
    return " ".join("".join(filter(str.isprintable, word)) for word in words).strip()
