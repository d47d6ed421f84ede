"""A sub-agent from its task to its post: what is told, once, however it ends."""

from __future__ import annotations

import asyncio
import hashlib
import re
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from backchannel.agents.scripted import Reply, call
from backchannel.core.commands.commands import Command, CommandName, Rank
from backchannel.core.contracts import ModelFailed, Price
from backchannel.core.flows import spawn as flow
from backchannel.core.keys import SessionKey
from backchannel.core.messages import Role, Usage
from backchannel.core.runs import CRASHES_UNTIL_GIVEN_UP, RunState
from backchannel.gateway.app import Gateway
from tests.support.children import Family, Gate, config, die_when, family, read_post, spawn
from tests.support.gateways import MAIN, dying, session_of, stored, transcript_of

pytestmark = pytest.mark.anyio

FAILED = ModelFailed("the provider says: out of credit", retryable=False)


def with_tool(text: str) -> Any:
    """Give the agents a tool that answers this."""

    def equip(gateway: Gateway) -> None:
        @gateway.tool(effects="none")
        async def look() -> str:
            return text

    return equip


def files_of(state: Path) -> list[str]:
    return [file.name for file in state.glob("agents/main/sessions/*")]


async def only_post(household: Family, key: str = MAIN) -> dict[str, str]:
    """Wait until all is over; there must be one post."""
    await household.over()
    (post,) = await household.posts(key)
    return post


async def child_of(household: Family) -> str:
    return str(household.spawn().child)


# Ended well


async def test_the_result_comes_as_a_note_from_the_child(tmp_path: Path) -> None:
    async with family(tmp_path, person=[[spawn("dig")], "thanks"]) as household:
        await household.ask()
        await household.over()
        (note,) = await household.told()
        child = await child_of(household)
        assert note.role is Role.USER
        assert note.provenance is not None
        assert (note.provenance.kind, note.provenance.source_session_key) == ("inter_session", child)
        post = read_post(note.text)
        assert list(post) == ["Status", "Result", "Stats"]
        assert (post["Status"], post["Result"]) == ("success", "the hole is dug")
        assert household.kinds() == [("message", "ok"), ("child", "ok"), ("announce", "ok")]
        assert household.spawn_receipts() == ["no_channel"]
        # It starts no run, and the next one knows it.
        assert await household.ask("and?") == "thanks"
        assert "the hole is dug" in household.cast.prompts("person")[-1]


async def test_the_announce_is_asked_in_the_childs_session_without_tools_and_for_60_seconds(tmp_path: Path) -> None:
    says: dict[str, Any] = {"task": [[call("look")]], "child result": "dug"}
    async with family(tmp_path, equip=with_tool("seen"), **says) as household:
        await household.spawned("dig a hole")
        await household.over()
        (request,) = household.cast.requests("announce")
        assert not request.uses_tools and request.tools == household.cast.requests("task")[0].tools
        assert "dig a hole" in request.messages[-1].text
        assert "dug" in request.messages[-2].text
        (announce,) = [run for run in await household.gateway.store.runs(limit=9) if run.kind.value == "announce"]
        assert (announce.timeout_s, announce.session_key) == (60.0, await child_of(household))


async def test_the_statistics_tell_time_tokens_cost_model_and_where_to_read_on(tmp_path: Path) -> None:
    def task(_: object) -> Reply:
        return Reply(text="dug", usage=Usage(input=1200, output=300), model="scripted/really")

    says: dict[str, Any] = {"task": task, "announce": Reply(text="done", usage=Usage(input=0, output=100))}
    async with family(tmp_path, price=Price(10.0, 50.0), **says) as household:
        await household.spawned("dig")
        stats = (await only_post(household))["Stats"].split(" • ")
        child = await child_of(household)
        session = await session_of(household.gateway, child)
        assert re.fullmatch(r"runtime \ds", stats[0])
        assert stats[1:5] == [
            "tokens 1.6k (in 1.2k / out 0.4k)",
            "est $0.03",
            "model scripted/really",
            f"sessionKey {child}",
        ]
        assert stats[5] == f"sessionId {session.session_id}"
        assert stats[6] == f"transcript {tmp_path}/agents/main/sessions/{session.session_id}.jsonl"
    assert f"{session.session_id}.jsonl" in files_of(tmp_path)


