"""Sessions, runs and deliveries as doors show them: unknown fields are absent, never null."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from backchannel.core.caller_keys import CallerKeys
from backchannel.core.delivery.channels import DEFAULT_ACCOUNT
from backchannel.core.delivery.delivery import Delivery, Receipt
from backchannel.core.keys import Kind, SessionKey, row_channel
from backchannel.core.messages import Message
from backchannel.core.models.model_wait import read_wait
from backchannel.core.money.amounts import awaited_budget
from backchannel.core.policy.approvals import Approval
from backchannel.core.readable import text_for_people
from backchannel.core.runs import Run, RunState
from backchannel.core.sessions import WEBCHAT, Session, SessionStatus
from backchannel.core.text import ELLIPSIS, one_line, shown_name
from backchannel.errors import UnknownAgent, UnknownModel
from backchannel.openclaw.rows import SessionRow
from backchannel.openclaw.words import RUN_ENDS, session_kind
from backchannel.tools.base import Parts
from backchannel.wire.rows import (
    ApprovalRow,
    AwaitedByRun,
    DeliveryRow,
    ModelShown,
    PartRow,
    ReceiptRow,
    RetryRow,
    Row,
    RunRow,
)

PREVIEW_CHARS, TITLE_CHARS = 240, 64
_UNKNOWN = ModelShown()
_NO_RUNS: list[str] = []
_MOST_ENCODED = 2000
"""How many rows are kept as JSON: two of the longest lists, about 1 MB."""
_encode = msgspec.json.Encoder().encode


class _EncodedRow(NamedTuple):
    """A row as JSON, and all that it was made from."""

    session: Session
    model: str | None
    live: list[str]
    row: msgspec.Raw


class Rows:
    """Turns sessions into rows, for the operator, who sees full keys, or for one session."""

    def __init__(self, parts: Parts, caller: SessionKey | None = None) -> None:
        self._parts = parts
        self._keys = CallerKeys(parts.scheme, caller)
        self._transcripts = str(parts.store.folder.agents) if parts.config.writes_transcript_files else None
        self._models: dict[str, ModelShown] = {}
        self._encoded: dict[str, _EncodedRow] = {}

    def key(self, stored: str) -> str:
        """Show a stored key as the caller would write it."""
        if self._keys.caller is None and not self._parts.scheme.global_scope:
            return stored
        return self._keys.show(SessionKey.stored(stored))

    def row(self, session: Session, messages: list[msgspec.Raw] | None = None) -> Row:
        """Show a session as the tools do."""
        return Row(*self._fields(session), kind=session.kind, status=session.status.value, messages=messages)

    def session_row(
        self, session: Session, live: list[str], *, preview: str | None = None, title: str | None = None
    ) -> SessionRow:
        """Show a session as methods and events do, with what it has used in all: the operator's affair, no agent's.

        `live` are its runs that are not over.
        """
        status = session.status
        is_idle = status is SessionStatus.IDLE
        return SessionRow(
            *self._fields(session),
            kind=session_kind(session.kind, is_shared=self._is_shared(session)),
            classification=session.kind,
            created_at=session.created_at,
            has_active_run=not is_idle,
            active_run_ids=live,
            status=RUN_ENDS.get(session.last_state or "") if is_idle else status.value,
            archived=session.archived_at is not None,
            total_tokens_fresh=session.total_tokens is not None,
            input_tokens=session.tokens_in,
            output_tokens=session.tokens_out,
            estimated_cost_usd=session.cost,
            last_message_preview=preview,
            derived_title=title,
        )

    def encoded_rows(self, sessions: Iterable[Session], live: Mapping[str, list[str]]) -> list[msgspec.Raw]:
        """Encode the rows of a list.

        They are kept: a page asks for its list again and again, and most rows are as they were the last time.
        """
        models: dict[str, str | None] = {}
        found: list[msgspec.Raw] = []
        for session in sessions:
            key, agent_id = session.key, session.agent_id
            if agent_id not in models:
                models[agent_id] = self._agent_model(agent_id)
            model, runs = session.model or models[agent_id], live.get(key, _NO_RUNS)
            kept = self._encoded.get(key)
            if kept is None or kept.session != session or kept.model != model or kept.live != runs:
                if len(self._encoded) >= _MOST_ENCODED:
                    self._encoded.clear()
                row = msgspec.Raw(_encode(self.session_row(session, runs)))
                kept = self._encoded[key] = _EncodedRow(session, model, runs, row)
            found.append(kept.row)
        return found

    def _is_shared(self, session: Session) -> bool:
        """Whether all direct chats of its agent take place in it."""
        scheme = self._parts.scheme
        return scheme.global_scope and session.key == str(scheme.main(session.agent_id))

    def _fields(self, session: Session) -> tuple[Any, ...]:
        """Give what both rows have, in the order of `SessionFields`."""
        address = session.address
        channel, to, account = (address.channel, address.to, address.account_id) if address else (None, None, None)
        model = self.model(session.model or self._agent_model(session.agent_id)) or _UNKNOWN
        return (
            self.key(session.key),
            row_channel(session.key, session.kind, session.channel, channel),
            session.updated_at,
            session.session_id,
            session.agent_id,
            session.system_sent,
            session.aborted_last_run,
            shown_name(session.label),
            shown_name(session.display_name),
            model.model or None,
            model.model_provider or None,
            session.context_tokens if model is _UNKNOWN else model.context_tokens,
            session.total_tokens,
            session.thinking_level,
            session.verbose_level,
            session.send_policy,
            channel,
            to,
            account,
            address,
            self._transcript_path(session),
            session.spawned_by and self.key(session.spawned_by),
            session.archived_at,
        )

    def _agent_model(self, agent_id: str) -> str | None:
        agents = self._parts.agents
        if agents.is_function(agent_id):
            return None
        try:
            return agents.get(agent_id).model
        except UnknownAgent:
            return None

    def model(self, ref: str | None) -> ModelShown | None:
        """Show a model that is named `provider/model`."""
        if ref is None:
            return None
        shown = self._models.get(ref)
        if shown is None:
            shown = self._models[ref] = ModelShown(
                model=ref, model_provider=ref.partition("/")[0], context_tokens=self._window(ref)
            )
        return shown

    def _window(self, ref: str) -> int | None:
        try:
            return self._parts.models.get(ref).context_window
        except UnknownModel:
            return None

    def _transcript_path(self, session: Session) -> str | None:
        if self._transcripts is None or session.archived_at is not None:
            return None
        return f"{self._transcripts}/{session.agent_id}/sessions/{session.session_id}.jsonl"

    def waiting_for(self, run: Run, asking: Collection[str] = ()) -> str | None:
        """Tell what a run waits for that is neither at work nor at an end."""
        if run.is_finished:
            return None
        agents, agent_id = self._parts.agents, SessionKey.stored(run.session_key).agent
        if missing := agents.missing(agent_id):
            return missing.value
        if run.state is RunState.QUEUED and run.tried_at is None and not agents.is_here(agent_id):
            return "gateway"
        return "approval" if run.id in asking else None

    def _retry(self, run: Run) -> RetryRow | None:
        retried = None if run.is_finished else self._parts.retries.of(run.id)
        if retried is None:
            return None
        return RetryRow(
            attempt=retried.attempt, attempts=retried.attempts, error=retried.error, retry_at=retried.retry_at
        )

    def run(self, run: Run, asking: Collection[str] = ()) -> RunRow:
        """Show a run; `asking` are the runs that wait for a person's word."""
        return RunRow(
            run_id=run.id,
            session_key=self.key(run.session_key),
            kind=run.kind.value,
            status=run.state.value,
            accepted_at=run.accepted_at,
            step=run.step,
            deliver=run.deliver,
            usage=run.usage,
            session_id=run.session_id,
            started_at=run.started_at,
            at_work_since=run.at_work_since,
            resume_at=run.tried_at,
            waits_for=show_awaited(run),
            waiting_for=self.waiting_for(run, asking),
            retry=self._retry(run),
            ended_at=run.ended_at,
            duration_ms=duration_ms(run),
            message_id=run.message_id,
            model=run.answered_by or run.model,
            thinking=run.thinking,
            timeout_seconds=run.timeout_s,
            abort_requested=run.abort_requested,
            error=run.error,
            error_code=run.error_code,
            reply=run.reply,
            exchange_id=run.exchange_id,
            spawn_id=run.spawn_id,
        )


