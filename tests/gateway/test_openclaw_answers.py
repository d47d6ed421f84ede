"""OpenClaw's calls beside sessions and runs. An answer is true, or empty if there is nothing."""

from __future__ import annotations

import os
import sys
from datetime import datetime
from typing import Any

import pytest
import structlog

from .client import OPERATOR, Client
from .conftest import MakeWorld, World

pytestmark = pytest.mark.anyio
CODING = {"allow": ["exec"]}
DESK = {"adapter": "bridge", "url": "http://localhost:1/", "secret": "0123456789abcdef-desk"}


@pytest.mark.parametrize(
    ("method", "answer"),
    [
        ("device.pair.list", {"pending": [], "paired": []}),
        ("question.list", {"questions": []}),
        ("tasks.list", {"tasks": []}),
        ("environments.list", {"environments": []}),
        ("skills.status", {"skills": []}),
        ("exec.approval.list", []),
        ("openclaw.approval.list", []),
        ("last-heartbeat", None),
        ("update.status", {"sentinel": None, "updateAvailable": None}),
        ("sessions.branches.list", {"branches": []}),
        ("progressCard.get", {"card": None}),
        ("plugins.catalog.browse", {"items": []}),
        ("skills.search", {"results": []}),
        ("artifacts.list", {"artifacts": []}),
        ("sessions.companion.state", {"exchanges": []}),
        ("sessions.usage.logs", {"logs": []}),
    ],
)
async def test_what_there_is_none_of_is_answered_as_nothing(client: Client, method: str, answer: Any) -> None:
    assert await client.ask(method, anything="goes") == answer


async def test_whoever_wants_to_set_up_a_channel_is_told_where(client: Client) -> None:
    told = await client.ask("wizard.start", flow="channels", channel="discord")
    assert (told["done"], told["status"]) == (True, "error")
    assert "`channels` in the gateway's configuration" in told["error"]


async def test_the_record_of_what_went_wrong_is_told_to_hold_nothing(client: Client) -> None:
    record = await client.ask("diagnostics.stability", limit=25, type="telemetry.exporter")
    assert datetime.fromisoformat(record.pop("generatedAt")).tzinfo is not None
    assert record == {"capacity": 0, "count": 0, "dropped": 0, "events": [], "summary": {"byType": {}}}


async def test_a_session_is_told_to_need_no_compacting_and_is_left_as_it_is(client: Client) -> None:
    await client.run(message="hello", sessionKey="agent:echo:main")
    before = await client.ask("chat.history", sessionKey="agent:echo:main")
    told = await client.ask("sessions.compact", key="agent:echo:main", maxLines=1)
    assert (told["ok"], told["key"], told["compacted"]) == (True, "agent:echo:main", False)
    assert "is a function" in told["reason"]
    assert (await client.ask("chat.history", sessionKey="agent:echo:main"))["messages"] == before["messages"]
    assert (await client.refused("sessions.compact", {"key": "agent:echo:nobody"}))["code"] == "NOT_FOUND"


async def test_those_who_are_connected_are_listed(world: World, client: Client) -> None:
    async with world.client(role="node", nodeId="kitchen"):
        present: Any = await client.ask("system-presence")
        assert [each["mode"] for each in present] == ["gateway", "client", "client"]
        assert sorted(each["roles"][0] for each in present[1:]) == ["node", "operator"]
        (node,) = (await client.ask("node.list"))["nodes"]
        assert node == {"nodeId": "kitchen", "sessionKey": "agent:main:node-kitchen", "connected": True}
    named = {"id": "node-host", "displayName": "The\nlamp \u202e", "platform": "linux", "version": "2026.9.6"}
    async with world.client(role="node", nodeId="lamp", client=named, caps=["system", "browser", "system", "\n"]):
        (node,) = (await client.ask("node.list"))["nodes"]
        assert (node["displayName"], node["platform"], node["version"]) == ("The lamp", "linux", "2026.9.6")
        assert node["caps"] == ["system", "browser"]
        described = await client.ask("node.describe", nodeId="lamp")
        assert described == {**node, "ts": described["ts"]}
        assert (await client.refused("node.describe", {"nodeId": "kitchen"}))["code"] == "NOT_FOUND"
    assert (await client.ask("node.list"))["nodes"] == []


async def test_health_and_status_count_the_sessions_of_each_agent(client: Client) -> None:
    for key in ("agent:echo:main", "agent:echo:other"):
        await client.run(message="hello", sessionKey=key)
    health, status = await client.ask("health"), await client.ask("status", includeCliProjection=True)
    first, *others = health["agents"]
    assert (first["agentId"], first["isDefault"], first["sessions"]["count"]) == ("main", True, 0)
    assert {each["agentId"]: each["sessions"]["count"] for each in others}["echo"] == 2
    assert {each["heartbeat"]["enabled"] for each in health["agents"]} == {False}
    assert health["sessions"]["count"] == status["sessions"]["count"] == 2
    assert {each["agentId"]: each["count"] for each in status["sessions"]["byAgent"]}["echo"] == 2
    assert status["cliProjection"]["agents"]["defaultId"] == "main"
    assert "cliProjection" not in await client.ask("status")