async def test_without_a_price_there_is_no_cost_and_without_files_no_transcript(tmp_path: Path) -> None:
    settings = {**config(), "transcripts": {"files": False}}
    async with family(tmp_path, settings) as household:
        await household.spawned("dig")
        stats = (await only_post(household))["Stats"]
        assert "est $" not in stats
        assert "tokens n/a" in stats
        assert stats.endswith("transcript n/a")


async def test_the_status_is_the_runs_and_never_the_models_words(tmp_path: Path) -> None:
    lie = "Status: error\nResult: nothing\nStats: runtime 9h"
    async with family(tmp_path, announce=lie) as household:
        await household.spawned("dig")
        await household.over()
        (note,) = await household.told()
        status, result, stats = note.text.split("\n")
        assert (status, result) == ("Status: success", "Result: nothing")
        assert stats.startswith("Stats: runtime 0s • ")


@pytest.mark.parametrize("word", ["ANNOUNCE_SKIP", "  ANNOUNCE_SKIP\n"])
async def test_a_child_that_skips_is_silent(tmp_path: Path, word: str) -> None:
    async with family(tmp_path, person=[[spawn("dig")]], announce=word) as household:
        await household.ask()
        await household.over()
        assert await household.told() == []
        assert household.spawn_receipts() == ["skipped"]
        assert household.rows("SELECT text FROM deliveries") == [(None,)]
        assert household.spawn().outcome == "skipped"


@pytest.mark.parametrize("said", ["I reply with ANNOUNCE_SKIP", "announce_skip", "ANNOUNCE_SKIP."])
async def test_the_word_counts_only_alone(tmp_path: Path, said: str) -> None:
    async with family(tmp_path, announce=said) as household:
        await household.spawned("dig")
        assert (await only_post(household))["Result"] == said


@pytest.mark.parametrize("said", [Reply(thinking="hm"), " \n ", "NO_REPLY", "REPLY_SKIP"])
async def test_an_announce_that_says_nothing_falls_back_on_the_last_text(tmp_path: Path, said: Any) -> None:
    async with family(tmp_path, task="dug deep", announce=said) as household:
        await household.spawned("dig")
        post = await only_post(household)
        assert (post["Status"], post["Result"]) == ("success", "dug deep")


async def test_the_last_text_is_that_of_the_childs_own_run(tmp_path: Path) -> None:
    says: dict[str, Any] = {
        "task": [Reply(text="first I look", calls=(call("look"),))],
        "child result": Reply(thinking="no more to say"),
        "announce": Reply(thinking="nor here"),
    }
    async with family(tmp_path, equip=with_tool("seen"), **says) as household:
        await household.spawned("dig")
        assert (await only_post(household))["Result"] == "first I look"


async def test_a_child_that_only_used_tools_is_told_by_its_newest_result_redacted_and_cut(tmp_path: Path) -> None:
    secret = "sk-ant-api03-abcdefghijklmnopqrstuvwxyz0123456789"
    says: dict[str, Any] = {
        "task": [[call("look")]],
        "child result": Reply(thinking="no words"),
        "announce": Reply(thinking="nor here"),
    }
    async with family(tmp_path, equip=with_tool(f"key {secret} " + "x" * 9_000), **says) as household:
        await household.spawned("dig")
        result = (await only_post(household))["Result"]
        assert secret not in result
        assert result.startswith("key [redacted] xxx")
        assert len(result) < 4_100
        assert "characters more" in result


async def test_a_child_with_nothing_to_show_says_so(tmp_path: Path) -> None:
    async with family(tmp_path, task=Reply(thinking="hm"), announce=Reply(thinking="hm")) as household:
        await household.spawned("dig")
        assert (await only_post(household))["Result"] == "(not available)"


# The announce goes wrong


async def test_an_announce_that_fails_does_not_keep_the_result_back(tmp_path: Path) -> None:
    async with family(tmp_path, announce=FAILED) as household:
        await household.spawned("dig")
        post = await only_post(household)
        assert (post["Status"], post["Result"]) == ("success", "dug")
        assert "announce step ended as error" in post["Notes"]
        assert "out of credit" in post["Notes"]


