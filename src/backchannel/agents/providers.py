"""Models of providers.

A `Connection` is the one client of a provider; a `ProviderModel` is one of its models. The wires that nearly all
providers speak are spoken here (`agents/wires`). Every other provider is asked through pydantic-ai's model layer, and
`translation.py` translates what goes over it. Every failure becomes a `ModelFailed`.

Importing pydantic-ai takes half a second. It is imported in a thread, before a model is asked for the first time.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack, aclosing
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from backchannel.agents.endpoints import Endpoint, image_limit
from backchannel.agents.loading import load
from backchannel.agents.sdks import build_settings, open_http, open_model, open_provider
from backchannel.agents.translation import begins_call, build_history, build_parameters, build_reply, read_delta
from backchannel.agents.wires import failures
from backchannel.agents.wires.content import has_images
from backchannel.agents.wires.patience import Patience
from backchannel.core.contracts import (
    MessageEncoder,
    ModelEvent,
    ModelFailed,
    ModelReply,
    ModelRequest,
    Price,
    check_calls,
)
from backchannel.core.messages import Usage

if TYPE_CHECKING:
    import httpx2
    from pydantic_ai.exceptions import ModelContextWindowExceededError
    from pydantic_ai.models import Model as PydanticModel
    from pydantic_ai.providers import Provider as PydanticProvider

    from backchannel.agents.wires.talking import CacheHabits, WireModel


class Connection:
    """The one client of an endpoint, opened when it is first used."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self._lock = threading.Lock()
        self._exits = AsyncExitStack()
        self._provider: PydanticProvider[Any] | None = None
        self._models: dict[str, PydanticModel[Any]] = {}
        self._http: httpx2.AsyncClient | None = None
        self._wires: dict[str, WireModel] = {}
        self._habits: CacheHabits | None = None

    async def model(self, name: str) -> PydanticModel[Any]:
        """Give one of the provider's models, as pydantic-ai has it."""
        if name not in self._models:
            await load(partial(self._build, name))  # imports, and reads certificates
        return self._models[name]

    async def wire(self, name: str) -> WireModel:
        """Give one of the provider's models, for an endpoint that is spoken to here."""
        if name not in self._wires:
            await load(partial(self._build_wire, name))
        return self._wires[name]

    async def close(self) -> None:
        """Close the client. A later use opens a new one."""
        self._provider = self._http = None
        self._models.clear()
        self._wires.clear()
        await self._exits.aclose()

    def _build(self, name: str) -> None:
        with self._lock:
            if self._provider is None:
                self._provider = open_provider(self.endpoint, None)
                self._exits.push_async_callback(_leave, self._provider)
            self._models[name] = open_model(self.endpoint, self._provider, name)

    def _build_wire(self, name: str) -> None:
        from backchannel.agents.wires.talking import CacheHabits, WireModel

        with self._lock:
            if self._http is None:
                self._http = open_http(self.endpoint)
                self._exits.push_async_callback(self._http.aclose)
            self._habits = self._habits or CacheHabits()
            self._wires[name] = WireModel(self.endpoint, name, self._http, self._habits)