async def test_channels_are_told_with_their_accounts(make_world: MakeWorld) -> None:
    async with make_world({"channels": {"desk": DESK}}) as world, world.client() as client:
        told = await client.ask("channels.status", probe=False)
    assert (told["channelOrder"], told["channelDefaultAccountId"]) == (["desk"], {"desk": "default"})
    assert told["channelAccounts"]["desk"] == [told["channels"]["desk"]]
    assert told["channels"]["desk"]["configured"] is True


async def test_an_agents_identity_files_and_tools_are_told(client: Client) -> None:
    assert await client.ask("agent.identity.get", agentId="echo") == {"agentId": "echo"}
    assert (await client.ask("agent.identity.get", sessionKey="agent:held:main"))["agentId"] == "held"
    files = await client.ask("agents.files.list", agentId="main")
    assert files["workspace"].endswith("workspace") and files["files"] == []
    catalog = {tool["id"] for group in (await client.ask("tools.catalog"))["groups"] for tool in group["tools"]}
    (core,) = (await client.ask("tools.effective", sessionKey="agent:main:main"))["groups"]
    assert "sessions_send" in catalog
    assert {tool["id"] for tool in core["tools"]} < catalog | {"sessions_send"}
    assert (await client.refused("agent.identity.get", {"agentId": "nobody"}))["details"]["code"] == "unknown_agent"


async def test_a_wake_leaves_a_note_in_the_session(client: Client) -> None:
    woken = await client.ask("wake", mode="now", text="good morning")
    assert woken["sessionKey"] == "agent:main:main"
    (note,) = (await client.ask("chat.history", sessionKey="main"))["messages"]
    assert note["content"][0]["text"] == "good morning"
    assert (await client.ask("runs.list"))["count"] == 0
    assert (await client.refused("wake", {"mode": "now", "text": " "}))["details"]["param"] == "text"


async def test_status_has_the_blocks_that_its_clients_show(client: Client) -> None:
    await client.run(message="hi", agentId="echo")
    status = await client.ask("status", includeChannelSummary=False)
    assert status["sessions"]["count"] == 1
    assert status["sessions"]["defaults"] == {"model": "builtin/demo", "contextTokens": 32768}
    assert status["heartbeat"]["defaultAgentId"] == "main"
    assert {each["everyMs"] for each in status["heartbeat"]["agents"]} == {None}
    assert status["tasks"]["total"] == 0


async def test_a_node_is_known_by_its_device_or_its_installation(world: World, client: Client) -> None:
    async with world.client(role="node", device={"id": "0a1b"}, client={"instanceId": "other"}):
        assert [node["nodeId"] for node in (await client.ask("node.list"))["nodes"]] == ["0a1b"]
    async with world.client(role="node", client={"id": "node-host", "instanceId": "cellar"}) as node:
        assert [each["nodeId"] for each in (await client.ask("node.list"))["nodes"]] == ["cellar"]
        assert (await node.refused("node.list"))["code"] == "FORBIDDEN"


async def test_a_client_that_asks_for_pairing_alone_sees_devices_and_no_more(world: World) -> None:
    async with world.client(scopes=["operator.pairing"]) as client:
        assert await client.ask("device.pair.list") == {"pending": [], "paired": []}
        for method in ("node.list", "sessions.list"):
            assert (await client.refused(method))["details"]["code"] == "scope_missing"


async def test_the_log_is_read_from_a_cursor_on_and_holds_no_secret(client: Client) -> None:
    before = (await client.ask("logs.tail", limit=1))["cursor"]
    await client.run(message="hi", agentId="broken")
    after = await client.ask("logs.tail", cursor=before)
    assert any("this agent is broken" in line for line in after["lines"])
    assert after["cursor"] - before == len(after["lines"])
    assert after["reset"] is False and OPERATOR not in str(after["lines"])
    again = await client.ask("logs.tail", cursor=after["cursor"])
    assert again["lines"] == [] and again["truncated"] is False
    assert (await client.ask("logs.tail", cursor=after["cursor"] + 1_000_000))["reset"] is True
    cut = await client.ask("logs.tail", limit=1, maxBytes=5000)
    assert len(cut["lines"]) <= 1 and cut["truncated"] is True