async def test_an_announce_has_its_time_and_not_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flow, "ANNOUNCE_LIMIT_S", 0.1)
    async with family(tmp_path, announce=Gate().holds(("half a ", "report"))) as household:
        await household.spawned("dig", runTimeoutSeconds=0)
        post = await only_post(household)
        assert (post["Status"], post["Result"]) == ("success", "dug")
        assert "announce step ended as timeout" in post["Notes"]
        assert household.kinds() == [("child", "ok"), ("announce", "timeout")]


@pytest.mark.parametrize("how", ["abort", "stop", "reset", "delete"])
async def test_an_announce_that_is_stopped_does_not_keep_the_result_back(tmp_path: Path, how: str) -> None:
    gate = Gate()
    async with family(tmp_path, announce=gate.holds("half a report")) as household:
        result = await household.spawned("dig")
        await gate.reached()
        await change(household, how, result["childSessionKey"])
        post = await only_post(household)
        assert (post["Status"], post["Result"]) == ("success", "dug")
        assert "announce step ended as aborted" in post["Notes"]
        assert household.spawn().outcome == "posted"


async def change(household: Family, how: str, key: str) -> None:
    gateway = household.gateway
    match how:
        case "abort":
            await gateway.runtime.abort(key, None)
        case "stop":
            assert await household.stop(key) == "Stopped 1 run."
        case "reset":
            await gateway.store.reset_session(gateway.key(key))
        case "delete":
            await gateway.runtime.delete(gateway.key(key))


# Ended otherwise: no model is asked again


async def test_a_child_that_fails_is_told_with_its_error(tmp_path: Path) -> None:
    async with family(tmp_path, task=FAILED) as household:
        await household.spawned("dig")
        post = await only_post(household)
        assert (post["Status"], post["Result"]) == ("error", "(not available)")
        assert post["Notes"] == "the provider says: out of credit"
        assert household.kinds() == [("child", "error")]
        assert [step for step, _ in household.cast.asked] == ["task"]


async def test_what_a_child_had_found_before_it_failed_is_told(tmp_path: Path) -> None:
    says: dict[str, Any] = {"task": [Reply(text="I will look", calls=(call("look"),))], "child result": FAILED}
    async with family(tmp_path, equip=with_tool("seen"), **says) as household:
        await household.spawned("dig")
        post = await only_post(household)
        assert (post["Status"], post["Result"]) == ("error", "I will look")


async def test_an_error_that_holds_a_secret_is_told_without_it(tmp_path: Path) -> None:
    secret = "sk-ant-api03-abcdefghijklmnopqrstuvwxyz0123456789"
    async with family(tmp_path, task=ModelFailed(f"bad key {secret}", retryable=False)) as household:
        await household.spawned("dig")
        assert secret not in (await only_post(household))["Notes"]


async def test_a_child_whose_time_is_over_is_told_with_what_it_had_written(tmp_path: Path) -> None:
    async with family(tmp_path, task=Gate().holds("half a hole")) as household:
        result = await household.spawned("dig", runTimeoutSeconds=0.6)
        post = await only_post(household)
        assert (post["Status"], post["Result"]) == ("timeout", "half a hole")
        assert "0.6 s" in post["Notes"]
        assert household.kinds() == [("child", "timeout")]
        assert (await stored(household.gateway, result["runId"])).state is RunState.TIMEOUT


async def test_no_time_limit_is_none_even_where_other_runs_have_one(tmp_path: Path) -> None:
    settings = config()
    settings["agents"]["defaults"]["timeoutSeconds"] = 0.1
    gate = Gate()
    async with family(tmp_path, settings, task=gate.holds("dug")) as household:
        result = await household.spawned("dig")
        await gate.reached()
        assert (await household.gateway.runtime.wait(result["runId"], 0.3)).state is RunState.RUNNING
        gate.open()
        assert (await only_post(household))["Status"] == "success"


