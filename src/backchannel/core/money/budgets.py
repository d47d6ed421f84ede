"""Budgets: limits on dollars, tokens or runs, for a scope and a window of time.

Each model call counts in all budgets that match it. Its most possible cost is reserved before the call, and what it
really cost is counted with the reply. So no number of parallel runs passes a limit. `storage/units/money/` keeps the
ledger; the rules are here.

What follows from a call that does not fit (`decide`):

- `wait`: it would fit if the calls of others that are under way came to nothing. It waits for them.
- `ask`: owners are asked, once for each window and grant. Their approval grants the same amount again.
- `stop`: the run ends as `error`. New messages are refused while nothing is left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from typing import Annotated, Literal, NamedTuple, TypeAlias

import msgspec

from backchannel.core.money.amounts import Amount
from backchannel.core.money.quotes import Quotes
from backchannel.core.settings import AtLeastOne, Settings, setting

BUDGET_TOOL = "budget"
"""The name that stands in a question about a budget in the place of a tool's."""
DEFAULT_WARN_AT = 0.8

BudgetUnit: TypeAlias = Literal["usd", "tokens", "runs"]
Dollars: TypeAlias = Annotated[float, msgspec.Meta(gt=0)]
Share: TypeAlias = Annotated[float, msgspec.Meta(gt=0, le=1)]


class BudgetScope(StrEnum):
    """For what a budget counts: each subject has an amount of its own."""

    GATEWAY = "gateway"
    AGENT = "agent"
    SESSION = "session"
    CHAIN = "chain"
    SENDER = "sender"


class BudgetPeriod(StrEnum):
    """For how long an amount counts."""

    HOUR = "hour"
    DAY = "day"
    MONTH = "month"
    TOTAL = "total"


class BudgetThen(StrEnum):
    """What follows when a call does not fit."""

    ASK = "ask"
    STOP = "stop"
    WARN = "warn"


class BudgetMatchSettings(Settings, frozen=True, kw_only=True):
    """Which calls count; all given must match, none is everything."""

    agent_id: Annotated[str | None, setting("The agent.")] = None
    channel: Annotated[str | None, setting("The channel of the session, or of its return address.")] = None
    key_prefix: Annotated[str | None, setting("The beginning of the session key, with or without `agent:<id>:`.")] = (
        None
    )
    sender_id: Annotated[str | None, setting("The id of the person whose message began the chain.")] = None


class BudgetSettings(Settings, frozen=True, kw_only=True):
    """One budget. Exactly one of `usd`, `tokens` and `runs` is set."""

    name: Annotated[str, setting("Its name: letters, digits, `_`, `.`, `-`.", pattern=r"^[A-Za-z0-9][\w.-]{0,63}$")]
    scope: Annotated[
        BudgetScope,
        setting("What has an amount of its own: the gateway, each agent, session, chain of messages, or sender."),
    ]
    match: Annotated[BudgetMatchSettings, setting("Which calls count. Empty: all.")] = BudgetMatchSettings()
    per: Annotated[BudgetPeriod, setting("For how long the amount counts, in the zone `tz`.")]
    usd: Annotated[Dollars | None, setting("Most dollars. Each model needs a price.")] = None
    tokens: Annotated[AtLeastOne | None, setting("Most tokens: input, output and cached alike.")] = None
    runs: Annotated[AtLeastOne | None, setting("Most runs, turns and announces too.")] = None
    then: Annotated[
        BudgetThen,
        setting("When a call does not fit: `ask` the owners, `stop` the run, or only `warn` the owners."),
    ]
    warn_at: Annotated[
        Share | None,
        setting("Tell the owners once in a window when this share is spent. Unset: 0.8, and 1 with `then: warn`."),
    ] = None

    @property
    def unit(self) -> BudgetUnit:
        return "usd" if self.usd is not None else "tokens" if self.tokens is not None else "runs"

    @property
    def limit(self) -> int:
        """The amount, dollars as millionths."""
        return int(self.usd * 1_000_000) if self.usd is not None else self.tokens or self.runs or 0

    @property
    def warns_at(self) -> float:
        return self.warn_at or (1.0 if self.then is BudgetThen.WARN else DEFAULT_WARN_AT)


