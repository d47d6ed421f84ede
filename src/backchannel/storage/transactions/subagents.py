"""`/subagents`: what a person sees of a session's children, and stopping one."""

from __future__ import annotations

from backchannel.core.command_texts import (
    ALL,
    LISTED,
    LOGGED,
    ChildView,
    find_child,
    info_text,
    list_text,
    log_text,
    stopped_all_text,
    stopped_text,
    unknown_text,
)
from backchannel.core.commands import Command
from backchannel.core.keys import SessionKey
from backchannel.core.sessions import Session
from backchannel.core.spawn_values import State
from backchannel.storage.transactions import families, messages, runs, sessions
from backchannel.storage.transactions.families import Kin, SpawnStory
from backchannel.storage.tx import LIVE, Tx


def carry_out(tx: Tx, command: Command, session: Session | None) -> str:
    """Do what `/subagents` asks, and return what is answered."""
    family = None if session is None else families.family(tx, session.key, LISTED)
    numbers = {} if session is None else _numbers(tx, session.key)
    children = [] if family is None else [_view(kin, numbers[kin.session.key], tx.now) for kin in family.children]
    children.sort(key=lambda child: child.number)
    if command.argument is None:
        return list_text(children, 0 if family is None else family.total - len(children))
    child = find_child(children, command.argument)
    if child is None and (command.word, command.argument.lower()) == ("stop", ALL):
        return stopped_all_text(sum(_stop(tx, str(each.key)) > 0 for each in children))
    if child is None:
        return unknown_text(command.argument, children)
    match command.word:
        case "info":
            return info_text(child)
        case "log":
            return _log(tx, child)
    return stopped_text(child, _stop(tx, str(child.key)))


def _log(tx: Tx, child: ChildView) -> str:
    session_id = sessions.required_session(tx, str(child.key)).session_id
    page = messages.history(tx, session_id, limit=LOGGED, before=None, after=None, with_tools=True)
    return log_text(child, page.messages)


def _stop(tx: Tx, key: str) -> int:
    """Abort what a child does; its requester is told that it was aborted."""
    live = tx.all(f"SELECT id FROM runs WHERE session_key = ? AND {LIVE} ORDER BY position", key)
    return sum(len(runs.request_abort(tx, key, run_id)) for (run_id,) in live)


def _numbers(tx: Tx, key: str) -> dict[str, int]:
    """Number the children of a session in the order in which they were started, archived ones included."""
    return {child: number for number, child in enumerate(sessions.child_keys(tx, key), start=1)}


def _view(kin: Kin, number: int, now: int) -> ChildView:
    child, story = kin.session, kin.story
    return ChildView(
        number=number,
        key=SessionKey.stored(child.key),
        doing=child.status.value if story is None else _doing(story),
        label=child.label,
        task=None if story is None else story.spawn.task,
        model=None if story is None else story.run.answered_by,
        runtime_ms=None if story is None else _runtime_ms(story, now),
        tokens_in=child.tokens_in,
        tokens_out=child.tokens_out,
        cost=child.cost,
        receipt=None if story is None else story.delivery_state.value,
        is_archived=child.archived_at is not None,
    )


def _doing(story: SpawnStory) -> str:
    if story.spawn.state is State.ANNOUNCE:
        return "announcing"
    return story.run.state.value


def _runtime_ms(story: SpawnStory, now: int) -> int | None:
    run = story.run
    if run.started_at is None:
        return None
    return run.ran_ms if run.is_finished else max(0, now - run.started_at)