@pytest.mark.parametrize("how", ["abort", "stop", "reset", "delete"])
async def test_a_child_that_is_stopped_is_told_with_what_it_had_written(tmp_path: Path, how: str) -> None:
    gate = Gate()
    async with family(tmp_path, task=gate.holds("half a hole")) as household:
        result = await household.spawned("dig")
        await gate.reached()
        session_id = (await session_of(household.gateway, result["childSessionKey"])).session_id
        await change(household, how, result["childSessionKey"])
        post = await only_post(household)
        assert (post["Status"], post["Result"]) == ("aborted", "half a hole")
        assert "Notes" not in post, "that it was aborted is said already"
        assert household.kinds() == [("child", "aborted")]
        assert f"sessionId {session_id}" in post["Stats"]


@pytest.mark.parametrize("how", ["abort", "stop", "delete"])
async def test_a_child_that_is_stopped_before_it_began_is_told_too(tmp_path: Path, how: str) -> None:
    gate = Gate()
    async with family(tmp_path, config(maxConcurrent=1), task={"first": gate.holds(), "second": "no"}) as household:
        await household.spawned("first")
        await gate.reached()
        waiting = await household.spawned("second")
        if how == "abort":
            await household.gateway.runtime.abort(waiting["childSessionKey"], waiting["runId"])
        else:
            await change(household, how, waiting["childSessionKey"])
        (post,) = await household.posts()
        assert (post["Status"], post["Result"]) == ("aborted", "(not available)")
        assert post["Notes"] == "aborted before it started"
        assert post["Stats"].startswith("runtime n/a • tokens n/a • model n/a")
        gate.open()
        await household.over()
        assert len(await household.posts()) == 2


async def test_a_child_that_is_reset_while_its_announce_waits_is_not_asked_without_memory(tmp_path: Path) -> None:
    gate, busy = Gate(), Gate()
    async with family(tmp_path, task=[gate.holds("dug"), busy.holds("to a person")]) as household:
        result = await household.spawned("dig")
        await gate.reached()
        await household.gateway.submit(result["childSessionKey"], "how is it going?")
        gate.open()
        await busy.reached()
        await household.gateway.store.reset_session(household.gateway.key(result["childSessionKey"]))
        post = await only_post(household)
        assert (post["Status"], post["Result"]) == ("success", "dug")
        assert household.cast.requests("announce") == []


# Once


async def test_later_runs_on_the_child_announce_nothing(tmp_path: Path) -> None:
    settings = {**config(), "tools": {"sessions": {"visibility": "tree"}}}
    async with family(tmp_path, settings, task=["dug", "a reply", "another"]) as household:
        result = await household.spawned("dig")
        await household.over()
        child = result["childSessionKey"]
        assert await household.ask("more?", child) == "a reply"
        sent = await household.gateway.tools(MAIN).sessions_send(sessionKey=child, message="and you?")
        assert (sent["status"], sent["reply"]) == ("ok", "another")
        await household.over()
        assert len(await household.posts()) == 1
        assert [state for state, _ in household.receipts()] == ["no_channel", "no_channel"]
        assert household.kinds("announce") == [("announce", "ok")]


@pytest.mark.parametrize("kind", ["child", "announce"])
async def test_a_run_that_is_retried_posts_nothing_more(tmp_path: Path, kind: str) -> None:
    says: dict[str, Any] = {kind.replace("child", "task"): [FAILED, "on second thought"]}
    async with family(tmp_path, **says) as household:
        await household.spawned("dig")
        first = await only_post(household)
        run = await household.run_of(kind)
        await household.gateway.store.retry_run(run.id)
        assert (await household.ended(run.id)).state is RunState.OK
        assert await only_post(household) == first
        assert household.counts()["deliveries"] == 1
        assert await household.ask() == "hello"


async def test_a_message_that_came_before_the_announce_is_answered_first(tmp_path: Path) -> None:
    gate = Gate()
    async with family(tmp_path, task=[gate.holds("dug"), "soon"]) as household:
        result = await household.spawned("dig")
        await gate.reached()
        asked = await household.gateway.submit(result["childSessionKey"], "how is it going?")
        gate.open()
        assert (await household.ended(asked.id)).reply == "soon"
        assert (await only_post(household))["Result"] == "the hole is dug"
        assert household.kinds() == [("child", "ok"), ("message", "ok"), ("announce", "ok")]