class ProviderModel:
    """One model of one provider."""

    def __init__(
        self,
        connection: Connection,
        name: str,
        *,
        context_window: int,
        price: Price | None = None,
        priced_as: str | None = None,
        sees_images: bool | None = None,
        max_tokens: int | None = None,
        dearest_price: Price | None = None,
    ) -> None:
        """Make a model; with `priced_as`, replies cost what is published for that provider, cached tokens less.

        Without `sees_images` it is what pydantic-ai knows of the model, and that it sees if nothing is known.
        `max_tokens` is the longest reply, and `dearest_price` the price of the longest requests.
        """
        self._connection = connection
        self._name = name
        self.context_window = context_window
        self.price = price
        self._priced_as = priced_as
        self._sees_images = sees_images
        self.max_tokens = max_tokens
        self.dearest_price = dearest_price or price

    @property
    def ref(self) -> str:
        return f"{self._connection.endpoint.provider}/{self._name}"

    @property
    def sees_images(self) -> bool:
        return self._sees_images is not False  # what is known of the model shows when it is asked: see `stream`

    async def prepare(self) -> None:
        """Load what asking it needs."""
        if self._connection.endpoint.is_spoken_here:
            await self._connection.wire(self._name)
        else:
            await self._connection.model(self._name)

    async def encoder(self) -> MessageEncoder | None:
        """Give the encoder whose bytes this model takes; None for a provider that pydantic-ai speaks to."""
        if not self._connection.endpoint.is_spoken_here:
            return None
        wire = await self._connection.wire(self._name)
        return wire.encoder(self._image_limit(wire.profile))

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        """Ask the provider. Cancelling, or closing the iterator, closes the connection."""
        endpoint = self._connection.endpoint
        if request.max_tokens is None and self.max_tokens is not None:
            request = msgspec.structs.replace(request, max_tokens=self.max_tokens)
        events = self._stream_here(request) if endpoint.is_spoken_here else self._stream_by_library(request)
        try:
            async with aclosing(events):
                async for event in events:
                    yield self._with_cost(event) if isinstance(event, ModelReply) else event
        except Exception as error:  # noqa: BLE001  # what a broken answer raises down there has no common type
            # Without its cause: a provider's error can echo the key, and a logged traceback would show it.
            raise build_failure(error, endpoint) from None

    async def _stream_here(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        wire = await self._connection.wire(self._name)
        async with aclosing(wire.stream(request, self._image_limit(wire.profile))) as events:
            async for event in events:
                yield event

    async def _stream_by_library(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        model = await self._connection.model(self._name)
        async for event in ask_by_library(model, request, self._connection.endpoint, self._image_limit(model.profile)):
            yield event

    def _image_limit(self, profile: Any) -> int:
        sees = self._sees_images
        if sees is None:
            sees = profile.get("supports_image_input", True)
        return image_limit(self._connection.endpoint.kind) if sees else 0

    def _with_cost(self, reply: ModelReply) -> ModelReply:
        usage = reply.usage.sound
        cost = None if self.price is None else self.price.of(usage)
        if self._priced_as is not None:
            answered = reply.model.partition("/")[2] or self._name
            published = _published_cost(usage, answered, self._priced_as, self._connection.endpoint.cache)
            cost = cost if published is None else published
        return msgspec.structs.replace(reply, usage=msgspec.structs.replace(usage, cost=cost))


async def ask_by_library(
    model: PydanticModel[Any], request: ModelRequest, endpoint: Endpoint, limit: int
) -> AsyncIterator[ModelEvent]:
    """Ask a model through pydantic-ai; the last event is the reply, without its cost."""
    build = partial(build_history, request, provider=endpoint.provider, system=model.system, image_limit=limit)
    history = await asyncio.to_thread(build) if has_images(request.messages) else build()
    settings = build_settings(request, model, endpoint.kind)

    from pydantic_ai.direct import model_request_stream

    async with model_request_stream(
        model,
        history,
        model_settings=settings,
        model_request_parameters=build_parameters(request),
        instrument=False,
    ) as events:
        calls, patience = 0, Patience(endpoint.timeouts, endpoint.provider)
        async for event in patience.pieces(aiter(events)):
            calls += begins_call(event)
            check_calls(f"{endpoint.provider}/{model.model_name}", calls)
            if (delta := read_delta(event)) is not None:
                yield delta
        response = events.get()
    yield build_reply(response, endpoint.provider)


def _published_cost(usage: Usage, name: str, provider: str, cache: str) -> float | None:
    """Tell what a reply costs by the published prices; None for a model that is too new to be known."""
    from genai_prices import Usage as PricedUsage
    from genai_prices import calc_price

    used = PricedUsage(
        input_tokens=usage.sent,
        output_tokens=usage.output,
        cache_read_tokens=usage.cache_read,
        cache_write_tokens=usage.cache_write,
    )
    if cache == "1h" and usage.cache_write:
        used.cache_write_1h_tokens = usage.cache_write
    try:
        return float(calc_price(used, name, provider_id=provider).total_price)
    except LookupError:
        return None


def build_failure(error: Exception, endpoint: Endpoint) -> ModelFailed:
    """Say what went wrong, in the provider's own words where it had some, and whether trying again may help."""
    from pydantic_ai import exceptions as pai

    failed, provider = partial(failures.failed, endpoint=endpoint), endpoint.provider
    match error:
        case pai.ModelContextWindowExceededError():
            return _too_long(error, endpoint)
        case pai.ModelHTTPError():
            retryable = failures.is_passing(error.status_code) and not isinstance(error, pai.ModelQuotaExceededError)
            message = f"{failures.words_of(error.body) or 'no reason given'} (HTTP {error.status_code} from {provider})"
            is_own = failures.is_models_own(error.status_code) or isinstance(error, pai.ModelQuotaExceededError)
            return failed(
                message, retryable=retryable, retry_after_s=error.retry_after, is_models_own=is_own, is_billed=False
            )
        case pai.ModelConnectionError():
            return failed(f"the connection to {provider} failed: {failures.root_of(error)}", retryable=True)
        case pai.ModelAPIError():
            # What came was no answer, or an error in the middle of one.
            retryable = not isinstance(error, pai.ModelRequestRejectedError | pai.ModelQuotaExceededError)
            message = f"{provider} failed: {failures.words_of(error.body) or error.message}"
            return failed(message, retryable=retryable, retry_after_s=error.retry_after)
        case pai.UserError() | pai.ContentFilterError() | ImportError():
            return failed(f"{provider} cannot be asked this: {error}", retryable=False)
    return failures.build_failure(error, endpoint)


def _too_long(error: ModelContextWindowExceededError, endpoint: Endpoint) -> ModelFailed:
    words = failures.words_of(error.body) or error.message
    status = getattr(error, "status_code", None)
    told = f"{words} (HTTP {status} from {endpoint.provider})" if status else f"{endpoint.provider} failed: {words}"
    limit_tokens = failures.read_limit(words)
    return failures.failed(told, endpoint, retryable=False, is_too_long=True, limit_tokens=limit_tokens)


async def _leave(provider: PydanticProvider[Any]) -> None:
    async with provider:  # entering and leaving is what closes the client that it made
        pass
