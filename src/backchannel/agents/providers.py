"""Models of providers, asked through pydantic-ai's model layer.

A `Connection` is the one client of a provider; a `ProviderModel` is one of its models. `translation.py` translates what
goes over it. Every failure becomes a `ModelFailed` (`build_failure`). Retrying is the runtime's work, so the SDKs' own
retries are off.

Importing pydantic-ai takes half a second. It is imported in a thread, before a model is asked for the first time.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from backchannel.agents.encoding import encoding_beside
from backchannel.agents.loading import load
from backchannel.agents.translation import begins_call, build_history, build_parameters, build_reply, read_delta
from backchannel.core.contracts import (
    THINKING_LEVELS,
    ModelEvent,
    ModelFailed,
    ModelReply,
    ModelRequest,
    Price,
    check_calls,
)
from backchannel.core.hosts import is_local_url
from backchannel.core.messages import ImageBlock
from backchannel.core.secrets.known import hide_key

if TYPE_CHECKING:
    import httpx2
    from pydantic_ai.messages import ModelResponse
    from pydantic_ai.models import Model as PydanticModel
    from pydantic_ai.providers import Provider as PydanticProvider
    from pydantic_ai.settings import ModelSettings


_OPENAI_WIRES = frozenset({"openai", "openai-compatible", "ollama"})
_ANTHROPIC_WIRES = frozenset({"anthropic", "anthropic-compatible"})
_KNOWN_AS = {"openai-compatible": "openai-chat", "anthropic-compatible": "anthropic"}
ANTHROPIC_IMAGE_LIMIT = 5 * 1024 * 1024
_RETRYABLE_STATUSES = frozenset({408, 409, 429})
_MAX_WORDS = 1_000
_MAX_LOOKED_AT = 4_000
"""How much of a provider's text is looked at: more than is shown, because hiding a key makes it shorter."""


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


