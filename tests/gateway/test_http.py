"""The pages beside the connections."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from backchannel.agents.registry import FunctionContext
from backchannel.errors import StartupError, StorageFull
from backchannel.gateway.app import Gateway
from backchannel.gateway.server import listening
from tests.support.gateways import running

from .client import OPERATOR
from .conftest import MakeWorld, World
from .test_peers import until

pytestmark = pytest.mark.anyio


@pytest.fixture
async def http(world: World) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=world.at.url, trust_env=False, timeout=20) as client:
        yield client


def bearer(token: str = OPERATOR) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


async def test_the_process_lives_and_can_accept_messages(http: httpx.AsyncClient) -> None:
    for path in ("/healthz", "/readyz"):
        answer = await http.get(path)
        assert answer.status_code == 200 and answer.json() == {"ok": True}


async def test_a_full_disk_is_not_ready_and_tells_why_to_those_with_a_token(
    http: httpx.AsyncClient, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail() -> None:
        raise StorageFull("the disk is full")

    monkeypatch.setattr(world.gateway.store, "check_writable", fail)
    answer = await http.get("/readyz")
    assert answer.status_code == 503 and answer.json() == {"ok": False}
    wrong = await http.get("/readyz", headers=bearer("wrong"))
    assert wrong.json() == {"ok": False}
    told = await http.get("/readyz", headers=bearer())
    assert told.json()["error"]["details"]["code"] == "storage_full"
    assert (await http.get("/healthz")).status_code == 200
    async with world.client() as client:
        health = await client.ask("health")
        assert health["ok"] is False and health["store"] == "the disk is full"


async def test_metrics_need_a_token_that_may_read(http: httpx.AsyncClient, world: World) -> None:
    answer = await http.get("/metrics")
    assert answer.status_code == 401 and answer.headers["WWW-Authenticate"] == "Bearer"
    assert answer.json()["error"]["details"]["code"] == "AUTH_TOKEN_MISMATCH"
    assert (await http.get("/metrics", params={"token": OPERATOR})).status_code == 401
    async with world.client() as client:
        agent = await client.ask("tokens.create", sessionKey="main")
        reader = await client.ask("tokens.create", scopes=["read"])
    assert (await http.get("/metrics", headers=bearer(agent["token"]))).status_code == 403
    assert (await http.get("/metrics", headers=bearer(reader["token"]))).status_code == 200


async def test_metrics_count_what_happens(http: httpx.AsyncClient, world: World) -> None:
    async with world.client() as client:
        await client.run(message="hi", agentId="echo")
        await client.run(message="hi", agentId="broken")
        answer = await http.get("/metrics", headers=bearer())
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    lines = answer.text.splitlines()
    assert 'backchannel_runs_ended_total{state="ok"} 1.0' in lines
    assert 'backchannel_runs_ended_total{state="error"} 1.0' in lines
    assert 'backchannel_runs{state="running"} 0.0' in lines
    assert "backchannel_connections 1.0" in lines
    for name in ("commits_total", "loop_stalls_total", "loop_longest_stall_seconds"):
        assert any(line.startswith(f"backchannel_{name} ") for line in lines)


async def test_wrong_tokens_are_slowed_down(http: httpx.AsyncClient) -> None:
    answers = [await http.get("/metrics", headers=bearer("wrong")) for _ in range(6)]
    assert [answer.status_code for answer in answers] == [401] * 5 + [429]
    assert int(answers[-1].headers["Retry-After"]) > 0
    assert (await http.get("/metrics", headers=bearer())).status_code == 200


async def test_a_client_cannot_say_that_it_comes_from_elsewhere_to_guess_on(http: httpx.AsyncClient) -> None:
    from_elsewhere = [{**bearer("wrong"), "X-Forwarded-For": f"10.0.0.{n}"} for n in range(6)]
    statuses = [(await http.get("/metrics", headers=headers)).status_code for headers in from_elsewhere]
    assert statuses == [401] * 5 + [429]


async def test_behind_a_trusted_proxy_each_client_counts_for_itself(make_world: MakeWorld) -> None:
    trusting = {"gateway": {"trustedProxies": ["127.0.0.0/8"]}}
    async with make_world(trusting) as world, httpx.AsyncClient(base_url=world.at.url, timeout=20) as proxy:
        for client, statuses in (("10.0.0.1", [401] * 5 + [429]), ("10.0.0.2", [401])):
            headers = {**bearer("wrong"), "X-Forwarded-For": f"6.6.6.6, {client}"}
            answers = [await proxy.get("/metrics", headers=headers) for _ in statuses]
            assert [answer.status_code for answer in answers] == statuses


async def test_a_foreign_host_or_origin_is_refused(http: httpx.AsyncClient) -> None:
    assert (await http.get("/healthz", headers={"Host": "evil.example"})).status_code == 403
    answer = await http.get("/healthz", headers={"Origin": "https://evil.example"})
    assert answer.status_code == 403 and answer.json()["error"]["code"] == "FORBIDDEN"


async def test_what_is_not_served_says_so(http: httpx.AsyncClient) -> None:
    missing = await http.get("/nothing")
    assert missing.status_code == 404 and missing.json()["ok"] is False
    assert (await http.post("/healthz")).status_code == 405


async def test_a_large_body_is_refused(http: httpx.AsyncClient) -> None:
    answer = await http.post("/healthz", content=b"x" * (1024 * 1024 + 1))
    assert answer.status_code == 413
    assert answer.json()["error"]["details"]["code"] == "payload_too_large"


async def test_a_failing_page_is_answered_without_its_details(
    http: httpx.AsyncClient, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail() -> None:
        raise ZeroDivisionError("secret detail")

    monkeypatch.setattr(world.gateway.store, "run_counts", fail)
    answer = await http.get("/metrics", headers=bearer())
    assert answer.status_code == 500 and "secret" not in answer.text
    assert (await http.get("/healthz")).status_code == 200


async def test_garbage_instead_of_http_harms_nobody(world: World, http: httpx.AsyncClient) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", world.at.port)
    writer.write(b"\x00\xff garbage\r\n\r\n")
    await writer.drain()
    await reader.read()
    writer.close()
    await writer.wait_closed()
    assert (await http.get("/healthz")).status_code == 200


async def test_a_taken_port_is_a_clear_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        async with Gateway.open({"gateway": {"port": port}}) as gateway:
            with pytest.raises(StartupError, match=f"port {port}.*--port"):
                async with listening(gateway, OPERATOR):
                    raise AssertionError("it listens")


async def test_listening_beyond_this_machine_needs_a_token_of_ones_own() -> None:
    async with Gateway.open({"gateway": {"port": 0, "host": "0.0.0.0"}}) as gateway:
        with pytest.raises(StartupError, match=r"gateway\.auth\.token"):
            async with listening(gateway, OPERATOR):
                raise AssertionError("it listens")


SENT = {"sessionKey": "agent:held:main", "message": "wait", "timeoutSeconds": 60}
ASKED = {"model": "held", "messages": [{"role": "user", "content": "wait"}]}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", ASKED),
        ("/v1/responses", {"model": "held", "input": "wait"}),
    ],
)
async def test_a_request_that_waits_does_not_hold_up_a_gateway_that_stops(
    make_world: MakeWorld, caplog: pytest.LogCaptureFixture, path: str, body: dict[str, object]
) -> None:
    config = {"gateway": {"http": {"chatCompletions": True}}}
    async with (
        make_world(config) as world,
        httpx.AsyncClient(base_url=world.at.url, trust_env=False, timeout=20) as http,
    ):
        asking = asyncio.create_task(http.post(path, json=body, headers=bearer(), timeout=30))
        await until(lambda: world.gateway.runtime.running > 0 and world.at.web.waiting > 0)
        await world.at.web.close("it stops")
        answer = await asking

    assert answer.status_code == 503
    assert "shutting_down" in answer.text
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


class SlowDisk:
    """A disk that takes its time for a commit, once it is told to."""

    def __init__(self) -> None:
        self.is_slow = False
        self.reached = threading.Event()
        self.goes_on = threading.Event()

    def before_commit(self, number: int) -> None:
        if self.is_slow:
            self.reached.set()
            self.goes_on.wait(10)

    def after_commit(self, number: int) -> None:
        pass


@pytest.mark.parametrize("in_a_commit", [True, False])
async def test_a_send_that_was_accepted_is_never_told_to_come_again_by_a_gateway_that_stops(
    tmp_path: Path, in_a_commit: bool
) -> None:
    def equip(gateway: Gateway) -> None:
        @gateway.agent("held")
        async def held(context: FunctionContext) -> str:
            await asyncio.Future[None]()
            return "never"

    disk = SlowDisk()
    config = {"agents": {"list": [{"id": "main"}, {"id": "held"}]}, "gateway": {"port": 0}}
    async with (
        running(tmp_path, config=config, equip=equip, faults=disk) as gateway,
        listening(gateway, OPERATOR) as at,
        httpx.AsyncClient(base_url=at.url, trust_env=False, headers=bearer(), timeout=30) as http,
    ):
        disk.is_slow = in_a_commit
        body = {"tool": "sessions_send", "args": SENT}
        asking = asyncio.create_task(http.post("/tools/invoke", json=body))
        if in_a_commit:
            await asyncio.to_thread(disk.reached.wait, 10)
        else:
            await until(lambda: gateway.runtime.running > 0 and at.web.waiting > 0)
        await at.web.close("it stops")
        disk.goes_on.set()
        answer = await asking
        late = await http.post("/tools/invoke", json=body)

        assert (answer.status_code, answer.json()["result"]["status"]) == (200, "accepted")
        assert await gateway.store.run(answer.json()["result"]["runId"]) is not None
        assert (late.status_code, late.json()["error"]["details"]["code"]) == (503, "shutting_down")


async def test_a_stream_that_waits_is_ended_by_a_gateway_that_stops(
    make_world: MakeWorld, caplog: pytest.LogCaptureFixture
) -> None:
    config = {"gateway": {"http": {"chatCompletions": True}}}
    async with (
        make_world(config) as world,
        httpx.AsyncClient(base_url=world.at.url, trust_env=False, timeout=20) as http,
    ):
        body = {**ASKED, "stream": True}
        async with http.stream("POST", "/v1/chat/completions", json=body, headers=bearer(), timeout=30) as stream:
            lines = stream.aiter_lines()
            assert "assistant" in await anext(lines)
            await world.at.web.close("it stops")
            last = [line async for line in lines if line]

    assert "shutting_down" in last[0] and last[1] == "data: [DONE]"
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


async def test_a_gateway_that_stops_does_not_wait_for_the_rest_of_a_body(
    make_world: MakeWorld, caplog: pytest.LogCaptureFixture
) -> None:
    async with make_world() as world:
        reader, writer = await asyncio.open_connection("127.0.0.1", world.at.port)
        head = f"POST /tools/invoke HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {OPERATOR}\r\n"
        writer.write(f"{head}Content-Length: 100\r\n\r\n{{".encode())
        await until(lambda: world.at.web.waiting > 0)
        await world.at.web.close("it stops")
        assert b" 503 " in await reader.readline()
        writer.close()

    assert not [record for record in caplog.records if record.levelname == "ERROR"]
