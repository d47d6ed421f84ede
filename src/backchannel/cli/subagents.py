"""Sub-agents as people read them: what one does, for how long, and what became of its result.

A row of a sub-agent has `spawn`, as `session_status` tells it; other sessions have none.
"""

from __future__ import annotations

import re
import time

from backchannel.cli.client import Payload
from backchannel.cli.output import Long, one_line
from backchannel.cli.sessions import name_of, status_of

SHORT_NAME = 24
SETTLED = ("sent", "skipped", "no_channel", "suppressed", "cancelled", "dropped")
"""The states of a receipt that nothing changes any more."""

_UUID = re.compile(r"([0-9a-f]{8})-[0-9a-f-]{27}$")


def state_of(session: Payload) -> str:
    """Tell what a session does; of a sub-agent that is done, how its run ended."""
    spawn = session.get("spawn")
    if spawn is None or "archivedAt" in session:
        return status_of(session)
    if spawn["state"] == "announce":
        return "announcing"
    if "resumeAt" in spawn:
        return f"until {time.strftime('%H:%M', time.localtime(spawn['resumeAt'] / 1000))}"
    is_busy = session["status"] != "idle"  # with its task, or later with what somebody asks it
    return str(session["status"] if spawn["state"] == "done" and is_busy else spawn["runStatus"])


def runtime_of(session: Payload, now_ms: int) -> str:
    """Tell how long a sub-agent took, or has been at work so far."""
    from backchannel.core.spawn_texts import show_duration

    spawn = session.get("spawn", {})
    if "runtimeMs" in spawn:
        return show_duration(spawn["runtimeMs"])
    return show_duration(max(0, now_ms - spawn["startedAt"])) if "startedAt" in spawn else ""


def receipt_of(session: Payload) -> str:
    """Tell what became of a sub-agent's result; nothing while there is none."""
    spawn = session.get("spawn")
    return str(spawn["receipt"]["state"]) if spawn is not None and spawn["state"] == "done" else ""


def is_open(session: Payload) -> bool:
    """Whether more is to be heard of a session soon."""
    spawn = session.get("spawn")
    if session["status"] != "idle":
        return True
    return spawn is not None and (spawn["state"] != "done" or spawn["receipt"]["state"] not in SETTLED)


def title_of(session: Payload) -> str | None:
    """What a session is called: its name, or of a sub-agent without one its task."""
    return name_of(session) or session.get("spawn", {}).get("task")


def short_title(title: str | None) -> Long | None:
    """Give a title a short form."""
    if title is None:
        return None
    return Long(" ".join(title.split()), one_line(title, SHORT_NAME))


def short_key(session: Payload) -> str:
    """Cut the key of a sub-agent to what tells it from its neighbours."""
    key: str = session["key"]
    home = f"agent:{session['agentId']}:"
    is_at_home = session.get("spawnedBy", "").startswith(home)
    return _UUID.sub(r"\1…", key.removeprefix(home) if is_at_home else key)
