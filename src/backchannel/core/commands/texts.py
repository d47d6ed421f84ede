"""Answers of chat commands.

`/subagents` names a child by its number, its label, its key, or the beginning of its id. Children are numbered in the
order in which they started, so a number keeps its meaning when more children start.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from backchannel.core.commands.commands import COMMANDS, Rank, may_use
from backchannel.core.compaction.entry import compaction_line
from backchannel.core.compaction.values import CompactionState, SummaryUndone
from backchannel.core.excerpts import reading_text
from backchannel.core.flows.spawn_texts import show_cost, show_count, show_duration, show_tokens
from backchannel.core.headers import quote_name
from backchannel.core.keys import SessionKey
from backchannel.core.messages import Block, CompactionEntry, Message, TextBlock, ThinkingBlock, ToolCallBlock
from backchannel.core.policy.decisions import Decision
from backchannel.core.secrets.redaction import redact_opening, redact_value_opening
from backchannel.core.sessions import EndedTranscript, Session
from backchannel.core.text import cut

ALL = "all"
"""Names every child, for `/subagents stop`."""
LISTED = 50
LOGGED = 10
_ID_SHOWN = 8
_ID_BEGINS = 4
"""So much of an id names a child at least."""
_LINE_LIMIT = 300
_LOOKED_AT = 4000
"""How much of a text is looked at for its line; white space at its beginning is none of it."""


def help_text(standing: Rank) -> str:
    """Write what `/help` answers: the commands that the asker may use."""
    return "\n".join(f"{spec.usage}: {spec.summary}" for spec in COMMANDS if may_use(spec, standing).allowed)


def stop_text(runs: int, subagents: int) -> str:
    """Write what `/stop` answers, from how many of the session's own runs and how many sub-agents it stopped."""
    stopped = [_several(runs, "run")] if runs else []
    stopped += [_several(subagents, "sub-agent")] if subagents else []
    return f"Stopped {' and '.join(stopped)}." if stopped else "Nothing is running here."


def new_text(*, had_any: bool) -> str:
    """Write what `/new` and `/reset` answer."""
    return "Started a new conversation; the old one is kept." if had_any else "This conversation is new already."


def compact_text(*, is_begun: bool) -> str:
    """Write what `/compact` answers."""
    if not is_begun:
        return "This conversation is short: there is nothing to summarise."
    return (
        "The older part of this conversation is being summarised. The summary is shown in the conversation when it is "
        "there; /compact undo takes it back."
    )


def no_summary_text(reason: str | None) -> str:
    """Write what a chat is told if no summary was made. Without a reason it hides a provider's error."""
    return (
        "Sorry, no summary was made. The operator can see why." if reason is None else f"No summary was made: {reason}."
    )


def undo_text(undone: SummaryUndone) -> str:
    """Write what `/compact undo` answers."""
    if undone.state is CompactionState.BUSY:
        return "The last summary is taken back when the run has ended."
    if undone.entry is None:
        return "There is no summary to take back."
    return f"Took back the summary of {_several(undone.entry.messages, 'message')}: the model sees them again."


def send_text(word: str | None, *, at_webchat: bool = False) -> str:
    """Write what `/send on|off|inherit` answers: what happens from now on where it was typed."""
    match word:
        case "on":
            return "From now on what this session says goes out, whatever the rules say."
        case "off" if at_webchat:
            return (
                "From now on messages from here are refused until /send on; those from chats are kept, not answered, "
                "and what this session says is held back."
            )
        case "off":
            return "From now on what this session says is held back, and messages to it are kept, not answered."
    return "From now on this session follows the rules of the gateway."


def model_text(ref: str | None, agent_model: str | None, doubt: str | None = None) -> str:
    """Write what `/model` answers, with what the gateway could not make sure of."""
    if ref is not None:
        return f"This session uses {ref} from its next run on.{f' {doubt}' if doubt else ''}"
    return f"This session uses its agent's own model again{f', {agent_model}' if agent_model else ''}."