class Connection:
    """The one client of an endpoint, opened when it is first used."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self._lock = threading.Lock()
        self._exits = AsyncExitStack()
        self._provider: PydanticProvider[Any] | None = None
        self._models: dict[str, PydanticModel[Any]] = {}

    async def model(self, name: str) -> PydanticModel[Any]:
        """Give one of the provider's models, as pydantic-ai has it."""
        if name not in self._models:
            await load(partial(self._build, name))  # imports, and reads certificates
        return self._models[name]

    async def close(self) -> None:
        """Close the client. A later use opens a new one."""
        self._provider = None
        self._models.clear()
        await self._exits.aclose()

    def _build(self, name: str) -> None:
        from pydantic_ai.models import infer_model

        with self._lock:
            provider = self._provider = self._provider or self._open()
            kind = _KNOWN_AS.get(self.endpoint.kind, self.endpoint.kind)
            self._models[name] = infer_model(f"{kind}:{name}", provider_factory=lambda _: provider)

    def _open(self) -> PydanticProvider[Any]:
        if self.endpoint.kind in _ANTHROPIC_WIRES:
            return self._open_anthropic()
        if self.endpoint.kind in _OPENAI_WIRES:
            return self._open_openai()
        from pydantic_ai.providers import infer_provider_class

        provider_class: Any = infer_provider_class(self.endpoint.kind)
        provider: PydanticProvider[Any] = provider_class(api_key=self.endpoint.api_key)
        self._exits.push_async_callback(_leave, provider)
        return provider

    def _open_anthropic(self) -> PydanticProvider[Any]:
        from anthropic import AsyncAnthropic
        from pydantic_ai.providers.anthropic import AnthropicProvider

        key = self.endpoint.api_key or "none"
        # The SDK sends the key as a bearer token; endpoints made after the older SDKs look for this header.
        is_compatible = self.endpoint.kind == "anthropic-compatible"
        client = encoding_beside(AsyncAnthropic)(
            base_url=self.endpoint.base_url.rstrip("/").removesuffix("/v1"),  # the SDK adds it
            api_key=key,
            default_headers={"X-Api-Key": key} if is_compatible else None,
            http_client=self._open_http(),
            max_retries=0,
        )
        return AnthropicProvider(anthropic_client=client)

    def _open_openai(self) -> PydanticProvider[Any]:
        from openai import AsyncOpenAI
        from pydantic_ai.providers.ollama import OllamaProvider
        from pydantic_ai.providers.openai import OpenAIProvider
        from pydantic_ai.providers.openai_compatible import OpenAICompatibleProvider

        client = encoding_beside(AsyncOpenAI)(
            base_url=self.endpoint.base_url,
            api_key=self.endpoint.api_key or "none",
            http_client=self._open_http(),
            max_retries=0,
        )
        match self.endpoint.kind:
            case "openai":
                return OpenAIProvider(openai_client=client)
            case "ollama":
                return OllamaProvider(openai_client=client)
        return OpenAICompatibleProvider(self.endpoint.provider, openai_client=client)

    def _open_http(self) -> httpx2.AsyncClient:
        import httpx2
        from pydantic_ai.models import create_async_httpx2_client

        transport = None
        if is_local_url(self.endpoint.base_url):
            # A proxy named in the environment is for the outside: it cannot reach this machine's own ports.
            limits = httpx2.Limits(max_connections=1000, max_keepalive_connections=100)
            transport = httpx2.AsyncHTTPTransport(limits=limits)
        client = create_async_httpx2_client(transport=transport)
        if self.endpoint.api_key is None:
            # The SDKs insist on a key, or take one from the environment that is meant for another service.
            client.event_hooks["request"].append(_drop_credentials)
        self._exits.push_async_callback(client.aclose)
        return client


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
    ) -> None:
        """Make a model; with `priced_as`, replies cost what is published for that provider, cached tokens less.

        Without `sees_images` it is what pydantic-ai knows of the model, and that it sees if nothing is known.
        """
        self._connection = connection
        self._name = name
        self.context_window = context_window
        self.price = price
        self._priced_as = priced_as
        self._sees_images = sees_images

    @property
    def ref(self) -> str:
        return f"{self._connection.endpoint.provider}/{self._name}"

    @property
    def sees_images(self) -> bool:
        return self._sees_images is not False  # what is known of the model shows when it is asked: see `stream`

    async def prepare(self) -> None:
        """Load what asking it needs."""
        await self._connection.model(self._name)

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        """Ask the provider. Cancelling, or closing the iterator, closes the connection."""
        model = await self._connection.model(self._name)
        endpoint = self._connection.endpoint
        sees = self._sees_images
        if sees is None:
            sees = model.profile.get("supports_image_input", True)
        limit = image_limit(endpoint.kind) if sees else 0
        build = partial(build_history, request, provider=endpoint.provider, system=model.system, image_limit=limit)
        history = await asyncio.to_thread(build) if _has_images(request) else build()
        parameters = build_parameters(request)
        settings = _build_settings(request, model, endpoint.kind)

        from pydantic_ai.direct import model_request_stream

        try:
            async with model_request_stream(
                model,
                history,
                model_settings=settings,
                model_request_parameters=parameters,
                instrument=False,
            ) as events:
                calls = 0
                async for event in events:
                    calls += begins_call(event)
                    check_calls(f"{endpoint.provider}/{self._name}", calls)
                    if (delta := read_delta(event)) is not None:
                        yield delta
                response = events.get()
                reply = build_reply(response, endpoint.provider)
        except Exception as error:  # noqa: BLE001  # what a broken answer raises down there has no common type
            # Without its cause: a provider's error can echo the key, and a logged traceback would show it.
            raise build_failure(error, endpoint) from None
        yield self._with_cost(reply, response)

    def _with_cost(self, reply: ModelReply, response: ModelResponse) -> ModelReply:
        cost = None if self.price is None else self.price.of(reply.usage)
        if self._priced_as is not None:
            from genai_prices import calc_price

            try:
                priced = calc_price(response.usage, response.model_name or self._name, provider_id=self._priced_as)
                cost = float(priced.total_price)
            except LookupError:
                pass  # too new to be known
        return msgspec.structs.replace(reply, usage=msgspec.structs.replace(reply.usage, cost=cost))


