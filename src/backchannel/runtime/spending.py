"""Spending: each call of a model is reserved in the ledger before it begins.

Most calls are reserved already, by the commit that precedes them. The others reserve here, once their request is built.
A call that does not fit waits for the calls of others, or for the owners' answer, or ends its run. Without budgets
nothing is done.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from functools import partial
from typing import NamedTuple

import msgspec

from backchannel.agents.models import Models
from backchannel.agents.registry import Agents
from backchannel.config.budget_checks import dollar_budget, no_price
from backchannel.config.schema import Config
from backchannel.config.schema_models import fallbacks_of, primary_of
from backchannel.core.contracts import Clock, Model, ModelReply, ModelRequest
from backchannel.core.facts import MessageAppended, TranscriptClosed
from backchannel.core.money.amounts import (
    Amount,
    growth_bound,
    input_bound,
    read_reservation,
)
from backchannel.core.money.budgets import BudgetAnswer
from backchannel.errors import StartupError
from backchannel.runtime.active import ActiveRun
from backchannel.runtime.approvals import Approvals
from backchannel.runtime.conversations import PreparedRequest
from backchannel.runtime.holding import Holding
from backchannel.runtime.supervisor import DatabaseWait
from backchannel.service import Reactions, Service
from backchannel.storage.store import Store

_LOOK_AGAIN_S = 0.5
"""How long a call waits for others before it looks again: other gateways do not tell."""
_MOST_SESSIONS = 4096


def check_prices(config: Config, agents: Agents, models: Models) -> None:
    """Check that dollars can be counted where a budget does so.

    Raises:
        StartupError: a model that may be asked has no known price.
    """
    asked = [(agent_id, ref) for agent_id in agents.ids() for ref in agents.models_of(agent_id)]
    for job in config.cron.jobs:
        named = (primary_of(job.model), *(fallbacks_of(job.model) or ()))
        asked += [(job.agent_id or agents.default_id, ref) for ref in named if ref is not None]
    for agent_id, ref in asked:
        budget = dollar_budget(config.budgets, agent_id)
        if budget is not None and not models.has_price(ref):
            raise StartupError(f"{ref} {no_price(ref, budget.name)}", model=ref)


class _Asked(NamedTuple):
    """The last request of a session that was answered."""

    model: str
    tokens: int
    """Its estimated size."""
    pictures: int
    told: int
    """The size that the provider told."""


class Spending(Service):
    """Reserves the calls of this process."""

    def __init__(self, store: Store, holding: Holding, approvals: Approvals, clock: Clock, wait: DatabaseWait) -> None:
        self._store = store
        self._holding = holding
        self._rules = holding.rules
        self._approvals = approvals
        self._clock = clock
        self._durably = wait.durably
        self._asked: OrderedDict[str, _Asked] = OrderedDict()
        self._settled = asyncio.Event()

    def reactions(self) -> Reactions:
        return {} if self._rules is None else {MessageAppended: self._appended, TranscriptClosed: self._closed}

    def _appended(self, fact: MessageAppended) -> None:
        if self._rules is not None:
            self._rules.quotes.grew(fact.session_id, fact.message)

    def _closed(self, fact: TranscriptClosed) -> None:
        self._asked.pop(fact.session_id, None)
        if self._rules is not None:
            self._rules.quotes.forget(fact.session_id)

    async def reserved(self, active: ActiveRun, model: Model, prepared: PreparedRequest) -> ModelRequest:
        """Reserve a call of a run, and return its request with the longest reply that was reserved.

        Raises:
            BudgetExceeded: it does not fit.
        """
        if self._rules is None:
            return prepared.request
        agent_id = active.session.agent_id
        rates = self._holding.rates(model, agent_id, prepared.request.thinking)
        self._rules.quotes.learn(model.ref, rates, agent_id, prepared.prompt_tokens)
        amount = rates.highest(self._bound(active.session_id, model.ref, prepared))
        made = read_reservation(active.run.reserved)
        is_enough = made is not None and made.step == active.run.step and made.amount.covers(amount)
        if not is_enough or active.is_sent:
            await self._reserve(active, amount)
        return msgspec.structs.replace(prepared.request, max_tokens=rates.max_tokens)

    async def counted(self, active: ActiveRun) -> None:
        """Count a run of a function, which asks no model here.

        Raises:
            BudgetExceeded: no more runs fit.
        """
        if self._rules is not None:
            self._rules.quotes.learn_function(active.session.agent_id)
            if active.run.reserved is None:
                await self._reserve(active, Amount())

    async def _reserve(self, active: ActiveRun, amount: Amount) -> None:
        while True:
            settled = self._settled
            reserve = partial(self._store.reserve_call, active.fence, amount, is_sent=active.is_sent)
            made = await self._durably(reserve)
            active.run, active.is_sent = made.run, False
            if made.answer is BudgetAnswer.FITS:
                return
            if made.approval is not None and made.approval.is_pending:
                with active.paused():
                    await self._approvals.answered(made.approval, active.run)
            else:
                await self._next_settled(settled)

    async def _next_settled(self, settled: asyncio.Event) -> None:
        """Wait until a call of this process is settled; a while, since another gateway may settle one."""
        waits = [asyncio.ensure_future(settled.wait()), asyncio.ensure_future(self._clock.sleep(_LOOK_AGAIN_S))]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    def replied(self, active: ActiveRun, model: Model, prepared: PreparedRequest, reply: ModelReply) -> None:
        """Take note of what a provider told about a request, before its reply is committed."""
        if self._rules is None or not reply.usage.sent:
            return
        asked = _Asked(model.ref, prepared.tokens, prepared.pictures, reply.usage.sent)
        self._asked[active.session_id] = asked
        self._asked.move_to_end(active.session_id)
        if len(self._asked) > _MOST_SESSIONS:
            self._asked.popitem(last=False)
        self._rules.quotes.answered(active.session_id, model.ref, reply.usage.sent)

    def settled(self) -> None:
        """Let calls look again that wait for others: one of this process was settled."""
        if self._rules is not None:
            settled, self._settled = self._settled, asyncio.Event()
            settled.set()

    def _bound(self, session_id: str, model: str, prepared: PreparedRequest) -> int:
        """Return the most input tokens of a request; one that extends another has what that had, and what is new."""
        whole = input_bound(prepared.tokens, prepared.pictures)
        last = self._asked.get(session_id)
        if last is None or last.model != model or prepared.moved is not None:
            return whole
        more = growth_bound(last.told, prepared.tokens - last.tokens, prepared.pictures - last.pictures)
        return min(whole, more)
