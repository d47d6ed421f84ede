"""Rows of models: a primary model and its fallbacks.

Fallbacks are asked, in order, when the models before them fail.
A person's own choice (`/model`, `sessions.patch`, `sessions_spawn`, `agent`) is one model. It is asked first, and the
agent's fallbacks follow. The agent's primary model does not: the person has chosen against it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Self

import msgspec


class ModelRow(msgspec.Struct, frozen=True):
    """Models in the order in which they are asked."""

    primary: str
    fallbacks: tuple[str, ...] = ()

    @property
    def refs(self) -> tuple[str, ...]:
        """The models, each once."""
        return tuple(dict.fromkeys((self.primary, *self.fallbacks)))

    def led_by(self, chosen: str | None, fallbacks: Iterable[str] | None = None) -> Self:
        """Put a choice first. Its own fallbacks, where it has some, replace those of this row."""
        follow = self.fallbacks if fallbacks is None else tuple(fallbacks)
        return type(self)(self.primary if chosen is None else chosen, follow)


def provider_of(ref: str) -> str:
    """Name the provider of a model."""
    return ref.partition("/")[0]