# Tool calls of the requester are never torn apart


async def test_results_that_come_between_tool_calls_wait_for_the_end_of_the_run(tmp_path: Path) -> None:
    """Twenty children end while their requester works on, call by call."""
    ended, count = asyncio.Event(), 20

    def equip(gateway: Gateway) -> None:
        @gateway.tool(effects="none")
        async def look() -> str:
            async with asyncio.timeout(20):
                await ended.wait()
            return "seen"

    says: dict[str, Any] = {
        "person": [[spawn(f"dig {n}") for n in range(count)], "thanks"],
        "result": [[call("look"), call("look")], [call("look")], "on it"],
    }
    async with family(tmp_path, config(maxChildren=count), equip=equip, **says) as household:
        run = await household.gateway.submit(MAIN, "go")
        await household.until(f"SELECT 1 WHERE (SELECT count(*) FROM inbox) = {count}")
        assert await household.told() == []
        ended.set()
        assert (await household.ended(run.id)).reply == "on it"
        await household.over()
        posts = await household.posts()
        assert len(posts) == count
        assert len({post["Stats"] for post in posts}) == count
        roles = [message.role.value for message in await transcript_of(household.gateway)]
        assert roles == [
            *("user", "assistant", *["toolResult"] * count),
            *("assistant", "toolResult", "toolResult", "assistant", "toolResult", "assistant"),
            *["user"] * count,
        ]
        assert await household.ask("and?") == "thanks"


# Crashes

SPAWNED = "SELECT 1 FROM spawns"


async def test_the_same_call_after_a_crash_gives_the_same_child(tmp_path: Path) -> None:
    """The process dies after the child was made, before the call's result is written."""
    await die_when(tmp_path, SPAWNED, person=[[spawn("dig", label="digger")]])
    async with family(tmp_path) as household:
        assert (await household.ended("r")).reply == "on it"
        (result,) = await household.results()
        assert (result["status"], result["childSessionKey"]) == ("accepted", await child_of(household))
        await household.over()
        assert len(await household.posts()) == 1


async def test_the_same_call_finds_its_child_even_when_the_settings_no_longer_allow_it(tmp_path: Path) -> None:
    settings = config("ops")
    await die_when(tmp_path, SPAWNED, settings, person=[[spawn("dig", agentId="ops")]])
    settings["agents"]["list"][0]["subagents"] = {}
    async with family(tmp_path, settings) as household:
        await household.ended("r")
        (result,) = await household.results()
        assert (result["status"], result["model"]) == ("accepted", "scripted/test")
        await household.over()


@pytest.mark.parametrize("how", ["abort", "timeout"])
async def test_a_call_that_is_cut_off_after_its_child_was_made_says_so(tmp_path: Path, how: str) -> None:
    """The result was lost with the process, and the run is stopped before the call could be made again."""
    settings = config()
    await die_when(tmp_path, SPAWNED, settings, person=[[spawn("dig")]])
    if how == "timeout":  # the run has used up its time, as of its last commit
        with closing(sqlite3.connect(tmp_path / "backchannel.db")) as database, database:
            database.execute("UPDATE runs SET ran_ms = 700000 WHERE id = 'r'")
    else:
        with closing(sqlite3.connect(tmp_path / "backchannel.db")) as database, database:
            database.execute("UPDATE runs SET abort_requested = 1 WHERE id = 'r'")
    async with family(tmp_path, settings) as household:
        assert (await household.ended("r")).state.value == {"abort": "aborted"}.get(how, how)
        (told,) = [m.text for m in await transcript_of(household.gateway) if m.role is Role.TOOL_RESULT]
        assert await child_of(household) in told
        assert "do not start it again" in told
        assert "not carried out" not in told
        await household.over()
        assert len(await household.posts()) == 1


