"""The gateway of the soak, in a process of its own: `python -m tests.soak.served <state> <platforms> <sessions>`.

The platforms are where its chats are, as JSON: the far end of a bridge, and a stand-in for Telegram.

It is forked for each line that it reads, and the child is the gateway. Lines of JSON say which process that is, where
it listens, and how it ended. Its model is a function of what it is asked, so that a step that is done again after a
crash says the same: who asks whom, who has enough after which turn, and what a chat is told all follow from the name
that each message carries.
"""

from __future__ import annotations

import asyncio
import os
import re
import sys
from collections.abc import AsyncIterator
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec

from backchannel.agents.scripted import Scripted, ScriptedModel, call
from backchannel.config.load import config_from
from backchannel.core.commands.control_words import ANNOUNCE_SKIP, REPLY_SKIP
from backchannel.core.contracts import Clock, ModelEvent, ModelFailed, ModelRequest
from backchannel.core.flows.exchange_texts import FAILURE_LINE, LATE_LINE
from backchannel.core.flows.spawn_texts import SPAWN_ANNOUNCE_LINE
from backchannel.core.messages import Role, ToolCallBlock
from backchannel.gateway.app import Gateway
from backchannel.gateway.auth import OperatorToken
from backchannel.gateway.logs import configure_logs
from backchannel.gateway.server import ListeningServer, serve
from tests.soak import hands
from tests.soak.hands import drawn
from tests.support.far_end import SECRET
from tests.support.talks import step_in, turn_of

AGENTS = ("ada", "bo", "cy", "di")
CHANNEL = "far"
TOKEN = "a token of the soak, long enough"
PACE_S = 0.005
SLOW_S = 1.5
"""How long a model takes now and then: most lives are shorter, so that such a call is killed again and again."""
PART = 40
"""As long as a message may be on this platform: each line of the news is one."""
DEEPEST = 2
"""How often a question may lead to another."""
MODEL_FAILS = "the model of the soak fails here"
NAME = re.compile(r"\b[pqsht]-\d+-\d+(?:\.\d+)*\b")
NOTE = re.compile(rf"(?:{re.escape(LATE_LINE)}|{re.escape(FAILURE_LINE)}).*?\n```\n.*?\n```", re.DOTALL)
"""What asks for no answer."""
ASKS = re.compile(r"Please ask (\S+) and wait (\S+) s")


class Platforms(msgspec.Struct, frozen=True):
    """Where the chats are."""

    far_url: str
    telegram: dict[str, Any]
    """The settings of the channel."""


class Born(msgspec.Struct, frozen=True, tag="born"):
    """A process was forked."""

    pid: int


class Place(msgspec.Struct, frozen=True, tag="place"):
    """Where a gateway says it is."""

    url: str


class Died(msgspec.Struct, frozen=True, tag="died"):
    """A process ended: with its exit code, or the negative number of the signal that ended it."""

    code: int


Told = Born | Place | Died


def chat(n: int) -> str:
    return f"G{n:02}"


def key(n: int) -> str:
    """Name the session of a chat."""
    return f"agent:{AGENTS[n % len(AGENTS)]}:{CHANNEL}:group:{chat(n).lower()}"


def settings(state: Path, platforms: Platforms, sessions: int) -> dict[str, Any]:
    """Make the configuration: each chat belongs to an agent, and all may ask all."""
    chats = [(chat(n), AGENTS[n % len(AGENTS)]) for n in range(sessions)]
    handy = hands.settings(state, platforms.telegram)
    far = {"adapter": "bridge", "url": platforms.far_url, "secret": SECRET, "allowFrom": ["*"], "maxTextLength": PART}
    bound = [{"match": {"channel": CHANNEL, "chatId": id}, "agentId": agent} for id, agent in chats]
    return {
        "agents": {"list": [*({"id": name, "model": "scripted/test"} for name in AGENTS), *handy["agents"]]},
        "tools": {
            "sessions": {"visibility": "all"},
            "agentToAgent": {"enabled": True},
            "approval": handy["approval"],
        },
        "mcp": handy["mcp"],
        "hooks": handy["hooks"],
        "channels": {CHANNEL: far, **handy["channels"]},
        "bindings": [*bound, *handy["bindings"]],
        "gateway": {"port": 0, "auth": {"token": TOKEN}},
    }


def please_ask(name: str, targets: list[str], wait_s: float) -> str:
    """Make what a person writes."""
    return f"{name}: " + (", then ".join(f"Please ask {target} and wait {wait_s:g} s" for target in targets) or "hello")


def task(name: str) -> str:
    """Make what a sub-agent is to do."""
    return f"task {name}"