_UUID_END = re.compile(r"(?<=[0-9a-f]{8})-[0-9a-f]{4}-[0-9a-f-]{22}$")


def name_of(session: Session) -> str:
    """Call a session by its name, a main session by its agent, and any other by the shortest that says which it is."""
    if name := shown_name(session.label or session.display_name):
        return name
    if session.kind == Kind.MAIN:
        return session.agent_id
    return _UUID_END.sub(ELLIPSIS, ":".join(SessionKey.stored(session.key).path))


def duration_ms(run: Run) -> int | None:
    """Tell for how long a run that has ended was worked on: waits before another try do not count."""
    return None if run.started_at is None or run.ended_at is None else run.ran_ms


def preview(messages: Sequence[Message]) -> str | None:
    """Cut the newest text for people to one short line."""
    for message in reversed(messages):
        if message.compaction is None and (text := one_line(text_for_people(message), PREVIEW_CHARS)):
            return text
    return None


def title_of(session: Session, first: Message | None) -> str | None:
    """Call a session by its label, else by its name, else by what was said first in it."""
    if name := shown_name(session.label or session.display_name):
        return name
    return None if first is None else one_line(text_for_people(first), TITLE_CHARS) or None


def show_approval(approval: Approval, show_key: Callable[[str], str]) -> ApprovalRow:
    return ApprovalRow(
        id=approval.id,
        run_id=approval.run_id,
        session_key=show_key(approval.session_key),
        tool=approval.tool,
        args=msgspec.Raw(approval.arguments.encode()),
        state=approval.state.value,
        created_at=approval.created_at,
        answered_at=approval.answered_at,
        answered_by=approval.answered_by,
    )