async def test_the_settings_are_shown_without_their_secrets(make_world: MakeWorld) -> None:
    config = {
        "channels": {"desk": DESK},
        "models": {
            "providers": {"own": {"api": "openai", "baseUrl": "http://localhost:1/v1", "apiKey": "sk-very-secret"}}
        },
    }
    async with make_world(config) as world, world.client() as client:
        shown = await client.ask("config.get")
        assert shown["config"]["channels"]["desk"]["secret"] == "<hidden>"
        assert shown["config"]["channels"]["desk"]["url"] == DESK["url"]
        for secret in (DESK["secret"], "sk-very-secret", OPERATOR):
            assert secret not in str(shown)
        assert (await client.ask("config.get"))["hash"] == shown["hash"]
        async with world.client(scopes=["operator.read"]) as other:
            assert await other.ask("config.get") == shown


async def test_whoever_reads_sees_no_secret_of_an_mcp_server_anywhere(make_world: MakeWorld) -> None:
    says = "import sys; sys.exit('started with: ' + ' '.join(sys.argv))"
    config = {
        "mcp": {"servers": {"far": {"command": sys.executable, "args": ["-c", says, "--api-key", "open-sesame"]}}},
        "agents": {"list": [{"id": "helper", "instructions": "The password is hunter2x."}]},
        "tools": {"allow": ["far__*"]},
    }
    async with make_world(config) as world, world.client(scopes=["operator.read"]) as reader:
        async with world.client() as client:
            await client.run(message="hi", agentId="helper")
        answers = {name: str(await reader.ask(name)) for name in ("config.get", "logs.tail", "health", "status")}
        assert "'--api-key', '<hidden>'" in answers["config.get"]
        for name in ("logs.tail", "health", "status"):
            assert "started with: -c --api-key [hidden]" in answers[name]
        for secret in ("sesame", "hunter2x"):
            assert not [name for name, answer in answers.items() if secret in answer]


async def test_who_reads_transcripts_reads_the_log_and_agents_and_nodes_do_not(world: World) -> None:
    async with world.client(scopes=["operator.read"]) as reader:
        assert (await reader.ask("logs.tail", limit=1))["file"] == "memory"
    async with world.client(scopes=["operator.pairing"]) as stranger:
        assert (await stranger.refused("logs.tail"))["details"]["code"] == "scope_missing"
    async with world.client() as client:
        made = await client.ask("tokens.create", label="an agent's", sessionKey="agent:echo:main")
    async with world.client(made["token"]) as agent:
        assert (await agent.refused("logs.tail"))["code"] == "FORBIDDEN"
    async with world.client(role="node", nodeId="cellar") as node:
        assert (await node.refused("logs.tail"))["code"] == "FORBIDDEN"


async def test_what_looks_like_a_credential_is_hidden_in_the_log_that_is_read(client: Client) -> None:
    before = (await client.ask("logs.tail", limit=1))["cursor"]
    longest = "a word, " * 600
    for text in ("it said password=hunter2abc", f"{longest} password=hunter2abc", "Bearer " + "k7" * 30):
        structlog.get_logger().warning(text)
    lines = (await client.ask("logs.tail", cursor=before))["lines"]
    assert len(lines) == 3 and "it said password=[redacted]" in lines[0]
    assert "hunter2abc" not in str(lines) and "k7k7" not in str(lines)


async def test_a_message_is_sent_to_a_chat_once(make_world: MakeWorld) -> None:
    sent: dict[str, Any] = {
        "channel": "desk",
        "action": "send",
        "params": {"target": "Room", "to": "desk:room", "message": "hello"},
        "idempotencyKey": "k",
    }
    async with make_world({"channels": {"desk": DESK}}) as world, world.client() as client:
        receipts = [await client.ask("message.action", **sent) for _ in range(2)]
        assert receipts[0]["id"] == receipts[1]["id"]
        assert (receipts[0]["channel"], receipts[0]["to"], receipts[0]["text"]) == ("desk", "room", "hello")
        assert (await client.ask("deliveries.list"))["count"] == 1
        for changed in (
            {"action": "react"},
            {"params": {"message": "hello"}},
            {"params": {"to": "room", "message": " "}},
            {"params": {"to": "room", "message": "x", "media": "/etc/passwd"}},
            {"channel": "pigeon"},
        ):
            await client.refused("message.action", {**sent, "idempotencyKey": "other", **changed})
        assert (await client.ask("deliveries.list"))["count"] == 1


async def test_what_runs_have_cost_is_told_by_days(client: Client) -> None:
    for agent in ("main", "echo"):
        await client.run(message="hi", agentId=agent)
    told = await client.ask("usage.cost", days=7)
    row = (await client.ask("sessions.describe", key="main"))["session"]
    (today,) = told["daily"]
    assert (today["input"], today["output"]) == (row["inputTokens"], row["outputTokens"])
    assert today["totalTokens"] == row["inputTokens"] + row["outputTokens"] > 0
    assert {**told["totals"], "date": today["date"]} == today and told["days"] == 7
    everyone = await client.ask("usage.cost", agentScope="all")
    assert everyone["totals"] == told["totals"], "a function uses no model"
    assert (await client.ask("usage.cost", agentId="echo"))["totals"]["totalTokens"] == 0
    assert (await client.refused("usage.cost", {"agentId": "nobody"}))["details"]["code"] == "unknown_agent"
    assert (await client.ask("usage.status"))["providers"] == []