def _has_images(request: ModelRequest) -> bool:
    """Whether building a request takes long: images are megabytes to be decoded."""
    return any(isinstance(block, ImageBlock) for message in request.messages for block in message.content)


def image_limit(kind: str) -> int:
    """Tell how large an image may be, in characters of base64: one that is larger has the whole request refused."""
    return ANTHROPIC_IMAGE_LIMIT if kind in _ANTHROPIC_WIRES else sys.maxsize


def build_failure(error: Exception, endpoint: Endpoint) -> ModelFailed:
    """Say what went wrong, in the provider's own words where it had some, and whether trying again may help."""
    from pydantic_ai import exceptions as pai

    provider, retry_after_s = endpoint.provider, None
    match error:
        case ModelFailed():
            return error
        case pai.ModelHTTPError():
            retryable = error.status_code in _RETRYABLE_STATUSES or error.status_code >= 500
            retryable = retryable and not isinstance(error, pai.ModelQuotaExceededError)
            retry_after_s = error.retry_after
            message = f"{_words_of(error.body) or 'no reason given'} (HTTP {error.status_code} from {provider})"
        case pai.ModelConnectionError():
            retryable, message = True, f"the connection to {provider} failed: {_root_of(error)}"
        case pai.ModelAPIError():
            # What came was no answer, or an error in the middle of one.
            retryable = not isinstance(error, pai.ModelRequestRejectedError | pai.ModelQuotaExceededError)
            retry_after_s = error.retry_after
            message = f"{provider} failed: {_words_of(error.body) or error.message}"
        case pai.UserError() | pai.ContentFilterError() | ImportError():
            retryable, message = False, f"{provider} cannot be asked this: {error}"
        case _:
            retryable, message = True, f"{provider} did not answer as its API says: {_root_of(error)}"
    return ModelFailed(
        hide_key(message[:_MAX_LOOKED_AT], endpoint.api_key)[:_MAX_WORDS],
        retryable=retryable,
        retry_after_s=retry_after_s,
    )


def _build_settings(request: ModelRequest, model: PydanticModel[Any], kind: str) -> ModelSettings:
    settings: ModelSettings = {}
    if (level := request.thinking) is not None:
        if level not in THINKING_LEVELS:
            known = ", ".join(THINKING_LEVELS)
            raise ModelFailed(f"not a thinking level: {level!r} (one of {known})", retryable=False)
        settings["thinking"] = False if level == "off" else level  # type: ignore[typeddict-item]  # checked above
    if kind == "openai":
        # The service would keep every request; what it needs of the last one goes back with the next.
        settings["openai_store"] = False  # type: ignore[typeddict-unknown-key]  # of OpenAI's own settings
    if kind not in _OPENAI_WIRES | _ANTHROPIC_WIRES and "max_retries" not in model.unsupported_settings:
        settings["max_retries"] = 0
    return settings


def _words_of(body: object) -> str:
    """Find the message in an error body: `{error: {message}}`, `{message}`, or just text."""
    while isinstance(body, dict):
        body = body.get("error") or body.get("message") or body.get("detail")
    return " ".join(str(body)[:_MAX_LOOKED_AT].split()) if body else ""


def _root_of(error: BaseException) -> str:
    while (cause := error.__cause__ or error.__context__) is not None:
        error = cause
    return str(error)[:_MAX_LOOKED_AT].strip() or type(error).__name__


async def _drop_credentials(request: httpx2.Request) -> None:
    for name in ("authorization", "x-api-key"):
        request.headers.pop(name, None)


async def _leave(provider: PydanticProvider[Any]) -> None:
    async with provider:  # entering and leaving is what closes the client that it made
        pass
