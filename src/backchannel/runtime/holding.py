"""Holding: the rates of models, and reservations of calls beside runs.

A call for a summary belongs to no step of a run. It is reserved and counted by units of its own.
"""

from __future__ import annotations

from functools import partial

from backchannel.config.budget_checks import dollar_budget, no_price
from backchannel.core.budget import estimate_tokens, text_tokens
from backchannel.core.contracts import Model, ModelRequest
from backchannel.core.messages import Usage
from backchannel.core.money.amounts import CallRates, call_rates, input_bound
from backchannel.core.money.budgets import BudgetRules
from backchannel.errors import ModelUnusable
from backchannel.runtime.supervisor import DatabaseWait
from backchannel.storage.ids import new_id
from backchannel.storage.store import Store


class Holding:
    """Reserves calls beside runs."""

    def __init__(self, store: Store, wait: DatabaseWait, *, keeps_an_hour: bool) -> None:
        """Make it; `keeps_an_hour` says that providers are asked to keep a cache for an hour."""
        self._store = store
        self.rules: BudgetRules | None = store.rules.budgets
        self._durably = wait.durably
        self._keeps_an_hour = keeps_an_hour

    def rates(self, model: Model, agent_id: str, thinking: str | None = None) -> CallRates:
        """Tell the most that a model's tokens cost.

        Raises:
            ModelUnusable: dollars of the agent are counted, and the model has no price.
        """
        price = getattr(model, "dearest_price", None) or model.price
        if price is None and self.rules is not None and not getattr(model, "is_free", False):
            counting = dollar_budget(self.rules.budgets, agent_id)
            if counting is not None:
                raise ModelUnusable(f"{model.ref} {no_price(model.ref, counting.name)}", model=model.ref)
        longest: int | None = getattr(model, "max_tokens", None)
        return call_rates(price, longest, thinking=thinking, keeps_an_hour=self._keeps_an_hour)

    async def hold(
        self, key: str, agent_id: str, run_id: str | None, model: Model, request: ModelRequest
    ) -> HeldCall | None:
        """Reserve a call of a session; None without budgets.

        Raises:
            BudgetExceeded: it does not fit now. Nobody is asked for it.
        """
        if self.rules is None:
            return None
        rates, hold_id = self.rates(model, agent_id, request.thinking), new_id()
        tokens = text_tokens(request.system) + sum(map(estimate_tokens, request.messages))
        amount = rates.highest(input_bound(tokens, 0))
        await self._durably(partial(self._store.hold_call, hold_id, amount, key, run_id))
        return HeldCall(self, hold_id, rates.max_tokens)

    async def release(self, hold_id: str, used: Usage | None, *, is_billed: bool) -> None:
        await self._durably(partial(self._store.release_hold, hold_id, used, is_billed=is_billed))


class HeldCall:
    """A reserved call, to be settled once. A process that ends before leaves it counted whole."""

    def __init__(self, holding: Holding, hold_id: str, max_tokens: int) -> None:
        self._holding = holding
        self._id = hold_id
        self.max_tokens = max_tokens
        """The longest reply that was reserved."""

    async def settle(self, used: Usage | None, *, is_billed: bool = True) -> None:
        """Count what the call used; None if that is not known."""
        await self._holding.release(self._id, used, is_billed=is_billed)
