"""`sessions_spawn`: what it accepts, what it answers, and that a refused one leaves nothing behind."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from backchannel.agents.scripted import ScriptedModel
from backchannel.core.commands.commands import Command, CommandName, Rank
from backchannel.core.secrets.redaction import redact
from backchannel.core.sessions import SessionPatch
from backchannel.errors import InvalidRequest
from backchannel.gateway.app import Gateway
from tests.support.children import Family, config, family, spawn
from tests.support.gateways import MAIN, session_of, stored
from tests.support.timing import seconds

pytestmark = pytest.mark.anyio


def with_models(*refs: str) -> Any:
    def equip(gateway: Gateway) -> None:
        for ref in refs:
            gateway.add_model(ScriptedModel(ref, replies=lambda request: "answered"))

    return equip


async def only_child(household: Family) -> str:
    ((key,),) = household.rows("SELECT child_key FROM spawns")
    return str(key)


# What it answers


async def test_it_answers_at_once_with_the_childs_run_key_and_model(tmp_path: Path) -> None:
    async with family(tmp_path, person=[[spawn("dig")]]) as household:
        assert await household.ask() == "on it"
        (result,) = await household.results()
        child = await only_child(household)
        run = await stored(household.gateway, result["runId"])
        assert result == {
            "status": "accepted",
            "runId": run.id,
            "childSessionKey": child,
            "model": "scripted/test",
        }
        assert child.startswith("agent:main:subagent:")
        assert (run.session_key, run.kind, run.deliver) == (child, "child", False)
        await household.over()
        session = await session_of(household.gateway, child)
        assert session.spawned_by == MAIN


async def test_the_task_is_the_childs_first_message_and_says_who_asks(tmp_path: Path) -> None:
    async with family(tmp_path, person=[[spawn("dig a hole")]]) as household:
        await household.ask()
        await household.over()
        first = (await household.said_to(await only_child(household)))[0]
        assert first.text == "dig a hole"
        assert first.provenance is not None
        assert (first.provenance.kind, first.provenance.source_session_key) == ("inter_session", MAIN)
        assert first.provenance.source_tool == "sessions_spawn"


async def test_what_is_asked_for_is_the_childs_own(tmp_path: Path) -> None:
    async with family(tmp_path, config("ops"), equip=with_models("scripted/other")) as household:
        result = await household.spawned(
            "dig",
            label="digger",
            agentId="Ops",
            model="scripted/other",
            thinking="high",
            runTimeoutSeconds=7.5,
            cleanup="delete",
        )
        assert result["model"] == "scripted/other"
        child = await session_of(household.gateway, result["childSessionKey"])
        assert (child.agent_id, child.label, child.model) == ("ops", "digger", "scripted/other")
        assert child.thinking_level == "high"
        assert (await stored(household.gateway, result["runId"])).timeout_s == 7.5
        assert household.spawn().rules.deletes
        await household.over()
        (post,) = await household.posts()
        assert "model scripted/other" in post["Stats"]


@pytest.mark.parametrize(
    ("agent", "defaults", "asked", "expected"),
    [
        ({}, {}, None, "scripted/test"),
        ({}, {"model": "scripted/b"}, None, "scripted/b"),
        ({"model": "scripted/a"}, {"model": "scripted/b"}, None, "scripted/a"),
        ({"model": "scripted/a"}, {"model": "scripted/b"}, "scripted/c", "scripted/c"),
        ({"model": "scripted/a"}, {}, "scripted/test", "scripted/test"),
    ],
)
async def test_the_model_is_the_one_asked_for_else_the_agents_for_sub_agents_else_its_own(
    tmp_path: Path, agent: dict[str, Any], defaults: dict[str, Any], asked: str | None, expected: str
) -> None:
    settings = config(**defaults)
    settings["agents"]["list"][0]["subagents"] = agent
    equip = with_models("scripted/a", "scripted/b", "scripted/c")
    async with family(tmp_path, settings, equip=equip) as household:
        result = await household.spawned("dig", **({} if asked is None else {"model": asked}))
        assert result["model"] == expected
        await household.over()
        assert (await stored(household.gateway, result["runId"])).answered_by == expected


async def test_a_function_agent_can_be_a_sub_agent(tmp_path: Path) -> None:
    def equip(gateway: Gateway) -> None:
        async def digger(context: Any) -> str:
            return f"dug: {context.text}" if context.text == "dig" else "all dug"

        gateway.add_agent("ops", digger)

    async with family(tmp_path, config("ops"), equip=equip) as household:
        result = await household.spawned("dig", agentId="ops")
        await household.over()
        assert (await stored(household.gateway, result["runId"])).reply == "dug: dig"
        (post,) = await household.posts()
        assert post["Result"] == "all dug"
        assert "model function/ops" in post["Stats"]
        assert result["model"] == "function/ops"


# What it refuses; nothing is created

INPUT_ERRORS: list[tuple[dict[str, Any], str]] = [
    ({}, "task"),
    ({"task": ""}, "task"),
    ({"task": " \n\t"}, "task"),
    ({"task": None}, "task"),
    ({"task": 7}, "task"),
    ({"task": ["dig"]}, "task"),
    ({"task": "dig", "label": ""}, "label"),
    ({"task": "dig", "label": "  "}, "label"),
    ({"task": "dig", "label": "\u3000\u2003"}, "label"),
    ({"task": "dig", "label": "x" * 65}, "label"),
    ({"task": "dig", "label": "two\nlines"}, "label"),
    ({"task": "dig", "label": "ends\n"}, "label"),
    ({"task": "dig", "label": "bell\x07"}, "label"),
    ({"task": "dig", "label": "nul\0"}, "label"),
    ({"task": "dig", "label": 7}, "label"),
    ({"task": "dig", "runTimeoutSeconds": -1}, "runTimeoutSeconds"),
    ({"task": "dig", "runTimeoutSeconds": -0.001}, "runTimeoutSeconds"),
    ({"task": "dig", "runTimeoutSeconds": 604_801}, "runTimeoutSeconds"),
    ({"task": "dig", "runTimeoutSeconds": 1e300}, "runTimeoutSeconds"),
    ({"task": "dig", "runTimeoutSeconds": 10**30}, "runTimeoutSeconds"),
    ({"task": "dig", "runTimeoutSeconds": float("nan")}, "runTimeoutSeconds"),
    ({"task": "dig", "runTimeoutSeconds": float("inf")}, "runTimeoutSeconds"),
    ({"task": "dig", "runTimeoutSeconds": "60"}, "runTimeoutSeconds"),
    ({"task": "dig", "runTimeoutSeconds": True}, "runTimeoutSeconds"),
    ({"task": "dig", "runTimeoutSeconds": None}, "runTimeoutSeconds"),
    ({"task": "dig", "cleanup": "archive"}, "cleanup"),
    ({"task": "dig", "cleanup": None}, "cleanup"),
    ({"task": "dig", "thinking": "hard"}, "thinking"),
    ({"task": "dig", "thinking": ""}, "thinking"),
    ({"task": "dig", "agentId": 7}, "agentId"),
    ({"task": "dig", "model": 7}, "model"),
    ({"task": "dig", "timeoutSeconds": 7}, "timeoutSeconds"),
    ({"task": "dig", "sessionKey": MAIN}, "sessionKey"),
    ({"task": "dig", "spawnedBy": MAIN}, "spawnedBy"),
    ({"task": "dig", "deliver": True}, "deliver"),
]


@pytest.mark.parametrize("caller", [None, MAIN])
async def test_input_that_does_not_fit_is_refused_by_the_name_of_the_parameter(
    tmp_path: Path, caller: str | None
) -> None:
    async with family(tmp_path) as household:
        before = household.counts()
        for arguments, name in INPUT_ERRORS:
            with pytest.raises(InvalidRequest) as refused:
                await household.gateway.tools(caller).sessions_spawn(**arguments)
            assert refused.value.message.startswith("sessions_spawn: "), arguments
            assert name in refused.value.message, (arguments, refused.value.message)
            assert refused.value.details["param"] == name, arguments
            assert household.counts() == before, arguments
        assert not household.cast.asked


@pytest.mark.parametrize("label", ["x", "x" * 64, "two words", "é🦊", " padded "])
async def test_a_label_that_a_patch_takes_a_spawn_takes_too(tmp_path: Path, label: str) -> None:
    async with family(tmp_path) as household:
        result = await household.spawned("dig", label=label)
        assert (await session_of(household.gateway, result["childSessionKey"])).label == label
        await household.over()


ANSWERED: list[tuple[dict[str, Any], str, tuple[str, ...]]] = [
    ({"agentId": "nobody"}, "error", ("'nobody'", "main")),
    ({"agentId": ""}, "error", ("agent",)),
    ({"agentId": "!!!"}, "error", ("!!!",)),
    ({"agentId": "*"}, "error", ("*",)),
    ({"agentId": "ops"}, "forbidden", ("'ops'", "main, research", "agents.list[main].subagents.allowAgents")),
    ({"model": "scripted/none"}, "error", ("scripted/none",)),
    ({"model": "nobody/none"}, "error", ("nobody/none",)),
    ({"model": "scripted"}, "error", ("scripted",)),
    ({"model": ""}, "error", ("model",)),
    ({"model": "openai/gpt-5"}, "error", ("openai/gpt-5",)),
    ({"agentId": "research", "model": "scripted/none"}, "error", ("scripted/none",)),
]


async def test_an_agent_or_a_model_that_cannot_be_is_an_answer_that_says_what_could(tmp_path: Path) -> None:
    settings = config("research")
    settings["agents"]["list"].append({"id": "ops", "model": "scripted/test"})
    async with family(tmp_path, settings, person=[[spawn("dig", agentId="ops")]]) as household:
        for arguments, status, words in ANSWERED:
            before = household.counts()
            result = await household.gateway.tools(MAIN).sessions_spawn(task="dig", **arguments)
            assert result["status"] == status, result
            assert result.keys() == {"status", "error"}
            assert all(word in result["error"] for word in words), result["error"]
            assert household.counts() == before, arguments
        await household.ask()
        assert [result["status"] for result in await household.results()] == ["forbidden"]
        assert household.counts()["spawns"] == 0


async def test_without_a_list_an_agent_spawns_under_itself_only_and_with_a_star_under_all(tmp_path: Path) -> None:
    settings = config("ops")
    settings["agents"]["list"][1]["subagents"] = {"allowAgents": ["*"]}
    settings["agents"]["list"].append({"id": "third", "model": "scripted/test"})
    async with family(tmp_path, settings) as household:
        for requester, agent, status in [
            ("agent:third:main", "third", "accepted"),
            ("agent:third:main", "main", "forbidden"),
            ("agent:ops:main", "third", "accepted"),
            ("agent:ops:main", "main", "accepted"),
            (MAIN, "ops", "accepted"),
            (MAIN, "third", "forbidden"),
        ]:
            result = await household.gateway.tools(requester).sessions_spawn(task="dig", agentId=agent)
            assert result["status"] == status, (requester, agent, result)
        refused = await household.gateway.tools("agent:third:main").sessions_spawn(task="dig", agentId="main")
        assert "only under third" in refused["error"]
        await household.over()


async def test_a_label_in_use_names_its_holder_and_creates_nothing(tmp_path: Path) -> None:
    async with family(tmp_path, config("ops")) as household:
        first = await household.spawned("dig", label="digger")
        await household.over()
        before = household.counts()
        result = await household.gateway.tools(MAIN).sessions_spawn(task="dig more", label="digger")
        assert result["status"] == "error"
        assert first["childSessionKey"] in result["error"]
        assert household.counts() == before
        # Another agent's sessions have labels of their own, and any session of the agent may hold one.
        await household.spawned("dig", label="digger", agentId="ops")
        await household.over()
        await household.gateway.store.patch_session(household.gateway.key(MAIN), SessionPatch(label="boss"))
        taken = await household.gateway.tools(MAIN).sessions_spawn(task="dig", label="boss")
        assert MAIN in taken["error"]


async def test_two_spawns_at_once_cannot_have_one_label(tmp_path: Path) -> None:
    both = [spawn("dig", label="digger"), spawn("dig more", label="digger")]
    async with family(tmp_path, person=[both]) as household:
        await household.ask()
        await household.over()
        results = await household.results()
        assert sorted(result["status"] for result in results) == ["accepted", "error"]
        assert household.counts()["spawns"] == 1


async def test_a_sub_agent_spawns_nothing_whoever_asks(tmp_path: Path) -> None:
    settings = {**config("ops"), "tools": {"subagents": {"tools": {"allow": ["*", "sessions_spawn"]}}}}
    calls: dict[str, Any] = {"task": [[spawn("dig deeper")]], "child result": "they would not let me"}
    async with family(tmp_path, settings, **calls) as household:
        result = await household.spawned("dig")
        child = result["childSessionKey"]
        await household.over()
        (request,) = household.cast.requests("task")
        assert "sessions_spawn" not in {tool.name for tool in request.tools}
        (answer,) = household.cast.requests("child result")
        refused = await household.gateway.tools(child).sessions_spawn(task="dig")
        assert json.loads(answer.messages[-1].text) == refused
        assert refused == {"status": "forbidden", "error": "a sub-agent may not spawn another"}
        assert household.counts()["spawns"] == 1


async def test_a_session_that_is_not_there_spawns_nothing(tmp_path: Path) -> None:
    async with family(tmp_path) as household:
        before = household.counts()
        result = await household.gateway.tools("agent:main:cron:none").sessions_spawn(task="dig")
        assert result["status"] == "error"
        assert "agent:main:cron:none" in result["error"]
        assert household.counts() == before


async def test_a_task_of_megabytes_reaches_the_child_whole_and_holds_up_nobody_who_looks(tmp_path: Path) -> None:
    task = "token=abc1 " * 250_000
    async with family(tmp_path) as household:
        for _ in range(5):
            result = await household.spawned(task)
        await household.over()
        assert (await household.said_to(result["childSessionKey"]))[0].text == task
        before = time.process_time()
        for word, child in (("list", None), ("info", "1"), ("log", "1")):
            command = Command(CommandName.SUBAGENTS, word, child)
            told = await household.gateway.commands.carry_out(command, household.gateway.key(MAIN), Rank.OWNER)
            assert "token=[redacted]" in told and len(told) < 5000
        status = await household.gateway.tools(MAIN).session_status()
        listed = await household.gateway.tools().sessions_list(messageLimit=20)
        assert all("abc1" not in child["spawn"]["task"] for child in status["children"])
        assert "abc1" not in json.dumps(listed) and listed["redacted"]
        took = time.process_time() - before
        assert took < seconds(lambda: redact(task))  # of one task: whoever looked at five of them saw their openings