async def test_a_call_whose_child_was_stopped_with_it_says_so(tmp_path: Path) -> None:
    """The next process does not have the agent, so that nothing goes on before somebody says `/stop`."""
    await die_when(tmp_path, SPAWNED, person=[[spawn("dig")]])
    other = {"agents": {"list": [{"id": "other", "model": "scripted/test"}]}}
    async with family(tmp_path, other) as household:
        stop = Command(CommandName.STOP)
        await household.gateway.store.carry_out(stop, SessionKey.parse(MAIN), Rank.OWNER, None)
        await household.over()
        (told,) = [m.text for m in await transcript_of(household.gateway) if m.role is Role.TOOL_RESULT]
        assert await child_of(household) in told
        assert "stopped: its requester was stopped" in told
        assert household.kinds() == [("message", "aborted"), ("child", "aborted")]


async def test_a_function_agent_that_is_run_again_spawns_once(tmp_path: Path) -> None:
    hanging, again = asyncio.Event(), asyncio.Event()

    def equip(gateway: Gateway) -> None:
        @gateway.agent("main")
        async def boss(context: Any) -> str:
            if "subagent" in context.session_key:
                return "dug"
            result = await context.call("sessions_spawn", task="dig", label="digger")
            if not again.is_set():
                hanging.set()
                await asyncio.Event().wait()
            return str(result["childSessionKey"])

    async with dying(tmp_path, config=config(), equip=equip) as gateway:
        await gateway.submit(MAIN, "go", run_id="r")
        async with asyncio.timeout(20):
            await hanging.wait()
    again.set()
    async with family(tmp_path, equip=equip) as household:
        assert (await household.ended("r")).reply == await child_of(household)
        await household.over()
        assert len(await household.posts()) == 1


async def test_a_child_that_keeps_killing_its_process_is_given_up_and_told(tmp_path: Path) -> None:
    await die_when(tmp_path, "SELECT 1 FROM runs WHERE kind = 'child' AND state = 'running'", person=[[spawn("dig")]])
    with closing(sqlite3.connect(tmp_path / "backchannel.db")) as database, database:
        database.execute("UPDATE runs SET crashes = ? WHERE kind = 'child'", (CRASHES_UNTIL_GIVEN_UP - 1,))
    async with family(tmp_path) as household:
        await household.ended("r")
        post = await only_post(household)
        assert post["Status"] == "error"
        assert f"the process died {CRASHES_UNTIL_GIVEN_UP} times" in post["Notes"]
        assert household.cast.requests("task") == []


# Names that others have taken


async def test_a_client_that_takes_the_name_of_a_step_does_not_keep_it_from_happening(tmp_path: Path) -> None:
    """A client's key is the id of its run, and the names of a spawn's own runs can be guessed from the child's key."""
    gate = Gate()
    says: dict[str, Any] = {"person": ["hello", [spawn("dig")], "hello"], "task": gate.holds("dug")}
    async with family(tmp_path, config(announce="wake"), **says) as household:
        call_id = hashlib.sha256(f"sessions_spawn {MAIN} run r/0/0".encode()).hexdigest()[:32]
        await household.gateway.ask("agent:main:other", "hi", run_id=f"{call_id}/child")
        await household.gateway.ask(MAIN, "go", run_id="r")
        await gate.reached()
        assert household.spawn().id == call_id
        await household.gateway.ask("agent:main:other", "hi", run_id=f"{call_id}/announce")
        await household.gateway.ask("agent:main:other", "hi", run_id="r/wake/1")
        gate.open()
        await household.over()
        assert household.kinds("child", "announce", "wake") == [("child", "ok"), ("announce", "ok"), ("wake", "ok")]
        assert "\n".join(m.text for m in await household.told()).count("Status: success") == 1


# Where the requester is


@pytest.mark.parametrize("session", [{"scope": "global"}, {"mainKey": "home"}])
async def test_the_main_session_is_told_whatever_its_key_is(tmp_path: Path, session: dict[str, Any]) -> None:
    settings = {**config(), "session": session}
    async with family(tmp_path, settings, person=[[spawn("dig")]]) as household:
        await household.ask("go", "main")
        await household.spawned("dig", key=None)
        await household.over()
        key = str(household.gateway.key("main"))
        assert {str(spawned.requester) for spawned in household.spawns()} == {key}
        assert len(await household.posts(key)) == 2
        status = await household.gateway.tools("main").session_status()
        assert (status["key"], len(status["children"])) == ("main", 2)
