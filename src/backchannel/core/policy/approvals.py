"""Approvals: the tool calls that need a person's permission, their records and texts.

The rules are the setting `tools.approval`. The first rule that matches a call decides whether a person is asked; a call
that no rule matches is carried out. `storage/units/approvals.py` writes the record before anybody is asked. The run
waits until the record is answered, so a crash loses neither the question nor the answer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import Annotated, Any, Literal

import msgspec

from backchannel.core.delivery.outgoing import Button
from backchannel.core.money.budgets import BUDGET_TOOL
from backchannel.core.secrets.redaction import redact_value_opening
from backchannel.core.settings import Settings, setting
from backchannel.core.text import cut, made_visible, matches

_SHOWN_ARGUMENTS = 1500
_NAME_LIMIT = 64


class ApprovalRuleSettings(Settings, frozen=True, kw_only=True):
    """One rule: which calls it is about, and whether they need a person's permission."""

    tool: Annotated[str, setting("The tools, as a name or a pattern with `*`.", min_length=1)]
    match: Annotated[
        str | None,
        setting(
            "Only calls with an argument, or a text in one, that matches this pattern; `*` is a wildcard. With "
            "`never`, all texts must match. Unset: all calls."
        ),
    ] = None
    ask: Annotated[
        Literal["always", "never"],
        setting("Whether such a call needs an approval. The first matching rule decides."),
    ]


class ApprovalState(StrEnum):
    """Where an approval is. It leaves `pending` once, and never changes after that."""

    PENDING = "pending"
    APPROVED = "approved"
    DENIED = "denied"
    EXPIRED = "expired"
    """Nobody answered in time, or the run ended first."""


class ApprovalDecided(StrEnum):
    """What a person decides about a call."""

    APPROVE = "approve"
    DENY = "deny"

    @property
    def state(self) -> ApprovalState:
        return ApprovalState.APPROVED if self is ApprovalDecided.APPROVE else ApprovalState.DENIED


class Approval(msgspec.Struct, frozen=True, array_like=True):
    """The record of one call that needs permission; the fields are the columns of its row."""

    id: str
    call_id: str
    run_id: str
    session_key: str
    tool: str
    arguments: str
    """JSON, as the model wrote it."""
    state: ApprovalState
    created_at: int
    answered_at: int | None = None
    answered_by: str | None = None
    number: int = 0
    channel: str | None = None
    """Where it was asked, so that its owners may answer; None is nowhere."""

    @property
    def is_pending(self) -> bool:
        return self.state is ApprovalState.PENDING

    @property
    def args(self) -> Any:
        return msgspec.json.decode(self.arguments)

    @property
    def is_about_budget(self) -> bool:
        """Whether more of a budget is asked for, and not a call."""
        return self.tool == BUDGET_TOOL and self.call_id.startswith(f"{BUDGET_TOOL}/") and "budget" in self.args


def asks(rules: Sequence[ApprovalRuleSettings], tool: str, arguments: Any) -> bool:
    """Whether a call needs a person's permission: the first rule that matches decides, and without one it does not."""
    for rule in rules:
        if matches(rule.tool, tool) and (rule.match is None or _fits(rule.match, rule.ask, arguments)):
            return rule.ask == "always"
    return False


def _fits(pattern: str, ask: str, arguments: Any) -> bool:
    """Whether a rule's pattern matches a call's arguments.

    To ask, one matching value is enough. To ask nobody, every text must match: otherwise a model could add an argument
    that the tool ignores, and so avoid the question.
    """
    values = list(_values(arguments))
    if ask == "never" and not all(matches(pattern, value) for value in values if isinstance(value, str)):
        return False
    return any(matches(pattern, _text(value)) for value in values)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _values(value: Any) -> Iterator[Any]:
    """Yield every value of the arguments that is not a container, at any depth."""
    waiting = [value]
    while waiting:
        match waiting.pop():
            case dict(entries):
                waiting.extend(entries.values())
            case list(items):
                waiting.extend(items)
            case single:
                yield single


def shown_arguments(approval: Approval, limit: int) -> str:
    """Write a call's arguments for people, cut to a length.

    Credentials are hidden before the text is cut, since half of one would not be recognised.
    """
    arguments = msgspec.json.encode(redact_value_opening(approval.args, limit)).decode()
    return cut(made_visible(cut(arguments, limit)), limit)


def ask_text(approval: Approval) -> str:
    """Write the question that an owner is asked in a chat."""
    return f"{_call_text(approval)}\n/approve {approval.id} lets it go ahead, /deny {approval.id} does not."


def ask_buttons(approval: Approval) -> tuple[Button, ...]:
    """Make the buttons under the question. A budget is granted once at a time."""
    once, no = Button("Approve", f"/approve {approval.id}"), Button("Deny", f"/deny {approval.id}")
    if approval.is_about_budget:
        return once, no
    return once, Button("Always", f"/approve {approval.id} always"), no


def question_name(approval: Approval) -> str:
    """Name the question of a call, for the deliveries that ask it."""
    return f"approval:{approval.id}"


def decided_text(approval: Approval) -> str:
    """Write what stands in the place of the question when it is decided."""
    return f"{_call_text(approval)}\n\n{decided_line(approval)}"


def decided_line(approval: Approval) -> str:
    """Write in one line what was decided, and by whom."""
    by = "" if approval.answered_by is None else f" by {made_visible(cut(approval.answered_by, _NAME_LIMIT))}"
    return f"{_asked(approval)} is {approval.state.value}{by}."


def _asked(approval: Approval) -> str:
    """Name what was asked for, at the beginning of a sentence."""
    if approval.is_about_budget:
        return f"More of the budget {_name(str(approval.args['budget']))}"
    return f"The call of {_name(approval.tool)}"


def _name(text: str) -> str:
    return made_visible(cut(" ".join(text.split()), _NAME_LIMIT))


def _call_text(approval: Approval) -> str:
    """Write what is asked for.

    A question that is cut says so, since the end of a long call may be what matters in it.
    """
    if approval.is_about_budget:
        return f"May I spend more of the budget {_name(str(approval.args['budget']))}?"
    shown = shown_arguments(approval, _SHOWN_ARGUMENTS)
    left_out = ""
    if len(shown) == _SHOWN_ARGUMENTS:
        left_out = f"\n(Only its beginning, of {len(approval.arguments)} characters: the page shows all of it.)"
    return f"May I call {_name(approval.tool)}?\n{shown}{left_out}"


def answered_text(approval: Approval, *, always: bool) -> str:
    """Write the confirmation for whoever answered."""
    later = f"; {approval.tool} is not asked for in this session again" if always else ""
    return f"{_asked(approval)} is {approval.state.value}{later}."


def refusal(approval: Approval) -> str:
    """Write the result that the model gets instead of the call's own, with what to do next."""
    if approval.state is ApprovalState.DENIED:
        return "The owner denied this call: it was not carried out. Do not repeat it; go on without it, or ask."
    return "Nobody allowed this call in time: it was not carried out."
