"""A gateway in its own process, whose models answer as a test says; it is killed, and started again in its place."""

from __future__ import annotations

import asyncio
import json
import socket
import sys
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from websockets.sync.client import ClientConnection, connect

from tests.cli.program import PATIENCE_S, Program, Up
from tests.support import far_end
from tests.support.beside import Beside, beside
from tests.support.far_end import FarEnd
from tests.support.stub_provider import Answer, Asked, StubProvider, Told
from tests.support.stub_wires import Call

ROOT = Path(__file__).parents[2]
AGENTS = ("main", "researcher", "writer")


class Refusal(Exception):
    """The gateway answered a call with an error."""


def echo(asked: Asked) -> Answer:
    """Repeat what was said."""
    return Answer(text=f"You said: {said(asked)}")


def said(asked: Asked) -> str:
    """Read the newest message that a model is asked to answer."""
    content = asked.messages[-1]["content"]
    return content if isinstance(content, str) else "\n".join(part.get("text", "") for part in content)


class Held:
    """A reply that stops after its first words until it is released."""

    def __init__(self, side: Beside, answer: Answer) -> None:
        self._side = side
        self.answer = answer

    def release(self) -> None:
        assert self.answer.gate is not None
        self._side.tell(self.answer.gate.set)


DOOR_SECRET = "a-secret-of-the-door-1234"
"""Of the channel `door`, where strangers ask to be let in."""


class GatewayProcess:
    """The gateway on a state folder and a port of its own, a provider of its models, and the far end of a channel."""

    def __init__(self, home: Path, side: Beside) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self._port = free.getsockname()[1]
        self._side = side
        self._up: Up | None = None
        self.stub = side.open(StubProvider(reply=echo))
        self.far_end = side.open(FarEnd())
        self.program = Program(home)

    def write_config(self, settings: Mapping[str, Any]) -> None:
        """Write the configuration: these settings beside the usual ones."""
        self.program.write_config(json.dumps(self._config() | dict(settings)))

    def _config(self) -> dict[str, Any]:
        cost = {"input": 3, "output": 15}
        models = [{"id": "test", "contextWindow": 100_000, "cost": cost}]
        provider = {"api": "openai", "baseUrl": self.stub.base_url, "apiKey": "any", "models": models}
        return {
            "agents": {
                "list": [{"id": name, "model": "stub/test", "subagents": {"allowAgents": ["*"]}} for name in AGENTS]
            },
            "tools": {"sessions": {"visibility": "all"}, "agentToAgent": {"enabled": True}},
            "models": {"providers": {"stub": provider}},
            "channels": {
                "desk": self.far_end.settings(),
                "door": self.far_end.settings(secret=DOOR_SECRET, allowFrom=[], pairing=True),
            },
        }

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    @property
    def token(self) -> str:
        return self.program.token

    @property
    def process(self) -> Up:
        assert self._up is not None, "it does not run"
        return self._up

    def start(self, *, ago_s: float | None = None) -> None:
        """Start it, as it is today or as it was some time ago."""
        command, env = self.program.command("up", "--port", str(self._port)), self.program.env
        if ago_s is not None:
            command = [sys.executable, "-m", "tests.web.past", str(self.program.state), str(self._port), str(ago_s)]
            env = env | {"PYTHONPATH": str(ROOT)}
        self._up = Up(command, env, self.program.home)
        self._up.wait_ready()

    def kill(self) -> None:
        """End it as a power cut does; it is gone also where its log shows that something was wrong."""
        ended, self._up = self._up, None
        if ended is not None:
            ended.kill()
            assert "Traceback" not in ended.logged, ended.logged

    def call(self, method: str, *, token: str | None = None, **params: Any) -> dict[str, Any]:
        """Call a method as the operator, or whoever a token is for."""
        with self.connected(token) as client:
            return client.call(method, **params)

    @contextmanager
    def connected(self, token: str | None = None) -> Iterator[Client]:
        url = f"ws://127.0.0.1:{self._port}/ws"
        with connect(url, compression=None, max_size=None, open_timeout=PATIENCE_S) as socket:
            client = Client(socket)
            client.call(
                "connect",
                minProtocol=4,
                maxProtocol=4,
                client={"id": "test", "mode": "cli"},
                auth={"token": token or self.token},
            )
            yield client

    def write(self, channel: str, **said: Any) -> dict[str, Any]:
        """Write as somebody in a chat."""
        secret = DOOR_SECRET if channel == "door" else far_end.SECRET
        body, headers = far_end.signed(far_end.event(**said), secret)
        request = urllib.request.Request(f"{self.url}/channels/{channel}/inbound", body, headers)
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
            taken: dict[str, Any] = json.load(answer)
        return taken

    def rest(self) -> None:
        """Wait until no run is at work or waits."""
        with self.connected() as client:
            while runs := client.call("runs.list", states=["queued", "running"])["runs"]:
                client.call("agent.wait", runId=runs[-1]["runId"], timeoutMs=5_000)

    def answer(self, *told: Told | str) -> None:
        """Say how the next requests for a model are answered."""
        self._side.tell(self.stub.then, *(Answer(text=one) if isinstance(one, str) else one for one in told))

    def forget(self) -> None:
        """Answer as at the beginning: what a test has said was for itself."""
        self.stub.reply = echo
        self._side.tell(self.stub.forget)

    def tell_far_end(self, *told: far_end.Told) -> None:
        """Say what becomes of the next posts to the channel."""
        self._side.tell(self.far_end.then, *told)

    def posted(self, count: int) -> list[str]:
        """Wait until so many messages in all have come to the far end of the channel."""
        return [message.text for message in self._side.wait(self.far_end.took(count))]

    def hold(self, *texts: str, at: int = 1, calls: tuple[Call, ...] = ()) -> Held:
        """Let the next reply stop before its text number `at`."""
        held = Held(self._side, Answer(text=texts, calls=calls, gate=asyncio.Event(), held_at=at))
        self.answer(held.answer)
        return held

    def asked(self, count: int) -> Asked:
        """Wait until so many requests for a model have come in all."""
        return self._side.wait(self.stub.asked(count))


class Client:
    """A connection that asks one thing at a time."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self._next = 0
        self._events: list[dict[str, Any]] = []

    def event(self, name: str) -> dict[str, Any]:
        """Wait for an event that nobody has waited for yet."""
        while True:
            for frame in self._events:
                if frame["event"] == name:
                    self._events.remove(frame)
                    payload: dict[str, Any] = frame["payload"]
                    return payload
            self._read()

    def _read(self) -> dict[str, Any]:
        frame: dict[str, Any] = json.loads(self._socket.recv(PATIENCE_S))
        if frame["type"] == "event":
            self._events.append(frame)
        return frame

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Call a method, and return its first answer.

        Raises:
            Refusal: it was answered with an error.
        """
        self._next += 1
        self._socket.send(json.dumps({"type": "req", "id": str(self._next), "method": method, "params": params}))
        while (frame := self._read())["type"] != "res" or frame["id"] != str(self._next):
            pass
        if not frame["ok"]:
            raise Refusal(frame["error"]["message"])
        payload: dict[str, Any] = frame["payload"]
        return payload


@contextmanager
def gateway_process(
    home: Path, settings: Callable[[GatewayProcess], Mapping[str, Any]] = lambda gateway: {}
) -> Iterator[GatewayProcess]:
    """Start a gateway with these settings beside the usual ones; it is gone when the context ends."""
    with beside() as side:
        gateway = GatewayProcess(home, side)
        gateway.write_config(settings(gateway))
        try:
            gateway.start()
            yield gateway
        finally:
            gateway.kill()
