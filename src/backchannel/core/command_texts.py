"""What chat commands answer; what `/subagents` says is in `subagent_commands.py`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from backchannel.core.commands import COMMANDS, Standing, may_use
from backchannel.core.decisions import Decision
from backchannel.core.sessions import Session
from backchannel.core.spawn_texts import show_cost, show_count, show_duration, show_tokens


def help_text(standing: Standing) -> str:
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


def model_text(ref: str | None, agent_model: str | None) -> str:
    """Write what `/model` answers."""
    if ref is not None:
        return f"This session uses {ref} from its next run on."
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
    """None: nobody has spoken to it yet."""
    model: str | None = None
    """What its next run will use; None for an agent that is a function."""
    running_ms: int | None = None
    subagents: int = 0
    """Those at work, waiting, or not announced yet."""
    sending: Decision | None = None


def status_text(view: StatusView) -> str:
    """Write what `/status` answers."""
    lines = [f"Status: {_doing(view)}"]
    if view.model is not None:
        lines.append(f"Model: {view.model}")
    if view.session is not None:
        lines += [*_context(view.session), _used(view.session)]
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


def _context(session: Session) -> list[str]:
    """Tell how full the context was at the last model call; a new conversation has had none."""
    if session.total_tokens is None:
        return []
    window = f" of {show_count(session.context_tokens)}" if session.context_tokens else ""
    return [f"Context: {show_count(session.total_tokens)}{window} tokens"]


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
