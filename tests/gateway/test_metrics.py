"""The figures of `/metrics`, read by Prometheus."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest
from msgspec import structs
from prometheus_client.parser import text_string_to_metric_families

from backchannel.agents.scripted import Reply, ScriptedModel
from backchannel.core.contracts import ModelFailed, Price
from backchannel.core.delivery.delivery import DeliveryState
from backchannel.core.messages import Usage
from backchannel.gateway.app import RunFailed
from backchannel.version import __version__
from tests.channels.desk import ChannelDesk, desk
from tests.gateway.client import OPERATOR, Refused, connected
from tests.support.far_end import FarEnd, Fault
from tests.support.remembering import Remembering

pytestmark = pytest.mark.anyio
PAGE = Path(__file__).parents[2] / "docs/how-to/watch-it.md"
BEARER = {"Authorization": f"Bearer {OPERATOR}"}


async def samples(world: ChannelDesk) -> dict[str, float]:
    """Read all samples, each by its name and labels."""
    answer = await world.http.get("/metrics", headers=BEARER)
    assert answer.status_code == 200
    return {
        sample.name + "".join(f" {name}={value}" for name, value in sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }


async def test_deliveries_and_what_is_wrong_are_counted(tmp_path: Path) -> None:
    async with FarEnd() as far_end, desk(tmp_path, {"desk": far_end.settings()}) as world:
        far_end.then(Fault(404))
        await world.say(messageId="1")
        await world.becomes(DeliveryState.FAILED)
        await world.say(messageId="2")
        await world.becomes(DeliveryState.SENT)
        told = await samples(world)
    assert told["backchannel_deliveries state=failed"] == told["backchannel_deliveries_ended_total state=failed"] == 1
    assert told["backchannel_deliveries_ended_total state=sent"] == 1
    assert told["backchannel_deliveries state=waiting"] == 0
    assert told["backchannel_problems code=deliveries_failed"] == 1
    assert told["backchannel_ready"] == 1


async def test_runs_their_time_tokens_and_cost_are_counted(tmp_path: Path) -> None:
    reply = Reply(text=("hi",), usage=Usage(input=3, output=1, cost=0.5))
    model = ScriptedModel(replies=[reply, ModelFailed("no", retryable=False)])
    async with desk(tmp_path, {}, model=model) as world:
        await world.gateway.ask("main", "hello")
        with pytest.raises(RunFailed):
            await world.gateway.ask("main", "hello")
        told = await samples(world)
    assert told["backchannel_runs_ended_total state=ok"] == told["backchannel_runs_ended_total state=error"] == 1
    assert told["backchannel_run_duration_seconds_count"] == 2
    assert told["backchannel_run_duration_seconds_bucket le=600.0"] == 2
    used = [told[f"backchannel_tokens_total direction={way} provider=scripted"] for way in ("input", "output")]
    assert used == [3, 1] and told["backchannel_cost_dollars_total provider=scripted"] == 0.5


async def test_summaries_are_counted_like_replies(tmp_path: Path) -> None:
    used = Usage(input=10, output=7, cache_read=200, cost=0.5)
    scene = Remembering(summary=lambda request: Reply(text="all of it", usage=used))
    async with desk(tmp_path, {}, model=scene.model) as world:
        for n in range(6):
            await world.gateway.ask("main", f"{n}: {'we talk of the weather ' * 40}")
        before = await samples(world)
        session = await world.gateway.store.session("agent:main:main")
        assert session is not None
        assert (await world.gateway.runtime.compaction.asked(session, None)).entry is not None
        told = await samples(world)
    cached = "backchannel_tokens_total direction=cache_read provider=scripted"
    assert told[cached] - before.get(cached, 0) == 200
    assert told["backchannel_cost_dollars_total provider=scripted"] == 0.5


async def test_budgets_are_told_with_what_all_subjects_spent_and_no_label_for_a_subject(tmp_path: Path) -> None:
    reply = Reply(text="hi", usage=Usage(input=30, output=10, cost=0.5))
    budget = {"name": "talk", "scope": "session", "per": "day", "runs": 2, "then": "warn"}
    model = ScriptedModel(replies=[reply] * 3, price=Price(input=1.0, output=1.0))
    dollars = {"name": "all", "scope": "gateway", "per": "total", "usd": 4, "then": "stop"}
    async with desk(tmp_path, {}, model=model, budgets=[budget, dollars]) as world:
        for key in ("agent:main:one", "agent:main:one", "agent:main:two"):
            await world.gateway.ask(key, "hello")
        told = await samples(world)
    by_unit = "budget=talk unit=runs"
    assert told[f"backchannel_budget_limit {by_unit}"] == 2
    assert told[f"backchannel_budget_spent {by_unit}"] == 3
    assert told[f"backchannel_budget_fullest_share {by_unit}"] == 1
    assert told["backchannel_budget_spent budget=all unit=usd"] == 1.5
    assert told["backchannel_budget_reserved budget=all unit=usd"] == 0
    assert told["backchannel_budget_runs_waiting budget=all unit=usd"] == 0
    assert told["backchannel_problems code=budget_used_up"] == 1


async def test_slots_are_counted_by_kind_and_agent(tmp_path: Path) -> None:
    agents = {"list": [{"id": "main", "model": "scripted/test"}], "defaults": {"maxConcurrent": 1}}
    begun, go_on = asyncio.Event(), asyncio.Event()
    model = ScriptedModel(replies=lambda request: Reply(text="held", gate=go_on, reached=begun))
    async with desk(tmp_path, {}, model=model, agents=agents) as world:
        run = await world.gateway.submit("main", "hello")
        await world.gateway.submit("agent:main:other", "hello")
        await begun.wait()
        told = await samples(world)
        go_on.set()
        await world.gateway.runtime.wait(run.id, 20)
    assert told["backchannel_slots kind=run"] == 1 and told["backchannel_slots kind=exec"] == 16
    for kind in ("run", "model"):
        assert told[f"backchannel_slots_used agent=main kind={kind}"] == 1
    assert told["backchannel_slots_waiting agent=main kind=run"] == 1
    assert "backchannel_slots_used agent=main kind=exec" not in told


async def test_requests_are_counted_by_door_and_status_and_unknown_paths_make_no_label(tmp_path: Path) -> None:
    async with desk(tmp_path, {}) as world:
        for path in ("/a", "/b", "/c", "/healthz"):
            await world.http.get(path)
        await world.http.get("/metrics", headers={"Authorization": "Bearer wrong"})
        with pytest.raises(Refused):
            async with connected(world.url, "wrong"):
                pass
        told = await samples(world)
    assert told["backchannel_http_requests_total door=other status=404"] == 3
    assert told["backchannel_http_requests_total door=health status=200"] == 1
    assert told["backchannel_failed_logins_total door=metrics"] == 1
    assert told["backchannel_failed_logins_total door=websocket"] == 1


async def test_the_build_the_process_and_the_room_on_the_disk_are_told(tmp_path: Path) -> None:
    async with desk(tmp_path, {}) as world:
        told = await samples(world)
    assert any(name.startswith("backchannel_build_info") and f"version={__version__}" in name for name in told)
    assert told["process_resident_memory_bytes"] > 0 and told["process_open_fds"] > 0
    assert told["backchannel_disk_free_bytes"] > 0


async def test_every_service_is_told_to_be_up(tmp_path: Path) -> None:
    async with desk(tmp_path, {}) as world:
        told = await samples(world)
    services = {name: value for name, value in told.items() if name.startswith("backchannel_service_up")}
    assert set(services.values()) == {1.0}
    assert any("timers" in name for name in services) and any("channels" in name for name in services)


async def test_a_service_that_fails_is_told_with_the_times_of_its_error_and_of_its_next_try(tmp_path: Path) -> None:
    async with desk(tmp_path, {}) as world:
        before = await samples(world)
        kept = world.gateway.runtime._recovery._kept
        kept.fell("a fault of ours")
        kept.health = structs.replace(kept.health, next_try_ms=kept.health.since_ms + 8000)
        told = await samples(world)
    name, at = "backchannel_service_{}timestamp_seconds service=recovery", kept.health.since_ms / 1000
    assert before[name.format("since_")] <= at and told["backchannel_service_up service=recovery"] == 0.0
    assert told[name.format("since_")] == told[name.format("last_error_")] == at
    assert told[name.format("next_try_")] == at + 8
    assert not {name.format("last_error_"), name.format("next_try_")} & before.keys()


async def test_every_metric_follows_the_naming_rules_and_has_its_line_in_the_documents(tmp_path: Path) -> None:
    async with desk(tmp_path, {}) as world:
        text = (await world.http.get("/metrics", headers=BEARER)).text
    page = PAGE.read_text(encoding="utf-8")
    families = list(text_string_to_metric_families(text))
    assert len({family.name for family in families}) == len(families)
    for family in families:
        # What `promtool check metrics` looks at: a help text, base units, `_total` on counters and on nothing else.
        assert family.documentation and re.fullmatch(r"[a-z][a-z0-9_]*", family.name)
        assert not re.search(r"_(ms|milliseconds|minutes|hours|kb|mb|percent|count|sum|bucket)$", family.name)
        assert (f"# TYPE {family.name}_total counter\n" in text) == (family.type == "counter")
        if family.name.startswith("backchannel_"):
            name = f"{family.name}_total" if family.type == "counter" else family.name
            assert f"`{name}" in page, f"{name} is not in the documents"


def test_the_alert_rules_of_the_documents_ask_for_metrics_that_there_are() -> None:
    table, rules = PAGE.read_text(encoding="utf-8").split("## Alerts")
    asked = {name.removesuffix("_bucket") for name in re.findall(r"\bbackchannel_\w+", rules)}
    assert asked and asked <= set(re.findall(r"`(backchannel_\w+)", table))
