"""What sessions at work are doing right now: asking a model, writing, using a tool, waiting for another session.

Events tell it as it happens. Of a run whose beginning was not heard the transcript tells it: what its last message
asked for and has no result yet.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from backchannel.cli import answers
from backchannel.cli.client import ANSWER_S, GatewayClient, Payload, convert

if TYPE_CHECKING:
    from backchannel.core.messages import Message

SENDS = "sessions_send"
MESSAGES_READ = 30
"""How far back the calls of a run are looked for that have no result yet."""
MOST_READ = 20
"""How many transcripts are looked at in one look."""


class Doing:
    """Keeps for each run at work what it does; hears events, and reads where none was heard."""

    def __init__(self) -> None:
        self._said: dict[str, str] = {}
        self._calls: dict[str, dict[str, str]] = {}
        """The open calls of each run, by their ids, in words."""

    def hear(self, event: Payload) -> bool:
        """Take what an event tells; says whether a run began or ended something."""
        if event["event"] != "agent":
            return False
        told = event["payload"]
        run_id, data = told["runId"], told["data"]
        match told["stream"], data.get("phase"):
            case "tool", "start":
                self._calls.setdefault(run_id, {})[data["toolCallId"]] = in_words(data["name"], data.get("args"))
            case "tool", _:
                self._calls.get(run_id, {}).pop(data["toolCallId"], None)
                self._said[run_id] = ""
            case "lifecycle", "start":
                self._said[run_id] = ""
            case "lifecycle", _:
                self._forget(run_id)
            case stream, _:
                return self._say(run_id, "writes" if stream == "assistant" else "thinks")
        return True

    def _say(self, run_id: str, word: str) -> bool:
        is_new = self._said.get(run_id) != word
        self._said[run_id] = word
        return is_new

    def _forget(self, run_id: str) -> None:
        self._said.pop(run_id, None)
        self._calls.pop(run_id, None)

    def load(self, client: GatewayClient, runs: list[answers.RunRow]) -> None:
        """Read what runs do of which no event has told, and forget those that are not at work any more."""
        living = {run.run_id for run in runs}
        for run_id in (self._said.keys() | self._calls.keys()) - living:
            self._forget(run_id)
        unheard = [run for run in runs if run.run_id not in self._said.keys() | self._calls.keys()][:MOST_READ]
        asked = [client.ask("tools.invoke", tool="sessions_history", args=_last(run)) for run in unheard]
        for run, request in zip(unheard, asked, strict=True):
            result = client.wait(request, answers.Invoked, ANSWER_S).result
            self._said[run.run_id] = ""
            self._calls[run.run_id] = _open_calls(convert(result, answers.MessagesSeen).messages)

    def lose(self) -> None:
        """Forget what events told: some may have been missed."""
        self._said.clear()
        self._calls.clear()

    def of(self, run: answers.RunRow, model: str | None) -> str:
        """Tell what a run that is at work does, on a session that has this model."""
        if run.waiting_for == "function":
            return "waits for the program whose function is its agent"
        calls = list(self._calls.get(run.run_id, {}).values())
        if calls:
            return f"{calls[0]} and {len(calls) - 1} more" if len(calls) > 1 else calls[0]
        model = run.model or model
        return self._said.get(run.run_id) or (f"asks {model}" if model else "at work")


def _last(run: answers.RunRow) -> Payload:
    return {"sessionKey": run.session_key, "limit": MESSAGES_READ, "includeTools": True}


def in_words(name: str, arguments: Any) -> str:
    """Tell what a tool call does; one that sends says to whom, since it mostly waits for the answer."""
    target = arguments.get("sessionKey") or arguments.get("label") if isinstance(arguments, dict) else None
    if name == SENDS and isinstance(target, str):
        return f"waits for {target}" if arguments.get("timeoutSeconds") != 0 else f"sends to {target}"
    return f"uses {name}"


def _open_calls(messages: Sequence[Message]) -> dict[str, str]:
    answered = set()
    for message in reversed(messages):
        if message.role == "toolResult":
            answered.add(message.tool_call_id)
        elif message.role == "assistant":
            calls = [call for call in message.tool_calls if call.id not in answered]
            return {call.id: in_words(call.name, call.arguments) for call in calls}
        else:
            return {}
    return {}
