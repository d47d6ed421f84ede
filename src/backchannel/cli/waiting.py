"""Waiting for a run to end, for as long as it takes."""

from __future__ import annotations

import time
from collections.abc import Callable

from backchannel.cli.client import Client, Payload

LONGEST_WAIT_MS = 60_000
"""One question to the gateway waits no longer; then it is asked again."""


def wait_for_run(
    client: Client,
    run_id: str,
    timeout_s: float | None = None,
    *,
    on_event: Callable[[Payload], None] = lambda event: None,
) -> Payload:
    """Wait until a run has ended, or the time is over, and tell how it stands; events go to `on_event`.

    The end is what the gateway's rows say: an event that was missed holds up nothing.

    Raises:
        CallFailed: there is no such run.
        NoGateway: the gateway went away.
    """
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    while True:
        left_ms = LONGEST_WAIT_MS if deadline is None else int(max(0.0, deadline - time.monotonic()) * 1000)
        request = client.ask("agent.wait", runId=run_id, timeoutMs=min(left_ms, LONGEST_WAIT_MS))
        while (waited := client.answer(request)) is None:
            for event in client.events():
                on_event(event)
        if "endedAt" in waited or (deadline is not None and left_ms <= LONGEST_WAIT_MS):
            return waited
