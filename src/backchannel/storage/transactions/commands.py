"""Chat commands, carried out in the unit that takes the message: what was asked once is done once."""

from __future__ import annotations

from backchannel.core import commands
from backchannel.core.commands import Command, CommandName, Standing
from backchannel.core.exchange_values import Change
from backchannel.core.facts import SessionChanged
from backchannel.core.keys import KeyScheme, SessionKey
from backchannel.core.runs import Run
from backchannel.core.sessions import Session
from backchannel.storage.transactions import exchanges, runs, sessions
from backchannel.storage.tx import LIVE, QUEUED, Tx

_POLICIES = {"on": "allow", "off": "deny"}


def carry_out(
    tx: Tx, command: Command, key: SessionKey, scheme: KeyScheme, standing: Standing, agent_model: str | None, now: int
) -> str:
    """Do what a command asks of a session, and return what is answered. A model that it names was checked before."""
    session = sessions.find(tx, str(key))
    if session is not None and session.archived_at is not None:
        session = None
    match command.name:
        case CommandName.HELP:
            return commands.help_text(standing)
        case CommandName.STATUS:
            return commands.status_text(session, (session and session.model) or agent_model)
        case CommandName.STOP:
            return commands.stop_text(len(stop(tx, session, now)) if session else 0)
        case CommandName.NEW | CommandName.RESET:
            if session is not None:
                reset(tx, session.key, now)
            return commands.new_text(had_any=session is not None)
        case CommandName.SEND:
            _set(tx, key, scheme, "send_policy", _POLICIES.get(command.word or ""), now)
            return commands.send_text(command.word)
        case CommandName.MODEL:
            _set(tx, key, scheme, "model", command.argument, now)
            return commands.model_text(command.argument)
        case CommandName.SUBAGENTS:
            return commands.later_text(command.name)


def stop(tx: Tx, session: Session, now: int) -> list[Run]:
    """Abort what runs in a session, the turns and wakes that wait there, and its sub-agents; people's messages stay."""
    interrupt(tx, session, Change.STOP, now)
    stopped = runs.request_abort(tx, session.key, None, now)
    waiting = tx.all(
        f"SELECT id FROM runs WHERE session_key = ? AND {QUEUED} AND kind IN ('turn', 'wake') ORDER BY position",
        session.key,
    )
    for (run_id,) in waiting:
        stopped += runs.request_abort(tx, session.key, run_id, now)
    for child in sessions.children(tx, session.key):
        if child.archived_at is None:
            live = tx.all(f"SELECT id FROM runs WHERE session_key = ? AND {LIVE}", child.key)
            for (run_id,) in live:
                stopped += runs.request_abort(tx, child.key, run_id, now)
    return stopped


def reset(tx: Tx, key: str, now: int) -> Session:
    """Start a new transcript, and ask the active run to stop."""
    interrupt(tx, sessions.need(tx, key), Change.RESET, now)
    runs.request_abort(tx, key, None, now)
    return sessions.reset(tx, key, now)


def interrupt(tx: Tx, session: Session, change: Change, now: int) -> None:
    """Shorten the exchanges that a session takes part in, before its runs are stopped."""
    exchanges.session_interrupted(tx, SessionKey.stored(session.key), change, session.running_run, now)


def _set(tx: Tx, key: SessionKey, scheme: KeyScheme, column: str, value: str | None, now: int) -> None:
    session = sessions.ensure(tx, key, scheme, now)
    sessions.update(tx, session.key, f"{column} = ?, updated_at = ?", value, now)
    tx.tell(SessionChanged(session.key, "patch"))
