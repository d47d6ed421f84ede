"""`backchannel budgets`: show what is spent, and begin a budget anew."""

from __future__ import annotations

from typing import Annotated, NamedTuple

import typer

from backchannel.cli import answers
from backchannel.cli.client import ask
from backchannel.cli.options import AsJson, default_list, options_of
from backchannel.cli.output import clock_time, say_or_json, show_json
from backchannel.cli.tables import RowTable

app = typer.Typer(help="Show what is spent, and begin a budget anew.", rich_markup_mode=None)

Name = Annotated[str, typer.Argument(metavar="NAME", help="The name of the budget.")]
_BAR = 20


class _Line(NamedTuple):
    budget: answers.BudgetListed
    subject: answers.BudgetSubject | None


@default_list(app)
def list_budgets(ctx: typer.Context, as_json: AsJson = False) -> None:
    """List the budgets with what is spent in their current windows. `budgets` alone does the same."""
    listed = ask(options_of(ctx), "budgets.list", answers.BudgetsListed)
    if as_json:
        show_json(listed)
        return
    _TABLE.of([line for budget in listed.budgets for line in _lines(budget)]).show()


def _lines(budget: answers.BudgetListed) -> list[_Line]:
    return [_Line(budget, subject) for subject in budget.subjects] or [_Line(budget, None)]


def _spent(line: _Line) -> str:
    return _amount(line.budget.unit, 0 if line.subject is None else line.subject.spent)


def _limit(line: _Line) -> float:
    return line.budget.limit if line.subject is None else line.subject.limit


def _bar(line: _Line) -> str:
    """Draw the share that is spent, and what calls under way hold."""
    subject, limit = line.subject, _limit(line)
    spent = 0 if subject is None else min(_BAR, round(subject.spent / limit * _BAR))
    held = 0 if subject is None else min(_BAR - spent, round(subject.reserved / limit * _BAR))
    share = 0 if subject is None else subject.spent / limit
    return f"{'█' * spent}{'▒' * held}{'░' * (_BAR - spent - held)} {share:.0%}"


def _amount(unit: str, value: float) -> str:
    return f"${value:,.2f}" if unit == "usd" else f"{value:,.0f} {unit.removesuffix('s') if value == 1 else unit}"


def _ends(line: _Line) -> str:
    return "" if line.budget.opens_at is None else clock_time(line.budget.opens_at)


_TABLE: RowTable[_Line] = RowTable(
    {
        "budget": lambda line: line.budget.name,
        "for": lambda line: (line.subject.subject if line.subject else "") or line.budget.scope,
        "per": lambda line: line.budget.per,
        "spent": _spent,
        "of": lambda line: _amount(line.budget.unit, _limit(line)),
        "": _bar,
        "until": _ends,
        "then": lambda line: "denied" if line.subject and line.subject.denied else line.budget.then,
    },
    empty="There are no budgets: set `budgets` in the configuration.",
)


@app.command()
def reset(ctx: typer.Context, name: Name, as_json: AsJson = False) -> None:
    """Begin the current windows of a budget anew. Calls under way still count."""
    answered = ask(options_of(ctx), "budgets.reset", answers.BudgetReset, name=name)
    say_or_json(f"The budget {name} begins anew.", answered, as_json=as_json)
