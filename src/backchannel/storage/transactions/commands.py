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
from backchannel.core.commands import Command, CommandName, Standing
from backchannel.core.decisions import Decision
from backchannel.core.exchange_values import Change
from backchannel.core.facts import SessionChanged
from backchannel.core.keys import KeyScheme, SessionKey
from backchannel.core.sessions import Session
from backchannel.storage.transactions import barriers, interruption, runs, sessions, spawns, subagents
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


def carry_out(tx: Tx, command: Command, key: SessionKey, scheme: KeyScheme, asker: Asker, now: int) -> str:
    """Do what a command asks of a session, and return what is answered. A model that it names was checked before."""
    session = sessions.find(tx, str(key))
    if session is not None and session.archived_at is not None:
        session = None
    match command.name:
        case CommandName.HELP:
            return help_text(asker.standing)
        case CommandName.STATUS:
            return status_text(_view(tx, session, asker, now))
        case CommandName.STOP:
            return _stop(tx, session, now)
        case CommandName.NEW | CommandName.RESET:
            if session is not None:
                reset(tx, session.key, now)
            return new_text(had_any=session is not None)
        case CommandName.SEND:
            _set(tx, key, scheme, "send_policy", _POLICIES.get(command.word or ""), now)
            return send_text(command.word, at_webchat=asker.at_webchat)
        case CommandName.MODEL if command.word == "list":
            return models_text(session.model if session else None, asker.agent_model, command.choices)
        case CommandName.MODEL:
            _set(tx, key, scheme, "model", command.argument, now)
            return model_text(command.argument, asker.agent_model)
        case CommandName.SUBAGENTS:
            return subagents.carry_out(tx, command, session, now)


def _view(tx: Tx, session: Session | None, asker: Asker, now: int) -> StatusView:
    if session is None:
        return StatusView(model=asker.agent_model)
    run = None if session.running_run is None else runs.need(tx, session.running_run)
    (children,) = required(
        tx.one("SELECT count(*) FROM spawns WHERE requester_key = ? AND state <> 'done'", session.key)
    )
    return StatusView(
        session=session,
        model=asker.agent_model and (session.model or asker.agent_model),
        running_ms=None if run is None or run.started_at is None else max(0, now - run.started_at),
        subagents=int(children),
        sending=None if asker.judge is None else asker.judge(session),
    )


def _stop(tx: Tx, session: Session | None, now: int) -> str:
    """Stop a session, and tell how much that was: what had been asked to stop before is not counted again."""
    if session is None:
        return stop_text(0, 0)
    own = interruption.count_runs(tx, session, Change.STOP)
    interruption.begin(tx, session, Change.STOP, now)
    stopped = spawns.cancel_children(tx, session.key, spawns.STOPPED, now)
    return stop_text(own, len({run.session_key for run in stopped if not run.abort_requested}))


def reset(tx: Tx, key: str, now: int) -> Session:
    """Start a new transcript, and ask the active run to stop."""
    interruption.begin(tx, sessions.need(tx, key), Change.RESET, now)
    barriers.forget(tx, key, now)
    return sessions.reset(tx, key, now)


def delete(tx: Tx, key: SessionKey, scheme: KeyScheme, now: int) -> Session:
    """Archive a session, now if it has nothing to do, else when all of that is ended; it accepts nothing meanwhile."""
    sessions.check_deletable(tx, key, scheme)
    session = sessions.update(tx, str(key), "deleting = 1")
    spawns.cancel_children(tx, session.key, spawns.DELETED, now)
    interruption.begin(tx, session, Change.DELETE, now)
    return sessions.required_session(tx, session.key)


def _set(tx: Tx, key: SessionKey, scheme: KeyScheme, column: str, value: str | None, now: int) -> None:
    session = sessions.ensure(tx, key, scheme, now)
    sessions.update(tx, session.key, f"{column} = ?, updated_at = ?", value, now)
    tx.tell(SessionChanged(session.key, "patch"))
