"""Sessions and runs as doors show them: what is not known is absent, never null."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec

from backchannel.core.caller_keys import CallerKeys
from backchannel.core.keys import Kind, SessionKey, row_channel
from backchannel.core.messages import Message, Usage
from backchannel.core.names import shown_name
from backchannel.core.runs import Run
from backchannel.core.sessions import Address, Session
from backchannel.errors import UnknownAgent, UnknownModel
from backchannel.tools.inputs import Answer, told
from backchannel.tools.parts import Parts

PREVIEW_CHARS = 240


class Row(Answer, frozen=True, kw_only=True):
    """A session, as lists show it."""

    key: Annotated[str, told("What other tools take to name it, as short as the caller can write it.")]
    kind: Annotated[str, told("`main`, `group`, `cron`, `hook`, `node` or `other`.")]
    channel: Annotated[str, told("Where it takes place, such as `telegram`; `internal` for cron, hooks and nodes.")]
    updated_at: Annotated[int, told("When it last changed, in milliseconds since 1970.")]
    session_id: Annotated[str, told("The transcript that it writes now; a reset starts another.")]
    agent_id: Annotated[str, told("Its agent.")]
    system_sent: Annotated[bool, told("Whether a run of this transcript has had its system prompt.")]
    aborted_last_run: Annotated[bool, told("Whether its last run was stopped.")]
    status: Annotated[str, told("`idle`, `queued` or `running`.")]
    label: Annotated[str | None, told("The name that it was given.")] = None
    display_name: Annotated[str | None, told("The name of the chat, where the channel gave one.")] = None
    model: Annotated[str | None, told("What the next run will use, as `provider/model`.")] = None
    model_provider: Annotated[str | None, told("The first part of it.")] = None
    context_tokens: Annotated[int | None, told("How much that model takes.")] = None
    total_tokens: Annotated[int | None, told("How much of it the last model call used, its reply included.")] = None
    thinking_level: Annotated[str | None, told("Set for this session by `sessions.patch`.")] = None
    verbose_level: Annotated[str | None, told("The same; `on` also tells the chat of each tool call.")] = None
    send_policy: Annotated[str | None, told("The session's own `allow` or `deny`.")] = None
    last_channel: Annotated[str | None, told("`deliveryContext.channel`.")] = None
    last_to: Annotated[str | None, told("`deliveryContext.to`.")] = None
    last_account_id: Annotated[str | None, told("`deliveryContext.accountId`.")] = None
    delivery_context: Annotated[Address | None, told("Its return address.")] = None
    transcript_path: Annotated[str | None, told("The JSONL file of the transcript.")] = None
    spawned_by: Annotated[str | None, told("Of a sub-agent: the session that started it.")] = None
    archived_at: Annotated[int | None, told("When it was archived; no list of the tools shows such a session.")] = None
    last_message_preview: Annotated[str | None, told("Only in `sessions.list`, when asked for.")] = None
    derived_title: Annotated[str | None, told("Only in `sessions.list`, when asked for.")] = None
    messages: Annotated[list[msgspec.Raw] | None, told("The last messages, with `messageLimit`.")] = None


class RunRow(Answer, frozen=True, kw_only=True):
    """A run, as doors show it."""

    run_id: str
    session_key: str
    kind: str
    status: str
    accepted_at: int
    step: int
    deliver: bool
    usage: Usage
    session_id: str | None = None
    started_at: int | None = None
    resume_at: int | None = None
    """Of one that is set aside after crashes: when it is tried again."""
    ended_at: int | None = None
    duration_ms: int | None = None
    message_id: str | None = None
    model: str | None = None
    thinking: str | None = None
    timeout_seconds: float | None = None
    abort_requested: bool = False
    error: str | None = None
    error_code: str | None = None
    reply: str | None = None
    exchange_id: str | None = None
    spawn_id: str | None = None


class ModelShown(Answer, frozen=True, kw_only=True):
    """A model, as rows and defaults name it."""

    model: str
    model_provider: str
    context_tokens: int | None = None


class Rows:
    """Turns sessions into rows, for the operator, who sees full keys, or for one session."""

    def __init__(self, parts: Parts, caller: SessionKey | None = None) -> None:
        self._parts = parts
        self._keys = CallerKeys(parts.scheme, caller)
        self._transcripts = str(parts.store.folder.agents) if parts.config.writes_transcript_files else None
        self._models: dict[str, ModelShown] = {}

    def key(self, stored: str) -> str:
        """Show a stored key as the caller would write it."""
        if self._keys.caller is None and not self._parts.scheme.global_scope:
            return stored
        return self._keys.show(SessionKey.stored(stored))

    def row(self, session: Session, **more: Any) -> Row:
        """Show a session."""
        address = session.address
        last_channel = address.channel if address else None
        model = self.model(session.model or self._agent_model(session.agent_id))
        return Row(
            key=self.key(session.key),
            kind=session.kind,
            channel=self._channel(session, last_channel),
            updated_at=session.updated_at,
            session_id=session.session_id,
            agent_id=session.agent_id,
            system_sent=session.system_sent,
            aborted_last_run=session.aborted_last_run,
            status=session.status.value,
            label=shown_name(session.label),
            display_name=shown_name(session.display_name),
            model=model.model if model else None,
            model_provider=model.model_provider if model else None,
            context_tokens=model.context_tokens if model else session.context_tokens,
            total_tokens=session.total_tokens,
            thinking_level=session.thinking_level,
            verbose_level=session.verbose_level,
            send_policy=session.send_policy,
            last_channel=last_channel,
            last_to=address.to if address else None,
            last_account_id=address.account_id if address else None,
            delivery_context=address,
            transcript_path=self._transcript_path(session),
            spawned_by=session.spawned_by and self.key(session.spawned_by),
            archived_at=session.archived_at,
            **more,
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

    @staticmethod
    def _channel(session: Session, last_channel: str | None) -> str:
        if session.kind == Kind.GROUP and session.channel is None:
            return row_channel(SessionKey.parse(session.key), Kind.GROUP, None, last_channel)
        return row_channel(_NO_KEY, Kind(session.kind), session.channel, last_channel)

    def _transcript_path(self, session: Session) -> str | None:
        if self._transcripts is None or session.archived_at is not None:
            return None
        return f"{self._transcripts}/{session.agent_id}/sessions/{session.session_id}.jsonl"

    def run(self, run: Run) -> RunRow:
        """Show a run."""
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
            resume_at=run.resume_at if run.is_set_aside else None,
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


_NO_KEY = SessionKey("main", ("main",))  # only a group's channel is ever read from its key


def duration_ms(run: Run) -> int | None:
    """Tell how long a run took from its start to its end, as people see it."""
    if run.started_at is None or run.ended_at is None:
        return None
    return run.ended_at - run.started_at


def preview(messages: Sequence[Message], max_chars: int = PREVIEW_CHARS) -> str | None:
    """Cut the newest text to one short line."""
    for message in reversed(messages):
        if text := one_line(message.text, max_chars):
            return text
    return None


def one_line(text: str, max_chars: int) -> str:
    """Bring a text to one line of at most `max_chars` characters."""
    line = " ".join(text[: max_chars * 8].split())
    return line if len(line) <= max_chars else line[: max_chars - 1] + "…"
