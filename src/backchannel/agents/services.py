"""The well-known providers: where their key is found, what they need, and what is published about their models.

Context windows and prices come from genai-prices, which is read only when one is asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from importlib.util import find_spec
from typing import TYPE_CHECKING, Literal
from urllib.parse import urlsplit

from backchannel.core.contracts import Price
from backchannel.core.hosts import OLLAMA_PORT, ollama_base

if TYPE_CHECKING:
    from genai_prices.types import ModelInfo as PublishedModel


@dataclass(frozen=True, slots=True)
class Service:
    """A well-known provider, used when one of its keys is in the environment."""

    keys: tuple[str, ...] = ()
    """The variables its key may be in; none: it needs no key."""
    url: str = ""
    url_variable: str = ""
    """The variable that may name another address."""
    window: int = 128_000
    """The context window of a model that is not known."""
    package: str | None = None
    """What it needs beyond the base install: an extra of pydantic-ai-slim, by the module that it brings."""


SERVICES: dict[str, Service] = {
    "anthropic": Service(("ANTHROPIC_API_KEY",), "https://api.anthropic.com", "ANTHROPIC_BASE_URL", window=200_000),
    "openai": Service(("OPENAI_API_KEY",), "https://api.openai.com/v1", "OPENAI_BASE_URL"),
    "ollama": Service(window=32_768),
    "alibaba": Service(("DASHSCOPE_API_KEY", "ALIBABA_API_KEY")),
    "cerebras": Service(("CEREBRAS_API_KEY",)),
    "cohere": Service(("CO_API_KEY",), package="cohere"),
    "deepseek": Service(("DEEPSEEK_API_KEY",)),
    "fireworks": Service(("FIREWORKS_API_KEY",)),
    "google": Service(("GOOGLE_API_KEY", "GEMINI_API_KEY"), window=1_000_000, package="google.genai"),
    "groq": Service(("GROQ_API_KEY",), package="groq"),
    "huggingface": Service(("HF_TOKEN",), package="huggingface_hub"),
    "mistral": Service(("MISTRAL_API_KEY",), package="mistralai"),
    "moonshotai": Service(("MOONSHOTAI_API_KEY",)),
    "nebius": Service(("NEBIUS_API_KEY",)),
    "openrouter": Service(("OPENROUTER_API_KEY",)),
    "ovhcloud": Service(("OVHCLOUD_API_KEY",)),
    "sambanova": Service(("SAMBANOVA_API_KEY",)),
    "together": Service(("TOGETHER_API_KEY",)),
    "vercel": Service(("VERCEL_AI_GATEWAY_API_KEY",)),
    "xai": Service(("XAI_API_KEY",), package="xai_sdk"),
    "zai": Service(("ZAI_API_KEY",)),
}

_PRICED_AS = {"xai": "x-ai"}


def missing_for(service: Service, env: Mapping[str, str]) -> Literal["key", "package"] | None:
    """Say what keeps a service from being used, if anything."""
    if service.keys and not any(env.get(name) for name in service.keys):
        return "key"
    if service.package is not None and not _is_installed(service.package):
        return "package"
    return None


def hint_for(provider: str, env: Mapping[str, str]) -> str | None:
    """Say what would let a well-known provider be used; None if nothing is missing, or it is none of them."""
    service = SERVICES.get(provider)
    match missing_for(service, env) if service else None:
        case "key":
            keys = " or ".join(SERVICES[provider].keys)
            return f"the key for {provider} is missing: set {keys}, or configure models.providers.{provider}"
        case "package":
            return f"{provider} needs a package: pip install 'pydantic-ai-slim[{provider}]'"
    return None


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # the package that it is in
        return False


def is_at(url: str, provider: str) -> bool:
    """Whether an address is the provider's own, such as `https://eu.api.openai.com/v1` of `openai`."""
    return f".{urlsplit(url).hostname or ''}".endswith(f".{provider}.com")


def ollama_url(env: Mapping[str, str]) -> str:
    """Say where Ollama's own address for the OpenAI wire is."""
    return f"{ollama_base(env) or f'http://127.0.0.1:{OLLAMA_PORT}'}/v1"


def published(provider: str, name: str) -> PublishedModel | None:
    """Find what is published about a model: its context window and prices."""
    if provider not in SERVICES or provider == "ollama":
        return None
    from genai_prices.data_snapshot import get_snapshot

    try:
        return get_snapshot().find_provider_model(name, None, price_name(provider), None)[1]
    except LookupError:
        return None


def all_published(provider: str) -> list[PublishedModel]:
    """Give every model of a provider that something is published about."""
    from genai_prices.data_snapshot import get_snapshot

    try:
        return get_snapshot().find_provider(None, price_name(provider), None).models
    except LookupError:
        return []


def published_price(model: PublishedModel) -> Price | None:
    """Tell a model's price for ordinary requests; long ones, and cached tokens, may cost otherwise."""
    prices = model.get_prices(datetime.now(UTC))
    costs = [
        # Where the price depends on the length, the first step counts.
        float(cost if isinstance(cost, Decimal) else cost.base)
        for cost in (prices.input_mtok, prices.output_mtok)
        if cost is not None
    ]
    return Price(*costs) if len(costs) == 2 else None


def price_name(provider: str) -> str:
    """Name a provider as genai-prices does."""
    return _PRICED_AS.get(provider, provider)
