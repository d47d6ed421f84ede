"""The commands of `openclaw` that ask the gateway."""

from __future__ import annotations

import json
import subprocess
import uuid
from collections.abc import Iterable

import pytest

from tests.support.device import Device
from tests.support.stub_provider import Fault
from tests.web.gateways import GatewayProcess

from .conftest import ASKED, CHANNEL, OpenClaw, let_ask
from .rows import shows

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]


@shows("health", "`health`, `gateway health`")
def test_health_is_told(openclaw: OpenClaw) -> None:
    assert openclaw.json("health")["ok"] is True
    openclaw.answer("gateway", "health")


@shows("health", "`health` prints the gateway's agents and their number of sessions")
def test_health_is_that_of_the_gateway_and_not_of_this_machine(openclaw: OpenClaw, gateway: GatewayProcess) -> None:
    gateway.call("chat.send", sessionKey="agent:writer:main", message="to be counted")
    gateway.rest()
    told = openclaw.answer("health", "--verbose")
    assert "Agents: main (default), " in told
    assert "Session store (writer): the gateway's database (1 entries)" in told
    assert "Heartbeat interval: disabled (main)" in told


@shows("status", "`status`")
def test_status_shows_the_gateway_without_an_error(openclaw: OpenClaw) -> None:
    told = openclaw.json("status")
    assert told["gateway"]["reachable"] is True
    assert told["gateway"]["error"] is None
    assert told["agents"]["defaultId"] == "main"
    assert "writer" in [agent["id"] for agent in told["agents"]["agents"]]


@shows("status", "`gateway status`")
def test_the_status_of_the_gateway_is_told(openclaw: OpenClaw) -> None:
    assert openclaw.json("gateway", "status", *openclaw.at, "--require-rpc")["rpc"]["ok"] is True


@shows("status", "`gateway probe`")
def test_a_probe_finds_nothing_degraded(openclaw: OpenClaw) -> None:
    told = openclaw.json("gateway", "probe")
    assert told["ok"] is True
    assert told["degraded"] is False


@shows("status", "`gateway usage-cost`")
def test_what_was_used_is_told(openclaw: OpenClaw, gateway: GatewayProcess) -> None:
    gateway.call("chat.send", sessionKey="main", message="to be counted")
    gateway.rest()
    assert "tokens" in openclaw.answer("gateway", "usage-cost", "--days", "7")
    for which in (["--agent", "main"], ["--all-agents"]):
        told = openclaw.json("gateway", "usage-cost", *which)
        assert told["totals"]["totalTokens"] > 0 and told["totals"]["totalCost"] > 0


@shows("status", "`gateway stability`")
def test_stability_is_told(openclaw: OpenClaw) -> None:
    assert "Events: 0/0" in openclaw.answer("gateway", "stability")


@shows("agent", "`--agent`, `--session-key`, `--thinking`")
def test_an_agent_answers(openclaw: OpenClaw) -> None:
    assert openclaw.answer("agent", "--agent", "main", "--message", "one").strip() == "You said: one"
    told = openclaw.json("agent", "--session-key", "agent:writer:main", "--message", "two", "--thinking", "low")
    assert told["result"]["payloads"][0]["text"] == "You said: two"


@shows("agent", "`--session-id`")
def test_an_agent_answers_in_a_session_of_an_id(openclaw: OpenClaw, gateway: GatewayProcess) -> None:
    id = str(uuid.uuid4())
    for message in ("one", "two"):
        openclaw.answer("agent", "--session-id", id, "--message", message)
    assert len(gateway.call("chat.history", sessionKey=f"agent:main:explicit:{id}")["messages"]) == 4


@shows("agent", "`--to`")
def test_an_agent_answers_somebody_who_has_a_number(openclaw: OpenClaw) -> None:
    assert openclaw.answer("agent", "--to", "+15555550123", "--message", "one").strip() == "You said: one"


@shows("agent", "`--deliver`")
def test_a_reply_is_delivered_where_the_session_speaks(openclaw: OpenClaw, gateway: GatewayProcess) -> None:
    gateway.write(CHANNEL, text="from a chat")
    openclaw.answer("agent", "--session-key", "agent:main:main", "--message", "to be delivered", "--deliver")
    assert gateway.posted(2) == ["You said: from a chat", "You said: to be delivered"]


@shows("agent", "`--deliver`")
def test_it_is_told_that_there_is_no_chat_to_deliver_to(openclaw: OpenClaw, gateway: GatewayProcess) -> None:
    key = "agent:main:of-nobody"
    said = openclaw.answer("agent", "--session-key", key, "--message", "to nobody", "--deliver")
    assert said.strip() == "You said: to nobody"
    (receipt,) = gateway.call("deliveries.list", sessionKey=key)["deliveries"]
    assert (receipt["state"], receipt["error"]) == (
        "no_channel",
        "the session has no return address, and none was named",
    )