def models_text(ref: str | None, agent_model: str | None, choices: Sequence[str]) -> str:
    """Write what `/model` alone answers."""
    if agent_model is None:
        return "The agent of this session is a function and asks no model."
    own = f" (the agent's own is {agent_model})" if ref and ref != agent_model else ""
    how = "Choose another with `/model <provider>/<model>`, of any provider that has a key"
    known = [f"- {choice}" for choice in choices]
    used = f"This session uses {ref or agent_model}{own}."
    return "\n".join([used, f"{how}; known here:" if known else f"{how}.", *known])


@dataclass(frozen=True, slots=True)
class StatusView:
    """What `/status` tells of a session."""

    session: Session | None = None
    """None: it has had no message yet."""
    model: str | None = None
    """What its next run will use; None for an agent that is a function."""
    running_ms: int | None = None
    subagents: int = 0
    """Those at work, waiting, or not announced yet."""
    sending: Decision | None = None
    follows: EndedTranscript | None = None
    """The transcript before the session's own, if a reset ended it."""
    begun_ms: int | None = None
    """How long ago that was."""
    compaction: CompactionEntry | None = None
    """The summary that stands for the older part."""
    cached_share: float | None = None
    """The part of the last request that was read from the provider's cache."""


def status_text(view: StatusView) -> str:
    """Write what `/status` answers."""
    lines = [f"Status: {_doing(view)}"]
    if view.model is not None:
        lines.append(f"Model: {view.model}")
    if view.session is not None:
        lines += [*_begun(view), *_context(view.session), *_cached(view.cached_share), _used(view.session)]
    if view.compaction is not None:
        lines.append(f"Summary: {compaction_line(view.compaction)}")
    if view.subagents:
        lines.append(f"Sub-agents: {view.subagents} at work")
    if view.session is not None and view.sending is not None:
        lines.append(f"Sending: {_sending(view.session, view.sending)}")
    return "\n".join(lines)


def _doing(view: StatusView) -> str:
    if view.session is None:
        return "idle"
    doing = view.session.status.value
    if view.running_ms is not None:
        doing += f" for {show_duration(view.running_ms)}"
    return doing + (f", {_several(view.session.queued, 'message')} waiting" if view.session.queued else "")


_BEGUN = {"daily": "for a new day", "idle": "after a pause"}


def _begun(view: StatusView) -> list[str]:
    """Tell when and why the conversation began anew."""
    if view.follows is None or view.begun_ms is None:
        return []
    return [f"Began anew: {show_duration(view.begun_ms)} ago, {_BEGUN.get(view.follows.reason, 'by a reset')}"]


def _context(session: Session) -> list[str]:
    """Tell how full the context was at the last model call; a new conversation has had none."""
    if session.total_tokens is None:
        return []
    window = f" of {show_count(session.context_tokens)}" if session.context_tokens else ""
    return [f"Context: {show_count(session.total_tokens)}{window} tokens"]


def _cached(share: float | None) -> list[str]:
    return [] if share is None else [f"Cache: {share:.0%} of the last request was read from it"]


def _used(session: Session) -> str:
    cost = f", {show_cost(session.cost)}" if session.cost is not None else ""
    has_any = session.tokens_in or session.tokens_out
    return f"Tokens: {show_tokens(session.tokens_in, session.tokens_out) if has_any else 'none yet'}{cost}"


def _sending(session: Session, decision: Decision) -> str:
    if session.send_policy is not None:
        return f"{'on' if decision.allowed else 'off'}, set for this session"
    return "on" if decision.allowed else f"off: {decision.reason}"


