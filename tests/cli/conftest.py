"""The program, and a provider whose replies the tests hold back."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.stub_provider import Answer, Asked, Fault, StubProvider

from .program import Program


@pytest.fixture
def program(tmp_path: Path) -> Program:
    """The program on a fresh state folder."""
    return Program(tmp_path)


class HeldReply:
    """A reply that stops after its first words until it is released."""

    def __init__(self, loop: asyncio.AbstractEventLoop, first: str, rest: str) -> None:
        self._loop = loop
        self._gate = asyncio.Event()
        self.answer = Answer(text=(first, rest), gate=self._gate, held_at=1)

    def release(self) -> None:
        self._loop.call_soon_threadsafe(self._gate.set)


def _echo(asked: Asked) -> Answer:
    said = asked.messages[-1]["content"]
    return Answer(text=f"You said: {said if isinstance(said, str) else said[0]['text']}")


class Provider:
    """The stub provider, in a thread of its own beside the test; it repeats what it is told, unless told otherwise."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.stub = StubProvider(reply=_echo)

    @property
    def config(self) -> str:
        """A configuration whose agent is answered by this provider."""
        return (
            '{ agents: { list: [{ id: "main", model: "stub/any" }] },'
            f' models: {{ providers: {{ stub: {{ api: "openai", baseUrl: "{self.stub.base_url}" }} }} }} }}'
        )

    def hold(self, first: str, rest: str) -> HeldReply:
        """Let the next reply stop in the middle."""
        held = HeldReply(self._loop, first, rest)
        self._loop.call_soon_threadsafe(self.stub.then, held.answer)
        return held

    def then(self, *answers: str | Answer | Fault) -> None:
        """Say how the next requests are answered."""
        told = (Answer(text=answer) if isinstance(answer, str) else answer for answer in answers)
        self._loop.call_soon_threadsafe(self.stub.then, *told)


@pytest.fixture
def provider() -> Iterator[Provider]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    served = Provider(loop)
    asyncio.run_coroutine_threadsafe(served.stub.__aenter__(), loop).result(5)
    try:
        yield served
    finally:
        asyncio.run_coroutine_threadsafe(served.stub.__aexit__(), loop).result(5)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(5)
        loop.close()
