"""Chat commands: each runs once, in the unit that takes the message."""

from __future__ import annotations

from backchannel.core.commands.commands import Asker, Command, CommandName, CommandReply, Rank
from backchannel.core.commands.texts import (
    ALL,
    LISTED,
    LOGGED,
    ChildView,
    StatusView,
    compact_text,
    find_child,
    help_text,
    info_text,
    list_text,
    log_text,
    model_text,
    models_text,
    new_text,
    send_text,
    status_text,
    stop_text,
    stopped_all_text,
    stopped_text,
    undo_text,
    unknown_text,
)
from backchannel.core.facts import SessionChanged
from backchannel.core.flows.exchange_values import Change
from backchannel.core.flows.spawn_values import ChildSession, SpawnRecord, SpawnState
from backchannel.core.keys import SessionKey
from backchannel.core.policy.approvals import ApprovalDecided, answered_text
from backchannel.core.policy.pairing import PairingState, paired_text, waiting_text
from backchannel.core.policy.send_policy import Destination, SendPolicySettings, may_send
from backchannel.core.sessions import Session
from backchannel.errors import AmbiguousId, InvalidRequest, NotFound
from backchannel.storage.events import LaneMoved
from backchannel.storage.tx import LIVE, Tx, required
from backchannel.storage.units import approvals, compactions, idempotency, messages, pairing, runs, sessions
from backchannel.storage.units.flows import barriers, interruption, spawns
from backchannel.storage.views import families, shown

_MOST_WAITING = 200
_POLICIES = {"on": "allow", "off": "deny"}


def carry_out(tx: Tx, command: Command, key: SessionKey, asker: Asker) -> str:
    """Run a command on a session; returns the answer. A model that it names was checked before."""
    session = sessions.find(tx, str(key))
    if session is not None and session.archived_at is not None:
        session = None
    match command.name:
        case CommandName.HELP | CommandName.COMMANDS:
            return help_text(asker.standing)
        case CommandName.STATUS:
            return status_text(_view(tx, session, asker))
        case CommandName.STOP:
            return _stop(tx, session)
        case CommandName.NEW | CommandName.RESET:
            if session is not None:
                reset(tx, key)
            return new_text(had_any=session is not None)
        case CommandName.COMPACT:
            return _compact(tx, command, session, asker)
        case CommandName.SEND:
            _set(tx, key, "send_policy", _POLICIES.get(command.word or ""))
            return send_text(command.word, at_webchat=asker.at_webchat)
        case CommandName.MODEL if command.word == "list":
            return models_text(session.model if session else None, asker.agent_model, command.choices)
        case CommandName.MODEL:
            _set(tx, key, "model", command.argument)
            tx.happened(LaneMoved(str(key)))
            return model_text(command.argument, asker.agent_model, command.doubt)
        case CommandName.SUBAGENTS:
            return _subagents(tx, command, session)
        case CommandName.APPROVE:
            return _answer(tx, command, ApprovalDecided.APPROVE, asker)
        case CommandName.DENY:
            return _answer(tx, command, ApprovalDecided.DENY, asker)
        case CommandName.PAIRING:
            return _pairing(tx, command, asker)


def _compact(tx: Tx, command: Command, session: Session | None, asker: Asker) -> str:
    """Ask for a summary, or take the last one back."""
    if session is None:
        return compact_text(is_begun=False)
    if command.word == "undo":
        return undo_text(compactions.undo(tx, session.key, chat=asker.chat))
    return compact_text(is_begun=compactions.ask(tx, session, command.argument, asker.chat))


def _answer(tx: Tx, command: Command, decision: ApprovalDecided, asker: Asker) -> str:
    """Answer an approval by its id or the beginning of it."""
    always = command.word == "always"
    try:
        approval_id = approvals.choose(tx, command.argument or "", asker.by)
        approval = approvals.answer(tx, approval_id, decision, asker.by, always=always)
    except (NotFound, AmbiguousId, InvalidRequest) as error:
        return error.message
    return answered_text(approval, always=always)


def _pairing(tx: Tx, command: Command, asker: Asker) -> str:
    """List who waits for a pairing, or answer one by its code."""
    if command.argument is None:
        waiting = pairing.page(tx, state=PairingState.PENDING, channel=asker.by.channel, limit=_MOST_WAITING)
        return waiting_text(waiting, tx.now)
    state = PairingState.APPROVED if command.word == "approve" else PairingState.DENIED
    try:
        return paired_text(pairing.answer(tx, command.argument, state, asker.by))
    except (NotFound, InvalidRequest) as error:
        return error.message


def carry_out_once(
    tx: Tx,
    command: Command | CommandReply,
    key: SessionKey,
    standing: Rank,
    agent_model: str | None,
    *,
    policy: SendPolicySettings | None = None,
    expected_session_id: str | None = None,
    idempotency_key: str | None = None,
    digest: str | None = None,
) -> str:
    """Run an operator's command, once for each idempotency key; returns the answer.

    Raises:
        IdempotencyConflict: the key stands for something else.
        SessionIdReplaced: the session has another transcript by now, or none.
    """

    def do() -> str:
        if expected_session_id is not None:
            sessions.need(tx, str(key), expected_session_id)
        if isinstance(command, CommandReply):
            return command.text
        asker = Asker(
            standing=standing, agent_model=agent_model, policy=policy or SendPolicySettings(), at_webchat=True
        )
        return carry_out(tx, command, key, asker)

    return idempotency.once(tx, idempotency_key, digest, do)


