"""Words of OpenClaw's gateway that its clients and its files have in common.

Its next version is a change here, in `jobs.py` and `rows.py` beside it, and in `gateway/openclaw/`.
"""

from __future__ import annotations

from backchannel.core.keys import Kind
from backchannel.core.runs import RunState

RUN_ENDS = {
    RunState.OK.value: "done",
    RunState.ERROR.value: "failed",
    RunState.TIMEOUT.value: "timeout",
    RunState.ABORTED.value: "killed",
}
"""How a run ended, by its state."""

UNKNOWN_ENDS = (RunState.ABORTED, RunState.TIMEOUT)
"""Ends of a run after which its clients go on waiting: they do not know the first, and read the second as the end of
the wait."""

PAIRING_SCOPE, APPROVALS_SCOPE = "operator.pairing", "operator.approvals"
"""The scopes of its clients for devices and approvals; here each is a part of the scope admin."""

NAMED_PER_AGENT = "per-sender"
"""The scope in answers, even if all direct chats share a session. With the scope `global`, its clients would write
`global` for every main session; here each agent has one, called `main`."""

DASHBOARD = "dashboard:"
"""The text between the agent and the UUID in the key of a session that its Control UI has made."""


def session_kind(kind: str, *, is_shared: bool) -> str:
    """Name the kind of a session. Which agent's main session it is, clients read from its key."""
    if kind == Kind.GROUP:
        return "group"
    return "global" if is_shared else "direct"
