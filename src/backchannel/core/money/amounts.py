"""Amounts: what a call of a model costs, and the most that it can cost.

Dollars are counted as whole millionths, rounded up. A price in dollars per million tokens is the same number of
millionths per token.
"""

from __future__ import annotations

from math import ceil
from typing import NamedTuple

import msgspec

from backchannel.core.contracts import Price
from backchannel.core.messages import Usage
from backchannel.core.stored import StoredForm

DEFAULT_MAX_TOKENS = 8_192
"""The longest reply of a model whose own limit is not known."""
_THINKING_TOKENS = {"minimal": 1_024, "low": 2_048, "medium": 10_000, "high": 16_384, "xhigh": 32_768}
"""What is added to that for thinking, which is part of the reply."""
BYTES_PER_ESTIMATE = 3.5
"""No text has more bytes than this for each token of its estimate (`core/budget.py:text_tokens`)."""
PICTURE_TOKENS = 50_000
"""More than any provider counts for one picture."""
WRAPPING_TOKENS = 2_048
"""More than any provider adds around a request: its own words about tools, and the marks of roles."""
GROWTH_TOKENS = 256
"""The same for a request that extends one whose size the provider has told."""
_ROUNDING = 1e-6


class Amount(NamedTuple):
    """What is counted, in all three units: millionths of a dollar, tokens, and runs."""

    usd: int = 0
    tokens: int = 0
    runs: int = 0

    def covers(self, other: Amount) -> bool:
        """Whether this is at least the other in dollars and tokens."""
        return self.usd >= other.usd and self.tokens >= other.tokens


class CallRates(NamedTuple):
    """The dearest that a model's tokens can be, and its longest reply."""

    input: float
    output: float
    max_tokens: int

    def highest(self, input_tokens: int) -> Amount:
        """Return the most that a call can cost."""
        usd = ceil(input_tokens * self.input + self.max_tokens * self.output - _ROUNDING)
        return Amount(usd, input_tokens + self.max_tokens)


def call_rates(
    price: Price | None, max_tokens: int | None, *, thinking: str | None = None, keeps_an_hour: bool = False
) -> CallRates:
    """Build the rates of a model. A model without a price costs nothing in dollars, and counts in tokens.

    Tokens that are written to a cache for an hour cost twice the input where no price is given.
    """
    longest = max_tokens or DEFAULT_MAX_TOKENS + _THINKING_TOKENS.get(thinking or "", 0)
    if price is None:
        return CallRates(0, 0, longest)
    writes = price.cache_write
    if writes is None:
        writes = price.input * (2 if keeps_an_hour else 1.25)
    return CallRates(max(price.input, writes, price.cache_read or 0), price.output, longest)


def input_bound(tokens: int, pictures: int) -> int:
    """Return how many input tokens a request of an estimated size has at most: a token has at least one byte."""
    return ceil(tokens * BYTES_PER_ESTIMATE) + pictures * PICTURE_TOKENS + WRAPPING_TOKENS


def growth_bound(told: int, more_tokens: int, more_pictures: int) -> int:
    """Return the same for a request that extends one for which the provider has `told` the size."""
    return told + ceil(max(0, more_tokens) * BYTES_PER_ESTIMATE) + more_pictures * PICTURE_TOKENS + GROWTH_TOKENS


def used_amount(usage: Usage, reserved: Amount) -> Amount | None:
    """Return what a reply has cost; None if its provider told nothing. An unknown price counts as was reserved."""
    if usage.total == 0:
        return None
    usd = reserved.usd if usage.cost is None else ceil(usage.cost * 1_000_000 - _ROUNDING)
    return Amount(usd, usage.total)


def amount_in_unit(amount: int, unit: str) -> float:
    """Return an amount as dollars, tokens or runs."""
    return amount / 1_000_000 if unit == "usd" else amount


class Reservation(msgspec.Struct, frozen=True, omit_defaults=True):
    """The most that a run's next call can cost, as its row keeps it.

    It is open until the run's step is committed, or until the run ends.
    """

    step: int
    usd: int = 0
    tokens: int = 0
    windows: tuple[str, ...] = ()
    """The ids of the windows in which it is counted."""
    sender: str | None = None
    """The person whose message began the chain, as `channel:id`."""
    is_near: bool = True
    """Whether so much is spent that owners may have to be told with the reply."""
    is_counted: bool = True
    """Whether the run was counted as one."""
    asks: str | None = None
    """The question that the run waits for, instead of a call."""
    budget: str | None = None
    """The budget that the run waits for, instead of a call."""

    @property
    def amount(self) -> Amount:
        return Amount(self.usd, self.tokens)


_STORED: StoredForm[Reservation] = StoredForm(Reservation)


def read_reservation(stored: str | None) -> Reservation | None:
    return None if stored is None else _STORED.read(stored)


def awaited_budget(stored: str | None) -> str | None:
    """Name the budget that a run waits for, by what its row keeps."""
    made = read_reservation(stored)
    return None if made is None else made.budget


def write_reservation(made: Reservation) -> str:
    return _STORED.write(made)


def open_reservation(stored: str | None, step: int) -> Reservation | None:
    """Return the reservation of a run at this step, if it is open."""
    made = read_reservation(stored)
    return made if made is not None and made.step == step and made.windows else None
