"""Endpoints: where a provider is reached, and what it speaks."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field

from backchannel.core.contracts import ModelTimeouts

OPENAI_WIRES = frozenset({"openai", "openai-compatible", "ollama"})
ANTHROPIC_WIRES = frozenset({"anthropic", "anthropic-compatible"})
ANTHROPIC_IMAGE_LIMIT = 5 * 1024 * 1024


_USUAL = ModelTimeouts()


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a provider is reached, and what it speaks.

    `kind` is `openai` or `anthropic` for the services themselves. OpenAI is asked by its Responses API, because its
    newer models take tools nowhere else. Other kinds are `openai-compatible` (chat completions), `anthropic-compatible`
    and `ollama`. Any other word is a provider that pydantic-ai knows, which needs no `base_url`.
    """

    provider: str
    kind: str
    base_url: str = ""
    api_key: str | None = field(default=None, repr=False)
    cache: str = "5m"
    """How long the provider is asked to keep what was sent: `5m`, `1h` or `off`."""
    timeouts: ModelTimeouts = _USUAL

    @property
    def is_spoken_here(self) -> bool:
        """Whether this endpoint is asked without an SDK: see `agents/wires`."""
        return self.kind in OPENAI_WIRES or self.kind in ANTHROPIC_WIRES


def image_limit(kind: str) -> int:
    """Tell how large an image may be, in characters of base64: one that is larger has the whole request refused."""
    return ANTHROPIC_IMAGE_LIMIT if kind in ANTHROPIC_WIRES else sys.maxsize