def news(name: str) -> list[str]:
    """List what a chat is told of an exchange, a line a message; nothing when it is told nothing."""
    lines = int(drawn(name, "news") * 4)
    return [f"news {n} of {name} ".ljust(PART - 4, ".") for n in range(1, lines + 1)]


def last_asked(request: ModelRequest) -> tuple[int, str]:
    """Find what is to be answered, and its place: notes that ask for nothing may stand below it."""
    texts = ((n, NOTE.sub("", each.text)) for n, each in enumerate(request.messages) if each.role is Role.USER)
    return [(n, text) for n, text in texts if NAME.search(text)][-1]


class Script:
    """What the model says."""

    def __init__(self, sessions: int, slow_s: float) -> None:
        self._sessions = sessions
        self._slow_s = slow_s

    async def __call__(self, request: ModelRequest) -> Scripted:
        place, asked = last_asked(request)
        name = NAME.findall(asked)[-1]
        is_slow = name[0] in "ph" and name.count(".") == 0 and drawn(name, "slow") < 0.05
        await asyncio.sleep(self._slow_s if is_slow else PACE_S)
        if name.startswith("s"):
            return self._work(name, asked)
        if name.startswith("h"):
            return hands.work(name, request)
        if name.startswith("t"):
            return f"reply {name}"
        is_result = any(message.role is Role.TOOL_RESULT for message in request.messages[place + 1 :])
        step, said = "result" if is_result else step_in(asked), asked[asked.rindex(name) + len(name) :]
        if step != "result" and said.startswith(": "):  # what was said before may have had no reply, and stand above it
            asks = ASKS.findall(said)
            calls = [_send(target, f"{name}.{n}", float(wait)) for n, (target, wait) in enumerate(asks)]
            return calls or f"reply {name}"
        match step:
            case "result":
                return f"reply {name}"
            case "request":
                return self._answer(name)
            case "turn":
                turn = turn_of(asked[asked.rindex("reply-back turn") :])
                has_enough = drawn(name, f"turn {turn}") < 0.3
                return REPLY_SKIP if has_enough else f"turn {turn} of {name}"
        return "\n".join(news(name)) or ANNOUNCE_SKIP

    def _work(self, name: str, asked: str) -> Scripted:
        """What a sub-agent says."""
        if SPAWN_ANNOUNCE_LINE in asked:
            return "\n".join(news(name)) or ANNOUNCE_SKIP
        return ModelFailed(MODEL_FAILS, retryable=False) if drawn(name, "fails") < 0.03 else f"reply {name}"

    def _answer(self, name: str) -> Scripted:
        if drawn(name, "fails") < 0.03:
            return ModelFailed(MODEL_FAILS, retryable=False)
        if name.count(".") <= DEEPEST and drawn(name, "onward") < 0.2:
            other = key(int(drawn(name, "whom") * self._sessions))  # perhaps itself, or one that waits for it
            return [_send(other, f"{name}.0", 1.0 if drawn(name, "wait") < 0.5 else 0)]
        return f"reply {name}"


class SoakModel(ScriptedModel):
    """A scripted model that keeps no requests: those of half an hour are gigabytes."""

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        async for event in super().stream(request):
            self.requests.clear()
            yield event


def _send(target: str, name: str, wait_s: float) -> ToolCallBlock:
    return call("sessions_send", sessionKey=target, message=f"question {name}", timeoutSeconds=wait_s)


def open_gateway(
    state: Path, platforms: Platforms, sessions: int, *, clock: Clock | None = None, slow_s: float = SLOW_S
) -> Gateway:
    gateway = Gateway(config_from(settings(state, platforms, sessions), {}, state=state), clock=clock)
    gateway.add_model(SoakModel(replies=Script(sessions, slow_s)))
    return gateway


def main() -> None:
    import_module("backchannel.channels.telegram.account")
    while sys.stdin.readline():
        if (pid := os.fork()) == 0:
            live()
            os._exit(0)
        tell(Born(pid))
        tell(Died(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])))


def live() -> None:
    state, sessions = Path(sys.argv[1]), int(sys.argv[3])
    platforms = msgspec.json.decode(sys.argv[2], type=Platforms)
    configure_logs("warning", sys.stderr, as_json=False)

    def ready(place: ListeningServer, token: OperatorToken) -> None:
        tell(Place(place.url))

    asyncio.run(serve(open_gateway(state, platforms, sessions), ready))


def tell(told: Told) -> None:
    os.write(1, msgspec.json.encode(told) + b"\n")  # in one piece: two processes write here


if __name__ == "__main__":
    main()
