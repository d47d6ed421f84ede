"""Clients of the providers' SDKs, as pydantic-ai wants them, and the HTTP client below them.

Importing them takes half a second: see `agents/loading.py`. Retrying is the runtime's work, so the SDKs' own retries
are off.
"""

from __future__ import annotations

from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any

from backchannel.agents.endpoints import ANTHROPIC_WIRES, OPENAI_WIRES, Endpoint
from backchannel.core.contracts import THINKING_LEVELS, ModelFailed, ModelRequest
from backchannel.core.hosts import is_local_url

if TYPE_CHECKING:
    import httpx2
    from pydantic_ai.models import Model as PydanticModel
    from pydantic_ai.providers import Provider as PydanticProvider
    from pydantic_ai.settings import ModelSettings

_KNOWN_AS = {"openai-compatible": "openai-chat", "anthropic-compatible": "anthropic"}


def open_provider(endpoint: Endpoint, http: httpx2.AsyncClient | None) -> PydanticProvider[Any]:
    """Make pydantic-ai's provider for an endpoint. A kind that is spoken here needs an HTTP client."""
    if endpoint.kind in ANTHROPIC_WIRES:
        return _open_anthropic(endpoint, http)
    if endpoint.kind in OPENAI_WIRES:
        return _open_openai(endpoint, http)
    from pydantic_ai.providers import infer_provider_class

    provider_class: Any = infer_provider_class(endpoint.kind)
    provider: PydanticProvider[Any] = provider_class(api_key=endpoint.api_key)
    return provider


def open_model(endpoint: Endpoint, provider: PydanticProvider[Any], name: str) -> PydanticModel[Any]:
    """Make one of a provider's models."""
    from pydantic_ai.models import infer_model

    kind = _KNOWN_AS.get(endpoint.kind, endpoint.kind)
    return infer_model(f"{kind}:{name}", provider_factory=lambda _: provider)


def open_http(endpoint: Endpoint, transport: httpx2.AsyncBaseTransport | None = None) -> httpx2.AsyncClient:
    """Make the HTTP client of an endpoint."""
    import httpx2
    from pydantic_ai.models import create_async_httpx2_client

    if transport is None and is_local_url(endpoint.base_url):
        # A proxy named in the environment is for the outside: it cannot reach this machine's own ports.
        limits = httpx2.Limits(max_connections=1000, max_keepalive_connections=100)
        transport = httpx2.AsyncHTTPTransport(limits=limits)
    client = create_async_httpx2_client(transport=transport)
    with suppress(ImportError):  # else anyio loads it at the first request, on the event loop, for 20 ms
        import_module("anyio._backends._asyncio")
    if endpoint.api_key is None:
        # The SDKs insist on a key, or take one from the environment that is meant for another service.
        client.event_hooks["request"].append(_drop_credentials)
    return client


def build_settings(request: ModelRequest, model: PydanticModel[Any], kind: str) -> ModelSettings:
    """Build what pydantic-ai is asked for beside the messages and the tools.

    Raises:
        ModelFailed: the thinking level is none.
    """
    settings: ModelSettings = {}
    if (level := request.thinking) is not None:
        if level not in THINKING_LEVELS:
            known = ", ".join(THINKING_LEVELS)
            raise ModelFailed(f"not a thinking level: {level!r} (one of {known})", retryable=False)
        settings["thinking"] = False if level == "off" else level  # type: ignore[typeddict-item]  # checked above
    if request.max_tokens is not None:
        settings["max_tokens"] = request.max_tokens
    if request.tools and not request.uses_tools:
        settings["tool_choice"] = "none"
    if kind == "openai":
        # The service would keep every request; what it needs of the last one goes back with the next.
        settings["openai_store"] = False  # type: ignore[typeddict-unknown-key]  # of OpenAI's own settings
    if kind not in OPENAI_WIRES | ANTHROPIC_WIRES and "max_retries" not in model.unsupported_settings:
        settings["max_retries"] = 0
    return settings


def _open_anthropic(endpoint: Endpoint, http: httpx2.AsyncClient | None) -> PydanticProvider[Any]:
    from anthropic import AsyncAnthropic
    from pydantic_ai.providers.anthropic import AnthropicProvider

    key = endpoint.api_key or "none"
    # The SDK sends the key as a bearer token; endpoints made after the older SDKs look for this header.
    is_compatible = endpoint.kind == "anthropic-compatible"
    client = AsyncAnthropic(
        base_url=endpoint.base_url.rstrip("/").removesuffix("/v1"),  # the SDK adds it
        api_key=key,
        default_headers={"X-Api-Key": key} if is_compatible else None,
        http_client=http,
        max_retries=0,
    )
    return AnthropicProvider(anthropic_client=client)


def _open_openai(endpoint: Endpoint, http: httpx2.AsyncClient | None) -> PydanticProvider[Any]:
    from openai import AsyncOpenAI
    from pydantic_ai.providers.ollama import OllamaProvider
    from pydantic_ai.providers.openai import OpenAIProvider
    from pydantic_ai.providers.openai_compatible import OpenAICompatibleProvider

    client = AsyncOpenAI(
        base_url=endpoint.base_url,
        api_key=endpoint.api_key or "none",
        http_client=http,
        max_retries=0,
    )
    match endpoint.kind:
        case "openai":
            return OpenAIProvider(openai_client=client)
        case "ollama":
            return OllamaProvider(openai_client=client)
    return OpenAICompatibleProvider(endpoint.provider, openai_client=client)


async def _drop_credentials(request: httpx2.Request) -> None:
    for name in ("authorization", "x-api-key"):
        request.headers.pop(name, None)
