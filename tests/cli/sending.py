"""Commands that send something, while they wait for a reply and when they are refused."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from backchannel.cli.client import GatewayClient
from backchannel.cli.finding import GatewayAddress
from backchannel.wire.answers import EventsSubscribed

from .program import Program, Up


@contextmanager
def under_way(program: Program, up: Up, *words: str) -> Iterator[subprocess.Popen[str]]:
    """Start a command, and wait for the first words of the reply."""
    with GatewayClient.connect(GatewayAddress(up.url.replace("http", "ws"), program.token)) as client:
        client.call("sessions.subscribe", EventsSubscribed)
        started = subprocess.Popen(
            program.command(*words), env=program.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        while not any(event["payload"].get("stream") == "assistant" for event in client.events()):
            pass
    try:
        yield started
    finally:
        started.kill()
        started.communicate()


def check_refused(program: Program, *words: str, code: int, told: str) -> None:
    """Check that a command ends with this code, prints nothing, and says this on the error output."""
    done = program.run(*words)
    assert done.returncode == code
    assert told in done.stderr
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
