"""A program that speaks JSON-RPC, a line a message, over its standard input and output."""

from __future__ import annotations

import json
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from .conftest import OpenClaw


class Failed(Exception):
    """The program answered with an error."""


class JsonRpc:
    """Asks, and keeps what is told meanwhile."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._next = 0
        self._answers: dict[int, dict[str, Any]] = {}
        self.told: list[dict[str, Any]] = []

    def begin(self, method: str, **params: Any) -> int:
        """Send a request; `end` takes its answer."""
        self._next += 1
        self._send({"jsonrpc": "2.0", "id": self._next, "method": method, "params": params})
        return self._next

    def end(self, id: int) -> Any:
        while id not in self._answers:
            self._read()
        answer = self._answers.pop(id)
        if "error" in answer:
            raise Failed(json.dumps(answer["error"]))
        return answer["result"]

    def ask(self, method: str, **params: Any) -> Any:
        return self.end(self.begin(method, **params))

    def tell(self, method: str, **params: Any) -> None:
        """Send what is not answered."""
        self._send({"jsonrpc": "2.0", "method": method, "params": params})

    def hears(self, text: str) -> None:
        """Wait until it has told something with this text in it."""
        while not any(text in json.dumps(each) for each in self.told):
            self._read()

    @contextmanager
    def asleep(self) -> Iterator[None]:
        """Let it do nothing meanwhile."""
        self._process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)

    def wait_alive(self, seconds: float) -> None:
        """Give it time, unless it ends."""
        with suppress(subprocess.TimeoutExpired):
            raise AssertionError(f"it has ended: {self._process.wait(seconds)}")

    def _send(self, message: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(message) + "\n")
        self._process.stdin.flush()

    def _read(self) -> None:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "it has ended"
        message: dict[str, Any] = json.loads(line)
        if "method" in message:
            self.told.append(message)
        else:
            self._answers[message["id"]] = message


@contextmanager
def json_rpc(openclaw: OpenClaw, *words: str, **env: str) -> Iterator[JsonRpc]:
    """Start a command of `openclaw` that speaks JSON-RPC; it is gone when the context ends."""
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            openclaw.command(*words),
            env=openclaw.env | env,
            cwd=openclaw.home,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
        try:
            yield JsonRpc(process)
        finally:
            process.kill()
            process.communicate()
            errors.seek(0)
            print(errors.read())