@shows("sessions", "`sessions archive`")
def test_a_session_is_archived(openclaw: OpenClaw, gateway: GatewayProcess) -> None:
    gateway.call("agent", message="hello", sessionKey="agent:main:old", idempotencyKey="old")
    gateway.rest()
    assert "rchived" in openclaw.answer("sessions", "archive", "agent:main:old")
    keys = [session["key"] for session in gateway.call("sessions.list", limit=100)["sessions"]]
    assert "agent:main:old" not in keys


@shows("sessions", "`sessions compact`")
def test_it_is_told_that_no_session_needs_to_be_compacted(openclaw: OpenClaw, gateway: GatewayProcess) -> None:
    gateway.call("chat.send", sessionKey="main", message="to be kept")
    gateway.rest()
    said = openclaw.answer("sessions", "compact", "agent:main:main")
    assert "No compaction needed" in said and "nothing to summarise" in said
    assert "to be kept" in str(gateway.call("chat.history", sessionKey="main")["messages"])


@shows("channels", "`channels status`")
def test_channels_are_shown(openclaw: OpenClaw) -> None:
    assert f"{CHANNEL} default: configured, connected" in openclaw.answer("channels", "status")


@shows("models", "`models list`")
def test_models_are_listed(openclaw: OpenClaw) -> None:
    assert "stub/test" in openclaw.answer("models", "list")
    assert {model["available"] for model in openclaw.json("models", "list")["models"]} == {True}


@shows("cron", "`cron list`")
def test_jobs_are_listed(openclaw: OpenClaw, gateway: GatewayProcess) -> None:
    gateway.call("cron.add", id="weekly", schedule="0 9 * * 1", message="hello")
    assert "weekly" in openclaw.answer("cron", "list")
    assert "weekly" in [job["name"] for job in openclaw.json("cron", "list")["jobs"]]


@shows("cron", "`cron add`, `cron rm`")
def test_a_job_is_added_and_removed(openclaw: OpenClaw, gateway: GatewayProcess) -> None:
    job = openclaw.json("cron", "add", "--name", "hourly", "--every", "1h", "--message", "look", "--agent", "main")
    assert job["id"] in [each["id"] for each in gateway.call("cron.list")["jobs"]]
    openclaw.answer("cron", "rm", job["id"])
    assert job["id"] not in [each["id"] for each in gateway.call("cron.list")["jobs"]]


@shows("cron", "`cron add` in all forms of schedules, `cron edit`, `cron show`")
def test_jobs_of_every_schedule_are_added_and_changed(openclaw: OpenClaw) -> None:
    forms = {
        "every": ["--every", "90m"],
        "cron": ["--cron", "0 7 * * *", "--tz", "Europe/Berlin"],
        "at": ["--at", "20m"],
    }
    for kind, words in forms.items():
        job = openclaw.json("cron", "add", "--name", "one name", *words, "--message", "look")
        assert job["schedule"]["kind"] == kind
    changed = openclaw.json("cron", "edit", job["id"], "--every", "3h", "--message", "look again")
    assert (changed["schedule"]["everyMs"], changed["payload"]["message"]) == (10_800_000, "look again")
    assert "every 3h" in openclaw.answer("cron", "show", job["id"])
    assert openclaw.answer("cron", "list").count("one name ") == 3


@shows("cron", "`cron show` says where a reply goes")
def test_it_is_told_where_the_reply_of_a_job_goes(openclaw: OpenClaw) -> None:
    to = ["--announce", "--channel", CHANNEL, "--to", "C-1"]
    job = openclaw.json("cron", "add", "--name", "announced", "--every", "4h", "--message", "look", *to)
    assert f"delivery: announce -> {CHANNEL}:C-1 (set in the job)" in openclaw.answer("cron", "show", job["id"])
    changed = openclaw.json("cron", "edit", job["id"], "--message", "look again")
    assert changed["createdAtMs"] < changed["updatedAtMs"]


@shows("cron", "`cron status`, `cron run`, `cron runs`")
def test_a_job_is_run_by_hand_and_its_runs_are_told(openclaw: OpenClaw, gateway: GatewayProcess) -> None:
    job = openclaw.json("cron", "add", "--name", "by hand", "--cron", "0 7 * * *", "--message", "look")
    assert openclaw.json("cron", "status")["jobs"] >= 1
    openclaw.answer("cron", "run", job["id"])
    gateway.rest()
    assert len(openclaw.json("cron", "runs", "--id", job["id"])["entries"]) == 1


@shows("cron", "`cron disable`, `cron enable`")
def test_a_job_is_disabled_and_enabled(openclaw: OpenClaw) -> None:
    job = openclaw.json("cron", "add", "--name", "resting", "--every", "2h", "--message", "look")
    openclaw.answer("cron", "disable", job["id"])
    assert "resting" not in openclaw.answer("cron", "list")
    openclaw.answer("cron", "enable", job["id"])
    assert "resting" in openclaw.answer("cron", "list")


