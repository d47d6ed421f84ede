"""The required content of the answers to the calls of `test_calls.py`. An exit code of 0 does not prove it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

KEY = "agent:main:main"
MADE = "agent:main:made"

MUST: dict[str, dict[str, Any]] = {
    "agent": {"runId": "call-1", "status": "accepted"},
    "agent.wait": {"runId": "call-1", "status": "ok", "terminalReply.text": "You said: hello"},
    "chat.send": {"runId": "call-2", "status": "started"},
    "chat.history": {"sessionKey": KEY, "messages.*.content.*.text": "You said: hello"},
    "chat.startup": {
        "sessionKey": KEY,
        "messages.*.content.*.text": "You said: hello",
        "sessionInfo.key": KEY,
        "defaults.model": "stub/test",
    },
    "chat.inject": {"ok": True},
    "chat.abort": {"ok": True, "aborted": False},
    "sessions.list": {"sessions.*.key": KEY, "defaults.model": "stub/test"},
    "sessions.describe": {"session.key": KEY, "session.model": "stub/test"},
    "sessions.preview": {"previews.*.key": KEY, "previews.*.status": "ok", "previews.*.items.*.text": "a note"},
    "sessions.resolve": {"ok": True, "key": KEY},
    "sessions.get": {"messages.*.content.*.text": "You said: hello"},
    "sessions.compact": {"ok": True, "key": KEY, "compacted": False},
    "sessions.search": {"results.*.sessionKey": KEY, "results.*.role": "user"},
    "sessions.create": {"key": MADE, "entry.label": "made"},
    "sessions.send": {"runId": "call-3", "status": "started"},
    "sessions.abort": {"ok": True},
    "sessions.patch": {"entry.key": MADE, "entry.label": "renamed"},
    "sessions.reset": {"key": MADE, "entry.systemSent": False},
    "sessions.delete": {"key": MADE, "deleted": True},
    "sessions.subscribe": {"subscribed": True},
    "sessions.messages.subscribe": {"subscribed": True, "key": KEY},
    "sessions.messages.unsubscribe": {"subscribed": False, "key": KEY},
    "tools.invoke": {"ok": True, "result.sessions.*.key": KEY},
    "send": {"channel": "telegram", "to": "room", "text": "hello"},
    "message.action": {"channel": "telegram", "to": "room", "text": "hello"},
    "health": {"ok": True, "agents.*.agentId": "writer", "defaultAgentId": "main"},
    "status": {"status": "ok", "channels.*.name": "telegram", "agents.*": "writer"},
    "agents.list": {"defaultId": "main", "agents.*.id": "writer"},
    "agents.files.list": {"agentId": "main", "files": []},
    "agent.identity.get": {"agentId": "main"},
    "models.list": {"models.*.id": "test", "models.*.contextWindow": 100_000},
    "models.authStatus": {"providers.*.provider": "stub"},
    "commands.list": {"commands.*.name": "new", "commands.*.textAliases.*": "/new"},
    "chat.metadata": {"models.*.id": "test", "commands.*.name": "new"},
    "channels.status": {"channelOrder.*": "telegram", "channelAccounts.telegram.*.connected": True},
    "config.get": {"valid": True, "config.session.mainKey": "main"},
    "diagnostics.stability": {"capacity": 0, "events": []},
    "environments.list": {"environments": []},
    "exec.approval.list": {"": []},
    "exec.approval.grants.list": {"grants": []},
    "last-heartbeat": {"": None},
    "logs.tail": {"file": "memory"},
    "node.list": {"nodes": []},
    "node.pair.list": {"pending": [], "paired": []},
    "plugin.approval.list": {"": []},
    "openclaw.approval.list": {"": []},
    "approval.history": {"items": []},
    "plugins.list": {"plugins": [], "mutationAllowed": False},
    "plugins.uiDescriptors": {"ok": True, "descriptors": []},
    "progressCard.get": {"card": None},
    "projects.list": {"projects": []},
    "question.list": {"questions": []},
    "skills.status": {"skills": []},
    "sessions.branches.list": {"branches": []},
    "sessions.observer.visibility": {"ok": True},
    "skills.library.list": {"entries": []},
    "system-presence": {"*.mode": "gateway"},
    "talk.catalog": {"modes": [], "speech.ready": False},
    "tasks.list": {"tasks": []},
    "tools.catalog": {"groups.*.tools.*.id": "sessions_send"},
    "tools.effective": {"agentId": "main", "groups.*.tools.*.id": "sessions_send"},
    "update.status": {"updateAvailable": None},
    "usage.cost": {"days": 7, "totals.missingCostEntries": 0, "daily.*.input": 30},
    "usage.status": {"providers": []},
    "worktrees.list": {"worktrees": []},
    "artifacts.list": {"artifacts": []},
    "channels.pairing.list": {"requests": [], "limits.ttlMs": 3_600_000},
    "config.schema": {"schema.type": "object"},
    "exec.approvals.get": {"file.version": 1},
    "sessions.companion.state": {"exchanges": []},
    "sessions.usage": {"sessions.*.key": KEY, "totals.missingCostEntries": 0, "aggregates.byAgent.*.agentId": "main"},
    "sessions.usage.timeseries": {"points.*.cacheRead": 0},
    "sessions.usage.logs": {"logs": []},
    "skills.proposals.list": {"proposals": []},
    "skills.search": {"results": []},
    "system.info": {"cpuCount": os.cpu_count()},
    "wake": {"ok": True, "sessionKey": KEY},
    "cron.status": {"enabled": True, "jobs": 0},
    "wizard.start": {"done": True, "status": "error"},
    "device.pair.list": {"pending": [], "paired": []},
    "cron.add": {"name": "nightly", "payload.message": "look around", "schedule.everyMs": 3_600_000},
    "cron.list": {"jobs.*.name": "nightly"},
}
"""Of each method, what is where in its answer: `*` is any entry of a list, and no path the answer itself."""


def missing(answer: Any, must: dict[str, Any]) -> dict[str, Any]:
    """Tell what of it is not in an answer."""
    return {
        path: value for path, value in must.items() if value not in list(_at(answer, path.split(".") if path else []))
    }


def lacking(answer: Any, must: dict[str, Any]) -> set[str]:
    """Tell which fields an answer does not have at all: another gateway has other agents and sessions in them."""
    fields = {path.split(".")[0] for path in must} - {"", "*"}
    return fields - set(answer if isinstance(answer, dict) else ())


def _at(value: Any, path: list[str]) -> Iterator[Any]:
    """Find each value that is at the end of a path."""
    if not path:
        yield value
    elif path[0] == "*" and isinstance(value, list):
        for each in value:
            yield from _at(each, path[1:])
    elif isinstance(value, dict) and path[0] in value:
        yield from _at(value[path[0]], path[1:])
