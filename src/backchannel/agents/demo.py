"""The built-in demo model: answers offline, so that everything can be tried without a key."""

from __future__ import annotations

from collections.abc import AsyncIterator

from backchannel.core.contracts import ModelEvent, ModelReply, ModelRequest, Price, TextDelta
from backchannel.core.messages import Usage, text_content
from backchannel.core.requests import estimate_tokens, text_tokens

REF = "builtin/demo"


class DemoModel:
    """A model of a few fixed rules."""

    @property
    def ref(self) -> str:
        return REF

    @property
    def context_window(self) -> int:
        return 32_768

    @property
    def price(self) -> Price | None:
        return None

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        last = request.messages[-1].text if request.messages else ""
        text = f"I am the built-in demo model. You said: {last}"
        yield TextDelta(text)
        used = sum(estimate_tokens(message) for message in request.messages) + text_tokens(request.system)
        yield ModelReply(content=text_content(text), usage=Usage(input=used, output=text_tokens(text)), model=REF)