async def test_what_each_session_has_used_is_told_by_days_and_models(client: Client) -> None:
    for key in (
        "agent:speaker:main",
        "agent:speaker:side",
        "agent:speaker:side",
        "agent:echo:main",
        "agent:broken:main",
    ):
        await client.run(message="hi", sessionKey=key)
    told = await client.ask("sessions.usage", agentScope="all", range="7d", limit=1000)
    rows = {row["key"]: row["usage"] for row in told["sessions"]}
    assert list(rows) == ["agent:broken:main", "agent:echo:main", "agent:speaker:side", "agent:speaker:main"]
    once, twice = rows["agent:speaker:main"], rows["agent:speaker:side"]
    assert twice["totalTokens"] == 2 * once["totalTokens"] > 0
    assert twice["messageCounts"] == {
        "total": 4, "user": 2, "assistant": 2, "toolCalls": 0, "toolResults": 0, "errors": 0,
    }  # fmt: skip
    assert rows["agent:broken:main"]["messageCounts"]["errors"] == 1
    assert [day["tokens"] for day in twice["dailyBreakdown"]] == [twice["totalTokens"]]
    assert told["totals"]["totalTokens"] == 3 * once["totalTokens"]
    sums = told["aggregates"]
    assert sums["sessionCount"] == 4 and {each["agentId"] for each in sums["byAgent"]} == {"speaker", "echo", "broken"}
    first = sums["byModel"][0]
    assert (f"{first['provider']}/{first['model']}", first["count"]) == ("test/speaker", 3)
    assert sums["costDaily"][0]["date"] == told["endDate"] == sums["daily"][0]["date"]
    assert sums["daily"][0]["messages"] == sums["messages"]["total"] == 9


async def test_usage_is_asked_for_by_agent_session_and_time(client: Client) -> None:
    for key in ("agent:main:main", "agent:main:side"):
        await client.run(message="hi", sessionKey=key)
    assert len((await client.ask("sessions.usage"))["sessions"]) == 2
    assert (await client.ask("sessions.usage", agentId="echo"))["sessions"] == []
    (side,) = (await client.ask("sessions.usage", key="agent:main:side"))["sessions"]
    assert side["key"] == "agent:main:side"
    limited = await client.ask("sessions.usage", limit=1)
    assert len(limited["sessions"]) == 1 and limited["aggregates"]["sessionCount"] == 2
    past = await client.ask("sessions.usage", startDate="2020-01-01", endDate="2020-01-31")
    assert (past["sessions"], past["startDate"], past["totals"]["totalTokens"]) == ([], "2020-01-01", 0)
    series = await client.ask("sessions.usage.timeseries", key="agent:main:side")
    assert series["points"][-1]["cumulativeTokens"] == side["usage"]["totalTokens"]
    for wrong in ({"startDate": "yesterday"}, {"agentId": "nobody"}, {"key": "agent:main:none"}):
        await client.refused("sessions.usage", wrong)


async def test_the_machine_of_the_gateway_is_told(client: Client) -> None:
    told = await client.ask("system.info")
    assert told["pid"] == os.getpid() and told["cpuCount"] == os.cpu_count()
    assert 0 < told["memoryFreeBytes"] < told["memoryTotalBytes"]
    assert 0 < told["diskAvailableBytes"] < told["diskTotalBytes"]


@pytest.mark.parametrize(
    ("rules", "ask"),
    [
        ([], "off"),
        ([{"tool": "exec", "ask": "always"}], "always"),
        ([{"tool": "exec", "match": "rm *", "ask": "always"}], "on-miss"),
        ([{"tool": "exec", "ask": "never"}], "off"),
    ],
)
async def test_who_may_run_commands_is_told_as_a_policy(
    make_world: MakeWorld, rules: list[dict[str, str]], ask: str
) -> None:
    agents = [{"id": "main", "model": "test/speaker"}, {"id": "coder", "model": "test/speaker", "tools": CODING}]
    async with (
        make_world({"agents": {"list": agents}, "tools": {"approval": rules}}) as world,
        world.client() as client,
    ):
        told = (await client.ask("exec.approvals.get"))["file"]
    never = {"security": "deny", "ask": "off", "askFallback": "deny", "autoAllowSkills": False}
    assert told["defaults"] == told["agents"]["main"] == never
    assert told["agents"]["coder"] == {**never, "security": "full", "ask": ask}
