"""Models: a ref `provider/model` becomes a `Model`.

A ref is looked up in this order. First come registered models: the demo model, a program's own, a test's. Then come the
endpoints of the configuration. Last come the services that the environment has a key for. A client is made once per
provider, when the gateway starts or at its first use; `check` and `list` make none. `SERVICES` are the well-known
providers. Context windows and prices come from genai-prices, which is read only when one is asked for.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from decimal import Decimal
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

import msgspec
import structlog

from backchannel.agents.endpoints import Endpoint
from backchannel.agents.loading import load
from backchannel.agents.providers import Connection, ProviderModel
from backchannel.config.schema import DEMO_MODEL, PromptCache, ProviderModelSettings, ProviderSettings
from backchannel.config.schema_models import ModelTimeoutSettings, timeouts_of
from backchannel.core.contracts import Model, ModelTimeouts, Price
from backchannel.core.hosts import OLLAMA_PORT, ollama_base
from backchannel.core.models.model_row import provider_of
from backchannel.core.text import nearest
from backchannel.errors import ModelUnusable, UnknownModel

if TYPE_CHECKING:
    from genai_prices.types import ModelInfo as PublishedModel

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class ModelService:
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


SERVICES: dict[str, ModelService] = {
    "anthropic": ModelService(
        ("ANTHROPIC_API_KEY",), "https://api.anthropic.com", "ANTHROPIC_BASE_URL", window=200_000
    ),
    "openai": ModelService(("OPENAI_API_KEY",), "https://api.openai.com/v1", "OPENAI_BASE_URL"),
    "ollama": ModelService(window=32_768),
    "alibaba": ModelService(("DASHSCOPE_API_KEY", "ALIBABA_API_KEY")),
    "cerebras": ModelService(("CEREBRAS_API_KEY",)),
    "cohere": ModelService(("CO_API_KEY",), package="cohere"),
    "deepseek": ModelService(("DEEPSEEK_API_KEY",)),
    "fireworks": ModelService(("FIREWORKS_API_KEY",)),
    "google": ModelService(("GOOGLE_API_KEY", "GEMINI_API_KEY"), window=1_000_000, package="google.genai"),
    "groq": ModelService(("GROQ_API_KEY",), package="groq"),
    "huggingface": ModelService(("HF_TOKEN",), package="huggingface_hub"),
    "mistral": ModelService(("MISTRAL_API_KEY",), package="mistralai"),
    "moonshotai": ModelService(("MOONSHOTAI_API_KEY",)),
    "nebius": ModelService(("NEBIUS_API_KEY",)),
    "openrouter": ModelService(("OPENROUTER_API_KEY",)),
    "ovhcloud": ModelService(("OVHCLOUD_API_KEY",)),
    "sambanova": ModelService(("SAMBANOVA_API_KEY",)),
    "together": ModelService(("TOGETHER_API_KEY",)),
    "vercel": ModelService(("VERCEL_AI_GATEWAY_API_KEY",)),
    "xai": ModelService(("XAI_API_KEY",), package="xai_sdk"),
    "zai": ModelService(("ZAI_API_KEY",)),
}

_PRICED_AS = {"xai": "x-ai"}


def missing_for(service: ModelService, env: Mapping[str, str]) -> Literal["key", "package"] | None:
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


def why_not_asked(provider: str, own: Iterable[str], env: Mapping[str, str]) -> str | None:
    """Say why models of a provider cannot be asked, if so; `own` names the endpoints of the configuration."""
    if provider in SERVICES or provider == DEMO_MODEL.ref.partition("/")[0]:
        return hint_for(provider, env)
    close = nearest(provider, [*SERVICES, *own])
    meant = f"; did you mean `{close}`?" if close else ""
    return f"no provider is called {provider!r}{meant} (endpoints of your own go under models.providers)"


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


def dearest_price(model: PublishedModel) -> Price | None:
    """Tell the most that a model's tokens cost: of the longest requests, at any hour, written to any cache."""
    variants = [model.prices] if not isinstance(model.prices, list) else [each.prices for each in model.prices]
    most = {
        name: max((_most(getattr(prices, name, None)) for prices in variants), default=0.0)
        for name in ("input_mtok", "output_mtok", "cache_write_mtok", "cache_write_1h_mtok")
    }
    base = published_price(model)
    if base is None:
        return None
    writes = max(most["cache_write_mtok"], most["cache_write_1h_mtok"])
    return Price(max(most["input_mtok"], base.input), max(most["output_mtok"], base.output), None, writes or None)


def _most(cost: Any) -> float:
    """Return the highest of a price's steps."""
    if cost is None:
        return 0.0
    if isinstance(cost, Decimal):
        return float(cost)
    return max(float(each) for each in (cost.base, *(tier.price for tier in cost.tiers)))


