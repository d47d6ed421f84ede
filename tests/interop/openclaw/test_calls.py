"""`openclaw gateway call`, with each method that both gateways have."""

from __future__ import annotations

from typing import Any

import pytest

from tests.gateway.openclaw_scenario import JOB, PLAIN
from tests.web.gateways import GatewayProcess

from .answers import KEY, MUST, lacking, missing
from .conftest import CHANNEL, ELSEWHERE, OpenClaw, let_ask
from .rows import shows

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

CALLS: dict[str, dict[str, Any]] = {
    "agent": {"message": "hello", "sessionKey": KEY, "idempotencyKey": "call-1"},
    "agent.wait": {"runId": "call-1", "timeoutMs": 10_000},
    "chat.send": {"sessionKey": KEY, "message": "hello again", "idempotencyKey": "call-2"},
    "chat.history": {"sessionKey": KEY, "limit": 20},
    "chat.startup": {"sessionKey": KEY, "limit": 20, "maxBytes": 100_000},
    "chat.inject": {"sessionKey": KEY, "message": "a note", "label": "note"},
    "chat.abort": {"sessionKey": KEY, "preserveSideRuns": True},
    "sessions.list": {"limit": 10, "includeDerivedTitles": True, "archived": "all"},
    "sessions.describe": {"key": KEY},
    "sessions.preview": {"keys": [KEY], "limit": 3},
    "sessions.resolve": {"key": KEY},
    "sessions.get": {"key": KEY, "limit": 10},
    "sessions.compact": {"key": KEY},
    "sessions.search": {"query": "hello again", "limit": 25},
    "sessions.create": {"key": "agent:main:made", "label": "made"},
    "sessions.send": {"key": "agent:main:made", "message": "hello", "idempotencyKey": "call-3"},
    "sessions.abort": {"key": "agent:main:made"},
    "sessions.patch": {"key": "agent:main:made", "label": "renamed", "pinned": True},
    "sessions.reset": {"key": "agent:main:made"},
    "sessions.delete": {"key": "agent:main:made"},
    "sessions.subscribe": {},
    "sessions.messages.subscribe": {"key": KEY},
    "sessions.messages.unsubscribe": {"key": KEY},
    "tools.invoke": {"tool": "sessions_list", "args": {}},
    "send": {"channel": CHANNEL, "to": "room", "message": "hello", "idempotencyKey": "call-4"},
    "message.action": {
        "channel": CHANNEL,
        "action": "send",
        "params": {"to": "room", "message": "hello"},
        "idempotencyKey": "call-5",
    },
    **dict(PLAIN),
    "device.pair.list": {},
    "tools.effective": {"sessionKey": KEY},
    "sessions.usage.timeseries": {"key": KEY},
    "sessions.usage.logs": {"key": KEY},
    "cron.add": {**JOB, "agentId": "main"},
    "cron.list": {"includeDisabled": True, "limit": 50, "offset": 0},
}
BY_JOB: dict[str, dict[str, Any]] = {
    "cron.get": {"name": "by its id", "enabled": True},
    "cron.update": {"name": "by its id", "enabled": False},
    "cron.run": {"ok": True},
    "cron.runs": {"entries.*.action": "finished"},
    "cron.remove": {"ok": True, "removed": True},
}
"""These name a job, whose id is not known before it is made; beside each, what must be in its answer."""
BY_APPROVAL = ("approval.get", "approval.resolve", "plugin.approval.resolve")
"""And these a call that waits."""
BY_DEVICE = ("device.pair.remove", "device.token.revoke")
"""And these a device, which only a page is: `test_cli.py` makes one, and calls both by `devices`."""
BY_NODE = (
    "node.describe",
    "node.event",
    "node.pluginTools.update",
    "node.runnerInventory.update",
    "node.skills.update",
)
"""And these name a node, or are its alone: `test_node.py` runs one."""
BY_PAIRING = ("channels.pairing.approve", "channels.pairing.dismiss")
"""And these a stranger who waits: `tests/gateway/test_pairing.py` has one."""
EVERY = {*CALLS, *BY_JOB, *BY_APPROVAL, *BY_DEVICE, *BY_NODE, *BY_PAIRING}


@shows("gateway call", "every method that both gateways have")
@pytest.mark.parametrize("method", list(CALLS))
def test_a_method_answers_what_the_command_asks(openclaw: OpenClaw, method: str) -> None:
    answer = openclaw.call(method, CALLS[method])
    assert not (lacking if ELSEWHERE else missing)(answer, MUST[method]), answer


@shows("gateway call", "every method that both gateways have")
def test_a_job_is_shown_changed_run_and_removed_by_its_id(openclaw: OpenClaw, gateway: GatewayProcess) -> None:
    id = openclaw.call("cron.add", {**JOB, "agentId": "main", "name": "by its id"})["id"]
    patch = {"patch": {"enabled": False}}
    for method, must in BY_JOB.items():
        answer = openclaw.call(method, {"id": id, **(patch if method == "cron.update" else {})})
        assert not missing(answer, must), answer
        gateway.rest()
    assert all(job["id"] != id for job in openclaw.call("cron.list", {"includeDisabled": True})["jobs"])


@shows("gateway call", "every method that both gateways have")
@pytest.mark.parametrize("method", ["approval.resolve", "plugin.approval.resolve"])
def test_a_call_that_waits_is_shown_and_answered_by_its_id(
    openclaw: OpenClaw, gateway: GatewayProcess, method: str
) -> None:
    let_ask(gateway, KEY)
    (waiting,) = openclaw.call("plugin.approval.list", {})
    assert openclaw.call("approval.get", {"id": waiting["id"]})["approval"]["status"] == "pending"
    openclaw.call(method, {"id": waiting["id"], "decision": "deny", "kind": "plugin"})
    assert openclaw.call("approval.get", {"id": waiting["id"]})["approval"]["status"] == "denied"
    gateway.rest()