def _view(tx: Tx, session: Session | None, asker: Asker) -> StatusView:
    if session is None:
        return StatusView(model=asker.agent_model)
    run = None if session.running_run is None else runs.need(tx, session.running_run)
    (children,) = required(
        tx.one("SELECT count(*) FROM spawns WHERE requester_key = ? AND state <> 'done'", session.key)
    )
    _, follows = shown.transcript_start(tx, session.session_id)
    destination = asker.destination or Destination.of_session(session, tx.scheme)
    return StatusView(
        session=session,
        model=asker.agent_model and (session.model or asker.agent_model),
        running_ms=None if run is None or run.at_work_since is None else max(0, tx.now - run.at_work_since),
        subagents=int(children),
        follows=follows,
        begun_ms=None if follows is None else max(0, tx.now - follows.ended_at),
        sending=may_send(asker.policy, destination, session.send_policy),
        compaction=compactions.current(tx, session.session_id),
        cached_share=shown.cached_share(tx, session.session_id),
    )


def _stop(tx: Tx, session: Session | None) -> str:
    """Stop a session; returns a text with the number of runs, without those that were stopped before."""
    if session is None:
        return stop_text(0, 0)
    own = interruption.count_runs(tx, session, Change.STOP)
    interruption.begin(tx, session, Change.STOP)
    stopped = spawns.cancel_children(tx, session.key, spawns.STOPPED)
    return stop_text(own, len({run.session_key for run in stopped if not run.abort_requested}))


def reset(tx: Tx, key: SessionKey, *, expected_session_id: str | None = None) -> Session:
    """Start a new transcript, and ask the active run to stop. A missing session is created.

    Raises:
        SessionIdReplaced: it has another transcript than the one expected, or none.
    """
    session = sessions.find(tx, str(key))
    if session is None or session.archived_at is not None:
        return sessions.ensure(tx, key, expected_session_id)
    sessions.check_current(tx, session.key, session, expected_session_id)
    interruption.begin(tx, session, Change.RESET)
    barriers.forget(tx, str(key))
    return sessions.reset(tx, str(key))


def delete(tx: Tx, key: SessionKey, *, expected_session_id: str | None = None) -> Session:
    """Archive a session: now if it is idle, else when its runs have ended. It accepts nothing meanwhile."""
    sessions.check_deletable(tx, key, expected_session_id)
    session = sessions.update(tx, str(key), "deleting = 1")
    spawns.cancel_children(tx, session.key, spawns.DELETED)
    interruption.begin(tx, session, Change.DELETE)
    return sessions.required_session(tx, session.key)


def _set(tx: Tx, key: SessionKey, column: str, value: str | None) -> None:
    session = sessions.ensure(tx, key)
    sessions.update(tx, session.key, f"{column} = ?, updated_at = ?", value, tx.now)
    tx.tell(SessionChanged(session.key, "patch"))


# `/subagents`: list a session's children, and stop one.


def _subagents(tx: Tx, command: Command, session: Session | None) -> str:
    """Run `/subagents`; returns the answer."""
    family = None if session is None else families.family(tx, session.key, LISTED)
    numbers = {} if session is None else _child_numbers(tx, session.key)
    children = (
        []
        if family is None
        else [_child_view(member, numbers[member.session.key], tx.now) for member in family.children]
    )
    children.sort(key=lambda child: child.number)
    if command.argument is None:
        return list_text(children, 0 if family is None else family.total - len(children))
    child = find_child(children, command.argument)
    if child is None and (command.word, command.argument.lower()) == ("stop", ALL):
        return stopped_all_text(sum(_stop_child(tx, str(each.key)) > 0 for each in children))
    if child is None:
        return unknown_text(command.argument, children)
    match command.word:
        case "info":
            return info_text(child)
        case "log":
            return _child_log(tx, child)
    return stopped_text(child, _stop_child(tx, str(child.key)))


def _child_log(tx: Tx, child: ChildView) -> str:
    session_id = sessions.required_session(tx, str(child.key)).session_id
    page = messages.history(tx, session_id, limit=LOGGED, before=None, after=None, with_tools=True)
    return log_text(child, page.messages)


def _stop_child(tx: Tx, key: str) -> int:
    """Abort the runs of a child. Its requester is told."""
    live = tx.all(f"SELECT id FROM runs WHERE session_key = ? AND {LIVE} ORDER BY position", key)
    return sum(len(runs.request_abort(tx, key, run_id)) for (run_id,) in live)


def _child_numbers(tx: Tx, key: str) -> dict[str, int]:
    """Number the children of a session in the order of their start, archived ones too."""
    return {child: number for number, child in enumerate(sessions.child_keys(tx, key), start=1)}


def _child_view(member: ChildSession, number: int, now: int) -> ChildView:
    child, story = member.session, member.story
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


def _doing(story: SpawnRecord) -> str:
    if story.spawn.state is SpawnState.ANNOUNCE:
        return "announcing"
    return story.run.state.value


def _runtime_ms(story: SpawnRecord, now: int) -> int | None:
    run = story.run
    if run.at_work_since is not None:
        return max(0, now - run.at_work_since)
    return None if run.started_at is None else run.ran_ms
