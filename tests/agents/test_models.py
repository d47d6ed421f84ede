"""The registry: which ref is which model, and what is said when there is none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import anyio
import pytest

from backchannel.agents.models import Models
from backchannel.agents.scripted import ScriptedModel
from backchannel.config.schema import ModelCostSettings, ProviderSettings
from backchannel.config.schema import ProviderModelSettings as ConfiguredModel
from backchannel.core.contracts import Model, ModelReply, ModelRequest, Price
from backchannel.core.messages import Message, Role, TextBlock, text_content
from backchannel.errors import UnknownModel
from tests.support.stub_provider import Answer, StubProvider

KEYS = {"ANTHROPIC_API_KEY": "k-anthropic", "OPENAI_API_KEY": "k-openai"}


def own(base_url: str = "http://127.0.0.1:9/v1", **more: Any) -> ProviderSettings:
    return ProviderSettings(**{"api": "openai", "base_url": base_url, **more})


def refusal(models: Models, ref: str) -> str:
    """What both `check` and `get` say about a ref that is no model."""
    with pytest.raises(UnknownModel) as checked:
        models.check(ref)
    with pytest.raises(UnknownModel) as got:
        models.get(ref)
    assert checked.value.message == got.value.message
    assert got.value.details == {"model": ref}
    return got.value.message


async def ask(model: Model) -> ModelReply:
    hello = Message(id="m", role=Role.USER, content=text_content("hello"), timestamp=0)
    with anyio.fail_after(60):
        events = [event async for event in model.stream(ModelRequest(system="", messages=(hello,)))]
    assert isinstance(events[-1], ModelReply)
    return events[-1]


@pytest.mark.parametrize("ref", ["", "gpt-5", "/gpt-5", "openai/", " openai/gpt-5", "openai"])
def test_a_ref_that_is_not_provider_and_model_is_refused_with_an_example(ref: str) -> None:
    assert "expected provider/model, such as anthropic/" in refusal(Models({}, KEYS), ref)


def test_an_unknown_provider_is_answered_with_the_nearest_and_the_list() -> None:
    message = refusal(Models({"acme": own()}, {}), "antropic/claude")
    assert "did you mean anthropic?" in message
    assert "acme, alibaba, anthropic," in message
    assert "models.providers" in message


def test_a_missing_key_is_named() -> None:
    message = refusal(Models({}, {}), "openai/gpt-5.4")
    assert "the key for openai is missing: set OPENAI_API_KEY" in message and "unknown" not in message
    assert "set GOOGLE_API_KEY or GEMINI_API_KEY" in refusal(Models({}, {"GOOGLE_API_KEY": ""}), "google/gemini")


def test_a_provider_whose_package_is_missing_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("backchannel.agents.models.find_spec", lambda _: None)
    assert "pip install 'pydantic-ai-slim[groq]'" in refusal(Models({}, {"GROQ_API_KEY": "k"}), "groq/llama")


def test_an_endpoint_with_a_list_has_only_those_models() -> None:
    listed = own(models=(ConfiguredModel(id="qwen3"), ConfiguredModel(id="org/glm")))
    models = Models({"acme": listed}, {})
    models.check("acme/org/glm")
    message = refusal(models, "acme/qwen")
    assert "did you mean qwen3?" in message
    assert "qwen3, org/glm" in message


def test_an_endpoint_without_a_list_takes_any_model() -> None:
    Models({"acme": own()}, {}).check("acme/whatever:latest")


def test_ollama_needs_no_key() -> None:
    model = Models({}, {}).get("ollama/llama3.2:3b")
    assert (model.ref, model.context_window, model.price) == ("ollama/llama3.2:3b", 32768, None)


def test_known_models_have_their_published_window_and_price() -> None:
    model = Models({}, KEYS).get("anthropic/claude-sonnet-4-6")
    assert model.context_window == 1_000_000
    assert model.price == Price(3.0, 15.0)


@pytest.mark.parametrize(
    ("ref", "window"), [("anthropic/claude-next", 200_000), ("openai/next", 128_000), ("acme/next", 128_000)]
)
def test_unknown_models_have_a_sensible_window_and_no_price(ref: str, window: int) -> None:
    model = Models({"acme": own()}, KEYS).get(ref)
    assert (model.context_window, model.price) == (window, None)


def test_what_is_configured_wins_over_what_is_published() -> None:
    entry = ConfiguredModel(id="claude-sonnet-4-6", context_window=5_000, cost=ModelCostSettings(input=1, output=2))
    model = Models({"anthropic": own(api="anthropic", models=(entry,))}, {}).get("anthropic/claude-sonnet-4-6")
    assert (model.context_window, model.price) == (5_000, Price(1.0, 2.0))


def test_cached_tokens_may_have_prices_of_their_own() -> None:
    cost = ModelCostSettings(input=1, output=2, cache_read=0.3, cache_write=1.5)
    entry = ConfiguredModel(id="m", cost=cost)
    assert Models({"acme": own(models=(entry,))}, {}).get("acme/m").price == Price(1.0, 2.0, 0.3, 1.5)


def test_all_endpoints_are_asked_to_cache_as_long_as_is_configured() -> None:
    models = Models({"acme": own()}, KEYS, "1h")
    for ref in ("acme/m", "anthropic/m"):
        connection: Any = vars(models.get(ref))["_connection"]
        assert connection.endpoint.cache == "1h"


@pytest.mark.parametrize(
    ("url", "kind"),
    [
        ("https://api.openai.com/v1", "openai"),
        ("https://eu.api.openai.com/v1", "openai"),
        ("https://notopenai.com/v1", "openai-compatible"),
        ("https://openai.com.example.org/v1", "openai-compatible"),
    ],
)
def test_only_openai_itself_is_asked_by_its_own_newer_api(url: str, kind: str) -> None:
    by_config, by_env = Models({"acme": own(url)}, {}), Models({}, {**KEYS, "OPENAI_BASE_URL": url})
    for model in (by_config.get("acme/m"), by_env.get("openai/m")):
        connection: Any = vars(model)["_connection"]
        assert connection.endpoint.kind == kind


def test_the_same_ref_gives_the_same_model() -> None:
    models = Models({}, KEYS)
    assert models.get("openai/gpt-5.4") is models.get("openai/gpt-5.4")


def test_a_registered_model_is_found_and_wins() -> None:
    models = Models({}, {})
    mine, other = ScriptedModel("scripted/mine"), ScriptedModel("openai/gpt-5.4")
    models.register(mine)
    models.register(other)
    models.check("scripted/mine")
    assert models.get("scripted/mine") is mine
    assert models.get("openai/gpt-5.4") is other
    assert "did you mean mine?" in refusal(models, "scripted/mind")


def test_a_model_with_a_bad_ref_is_not_registered() -> None:
    with pytest.raises(UnknownModel):
        Models({}, {}).register(ScriptedModel("scripted"))


def test_the_list_tells_which_models_can_be_used() -> None:
    listed = own(models=(ConfiguredModel(id="qwen3", context_window=9_000, cost=ModelCostSettings(input=1, output=2)),))
    models = Models({"acme": listed}, {"OPENAI_API_KEY": "k", "DEEPSEEK_API_KEY": "k"})
    models.register(ScriptedModel("scripted/mine", context_window=7))
    found = {info.ref: info for info in models.list()}
    assert list(found) == sorted(found, key=lambda ref: ref.split("/", 1))
    assert (found["acme/qwen3"].context_window, found["acme/qwen3"].price) == (9_000, Price(1.0, 2.0))
    assert (found["scripted/mine"].context_window, found["scripted/mine"].usable) == (7, True)
    assert found["openai/gpt-5.4"].usable
    assert not found["anthropic/claude-sonnet-4-6"].usable
    providers = {info.provider for info in found.values()}
    assert "deepseek" in providers
    assert "groq" not in providers
    assert not any("embedding" in ref or "tts" in ref for ref in found)


@pytest.mark.anyio
@pytest.mark.parametrize("api", ["openai", "anthropic"])
async def test_a_configured_endpoint_answers_with_its_own_key(api: str) -> None:
    async with StubProvider(key="k-acme") as stub:
        models = Models({"acme": own(stub.base_url, api=api, api_key="k-acme")}, KEYS)
        reply = await ask(models.get("acme/some-model"))
        await models.close()
    assert (reply.model, reply.content) == ("acme/some-model", (TextBlock(text="ok"),))


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("ref", "env"),
    [
        ("anthropic/claude-sonnet-4-6", {"ANTHROPIC_API_KEY": "k", "ANTHROPIC_BASE_URL": "{url}"}),
        ("openai/gpt-5.4", {"OPENAI_API_KEY": "k", "OPENAI_BASE_URL": "{url}"}),
        ("ollama/qwen3", {"OLLAMA_BASE_URL": "{url}"}),
        ("ollama/qwen3", {"OLLAMA_HOST": "{host}"}),
    ],
)
async def test_the_environment_says_where_services_are(ref: str, env: Mapping[str, str]) -> None:
    async with StubProvider() as stub:
        host = stub.base_url.removeprefix("http://").removesuffix("/v1")
        models = Models({}, {name: text.format(url=stub.base_url, host=host) for name, text in env.items()})
        reply = await ask(models.get(ref))
        await models.close()
    assert reply.content == (TextBlock(text="ok"),)
    assert stub.refused == []


@pytest.mark.anyio
async def test_a_service_that_pydantic_ai_knows_by_name_is_closed_too() -> None:
    models = Models({}, {"DEEPSEEK_API_KEY": "k"})
    model = models.get("deepseek/deepseek-chat")
    connection: Any = vars(model)["_connection"]
    inner = await connection.model("deepseek-chat")
    await models.close()
    assert inner.client.is_closed()


@pytest.mark.anyio
async def test_models_can_be_used_again_after_they_were_closed() -> None:
    async with StubProvider() as stub:
        models = Models({"acme": own(stub.base_url)}, {})
        await ask(models.get("acme/m"))
        await models.close()
        stub.then(Answer(text="again"))
        reply = await ask(models.get("acme/m"))
        await models.close()
    assert reply.content == (TextBlock(text="again"),)
