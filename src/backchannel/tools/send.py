"""`sessions_send`: a message to another session, and its reply."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, ClassVar

from msgspec import Meta

from backchannel.core.caller_keys import CallerKeys, RequestAddress
from backchannel.core.flows.exchange_values import Ask, ExchangeOpened
from backchannel.core.flows.flow import FlowRefused as NotOpened
from backchannel.core.keys import SessionKey, normalise_agent_id
from backchannel.core.policy.visibility import sees
from backchannel.core.runs import Run, RunState
from backchannel.errors import (
    AmbiguousLabel,
    BudgetExceeded,
    InvalidRequest,
    PolicyDenied,
    QueueFull,
    SessionIdReplaced,
    SessionNotFound,
    ShuttingDown,
    UnknownAgent,
)
from backchannel.tools.base import Caller, SessionTool, name_flow
from backchannel.tools.targets import RefusedAnswer, find_address
from backchannel.wire.shapes import Answer, Params

MOST_WAIT_S = 3600


class SessionsSendParams(Params, frozen=True, kw_only=True):
    message: Annotated[str, Meta(min_length=1, description="What to say. The other session sees who asks.")]
    session_key: Annotated[
        str | None, Meta(description="Which session: a `key` or `sessionId` from sessions_list, or `main`.")
    ] = None
    label: Annotated[str | None, Meta(description="Instead of sessionKey: the label of a session that you see.")] = None
    agent_id: Annotated[str | None, Meta(description="With label: only sessions of this agent.")] = None
    timeout_seconds: Annotated[
        float,
        Meta(ge=0, le=MOST_WAIT_S, description="How long to wait for the reply. 0 does not wait."),
    ] = 30


class SendResult(Answer, frozen=True, kw_only=True, omit_defaults=False):
    run_id: str
    status: str
    session_key: str


class SendAccepted(SendResult, frozen=True, kw_only=True):
    delivery: dict[str, str]


class SendReplied(SendAccepted, frozen=True, kw_only=True):
    reply: str


class NotYet(SendAccepted, frozen=True, kw_only=True):
    error: str


class SendFailed(SendResult, frozen=True, kw_only=True):
    error: str


_TEXT = {"type": "string"}


class SessionsSend(SessionTool):
    """Sends a message to a session."""

    name = "sessions_send"
    description = (
        "Send a message to another session and wait for its reply. `ok` has the reply; `timeout` means that the run "
        "still goes on: do not send again, read sessions_history later. Afterwards the two of you may go back and "
        "forth for a few turns, and the other session may tell its own chat; `delivery` is the receipt of that. "
        "With `timeoutSeconds` 0 it does not wait."
    )
    params = SessionsSendParams
    rules: ClassVar[Mapping[str, Any]] = {
        "oneOf": [
            {
                "required": ["sessionKey"],
                "properties": {"sessionKey": _TEXT, "label": {"type": "null"}, "agentId": {"type": "null"}},
            },
            {"required": ["label"], "properties": {"label": _TEXT, "sessionKey": {"type": "null"}}},
        ]
    }
    scope = "write"
    outcomes = (
        ("not waiting, or the gateway stops", '`{runId, status: "accepted", sessionKey, delivery}`'),
        ("finished in time", '`{runId, status: "ok", reply, sessionKey, delivery}`'),
        (
            "the wait ended first",
            '`{runId, status: "timeout", error, sessionKey, delivery}`: the run is queued or running, and goes on',
        ),
        ("the run failed, timed out or was stopped", '`{runId, status: "error", error, sessionKey}`'),
        (
            "bad target, send policy, circle, chain limit, full queue",
            '`{status: "error", error, sessionKey?}`; nothing happened',
        ),
        ("not allowed, or not visible", '`{status: "forbidden", error, sessionKey?}`; nothing happened'),
    )
    examples = (
        ("ask and wait", {"sessionKey": "agent:research:main", "message": "What did we learn today?"}),
        ("tell, and go on", {"label": "release notes", "message": "The build is green.", "timeoutSeconds": 0}),
    )

    async def run(self, caller: Caller, params: SessionsSendParams) -> SendResult | RefusedAnswer:
        if not params.message.strip():
            raise InvalidRequest(f"{self.name}: message: it is empty", param="message")
        opened = await self._repeated(caller) or await self._open(caller, params)
        if isinstance(opened, RefusedAnswer):
            return opened
        shown = self._shown(caller, opened.exchange.target.key)
        accepted = SendAccepted(run_id=opened.run.id, status="accepted", session_key=shown, delivery=_receipt(opened))
        if _wait_ms(params) == 0:
            return accepted
        try:
            return _outcome(await self._wait(opened, caller, params), shown)
        except ShuttingDown:
            if caller.until is None:
                raise
            return accepted  # whoever is told that it failed would send it twice

    async def _repeated(self, caller: Caller) -> ExchangeOpened | None:
        """Find what the same call has sent before a crash: whatever has changed since, it stays sent."""
        if caller.run_id is None or caller.call_id is None:
            return None
        return await self._parts.store.repeat_send(caller.call_id)

    async def _open(self, caller: Caller, params: SessionsSendParams) -> ExchangeOpened | RefusedAnswer:
        found = await self._target(caller, params)
        if isinstance(found, RefusedAnswer):
            return found
        shown = self._shown(caller, found.key)
        if found.key.agent not in self._parts.agents.ids():
            error = f"the agent {found.key.agent!r} is not configured: nobody would answer in session {shown!r}"
            return RefusedAnswer(status="error", error=error, session_key=shown)
        try:
            opened = await self._parts.store.open_exchange(
                self._ask(caller, found, params), self._parts.config.session.agent_to_agent, self._parts.guard.check
            )
        except (BudgetExceeded, PolicyDenied, QueueFull, SessionIdReplaced, SessionNotFound) as error:
            return RefusedAnswer(status="error", error=error.message, session_key=shown)
        if isinstance(opened, NotOpened):
            return RefusedAnswer(status="error", error=opened.decision.reason, session_key=shown)
        return opened

    async def _wait(self, opened: ExchangeOpened, caller: Caller, params: SessionsSendParams) -> ExchangeOpened:
        if caller.run_id is not None and caller.key is not None:
            return await self._parts.exchanges.wait_in_run(opened, caller.key, caller.run_id, params.timeout_seconds)
        waiting = self._parts.exchanges.wait(opened, params.timeout_seconds)
        return await (waiting if caller.until is None else caller.until(waiting))

    def _shown(self, caller: Caller, key: SessionKey) -> str:
        return CallerKeys(self._parts.scheme, caller.key).show(key)

    async def _target(self, caller: Caller, params: SessionsSendParams) -> RequestAddress | RefusedAnswer:
        if (params.session_key is None) == (params.label is None):
            raise InvalidRequest(f"{self.name}: give exactly one of sessionKey and label", param="sessionKey")
        if params.agent_id is not None and params.label is None:
            raise InvalidRequest(f"{self.name}: agentId: it needs label", param="agentId")
        if params.session_key is not None:
            return await find_address(self._parts, caller, params.session_key)
        return await self._labelled(caller, params.label or "", params.agent_id)

    async def _labelled(self, caller: Caller, label: str, agent_id: str | None) -> RequestAddress | RefusedAnswer:
        viewer = self._parts.viewer(caller)
        try:
            agent = None if agent_id is None else normalise_agent_id(agent_id)
        except UnknownAgent as error:
            return RefusedAnswer(status="error", error=error.message)
        sessions = await self._parts.store.sessions_labelled(label, agent)
        keys = [
            SessionKey.stored(session.key)
            for session in sessions
            if sees(viewer, SessionKey.stored(session.key), session.spawned_by).allowed
        ]
        try:
            return RequestAddress(CallerKeys(self._parts.scheme, caller.key).choose_label(label, keys))
        except (AmbiguousLabel, SessionNotFound) as error:
            return RefusedAnswer(status="error", error=error.message)

    def _ask(self, caller: Caller, at: RequestAddress, params: SessionsSendParams) -> Ask:
        return Ask(
            call=name_flow(caller, self.name, "primary", str(at.key), params.message),
            requester=caller.key,
            target=at.key,
            target_session_id=at.session_id,
            message=params.message,
            wait_ms=_wait_ms(params),
        )


def _wait_ms(params: SessionsSendParams) -> int:
    return int(params.timeout_seconds * 1000)


def _receipt(opened: ExchangeOpened) -> dict[str, str]:
    return {"id": opened.delivery_id, "status": opened.delivery_state, "mode": "announce"}


def _outcome(opened: ExchangeOpened, shown: str) -> SendResult:
    run = opened.run
    if opened.exchange.is_left or not run.is_finished:
        later = f"do not send the message again, and call sessions_history with sessionKey {shown!r} later"
        error = f"{_how_late(run)}; {later}"
        return NotYet(run_id=run.id, status="timeout", error=error, session_key=shown, delivery=_receipt(opened))
    if run.state is RunState.OK:
        delivery = _receipt(opened)
        return SendReplied(run_id=run.id, status="ok", reply=run.reply or "", session_key=shown, delivery=delivery)
    return SendFailed(run_id=run.id, status="error", error=_failure(run), session_key=shown)


def _how_late(run: Run) -> str:
    """Say where the run was when the wait ended; a call that is repeated after a crash may find it ended by now."""
    if run.is_finished:
        return "the run was still queued or running when the wait ended; its reply comes as a message of its own"
    if run.waits_for_model:
        return f"the run waits for its model, is tried again by {_utc(run.resume_at or 0)}, and goes on then"
    if run.is_set_aside:
        return f"the run was interrupted too often: it is set aside until {_utc(run.resume_at or 0)}, and goes on then"
    return f"the run is still {run.state} and goes on"


def _utc(at_ms: int) -> str:
    return f"{datetime.fromtimestamp(at_ms / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"


def _failure(run: Run) -> str:
    return f"the run ended as {run.state}: {run.error or 'no reason given'}"
