"""A gateway whose PostgreSQL goes away and comes back, as its clients see it."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from backchannel.storage.postgres import writers
from tests.gateway.client import OPERATOR, Client, Refused
from tests.gateway.conftest import MakeWorld
from tests.support.postgres import Cluster, new_database

pytestmark = [pytest.mark.anyio, pytest.mark.sqlite_only]


async def check_what_is_told_meanwhile(client: Client, http: httpx.AsyncClient) -> None:
    status, health = await client.ask("status"), await client.ask("health")
    for told in (status, health):
        assert told["status"] == "unavailable"
        assert told["problems"][0]["code"] == "storage" and told["problems"][0]["hint"]
    assert status["runs"] == status["deliveries"] == status["approvals"] == {}  # nobody knows now
    assert status["model"] and "held" in status["agents"]
    assert not health["ok"] and "sessions" not in health
    metrics = (await http.get("/metrics", headers={"Authorization": f"Bearer {OPERATOR}"})).text
    assert "backchannel_ready 0.0" in metrics and "backchannel_deliveries{" not in metrics


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    cluster = Cluster()
    yield cluster
    cluster.remove()


async def test_while_its_database_is_away_a_gateway_says_so_and_what_it_accepted_is_done_when_it_is_back(
    make_world: MakeWorld, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writers, "GONE_LIMIT_S", 0.2)
    config = {"database": {"url": new_database(server=cluster.url)}}
    async with (
        make_world(config) as world,
        httpx.AsyncClient(base_url=world.at.url, trust_env=False, timeout=20) as http,
        world.client() as client,
    ):
        accepted = await client.ask("agent", message="hi", agentId="held", idempotencyKey="one")
        cluster.stop()
        world.release.set()
        with pytest.raises(Refused) as refused:
            await client.ask("agent", message="more", agentId="echo", idempotencyKey="two")
        assert (await http.get("/readyz")).status_code == 503
        assert (await http.get("/healthz")).status_code == 200
        await check_what_is_told_meanwhile(client, http)
        cluster.start()
        ended = await client.ask("agent.wait", runId=accepted["runId"], timeoutMs=20_000)
        assert ended["status"] == "ok"
        assert (await http.get("/readyz")).status_code == 200
        again = await client.run(message="more", agentId="echo")
        assert again["status"] == "ok"
    assert refused.value.error["code"] == "UNAVAILABLE"
    assert refused.value.error["retryAfterMs"] > 0