def show_delivery(delivery: Delivery, show_key: Callable[[str], str]) -> DeliveryRow:
    """Show what a delivery's row says, as an event."""
    return DeliveryRow(**_shown(delivery, show_key))


def show_receipt(receipt: Receipt, show_key: Callable[[str], str]) -> ReceiptRow:
    """Show a delivery whole."""
    return ReceiptRow(
        **_shown(receipt.delivery, show_key),
        text=receipt.delivery.text,
        parts=[
            PartRow(
                n=part.n,
                state=part.state.value,
                message_id=part.message_id,
                attempts=part.attempts,
                error=part.error,
            )
            for part in receipt.parts
        ],
    )


def _shown(delivery: Delivery, show_key: Callable[[str], str]) -> dict[str, Any]:
    return {
        "id": delivery.id,
        "state": delivery.state.value,
        "session_key": show_key(delivery.session_key),
        "attempts": delivery.attempts,
        "created_at": delivery.created_at,
        "updated_at": delivery.updated_at,
        "exchange_id": delivery.exchange_id,
        "run_id": delivery.run_id,
        "channel": delivery.channel,
        "account_id": None if delivery.account_id == DEFAULT_ACCOUNT else delivery.account_id,
        "to": None if delivery.channel == WEBCHAT.channel else delivery.target,  # its chat is the session itself
        "thread_id": delivery.thread_id,
        "error": delivery.error,
        "due_at": delivery.due_at,
    }


def show_awaited(run: Run) -> AwaitedByRun | None:
    """Show the model or the budget that a run waits for."""
    wait = read_wait(run) if run.waits_for_model else None
    if wait is not None:
        return AwaitedByRun(kind="model", model=wait.model, error=wait.error, since=wait.since, tries=wait.tries)
    budget = awaited_budget(run.reserved) if run.state is RunState.RUNNING else None
    return None if budget is None else AwaitedByRun(kind="budget", budget=budget)
