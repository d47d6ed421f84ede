"""Chat commands, carried out in the unit that takes the message: what was asked once is done once."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from backchannel.core.command_texts import (
    StatusView,
    help_text,
    model_text,
    models_text,
    new_text,
    send_text,
    status_text,
    stop_text,
)
from backchannel.core.commands import Command, CommandName, CommandReply, Standing
from backchannel.core.decisions import Decision
from backchannel.core.exchange_values import Change
from backchannel.core.facts import SessionChanged
from backchannel.core.keys import SessionKey
from backchannel.core.sessions import Session
from backchannel.storage.transactions import barriers, idempotency, interruption, runs, sessions, spawns, subagents
from backchannel.storage.tx import Tx, required

_POLICIES = {"on": "allow", "off": "deny"}

Judge = Callable[[Session], Decision]
"""Tells what the send policy says of a session, as it is in the unit."""


class Asker(msgspec.Struct, frozen=True, kw_only=True):
    """Who wrote a command, and what the gateway knows of the session that rows do not tell."""

    standing: Standing
    agent_model: str | None = None
    """The model of the session's agent; None when it is a function."""
    judge: Judge | None = None
    at_webchat: bool = False
    """Whether it was written by `chat.send`, which is answered there."""


def carry_out(tx: Tx, command: Command, key: SessionKey, asker: Asker) -> str:
    """Do what a command asks of a session, and return what is answered. A model that it names was checked before."""
    session = sessions.find(tx, str(key))
    if session is not None and session.archived_at is not None:
        session = None
    match command.name:
        case CommandName.HELP:
            return help_text(asker.standing)
        case CommandName.STATUS:
            return status_text(_view(tx, session, asker))
        case CommandName.STOP:
            return _stop(tx, session)
        case CommandName.NEW | CommandName.RESET:
            if session is not None:
                reset(tx, key)
            return new_text(had_any=session is not None)
        case CommandName.SEND:
            _set(tx, key, "send_policy", _POLICIES.get(command.word or ""))
            return send_text(command.word, at_webchat=asker.at_webchat)
        case CommandName.MODEL if command.word == "list":
            return models_text(session.model if session else None, asker.agent_model, command.choices)
        case CommandName.MODEL:
            _set(tx, key, "model", command.argument)
            return model_text(command.argument, asker.agent_model)
        case CommandName.SUBAGENTS:
            return subagents.carry_out(tx, command, session)


def carry_out_once(
    tx: Tx,
    command: Command | CommandReply,
    key: SessionKey,
    standing: Standing,
    agent_model: str | None,
    *,
    judge: Judge | None = None,
    expected_session_id: str | None = None,
    idempotency_key: str | None = None,
    digest: str | None = None,
) -> str:
    """Do what a command of an operator asks, once for each idempotency key; returns what is answered.

    Raises:
        IdempotencyConflict: the key stands for something else.
        SessionIdReplaced: the session has another transcript by now.
    """

    def do() -> str:
        if (session := sessions.find(tx, str(key))) is not None:
            sessions.check_current(session, expected_session_id)
        if isinstance(command, CommandReply):
            return command.text
        asker = Asker(standing=standing, agent_model=agent_model, judge=judge, at_webchat=True)
        return carry_out(tx, command, key, asker)

    return idempotency.once(tx, idempotency_key, digest, do)


def _view(tx: Tx, session: Session | None, asker: Asker) -> StatusView:
    if session is None:
        return StatusView(model=asker.agent_model)
    run = None if session.running_run is None else runs.need(tx, session.running_run)
    (children,) = required(
        tx.one("SELECT count(*) FROM spawns WHERE requester_key = ? AND state <> 'done'", session.key)
    )
    return StatusView(
        session=session,
        model=asker.agent_model and (session.model or asker.agent_model),
        running_ms=None if run is None or run.started_at is None else max(0, tx.now - run.started_at),
        subagents=int(children),
        sending=None if asker.judge is None else asker.judge(session),
    )


def _stop(tx: Tx, session: Session | None) -> str:
    """Stop a session, and tell how much that was: what had been asked to stop before is not counted again."""
    if session is None:
        return stop_text(0, 0)
    own = interruption.count_runs(tx, session, Change.STOP)
    interruption.begin(tx, session, Change.STOP)
    stopped = spawns.cancel_children(tx, session.key, spawns.STOPPED)
    return stop_text(own, len({run.session_key for run in stopped if not run.abort_requested}))


def reset(tx: Tx, key: SessionKey) -> Session:
    """Start a new transcript, and ask the active run to stop."""
    interruption.begin(tx, sessions.need(tx, str(key)), Change.RESET)
    barriers.forget(tx, str(key))
    return sessions.reset(tx, str(key))


def delete(tx: Tx, key: SessionKey) -> Session:
    """Archive a session, now if it has nothing to do, else when all of that is ended; it accepts nothing meanwhile."""
    sessions.check_deletable(tx, key)
    session = sessions.update(tx, str(key), "deleting = 1")
    spawns.cancel_children(tx, session.key, spawns.DELETED)
    interruption.begin(tx, session, Change.DELETE)
    return sessions.required_session(tx, session.key)


def _set(tx: Tx, key: SessionKey, column: str, value: str | None) -> None:
    session = sessions.ensure(tx, key)
    sessions.update(tx, session.key, f"{column} = ?, updated_at = ?", value, tx.now)
    tx.tell(SessionChanged(session.key, "patch"))