@shows("system", "`system presence`, `system heartbeat last`")
def test_presence_and_the_last_heartbeat_are_told(openclaw: OpenClaw) -> None:
    openclaw.answer("system", "presence")
    openclaw.answer("system", "heartbeat", "last")


@shows("system", "`system event`")
def test_an_event_wakes_the_agent(openclaw: OpenClaw, gateway: GatewayProcess) -> None:
    openclaw.answer("system", "event", "--text", "the bell rang", "--mode", "now")
    gateway.rest()
    assert "the bell rang" in str(gateway.call("chat.history", sessionKey="main")["messages"])


@shows("logs", "`logs`, with `--follow`, `--json`, `--limit`")
def test_the_log_is_shown(openclaw: OpenClaw) -> None:
    assert "listening" in openclaw.answer("logs", "--plain")
    lines = [json.loads(line) for line in openclaw.answer("logs", "--json", "--limit", "1").splitlines()]
    assert [line["type"] for line in lines].count("log") == 1


@shows("logs", "`logs`, with `--follow`, `--json`, `--limit`")
def test_the_log_is_followed(openclaw: OpenClaw, gateway: GatewayProcess) -> None:
    command = openclaw.command("logs", "--follow", "--json", "--interval", "200")
    with subprocess.Popen(command, env=openclaw.env, cwd=openclaw.home, stdout=subprocess.PIPE, text=True) as following:
        assert following.stdout is not None
        try:
            _read_until(following.stdout, "listening")
            gateway.answer(Fault(status=400))
            gateway.call("chat.send", sessionKey="main", message="fail", idempotencyKey="to-be-followed")
            _read_until(following.stdout, "to-be-followed")
        finally:
            following.kill()


def _read_until(lines: Iterable[str], text: str) -> None:
    """Read on until a text comes; the time limit of the test ends it where none does."""
    assert any(text in line for line in lines), f"{text} did not come before the end"


@shows("nodes", "`nodes list`, `nodes status`")
def test_nodes_are_listed(openclaw: OpenClaw) -> None:
    openclaw.answer("nodes", "list")
    openclaw.answer("nodes", "status")


@shows("devices", "`devices list`")
def test_devices_are_listed(openclaw: OpenClaw, gateway: GatewayProcess) -> None:
    device = Device()
    assert device.log_in(gateway.url, gateway.token)["ok"]
    assert device.id in [each["deviceId"] for each in openclaw.json("devices", "list")["paired"]]
    assert "openclaw-control-ui" in openclaw.answer("devices", "list")


@shows("devices", "`devices remove`, `devices revoke`")
@pytest.mark.parametrize("words", [("remove", "{id}"), ("revoke", "--device", "{id}", "--role", "operator")])
def test_a_device_is_logged_out(openclaw: OpenClaw, gateway: GatewayProcess, words: tuple[str, ...]) -> None:
    device = Device()
    token = device.log_in(gateway.url, gateway.token)["payload"]["auth"]["deviceToken"]
    assert device.log_in(gateway.url, token, by_device=True)["ok"]
    openclaw.answer("devices", *(word.format(id=device.id) for word in words))
    assert not device.log_in(gateway.url, token, by_device=True)["ok"]


@shows("approvals", "`approvals get`")
def test_approvals_are_shown(openclaw: OpenClaw) -> None:
    openclaw.answer("approvals", "get", "--gateway")


@shows("approvals", "`approvals pending`, `approvals resolve`")
@pytest.mark.parametrize(("decision", "state"), [("allow-once", "approved"), ("deny", "denied")])
def test_a_call_that_waits_is_listed_and_answered(
    openclaw: OpenClaw, gateway: GatewayProcess, decision: str, state: str
) -> None:
    run_id = let_ask(gateway, f"agent:main:{state}")
    assert ASKED in openclaw.answer("approvals", "pending")
    (waiting,) = openclaw.json("approvals", "pending")["approvals"]
    assert (waiting["sessionKey"], waiting["kind"]) == (f"agent:main:{state}", "plugin")
    assert " by device:" in openclaw.answer("approvals", "resolve", waiting["id"], decision)
    gateway.rest()
    (answered, *_) = gateway.call("approvals.list")["approvals"]
    assert (answered["runId"], answered["state"]) == (run_id, state)


@shows("skills", "`skills list`")
def test_skills_are_listed(openclaw: OpenClaw) -> None:
    openclaw.answer("skills", "list")


@shows("message", "`message send`")
def test_a_message_is_sent_to_a_chat(openclaw: OpenClaw, gateway: GatewayProcess) -> None:
    before = len(gateway.posted(0))
    openclaw.answer("message", "send", "--channel", CHANNEL, "--target", "42", "--message", "hello")
    assert gateway.posted(before + 1)[before:] == ["hello"]
