"""What the command line makes of answers that it cannot read."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from websockets.sync.server import ServerConnection, serve

from backchannel.cli.client import GatewayAddress, GatewayClient, Unreadable
from backchannel.core.answers import SessionRows

DEFAULTS = {"defaultAgentId": "main", "mainKey": "main", "mainSessionKey": "agent:main:main", "scope": "per-sender"}
HELLO = {"type": "hello-ok", "snapshot": {"sessionDefaults": DEFAULTS}}


@contextmanager
def _answering(*payloads: Any) -> Iterator[GatewayAddress]:
    """A server that gives these answers, one after the other."""

    def talk(connection: ServerConnection) -> None:
        for payload in payloads:
            asked = json.loads(connection.recv())
            connection.send(json.dumps({"type": "res", "id": asked["id"], "ok": True, "payload": payload}))

    with serve(talk, "127.0.0.1", 0) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield GatewayAddress(f"ws://127.0.0.1:{server.socket.getsockname()[1]}", "token")
        finally:
            server.shutdown()
            thread.join()


def test_an_answer_of_another_version_is_named_as_such() -> None:
    listed = {"ts": "now", "path": "", "count": 0, "hasMore": False, "defaults": {}, "sessions": []}
    said = r"Expected `int`, got `str` - at `\$\.ts` \(is it of another version\?\)"
    with (
        _answering(HELLO, listed) as address,
        GatewayClient.connect(address) as client,
        pytest.raises(Unreadable, match=said),
    ):
        client.call("sessions.list", SessionRows)


def test_a_server_that_is_no_gateway_is_refused_when_it_says_hello() -> None:
    with _answering({"type": "hello-ok"}) as address, pytest.raises(Unreadable, match="snapshot"):
        GatewayClient.connect(address)


def test_a_field_that_only_a_newer_gateway_has_is_left_alone() -> None:
    listed = {"ts": 1, "path": "", "count": 0, "hasMore": False, "defaults": {}, "sessions": [], "weather": "fine"}
    with _answering(HELLO, listed) as address, GatewayClient.connect(address) as client:
        assert client.call("sessions.list", SessionRows).ts == 1