class LedgerRow(msgspec.Struct, frozen=True, array_like=True):
    """What is counted in one window; the fields are the columns of its row.

    `usd`, `tokens` and `runs` include what is open: the highest costs of calls whose replies are not there yet.
    """

    id: str
    budget: str
    subject: str
    start_at: int
    usd: int
    tokens: int
    runs: int
    open_usd: int
    open_tokens: int
    granted: int
    """How often the amount was granted again."""
    denied: bool
    """Whether owners denied more in this window."""
    warned: bool
    touched_at: int

    def used(self, unit: BudgetUnit) -> int:
        return self.usd if unit == "usd" else self.tokens if unit == "tokens" else self.runs

    def open(self, unit: BudgetUnit) -> int:
        """What calls under way hold at most."""
        return self.open_usd if unit == "usd" else self.open_tokens if unit == "tokens" else 0


class BudgetState(msgspec.Struct, frozen=True):
    """One budget now."""

    budget: BudgetSettings
    start: int
    end: int | None
    rows: list[LedgerRow]
    """The subjects that have spent most."""
    subjects: int
    """How many subjects have spent something."""
    spent: int
    """What all subjects have spent together."""
    reserved: int
    """What their calls under way hold at most, besides."""
    waiting: int
    """How many runs wait for this budget."""


class Spender(NamedTuple):
    """On whose account a call goes."""

    agent_id: str
    key: str
    chain_id: str
    channel: str | None = None
    sender: str | None = None
    """The person whose message began the chain, as `channel:id`."""

    @property
    def spellings(self) -> tuple[str, str]:
        return self.key, self.key.split(":", 2)[-1]


class Period(NamedTuple):
    """A window of time, in milliseconds; the end is None for one that never ends."""

    start: int
    end: int | None


FOREVER = Period(0, None)
PeriodAt = Callable[[BudgetPeriod, int], Period]
"""Takes a kind of window and a time; returns the window that has this time."""


class BudgetWindow(NamedTuple):
    """One amount: a budget's, for one subject, in one window of time."""

    id: str
    budget: BudgetSettings
    subject: str
    start: int
    end: int | None

    @property
    def question(self) -> str:
        """The beginning of the ids of its questions."""
        return f"{BUDGET_TOOL}/{self.id}"


class BudgetRules:
    """The budgets of a gateway. Units read them; nothing here changes but the memory of sizes."""

    def __init__(self, budgets: Sequence[BudgetSettings], period_at: PeriodAt, quotes: Quotes | None = None) -> None:
        self.budgets = tuple(budgets)
        self.quotes = quotes or Quotes()
        self.needs_sender = any(b.scope is BudgetScope.SENDER or b.match.sender_id is not None for b in budgets)
        self.needs_channel = any(b.match.channel is not None for b in budgets)
        self.refuses = any(b.then is not BudgetThen.WARN for b in budgets)
        """Whether a budget may refuse a message."""
        self._period_at = period_at
        self._periods: dict[BudgetPeriod, Period] = {BudgetPeriod.TOTAL: FOREVER}

    def named(self, name: str) -> BudgetSettings | None:
        return next((budget for budget in self.budgets if budget.name == name), None)

    def period(self, per: BudgetPeriod, now: int) -> Period:
        """Return the window of a time; the last one is remembered."""
        known = self._periods.get(per)
        if known is None or now < known.start or (known.end is not None and now >= known.end):
            known = self._periods[per] = self._period_at(per, now)
        return known

    def windows(self, spender: Spender, now: int) -> list[BudgetWindow]:
        """List the windows in which a call counts."""
        found: list[BudgetWindow] = []
        for budget in self.budgets:
            subject = _subject(budget, spender)
            if subject is not None and _matches(budget.match, spender):
                found.append(self.window(budget, subject, now))
        return found

    def window(self, budget: BudgetSettings, subject: str, now: int) -> BudgetWindow:
        start, end = self.period(budget.per, now)
        return BudgetWindow(f"{budget.name}/{start}/{subject}", budget, subject, start, end)