def _several(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


class ChildView(msgspec.Struct, frozen=True, kw_only=True):
    """What `/subagents` shows of a child."""

    number: int
    key: SessionKey
    doing: str
    """Such as `running`, `ok` or `error`."""
    label: str | None = None
    task: str | None = None
    model: str | None = None
    runtime_ms: int | None = None
    tokens_in: int = 0
    tokens_out: int = 0
    cost: float | None = None
    receipt: str | None = None
    is_archived: bool = False

    @property
    def id(self) -> str:
        return self.key.path[-1]

    @property
    def name(self) -> str:
        """Its label, or the first words of its task."""
        if self.label:
            return quote_name(self.label)
        return self.shown_task or self.id[:_ID_SHOWN]

    @property
    def shown_task(self) -> str:
        """The first words of its task, in quotes, without what looks like a credential."""
        return quote_name(redact_opening(self.task, _LOOKED_AT)[0]) if self.task else ""


def find_child(children: Sequence[ChildView], written: str) -> ChildView | None:
    """Find the child that a text names; None when it fits none, or several."""
    name = written.strip('"').lower()  # a list shows labels in quotes
    ways = (
        [child for child in children if written == str(child.number)],
        [child for child in children if written in (child.label, str(child.key), child.id)],
        [child for child in children if name == (child.label or "").lower()],
        [child for child in children if name == child.name.strip('"').lower()],
        [child for child in children if len(name) >= _ID_BEGINS and child.id.startswith(name)],
    )
    found = next((way for way in ways if way), [])
    return found[0] if len(found) == 1 else None


def list_text(children: Sequence[ChildView], left_out: int) -> str:
    """Write what `/subagents list` answers."""
    if not children:
        return "This session has started no sub-agents."
    lines = [f"{child.number}. {_line(child)}" for child in children]
    return "\n".join([*lines, *([f"({left_out} older ones are not shown)"] if left_out else [])])


def _line(child: ChildView) -> str:
    facts = [child.doing]
    if child.runtime_ms is not None:
        facts.append(show_duration(child.runtime_ms))
    if child.receipt is not None and child.receipt != "pending":
        facts.append(child.receipt)
    if child.is_archived:
        facts.append("archived")
    task = f": {child.shown_task}" if child.label and child.task else ""
    return f"{child.name}, {', '.join(facts)}{task}"


def info_text(child: ChildView) -> str:
    """Write what `/subagents info` answers."""
    facts = [
        f"Sub-agent {child.name}: {child.doing}{', archived' if child.is_archived else ''}",
        f"Task: {_short(redact_opening(child.task, _LOOKED_AT)[0])}" if child.task else None,
        f"Model: {child.model}" if child.model else None,
        f"Runtime: {show_duration(child.runtime_ms)}" if child.runtime_ms is not None else None,
        f"Tokens: {show_tokens(child.tokens_in, child.tokens_out)}",
        f"Cost: {show_cost(child.cost)}" if child.cost is not None else None,
        f"Result: {child.receipt}" if child.receipt else None,
        f"Session: {child.key}",
    ]
    return "\n".join(fact for fact in facts if fact)


def log_text(child: ChildView, messages: Sequence[Message]) -> str:
    """Write what `/subagents log` answers: the child's last messages, without what looks like a credential."""
    lines = [f"{message.role}: {_short(said)}" for message in messages if (said := _said(message))]
    return "\n".join(lines) or f"Sub-agent {child.name} has written nothing yet."


def _said(message: Message) -> str:
    """Give what a person reads of a message's beginning; thoughts are left out."""
    content = tuple(_opening(block) for block in message.content[:_LINE_LIMIT] if not isinstance(block, ThinkingBlock))
    return reading_text(msgspec.structs.replace(message, content=content))


def _opening(block: Block) -> Block:
    match block:
        case TextBlock():
            return TextBlock(text=redact_opening(block.text, _LOOKED_AT)[0])
        case ToolCallBlock():
            return msgspec.structs.replace(block, arguments=redact_value_opening(block.arguments, _LINE_LIMIT))
    return block


def unknown_text(written: str, children: Sequence[ChildView]) -> str:
    """Write the answer for a name that fits no child."""
    if not children:
        return list_text(children, 0)
    return (
        f"No sub-agent here is {quote_name(written)}: name it by its number in `/subagents list`, its label or its id."
    )


def stopped_text(child: ChildView, runs: int) -> str:
    """Write what `/subagents stop` answers."""
    return f"Stopped sub-agent {child.name}." if runs else f"Sub-agent {child.name} is not running."


def stopped_all_text(count: int) -> str:
    """Write what `/subagents stop all` answers."""
    return f"Stopped {count} sub-agent{'' if count == 1 else 's'}." if count else "No sub-agent is running here."


def _short(text: str) -> str:
    return cut(" ".join(text.split()), _LINE_LIMIT)
