"""Messages, runs, exchanges and receipts that a command follows to their end.

Each message has an idempotency key, so after a lost connection it is simply sent again. A gateway that has the message
answers with its run; otherwise it takes the message now. The end of a run is read from the gateway's rows, never from
an event alone, so a missed event delays nothing.
"""

from __future__ import annotations

import sys
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

from backchannel.cli import answers
from backchannel.cli.client import ANSWER_S, CallFailed, GatewayClient, Link, Payload, convert
from backchannel.cli.failures import retry_text
from backchannel.cli.finding import NoGateway
from backchannel.cli.output import Spinner, WordWrap, clock_time, is_terminal, say, say_dim, say_styled
from backchannel.cli.questions import Keep, Questions, drop_typed
from backchannel.core.commands.control_words import is_control_word
from backchannel.errors import GatewayError

_LONGEST_WAIT_MS = 60_000
"""The longest wait of one request. After it the request is made again."""
_LOOK_AGAIN_S = 1.0
"""How often the receipt is read when no event comes."""

_OPEN = ("pending", "sending")

T = TypeVar("T")
Ended: TypeAlias = "answers.RunWaited | answers.ChatStarted"
"""The end of a message: its run, or a chat command, which has no run."""


@dataclass(frozen=True, slots=True)
class ReceiptSeen:
    """A receipt as a client knows it."""

    id: str
    state: str
    error: str | None = None

    @property
    def is_on_its_way(self) -> bool:
        """True if more is to be seen soon. The next attempt of a delivery may be an hour away."""
        return self.state in _OPEN and not self.error

    def show(self) -> None:
        """Print the state of a delivery to a chat."""
        say(f"receipt {self.id}: {self.state}{f': {self.error}' if self.error else ''}")


def receipt_seen(receipt: answers.ReceiptRow | answers.Flow) -> ReceiptSeen:
    return ReceiptSeen(receipt.id, receipt.state, receipt.error)


class StoppedWaiting(GatewayError):
    """The person at the keyboard no longer waits for the reply."""

    code = "stopped_waiting"


class ReplyView:
    """Prints a reply as it grows. Printed text stays: a reply that starts over continues after it."""

    def __init__(self, run_id: str, *, is_live: bool) -> None:
        self._run_id = run_id
        self._is_live = is_live
        self._shown = ""
        self._is_mid_line = False
        self._wrap = WordWrap()
        self._spinner = Spinner("waiting for the reply")

    def hear(self, event: Payload) -> None:
        """Take an event of the connection. Events of other runs are ignored."""
        payload = event["payload"]
        if not self._is_live or payload.get("runId") != self._run_id:
            return
        if event["event"] == "agent":
            self._hear_agent(payload)

    def _hear_agent(self, payload: Payload) -> None:
        data = payload["data"]
        if payload["stream"] == "tool" and data["phase"] == "start":
            self.remark(f"[{data['name']}]")
            self._shown = ""
        elif payload["stream"] == "compaction" and data["phase"] == "start":
            self.remark("(summarising the older part of the conversation)")
            self._shown = ""
        elif payload["stream"] == "retry":
            self.remark(f"({retry_text(convert(data, answers.RetryRow))})")
            self._shown = ""
        elif payload["stream"] == "assistant":
            self._grow(data["text"])

    def _grow(self, text: str) -> None:
        self._spinner.end()
        if self._shown.startswith(text):
            return
        if not text.startswith(self._shown):
            self._break_line()
            self._shown = ""
        piece = text[len(self._shown) :]
        say(self._wrap.feed(piece) if self._is_live else piece, end="")
        self._shown = text
        self._is_mid_line = not text.endswith("\n")

    def remark(self, text: str) -> None:
        """Print something about the reply on a line of its own."""
        self._spinner.end()
        self._break_line()
        say_dim(text, err=not self._is_live)

    def end(self, reply: str) -> None:
        """Print the rest of the reply."""
        if reply and not is_control_word(reply):
            self._grow(reply)
        self.close()

    def close(self) -> None:
        """Leave the terminal ready for the next line."""
        self._spinner.end()
        self._break_line()

    def _break_line(self) -> None:
        if self._is_mid_line:
            say()
            self._is_mid_line = False
        self._wrap = WordWrap()