def _subject(budget: BudgetSettings, spender: Spender) -> str | None:
    """Name whose amount counts; None if this budget does not count for the call."""
    match budget.scope:
        case BudgetScope.GATEWAY:
            return ""
        case BudgetScope.AGENT:
            return spender.agent_id
        case BudgetScope.SESSION:
            return spender.key
        case BudgetScope.CHAIN:
            return spender.chain_id
        case BudgetScope.SENDER:
            return spender.sender


def _matches(match: BudgetMatchSettings, spender: Spender) -> bool:
    if match.agent_id is not None and match.agent_id != spender.agent_id:
        return False
    if match.channel is not None and match.channel != spender.channel:
        return False
    if match.sender_id is not None and (spender.sender or "").partition(":")[2] != match.sender_id:
        return False
    prefix = match.key_prefix
    return prefix is None or any(spelling.startswith(prefix) for spelling in spender.spellings)


class BudgetAnswer(StrEnum):
    """What becomes of a call, in the order of weight."""

    FITS = "fits"
    WAIT = "wait"
    ASK = "ask"
    STOP = "stop"


_WEIGHT = {answer: weight for weight, answer in enumerate(BudgetAnswer)}


class BudgetDecision(NamedTuple):
    """What becomes of a call, and by which budget."""

    answer: BudgetAnswer
    window: BudgetWindow | None = None
    row: LedgerRow | None = None


def limit_of(budget: BudgetSettings, row: LedgerRow) -> int:
    """Return the limit with what was granted."""
    return budget.limit * (1 + row.granted)


def decide(counted: Iterable[tuple[BudgetWindow, LedgerRow]], added: Amount) -> BudgetDecision:
    """Decide whether a call fits that was `added` to the rows already. The weightiest answer counts."""
    decision = BudgetDecision(BudgetAnswer.FITS)
    for window, row in counted:
        answer = _answer(window.budget, row, added)
        if _WEIGHT[answer] > _WEIGHT[decision.answer]:
            decision = BudgetDecision(answer, window, row)
    return decision


def _answer(budget: BudgetSettings, row: LedgerRow, added: Amount) -> BudgetAnswer:
    unit = budget.unit
    used, limit = row.used(unit), limit_of(budget, row)
    if used <= limit or budget.then is BudgetThen.WARN:
        return BudgetAnswer.FITS
    own = added.usd if unit == "usd" else added.tokens
    if used - max(0, row.open(unit) - own) <= limit:
        return BudgetAnswer.WAIT
    return BudgetAnswer.STOP if budget.then is BudgetThen.STOP or row.denied else BudgetAnswer.ASK


def is_used_up(budget: BudgetSettings, row: LedgerRow) -> bool:
    """Whether nothing is left, so that a message is refused at once. What may be given back counts as left."""
    if budget.then is BudgetThen.WARN or (budget.then is BudgetThen.ASK and not row.denied):
        return False
    return row.used(budget.unit) - row.open(budget.unit) >= limit_of(budget, row)


def spent_share(budget: BudgetSettings, row: LedgerRow) -> float:
    """Return the part of a limit that is spent. Calls under way do not count, as they may cost less."""
    return max(0, row.used(budget.unit) - row.open(budget.unit)) / limit_of(budget, row)


def is_near(budget: BudgetSettings, row: LedgerRow) -> bool:
    """Whether owners may have to be told once the calls under way are counted."""
    return not row.warned and row.used(budget.unit) >= budget.warns_at * budget.limit


def is_to_warn(budget: BudgetSettings, row: LedgerRow) -> bool:
    """Whether owners are to be told how much is spent."""
    settled = row.used(budget.unit) - row.open(budget.unit)
    return not row.warned and settled >= budget.warns_at * budget.limit
