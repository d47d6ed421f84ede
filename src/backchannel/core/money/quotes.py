"""Quotes: guesses at the highest cost of a session's next call, from its last calls.

A unit reserves a quote in the commit that precedes a call. The request that is really built is compared with it: only
a call that may cost more needs a commit of its own. So a wrong guess costs time, and never money.
"""

from __future__ import annotations

from collections import OrderedDict
from math import ceil
from typing import NamedTuple

from backchannel.core.budget import estimate_tokens
from backchannel.core.messages import ImageBlock, Message
from backchannel.core.money.amounts import (
    BYTES_PER_ESTIMATE,
    GROWTH_TOKENS,
    PICTURE_TOKENS,
    WRAPPING_TOKENS,
    Amount,
    CallRates,
)

_MOST_SESSIONS = 4096
_SLACK_TOKENS = 512
"""Headers and joints that a request gets around a new message."""


class SessionSize(NamedTuple):
    """How many input tokens the next request of a session has at most, before what is still to come."""

    model: str
    tokens: int


class Quotes:
    """What this process knows of models, prompts and sessions."""

    def __init__(self) -> None:
        self._rates: dict[str, CallRates] = {}
        self._prompts: dict[str, SessionSize] = {}
        """The model that an agent asked last, and the size of its prompt."""
        self._sessions: OrderedDict[str, SessionSize] = OrderedDict()
        self._functions: set[str] = set()

    def learn(self, model: str, rates: CallRates, agent_id: str, prompt_tokens: int) -> None:
        """Take note of a request: its model, and the estimate of its system prompt and tools."""
        self._rates[model] = rates
        bound = ceil(prompt_tokens * BYTES_PER_ESTIMATE) + WRAPPING_TOKENS
        self._prompts[agent_id] = SessionSize(model, bound)

    def learn_function(self, agent_id: str) -> None:
        """Take note that an agent is a function: its runs count, and cost nothing here."""
        self._functions.add(agent_id)

    def answered(self, session_id: str, model: str, tokens: int) -> None:
        """Take note of the tokens that a provider told for a request."""
        self._sessions[session_id] = SessionSize(model, tokens + GROWTH_TOKENS)
        self._sessions.move_to_end(session_id)
        if len(self._sessions) > _MOST_SESSIONS:
            self._sessions.popitem(last=False)

    def grew(self, session_id: str, message: Message) -> None:
        """Count a message that was appended to a transcript."""
        known = self._sessions.get(session_id)
        if known is not None:
            self._sessions[session_id] = known._replace(tokens=known.tokens + message_bound(message))

    def forget(self, session_id: str) -> None:
        """Forget the size of a session whose requests begin elsewhere from now on."""
        self._sessions.pop(session_id, None)

    def quote(self, agent_id: str, session_id: str, model: str | None, message: Message | None) -> Amount | None:
        """Guess the most that the next call costs, with a message that is to come; None if too little is known."""
        if agent_id in self._functions:
            return Amount()
        prompt = self._prompts.get(agent_id)
        model = model or (None if prompt is None else prompt.model)
        if model is None or (rates := self._rates.get(model)) is None:
            return None
        known = self._sessions.get(session_id)
        if known is None or known.model != model:
            known = prompt
        if known is None or known.model != model:
            return None
        more = 0 if message is None else message_bound(message)
        return rates.highest(known.tokens + more + _SLACK_TOKENS)


def message_bound(message: Message) -> int:
    """Return how many tokens a message has at most."""
    pictures = sum(isinstance(block, ImageBlock) for block in message.content)
    return ceil(estimate_tokens(message) * BYTES_PER_ESTIMATE) + pictures * PICTURE_TOKENS
