"""`cron.*` through a real socket: what is listed, who may do what, and what is refused."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

import msgspec
import pytest

from backchannel.config.schema_doors import CronJob
from tests.gateway.client import Client, Refused
from tests.gateway.conftest import MakeWorld, World

pytestmark = pytest.mark.anyio
HOURLY: dict[str, Any] = {"id": "hourly", "schedule": "every 1h", "message": "look around", "agentId": "echo"}


def both(job: dict[str, Any]) -> dict[str, Any]:
    """Give what only we tell of a job, with the message, which is sent once."""
    assert "message" not in job["backchannel"]
    return {**job["backchannel"], "message": job["payload"]["message"]}


async def jobs(client: Client) -> dict[str, dict[str, Any]]:
    return {job["id"]: both(job) for job in (await client.ask("cron.list"))["jobs"]}


async def test_a_job_is_added_listed_run_and_removed(client: Client) -> None:
    assert await jobs(client) == {}
    job = both(await client.ask("cron.add", **HOURLY, tz="Europe/Berlin", timeoutSeconds=60))
    assert job["nextAt"] - job["createdAt"] in range(3_599_000, 3_600_001)
    assert job == {
        **HOURLY,
        "status": "scheduled",
        "source": "runtime",
        "tz": "Europe/Berlin",
        "sessionKey": "agent:echo:cron:hourly",
        "timeoutSeconds": 60,
        "skipped": 0,
        "nextAt": job["nextAt"],
        "createdAt": job["createdAt"],
    }
    fired = await client.ask("cron.run", id="hourly")
    assert fired["sessionKey"] == "agent:echo:cron:hourly"
    ended = await client.ask("agent.wait", runId=fired["runId"])
    assert (ended["status"], ended["reply"]) == ("ok", "echo look around")
    listed = (await jobs(client))["hourly"]
    assert (listed["lastRun"]["runId"], listed["lastRun"]["status"]) == (fired["runId"], "ok")
    assert listed["nextAt"] == job["nextAt"]
    assert await client.ask("cron.remove", id="hourly") == {"ok": True, "id": "hourly", "removed": True}
    assert await jobs(client) == {}
    history = await client.ask("chat.history", sessionKey="agent:echo:cron:hourly")
    assert len(history["messages"]) == 2


async def test_those_who_look_at_the_jobs_hear_that_one_came_or_went(client: Client) -> None:
    await client.ask("sessions.subscribe")
    await client.ask("cron.add", **HOURLY)
    await client.event("sessions.changed", sessionKey="agent:echo:cron:hourly", reason="job")
    client.events.clear()
    await client.ask("cron.remove", id="hourly")
    await client.event("sessions.changed", sessionKey="agent:echo:cron:hourly", reason="job")


async def test_the_session_of_a_job_is_listed_as_one(client: Client) -> None:
    await client.ask("cron.add", **HOURLY)
    await client.ask("agent.wait", runId=(await client.ask("cron.run", id="hourly"))["runId"])
    (row,) = (await client.ask("sessions.list", kinds=["cron"]))["sessions"]
    assert (row["key"], row["classification"], row["channel"]) == ("agent:echo:cron:hourly", "cron", "internal")


async def test_a_job_at_work_is_not_run_again(world: World, client: Client) -> None:
    await client.ask("cron.add", **{**HOURLY, "agentId": "held"})
    fired = await client.ask("cron.run", id="hourly")
    error = await client.refused("cron.run", {"id": "hourly"})
    assert error["details"] == {"code": "job_running", "id": "hourly", "runId": fired["runId"]}
    world.release.set()
    await client.ask("agent.wait", runId=fired["runId"])
    await client.ask("cron.run", id="hourly")


async def test_the_command_of_a_job_is_shown_and_decides_and_can_be_taken_out(client: Client) -> None:
    token = "ghp_REDACTED" + "a1B2c3D4" * 4
    when = {"command": f"test -n {token} && exit 1", "timeoutSeconds": 20}
    added = await client.ask("cron.add", **HOURLY, when=when)
    assert added["backchannel"]["when"] == {"command": "test -n [redacted] && exit 1", "timeoutSeconds": 20}
    assert "when" not in added | added["payload"]
    assert await client.ask("cron.run", id="hourly") == {"ok": True, "id": "hourly", "ran": False, "reason": "when"}
    skips = (await jobs(client))["hourly"]["skips"]
    assert (skips["when"]["count"], skips["when"]["why"]) == (1, "exit code 1")
    await client.ask("cron.update", id="hourly", patch={"when": {"command": "echo news"}})
    fired = await client.ask("cron.run", id="hourly")
    assert "news" in (await client.ask("agent.wait", runId=fired["runId"]))["reply"]
    changed = await client.ask("cron.update", id="hourly", patch={"when": None})
    assert "when" not in changed["backchannel"]


async def test_a_run_that_failed_is_the_last_error_of_its_job(client: Client) -> None:
    await client.ask("cron.add", **{**HOURLY, "agentId": "broken"})
    await client.ask("agent.wait", runId=(await client.ask("cron.run", id="hourly"))["runId"])
    job = (await jobs(client))["hourly"]
    assert job["lastRun"]["status"] == "error"
    assert "this agent is broken" in job["lastError"]


async def test_jobs_of_the_configuration_are_listed_and_belong_to_it(make_world: MakeWorld) -> None:
    configured = [
        {**HOURLY, "id": "off", "enabled": False},
        {**HOURLY, "id": "old", "schedule": "2020-01-01T00:00:00Z", "agentId": "held"},
        {"id": "plain", "schedule": "0 9 * * *", "message": "hello"},
    ]
    async with make_world({"cron": {"jobs": configured}}) as world, world.client() as client:
        async with asyncio.timeout(20):
            while (await world.gateway.store.due(1)).timers:  # until the one that is late has fired
                pass
        found = await jobs(client)
        assert {id: job["status"] for id, job in found.items()} == {
            "old": "done",
            "plain": "scheduled",
            "off": "disabled",
        }
        assert {job["source"] for job in found.values()} == {"config"}
        assert (found["plain"]["agentId"], found["plain"]["sessionKey"]) == ("main", "agent:main:cron:plain")
        assert "nextAt" not in found["off"]
        assert (await client.refused("cron.remove", {"id": "plain"}))["details"]["code"] == "job_configured"
        clash = await client.refused("cron.add", {**HOURLY, "id": "plain"})
        assert clash["details"]["code"] == "job_exists"
        assert "stands in the configuration" in clash["message"]
        world.release.set()


async def test_readers_list_writers_run_and_admins_add_and_remove(world: World, client: Client) -> None:
    await client.ask("cron.add", **HOURLY)
    for scope, allowed in (("read", ["cron.list"]), ("write", ["cron.list", "cron.run"])):
        async with world.client(scopes=[f"operator.{scope}"]) as other:
            for method, params in (
                ("cron.list", {}),
                ("cron.run", {"id": "hourly"}),
                ("cron.add", {**HOURLY, "id": "other"}),
                ("cron.remove", {"id": "hourly"}),
            ):
                if method in allowed:
                    await other.ask(method, **params)
                else:
                    error = await other.refused(method, params)
                    assert error["details"]["code"] == "scope_missing", method
    assert list(await jobs(client)) == ["hourly"]


@pytest.mark.parametrize(
    ("changed", "code", "said"),
    [
        ({"schedule": "0 0 30 2 *"}, "invalid_schedule", "no such day ever comes"),
        ({"schedule": "every -1s"}, "invalid_schedule", 'expected "0 9 * * *"'),
        ({"schedule": "9" * 100_000}, "invalid_schedule", "at most 256 characters"),
        ({"schedule": 5}, "bad_params", "schedule"),
        ({"tz": "Mars/Base"}, "invalid_schedule", "expected a time zone such as `Europe/Berlin`"),
        ({"id": ""}, "bad_params", "id: got ''"),
        ({"id": "a:b"}, "bad_params", "id: got 'a:b'"),
        ({"message": ""}, "bad_params", "message: it is empty"),
        ({"agentId": "nobody"}, "unknown_agent", "nobody"),
        ({"agentId": ""}, "unknown_agent", "not an agent id"),
        ({"model": "nonsense"}, "unknown_model", "nonsense"),
        ({"deliver": {"channel": "none", "to": "C"}}, "unknown_channel", "no channel 'none' is configured"),
        ({"deliver": {"channel": "none"}}, "bad_params", "to"),
        ({"deliver": {"channel": "none", "to": "C", "thread": 1}}, "bad_params", "thread"),
        ({"timeoutSeconds": 0}, "bad_params", "timeoutSeconds"),
        ({"timeoutSeconds": -5}, "bad_params", "timeoutSeconds"),
        ({"timeoutSeconds": 1e300}, "bad_params", "timeoutSeconds"),
        ({"when": {"command": " "}}, "bad_params", "when.command: got"),
        ({"when": {"command": "true", "timeoutSeconds": 1000}}, "bad_params", "timeoutSeconds"),
        ({"when": {"command": "true"}, "message": "{output} {output}"}, "bad_params", "expected it once at most"),
    ],
)
async def test_what_cannot_work_is_refused_and_nothing_is_kept(
    client: Client, changed: dict[str, Any], code: str, said: str
) -> None:
    error = await client.refused("cron.add", {**HOURLY, **changed})
    assert error["details"]["code"] == code
    assert said in error["message"]
    assert len(error["message"]) < 500
    assert await jobs(client) == {}


@pytest.mark.parametrize("method", ["cron.run", "cron.remove"])
async def test_a_job_that_is_not_there_is_not_found(client: Client, method: str) -> None:
    error = await client.refused(method, {"id": "x" * 1000})
    assert (error["code"], error["details"]["code"]) == ("NOT_FOUND", "CRON_JOB_NOT_FOUND")
    assert len(error["message"]) < 300
    with pytest.raises(Refused, match="the parameter id is missing"):
        await client.ask(method)


class TestInOpenClawsWords:
    JOB: ClassVar[dict[str, Any]] = {
        "name": "Nightly look",
        "enabled": True,
        "schedule": {"kind": "every", "everyMs": 3_600_000},
        "sessionTarget": "isolated",
        "wakeMode": "now",
        "payload": {"kind": "agentTurn", "message": "look around"},
        "delivery": {"mode": "announce", "channel": "last"},
        "agentId": "echo",
    }

    async def test_a_job_is_added_shown_changed_run_and_removed(self, client: Client) -> None:
        job = await client.ask("cron.add", **self.JOB)
        assert (job["id"], job["name"], job["schedule"]) == ("nightly-look", "Nightly look", self.JOB["schedule"])
        assert (job["payload"], job["delivery"]) == (self.JOB["payload"], {"mode": "none"})
        assert job["state"] == {"nextRunAtMs": job["backchannel"]["nextAt"]}
        assert await client.ask("cron.add", **self.JOB) == job == await client.ask("cron.get", id=job["id"])
        listed = await client.ask("cron.list", includeDisabled=False, limit=200, offset=0)
        assert (listed["jobs"], listed["total"], listed["hasMore"], listed["nextOffset"]) == ([job], 1, False, None)
        fired = await client.ask("cron.run", jobId=job["id"], mode="force")
        await client.ask("agent.wait", runId=fired["runId"])
        (entry,) = (await client.ask("cron.runs", id=job["id"]))["entries"]
        assert (entry["runId"], entry["status"], entry["summary"]) == (fired["runId"], "ok", "echo look around")
        for params, found in (
            ({}, 1),
            ({"status": "ok", "agentId": "echo"}, 1),
            ({"statuses": ["error", "skipped"]}, 0),
        ):
            page = await client.ask("cron.runs", **params)
            assert (len(page["entries"]), page["total"]) == (found, found)
        await client.run(message="and by hand", sessionKey=job["sessionKey"])
        page = await client.ask("cron.runs", limit=1)
        assert ([each["runId"] for each in page["entries"]], page["total"]) == ([fired["runId"]], 1)
        assert (await client.ask("cron.runs", agentId="main"))["entries"] == []
        patch = {"enabled": False, "payload": {"kind": "agentTurn", "message": "look again"}}
        changed = await client.ask("cron.update", id=job["id"], patch=patch)
        assert (changed["enabled"], changed["payload"]["message"], changed["state"]["lastRunStatus"]) == (
            False,
            "look again",
            "ok",
        )
        assert "nextRunAtMs" not in changed["state"]
        assert (await client.ask("cron.list", includeDisabled=False))["jobs"] == []
        assert (await client.ask("cron.run", id=job["id"], mode="if-enabled"))["ran"] is False
        assert await client.ask("cron.status") == {"enabled": True, "jobs": 1, "nextWakeAtMs": None}
        assert (await client.ask("cron.remove", id=job["id"]))["removed"] is True

    async def test_a_changed_schedule_moves_the_next_time(self, client: Client) -> None:
        job = await client.ask("cron.add", **self.JOB)
        at = {"kind": "at", "at": "2999-01-01T00:00:00Z"}
        changed = await client.ask("cron.update", id=job["id"], patch={"schedule": at})
        assert changed["schedule"] == at
        assert (
            (await client.ask("cron.status"))["nextWakeAtMs"] == changed["state"]["nextRunAtMs"] == 32_472_144_000_000
        )
        daily = {"kind": "cron", "expr": "0 9 * * *", "tz": "Europe/Berlin"}
        changed = await client.ask("cron.update", id=job["id"], patch={"schedule": daily})
        assert (changed["schedule"], changed["backchannel"]["tz"]) == (daily, "Europe/Berlin")

    async def test_a_job_tells_when_it_was_changed_and_firing_it_is_no_change(self, client: Client) -> None:
        job = await client.ask("cron.add", **self.JOB)
        assert job["updatedAtMs"] == job["createdAtMs"]
        fired = await client.ask("cron.run", id=job["id"])
        await client.ask("agent.wait", runId=fired["runId"])
        assert (await client.ask("cron.get", id=job["id"]))["updatedAtMs"] == job["createdAtMs"]
        changed = await client.ask("cron.update", id=job["id"], patch={"payload": {"message": "look again"}})
        assert changed["createdAtMs"] == job["createdAtMs"] < changed["updatedAtMs"]
        again = await client.ask("cron.update", id=job["id"], patch={"payload": {"message": "look again"}})
        assert again["updatedAtMs"] == changed["updatedAtMs"]

    async def test_the_list_tells_in_words_where_replies_go(self, make_world: MakeWorld) -> None:
        desk = {"adapter": "bridge", "url": "http://127.0.0.1:9", "secret": "a secret of the desk"}
        to = {"mode": "announce", "channel": "desk", "to": "C-1"}
        async with make_world({"channels": {"desk": desk}}) as world, world.client() as client:
            await client.ask("cron.add", **{**self.JOB, "name": "told", "delivery": to})
            await client.ask("cron.add", **{**self.JOB, "name": "kept"})
            told = (await client.ask("cron.list"))["deliveryPreviews"]
            assert told["told"] == {"label": "announce -> desk:C-1", "detail": "set in the job"}
            assert told["kept"]["label"] == "none"
            assert list((await client.ask("cron.list", query="kept"))["deliveryPreviews"]) == ["kept"]
            for left_out in ({"compact": True}, {"includeDeliveryPreviews": False}):
                assert "deliveryPreviews" not in await client.ask("cron.list", **left_out)

    async def test_jobs_of_one_name_are_told_apart_by_a_number_and_the_same_again_is_no_other(
        self, client: Client
    ) -> None:
        other = {**self.JOB, "schedule": {"kind": "cron", "expr": "0 7 * * *"}}
        for _ in range(2):
            ids = [(await client.ask("cron.add", **job))["id"] for job in (self.JOB, other)]
            assert ids == ["nightly-look", "nightly-look-2"]
        clash = await client.refused("cron.add", {**other, "id": "nightly-look"})
        assert clash["details"]["code"] == "job_exists"

    async def test_jobs_are_sorted_filtered_and_paged(self, client: Client) -> None:
        for name in ("b", "a", "c"):
            await client.ask("cron.add", **{**self.JOB, "name": name})
        names = [job["name"] for job in (await client.ask("cron.list", sortBy="name", sortDir="desc"))["jobs"]]
        assert names == ["c", "b", "a"]
        page = await client.ask("cron.list", sortBy="name", limit=2, offset=1)
        assert ([job["id"] for job in page["jobs"]], page["total"], page["hasMore"]) == (["b", "c"], 3, False)
        assert (await client.ask("cron.list", sortBy="name", limit=2))["nextOffset"] == 2
        assert (await client.ask("cron.list", query="b"))["total"] == 1
        assert (await client.ask("cron.list", scheduleKind="cron"))["total"] == 0

    @pytest.mark.parametrize(
        "changed",
        [
            {"sessionTarget": "main"},
            {"payload": {"kind": "systemEvent", "text": "wake up"}},
            {"payload": {"kind": "agentTurn"}},
            {"payload": {"kind": "agentTurn", "message": "x", "thinking": "high"}},
            {"schedule": {"kind": "on-exit", "command": "true"}},
            {"schedule": {"kind": "every"}},
            {"schedule": {"kind": "every", "everyMs": 5}},
            {"schedule": {"kind": "at", "at": "2001-01-01T00:00:00Z"}},
            {"delivery": {"mode": "webhook", "to": "https://example.com"}},
            {"delivery": {"mode": "announce", "channel": "desk"}},
            {"delivery": {"mode": "announce", "channel": "desk", "to": "x"}},
        ],
    )
    async def test_what_a_job_here_cannot_do_is_refused(self, client: Client, changed: dict[str, Any]) -> None:
        assert (await client.refused("cron.add", {**self.JOB, **changed}))["code"] == "INVALID_REQUEST"
        await client.ask("cron.add", **self.JOB)
        before = await client.ask("cron.list")
        if "payload" not in changed or "message" in changed["payload"] or changed["payload"]["kind"] != "agentTurn":
            await client.refused("cron.update", {"id": "nightly-look", "patch": changed})
        assert await client.ask("cron.list") == before

    async def test_a_job_of_the_configuration_is_not_changed(self, make_world: MakeWorld) -> None:
        async with make_world({"cron": {"jobs": [HOURLY]}}) as world, world.client() as client:
            error = await client.refused("cron.update", {"id": "hourly", "patch": {"enabled": False}})
            assert error["details"]["code"] == "job_configured"
            missing = (await client.refused("cron.get", {"id": "nobody"}))["details"]
            assert missing == {"code": "CRON_JOB_NOT_FOUND", "jobId": "nobody"}


NAMED: dict[str, Any] = {"name": "n", "schedule": {"kind": "cron", "expr": "0 9 * * *"}}
TOO_MUCH: list[tuple[dict[str, Any], str]] = [
    ({"name": "n" * 257}, "name"),
    ({"name": ""}, "name"),
    ({"name": "a\nb"}, "name"),
    ({"name": "\x1b[31mred"}, "name"),
    ({"name": "\u202egnp.exe"}, "name"),
    ({"payload": {"message": "m" * 262_145}}, "message"),
    ({"payload": {"message": "\u00e4" * 131_073}}, "message"),
    ({"payload": {"message": "m", "timeoutSeconds": 604_801}}, "timeoutSeconds"),
    ({"payload": {"message": "m", "timeoutSeconds": 1e308}}, "timeoutSeconds"),
    ({"delivery": {"mode": "announce", "channel": "desk", "to": "t" * 1025}}, "deliver.to"),
]


@pytest.mark.parametrize(("change", "param"), TOO_MUCH)
async def test_what_is_too_much_for_a_job_is_refused_when_it_is_added_and_when_it_is_changed(
    client: Client, change: dict[str, Any], param: str
) -> None:
    fine = {**NAMED, "payload": {"message": "m"}}
    added = await client.refused("cron.add", {**fine, **change})
    job = await client.ask("cron.add", **fine)
    changed = await client.refused("cron.update", {"id": job["id"], "patch": change})
    for error in (added, changed):
        assert param in error["message"] and len(error["message"]) < 400
    assert (await client.ask("cron.list"))["jobs"] == [job]


async def test_jobs_are_listed_in_pages_that_fit_a_frame_and_none_is_cut(client: Client) -> None:
    message = "m" * 262_144
    for n in range(20):
        await client.ask("cron.add", **{**NAMED, "name": f"big {n}"}, payload={"message": message})
    seen: list[dict[str, Any]] = []
    offset: int | None = 0
    while offset is not None:
        page: dict[str, Any] = await client.ask("cron.list", offset=offset, includeDeliveryPreviews=True, sortBy="name")
        assert len(msgspec.json.encode(page)) < client.hello["policy"]["maxPayload"]
        assert page["total"] == 20 and page["hasMore"] is (page["nextOffset"] is not None)
        assert list(page["deliveryPreviews"]) == [job["id"] for job in page["jobs"]]
        seen += page["jobs"]
        offset = page["nextOffset"]
    assert len({job["id"] for job in seen}) == 20
    assert {job["payload"]["message"] for job in seen} == {message}


async def test_a_job_of_an_older_gateway_that_is_too_much_is_listed_and_can_be_changed(
    world: World, client: Client
) -> None:
    job = CronJob(id="old", name="a\n" + "n" * 300, schedule="every 1h", message="m" * 300_000)
    await world.gateway.store.add_cron_job(job)
    (listed,) = (await client.ask("cron.list"))["jobs"]
    assert len(listed["name"]) == 256 and "\n" not in listed["name"] and listed["payload"]["message"] == job.message
    assert (await client.ask("cron.update", id="old", patch={"enabled": False}))["enabled"] is False
    assert (
        "message"
        in (await client.refused("cron.update", {"id": "old", "patch": {"payload": {"message": "m" * 300_001}}}))[
            "message"
        ]
    )
