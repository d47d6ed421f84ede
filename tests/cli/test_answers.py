"""Unreadable answers and temporary refusals at the command line."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from websockets.sync.server import ServerConnection, serve

from backchannel.cli.client import GatewayClient, Link, Unreadable
from backchannel.cli.conversation import ReplyView, send_message
from backchannel.cli.finding import GatewayAddress
from backchannel.cli.options import Options
from backchannel.errors import GatewayError, Unavailable
from backchannel.wire.answers import EventsSubscribed, SessionRows

DEFAULTS = {"defaultAgentId": "main", "mainKey": "main", "mainSessionKey": "agent:main:main", "scope": "per-sender"}
HELLO = {"type": "hello-ok", "snapshot": {"sessionDefaults": DEFAULTS}}


@contextmanager
def _answering(*payloads: Any) -> Iterator[GatewayAddress]:
    """A server that gives these answers, one after the other; an error is how it refuses."""

    def talk(connection: ServerConnection) -> None:
        for payload in payloads:
            asked = json.loads(connection.recv())
            is_ok = not isinstance(payload, GatewayError)
            answer = {"payload": payload} if is_ok else {"error": payload.wire()}
            connection.send(json.dumps({"type": "res", "id": asked["id"], "ok": is_ok, **answer}))

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


def _linked(address: GatewayAddress, heard: list[str], pauses: list[float]) -> Link:
    return Link(Options(url=address.url), heard.append, pauses.append)


def test_a_gateway_whose_database_is_away_is_said_to_be_so_once_and_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BACKCHANNEL_TOKEN", "token")
    away = Unavailable("the database backchannel cannot be used now (connection refused)")
    heard: list[str] = []
    pauses: list[float] = []
    with (
        _answering(HELLO, *[away] * 6, {"subscribed": True}, {"subscribed": True}) as address,
        _linked(address, heard, pauses) as link,
    ):
        for _ in range(2):
            assert link.ask(lambda client: client.call("sessions.subscribe", EventsSubscribed)).subscribed

    assert heard == [f"The gateway cannot do this now: {away}. Waiting (Ctrl-C stops waiting) ...", "It works again."]
    assert pauses == [0.2, 0.4, 0.8, 1.6, 3.0, 3.0]


def test_a_message_is_sent_again_until_it_is_taken_and_nobody_says_that_the_gateway_went_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("BACKCHANNEL_TOKEN", "token")
    heard: list[str] = []
    done = {"runId": "r", "status": "ok", "reply": "hi"}
    with (
        _answering(HELLO, Unavailable("away"), Unavailable("away"), done) as address,
        _linked(address, heard, []) as link,
    ):
        ended = send_message(link, "main", "hello", ReplyView("r", is_live=False), "r")

    assert ended.reply == "hi"
    assert [line.split(":")[0] for line in heard] == ["The gateway cannot do this now", "It works again."]


def test_a_field_that_only_a_newer_gateway_has_is_left_alone() -> None:
    listed = {"ts": 1, "path": "", "count": 0, "hasMore": False, "defaults": {}, "sessions": [], "weather": "fine"}
    with _answering(HELLO, listed) as address, GatewayClient.connect(address) as client:
        assert client.call("sessions.list", SessionRows).ts == 1
