"""One message and its reply, whatever happens to the gateway in between.

Each message has a key of its own under which the gateway takes it once. So after a lost connection it is simply sent
again: a gateway that has it answers with the run that is under way, one that does not have it takes it now.
"""

from __future__ import annotations

import uuid

from backchannel.cli.client import CallFailed, Link, NoGateway, Payload
from backchannel.cli.output import Waiting, WordWrap, say, say_dim
from backchannel.cli.waiting import wait_for_run
from backchannel.core.control_words import is_control_word
from backchannel.errors import GatewayError


class StoppedWaiting(GatewayError):
    """The person at the keyboard no longer waits for the reply."""

    code = "stopped_waiting"


class ReplyView:
    """Prints a reply as it grows; what is printed stays, so a reply that starts over continues where it was."""

    def __init__(self, run_id: str, *, is_live: bool) -> None:
        self._run_id = run_id
        self._is_live = is_live
        self._shown = ""
        self._is_mid_line = False
        self._wrap = WordWrap()
        self._waiting = Waiting("waiting for the reply")

    def hear(self, event: Payload) -> None:
        """Take an event of the connection; those of other runs are left alone."""
        payload = event["payload"]
        if not self._is_live or payload.get("runId") != self._run_id:
            return
        if event["event"] == "chat" and payload["state"] == "delta":
            self._grow("".join(block.get("text", "") for block in payload["message"]["content"]))
        elif event["event"] == "agent":
            self._hear_agent(payload)

    def _hear_agent(self, payload: Payload) -> None:
        data = payload["data"]
        if payload["stream"] == "tool" and data["phase"] == "start":
            self.remark(f"[{data['name']}]")
            self._shown = ""
        elif payload["stream"] == "assistant" and payload.get("internal"):  # such a run has no `chat` events
            self._grow(data["text"])

    def _grow(self, text: str) -> None:
        self._waiting.end()
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
        self._waiting.end()
        self._break_line()
        say_dim(text, err=not self._is_live)

    def end(self, reply: str) -> None:
        """Print what of the reply has not been printed yet."""
        if reply and not is_control_word(reply):
            self._grow(reply)
        self.close()

    def close(self) -> None:
        """Leave the terminal ready for the next line."""
        self._waiting.end()
        self._break_line()

    def _break_line(self) -> None:
        if self._is_mid_line:
            say()
            self._is_mid_line = False
        self._wrap = WordWrap()


def ask(link: Link, session: str, text: str, view: ReplyView, run_id: str) -> Payload:
    """Send a message and show its reply; returns how the run ended. Ctrl-C aborts the run, and then stops waiting.

    A chat command has no run: it is answered at once.

    Raises:
        StoppedWaiting: Ctrl-C came twice, or while no gateway was there.
        CallFailed: the gateway refused the message.
    """
    wants_abort = False
    while True:
        try:
            client = link.client()
            sent = client.call("chat.send", sessionKey=session, message=text, idempotencyKey=run_id)
            if "reply" in sent:
                return sent
            if wants_abort:
                client.call("chat.abort", sessionKey=session, runId=run_id)
            elif sent["status"] == "queued":
                view.remark("(queued: the session works on something else first)")
            return wait_for_run(client, run_id, on_event=view.hear)
        except KeyboardInterrupt:
            if wants_abort or link.is_lost:
                raise StoppedWaiting(
                    "Not waiting any longer. What was accepted goes on; the history shows it."
                ) from None
            wants_abort = True
        except NoGateway:
            view.close()
            link.lose()
        except CallFailed as refused:
            if not refused.is_retryable:
                raise
            view.close()
            link.lose()  # coming back takes a moment, and that is what it needs


def new_run_id() -> str:
    """Make the key under which a message is sent, however often."""
    return uuid.uuid4().hex