def price_name(provider: str) -> str:
    """Name a provider as genai-prices does."""
    return _PRICED_AS.get(provider, provider)


_ALWAYS_LISTED = frozenset({"anthropic", "openai"})
_NOT_FOR_CHAT = ("audio", "embedding", "image", "instruct", "realtime", "transcribe", "tts", "search")
_WINDOWS = {"anthropic": 200_000, "openai": 128_000}


class ModelInfo(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """One model in a list."""

    id: str
    """Its name at the provider."""
    provider: str
    context_window: int
    price: Price | None = None
    usable: bool
    """Whether its provider could be asked now; false when the key is missing."""

    @property
    def ref(self) -> str:
        return f"{self.provider}/{self.id}"


class Models:
    """The models of the process."""

    def __init__(
        self,
        providers: Mapping[str, ProviderSettings],
        env: Mapping[str, str] | None = None,
        cache: PromptCache = "5m",
        timeouts: ModelTimeoutSettings | None = None,
    ) -> None:
        """Make the registry from `models.providers` and the environment (the process's own, if none is given).

        `cache` is how long providers are asked to keep the beginning of a request. `timeouts` are those of providers
        without their own.
        """
        self._timeouts = timeouts or ModelTimeoutSettings()
        self._providers = dict(providers)
        self._cache = cache
        self._env = os.environ if env is None else env
        self._registered: dict[str, Model] = {}
        self._made: dict[str, ProviderModel] = {}
        self._connections: dict[str, Connection] = {}

    def register(self, model: Model) -> None:
        """Add a model that is not a provider's. It wins over any other with its ref.

        Raises:
            UnknownModel: its ref is not `provider/model`.
        """
        _split(model.ref)
        self._registered[model.ref] = model

    def get(self, ref: str) -> Model:
        """Give the model that `ref` names.

        Raises:
            UnknownModel: there is none, or it cannot be used; the message says what would work.
        """
        if (known := self._registered.get(ref) or self._made.get(ref)) is not None:
            return known
        self.check(ref)
        provider, name = _split(ref)
        connection = self._connections.get(provider)
        if connection is None:
            endpoint = replace(self._endpoint(provider), cache=self._cache, timeouts=self.timeouts(ref))
            connection = self._connections[provider] = Connection(endpoint)
        window, price, is_published = self._facts(provider, name)
        self._made[ref] = ProviderModel(
            connection,
            name,
            context_window=window,
            price=price,
            priced_as=price_name(provider) if is_published else None,
            sees_images=self._vision(provider, name),
            max_tokens=self._longest_reply(provider, name),
            dearest_price=self._dearest(provider, name) if is_published else price,
        )
        return self._made[ref]

    def timeouts(self, ref: str) -> ModelTimeouts:
        """Tell how long a model may take."""
        own = self._providers.get(provider_of(ref))
        return timeouts_of(self._timeouts, None if own is None else own.timeouts)

    def check(self, ref: str) -> None:
        """Find out whether `get` would give a model, without making a client.

        Raises:
            UnknownModel: as `get`.
        """
        if ref in self._registered:
            return
        provider, name = _split(ref)
        if (own := self._providers.get(provider)) is not None:
            if own.models is not None and name not in (model.id for model in own.models):
                raise _unknown(ref, f"of {provider}, {_one_of([model.id for model in own.models], name)}")
        elif provider in SERVICES:
            if hint := hint_for(provider, self._env):
                raise ModelUnusable(f"{ref} cannot be asked: {hint}", model=ref)
        elif registered := [_split(r)[1] for r in self._registered if r.startswith(f"{provider}/")]:
            raise _unknown(ref, f"of {provider}, {_one_of(registered, name)}")
        else:
            names = {*self._providers, *SERVICES, *(_split(r)[0] for r in self._registered)}
            hint = _one_of(sorted(names), provider)
            raise _unknown(ref, f"of providers, {hint}; endpoints of your own go under models.providers")

    def doubt(self, ref: str) -> str | None:
        """Say what is not known of a model that `check` lets pass; None if it is on a list. Asks nobody."""
        provider, name = _split(ref)
        own = self._providers.get(provider)
        is_listed = published(provider, name) is not None if own is None else own.models is not None
        if ref in self._registered or is_listed:
            return None
        return (
            f"Whether {provider} has a model of this name is not known here; if it has none, the run fails and says so."
        )

    def list(self) -> list[ModelInfo]:
        """List the models that are known by name, by provider: registered, configured, and of services.

        Services beside Anthropic and OpenAI are listed only with their key in the environment. What an endpoint
        without a `models` list, or Ollama, has is not known here.
        """
        found = {info.ref: info for info in (*self._of_services(), *self._of_configuration())}
        for ref, model in self._registered.items():
            provider, name = _split(ref)
            found[ref] = ModelInfo(
                id=name,
                provider=provider,
                context_window=model.context_window,
                price=model.price,
                usable=True,
            )
        return sorted(found.values(), key=lambda info: (info.provider, info.id))

    def known_here(self) -> tuple[str, ...]:
        """Name the models that this gateway knows: configured ones, and those that a program registered."""
        return tuple(sorted({*(info.ref for info in self._of_configuration()), *self._registered}))

    async def prepare(self, refs: Iterable[str]) -> None:
        """Load the clients of models before they are asked."""
        for ref in refs:
            try:
                await load(partial(published, *_split(ref)))  # reads a large table
                model = self.get(ref)
                if isinstance(model, ProviderModel):
                    await model.prepare()
            except UnknownModel:
                continue  # the start has said so
            except Exception:  # the edge of a library: a run that asks this model says the same
                log.exception("the client of a model could not be loaded", model=ref)

    async def close(self) -> None:
        """Close the clients."""
        connections = list(self._connections.values())
        self._connections.clear()
        self._made.clear()
        for connection in connections:
            await connection.close()

    def _endpoint(self, provider: str) -> Endpoint:
        if (own := self._providers.get(provider)) is not None:
            return Endpoint(provider, _kind(own.api, own.base_url), own.base_url, own.api_key or None)
        service = SERVICES[provider]
        key = next((self._env[name] for name in service.keys if self._env.get(name)), None)
        if provider == "ollama":
            return Endpoint(provider, "ollama", ollama_url(self._env), self._env.get("OLLAMA_API_KEY") or None)
        url = self._env.get(service.url_variable) or service.url
        return Endpoint(provider, _kind(provider, url) if url else provider, url, key)

    def _configured(self, provider: str, name: str) -> ProviderModelSettings | None:
        own = self._providers.get(provider)
        return next((model for model in (own.models if own else None) or () if model.id == name), None)

    def _vision(self, provider: str, name: str) -> bool | None:
        configured = self._configured(provider, name)
        return None if configured is None else configured.vision

    def _longest_reply(self, provider: str, name: str) -> int | None:
        configured = self._configured(provider, name)
        return None if configured is None else configured.max_tokens

    def _dearest(self, provider: str, name: str) -> Price | None:
        known = published(provider, name)
        return None if known is None else dearest_price(known)

    def has_price(self, ref: str) -> bool:
        """Tell whether the price of a model is known. A model that cannot be asked needs none."""
        if (registered := self._registered.get(ref)) is not None:
            return registered.price is not None or getattr(registered, "is_free", False)
        provider, _, name = ref.partition("/")
        if provider not in self._providers and provider not in SERVICES:
            return True
        return self._facts(provider, name)[1] is not None

    def _facts(self, provider: str, name: str) -> tuple[int, Price | None, bool]:
        """Tell a model's context window, its price, and whether the price is a published one."""
        own = self._providers.get(provider)
        configured = self._configured(provider, name)
        known = published(provider, name)
        default = _WINDOWS[own.api] if own is not None else SERVICES[provider].window
        window = (configured and configured.context_window) or (known and known.context_window) or default
        if configured is not None and configured.cost is not None:
            cost = configured.cost
            return window, Price(cost.input, cost.output, cost.cache_read, cost.cache_write), False
        price = published_price(known) if known is not None else None
        return window, price, price is not None

    def _of_configuration(self) -> Iterator[ModelInfo]:
        for provider, own in self._providers.items():
            for model in own.models or ():
                window, price, _ = self._facts(provider, model.id)
                yield ModelInfo(id=model.id, provider=provider, context_window=window, price=price, usable=True)

    def _of_services(self) -> Iterator[ModelInfo]:
        for provider, service in SERVICES.items():
            is_usable = not missing_for(service, self._env)
            if provider in self._providers or not (is_usable or provider in _ALWAYS_LISTED):
                continue
            for model in all_published(provider):
                if model.context_window and not any(word in model.id for word in _NOT_FOR_CHAT):
                    yield ModelInfo(
                        id=model.id,
                        provider=provider,
                        context_window=model.context_window,
                        price=published_price(model),
                        usable=is_usable,
                    )


def _split(ref: str) -> tuple[str, str]:
    provider, _, name = ref.partition("/")
    if not provider or not name or ref != ref.strip():
        raise _unknown(ref, "expected provider/model, such as anthropic/claude-sonnet-5-5")
    return provider, name


def _kind(service: str, url: str) -> str:
    """Tell the service itself from whatever else speaks as it does: a proxy, a stand-in, an own endpoint."""
    return service if is_at(url, service) else f"{service}-compatible"


def _unknown(ref: str, hint: str) -> UnknownModel:
    return UnknownModel(f"unknown model: {ref!r} ({hint})", model=ref)


def _one_of(names: Sequence[str], wanted: str) -> str:
    near = nearest(wanted, names)
    return f"{f'did you mean {near}? ' if near else ''}known are {', '.join(names) or 'none'}"