def send_message(link: Link, session: str, text: str, view: ReplyView, run_id: str, keep: Keep = drop_typed) -> Ended:
    """Send a message and show its reply; returns how the run ended. Ctrl-C aborts the run, and then stops waiting.

    A chat command has no run: it is answered at once. `keep` gets the text that was typed before a question appeared.

    Raises:
        StoppedWaiting: Ctrl-C came twice, or while no gateway was there.
        CallFailed: the gateway refused the message.
    """
    wants_abort = is_again = False
    while True:
        try:
            client = link.client()
            request = client.ask("chat.send", sessionKey=session, message=text, idempotencyKey=run_id)
            sent = client.wait(request, answers.ChatStarted, ANSWER_S)  # the spinner is the view's
            link.worked()
            if sent.reply is not None:
                return sent
            if wants_abort:
                client.call("chat.abort", answers.ChatAborted, sessionKey=session, runId=run_id)
            elif sent.status == "queued":
                run = client.call("runs.get", answers.RunShown, runId=run_id).run
                if run.status == "queued":  # else it has started meanwhile, here or on another gateway
                    view.remark(why_queued(run))
            questions = Questions(client, run_id, view, keep)
            if is_again:  # questions and failures that came while nobody listened
                _tell_retry(client, run_id, view)
                questions.ask_pending(session)
            is_again = True
            return wait_for_run(client, run_id, on_event=questions.hear)
        except KeyboardInterrupt:
            if wants_abort or link.is_waiting:
                raise StoppedWaiting(
                    "Not waiting any longer. What was accepted goes on; the history shows it."
                ) from None
            wants_abort = True
        except NoGateway:
            view.close()
            link.lose()
        except CallFailed as refused:
            view.close()
            link.hold_off(refused)


def _tell_retry(client: GatewayClient, run_id: str, view: ReplyView) -> None:
    retry = client.call("runs.get", answers.RunShown, runId=run_id).run.retry
    if retry is not None:
        view.remark(f"({retry_text(retry)})")


def why_queued(run: answers.RunRow) -> str:
    """Return what an accepted run waits for."""
    if run.waiting_for == "function":
        return f"(queued: the program whose function answers for {run.session_key} is not running)"
    if run.waiting_for == "agent":
        return f"(queued: no gateway at work has the agent of {run.session_key})"
    if run.waiting_for == "gateway":
        return f"(queued: another gateway has the agent of {run.session_key}, and works on it in its turn)"
    if run.waits_for is not None and run.resume_at is not None:
        again, model = clock_time(run.resume_at), run.waits_for
        return f"({model.model} gives no answer: {model.error}; it is asked again at {again})"
    if run.resume_at is not None:
        return f"(set aside after crashes: it is tried again at {clock_time(run.resume_at)})"
    return "(queued: the session works on something else first)"


def new_run_id() -> str:
    """Make the idempotency key of a message. Every try uses the same key."""
    return uuid.uuid4().hex


def wait_for_run(
    client: GatewayClient,
    run_id: str,
    timeout_s: float | None = None,
    *,
    on_event: Callable[[Payload], None] = lambda event: None,
) -> answers.RunWaited:
    """Wait until a run has ended or the time is over; returns its state. Events go to `on_event`.

    Raises:
        CallFailed: there is no such run.
        NoGateway: the gateway went away.
    """
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    while True:
        left_ms = _LONGEST_WAIT_MS if deadline is None else int(max(0.0, deadline - time.monotonic()) * 1000)
        request = client.ask("agent.wait", runId=run_id, timeoutMs=min(left_ms, _LONGEST_WAIT_MS))
        while (waited := client.answer(request, answers.RunWaited)) is None:
            for event in client.events():
                on_event(event)
        if waited.ended_at is not None or (deadline is not None and left_ms <= _LONGEST_WAIT_MS):
            return waited


def ends_step(event: Payload) -> bool:
    """True if an event says that a run ended or a receipt changed."""
    payload = event["payload"]
    match event["event"]:
        case "agent":
            return payload["stream"] == "lifecycle" and payload["data"]["phase"] in ("end", "error")
        case "delivery":
            return True
    return False


def wait_for_news(client: GatewayClient) -> None:
    """Return when a step has ended, or after a while."""
    deadline = time.monotonic() + _LOOK_AGAIN_S
    while (left_s := deadline - time.monotonic()) > 0:
        if any(ends_step(event) for event in client.events(left_s)):
            return


def invoke(
    client: GatewayClient, tool: str, shape: type[T], args: Payload, caller: str | None, key: str | None = None
) -> T:
    """Call a session tool as a session or as the operator; returns its result."""
    request = client.ask("tools.invoke", tool=tool, args=args, sessionKey=caller, idempotencyKey=key)
    invoked = client.wait(request, answers.ToolInvoked)  # no time limit: a tool may itself wait for an agent
    return convert(invoked.result, shape)


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
