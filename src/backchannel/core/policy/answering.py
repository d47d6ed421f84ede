"""Permission to answer a question of the gateway: an approval or a pairing.

The rule is the same for every door: a command in a chat, a method of the wire, the command line and the page. The unit
that writes an answer reads the question's channel and decides here.
"""

from __future__ import annotations

from dataclasses import dataclass

from backchannel.core.policy.decisions import Decision

OPERATOR_WORD = "operator"
"""The first word of an operator's name; alone it is whoever has the token of the configuration."""
_OWNERS = "channels.<name>.owners"


@dataclass(frozen=True, slots=True)
class Answerer:
    """Whoever answers: an owner of one channel, or an operator with the scope admin."""

    name: str
    """As it is recorded with the answer."""
    channel: str | None = None
    """The channel that they own; None is an operator."""

    @classmethod
    def operator(cls, token_id: str) -> Answerer:
        return cls(OPERATOR_WORD if token_id == OPERATOR_WORD else f"{OPERATOR_WORD} {token_id}")


def may_answer(asked_on: str | None, by: Answerer) -> Decision:
    """Decide whether somebody may answer what was asked on a channel; None is what was asked on no channel."""
    if by.channel is None:
        return Decision(True, "an operator answers every question")
    if asked_on is None:
        return Decision(False, "it was asked on no channel, so that only an operator answers it")
    if asked_on != by.channel:
        return Decision(False, f"it was asked on the channel {asked_on}, and is for its owners", _OWNERS)
    return Decision(True, f"an owner of {asked_on} answers what was asked there", _OWNERS)
