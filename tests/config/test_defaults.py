"""The model of agents that name none."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from pydantic_ai.models import KnownModelName

from backchannel.config import config_from, default_model, needs_default_model, probe_ollama
from backchannel.config.defaults import ANTHROPIC_MODEL, OPENAI_MODEL

TAGS = {"models": [{"name": "nomic-embed-text:latest"}, {"name": "llama3.2:3b"}]}


@pytest.fixture(autouse=True)
def no_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """What answers here shares a busy machine with those who ask."""
    monkeypatch.setattr("backchannel.config.defaults._CONNECT_S", 20.0)
    monkeypatch.setattr("backchannel.config.defaults._ANSWER_S", 20.0)


@contextmanager
def ollama(body: bytes, status: int = 200) -> Iterator[str]:
    """A local server that answers `/api/tags` as Ollama does; gives its host and port."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status if self.path == "/api/tags" else 404)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def unasked(base: str) -> str | None:
    raise AssertionError(f"nobody should ask {base}")


def closed_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


def test_a_key_decides_and_then_nobody_looks_for_ollama() -> None:
    both = {"ANTHROPIC_API_KEY": "k", "OPENAI_API_KEY": "k", "OLLAMA_HOST": "x"}

    assert default_model(both, unasked) == (ANTHROPIC_MODEL, "ANTHROPIC_API_KEY is set", None)
    assert default_model({"OPENAI_API_KEY": "k"}, unasked) == (OPENAI_MODEL, "OPENAI_API_KEY is set", None)


def test_the_models_chosen_are_known_to_the_model_library() -> None:
    known = set(KnownModelName.__value__.__args__)

    assert {ANTHROPIC_MODEL.replace("/", ":"), OPENAI_MODEL.replace("/", ":")} <= known


def test_an_ollama_that_answers_gives_its_first_chat_model() -> None:
    with ollama(json.dumps(TAGS).encode()) as address:
        for env in ({"OLLAMA_HOST": address}, {"OLLAMA_BASE_URL": f"http://{address}/v1"}):
            found = default_model(env)
            assert found.ref == "ollama/llama3.2:3b"
            assert found.base_url == f"http://{address}/v1"
            assert found.why == f"Ollama answers at http://{address}"


@pytest.mark.parametrize(
    ("body", "status"),
    [(b"{", 200), (b"[]", 200), (b'{"models": []}', 200), (b'{"models": [1, {"name": 2}]}', 200), (b"{}", 500)],
)
def test_a_strange_answer_is_no_ollama(body: bytes, status: int) -> None:
    with ollama(body, status) as address:
        assert probe_ollama(f"http://{address}") is None


def test_an_ollama_that_does_not_answer_is_told_and_the_demo_taken() -> None:
    found = default_model({"OLLAMA_HOST": f"127.0.0.1:{closed_port()}"})

    assert found.ref == "builtin/demo"
    assert found.why == "OLLAMA_HOST is set, but no Ollama with a model answers there"


def test_with_nothing_at_all_the_demo_is_taken() -> None:
    asked: list[str] = []

    found = default_model({"OPENAI_API_KEY": ""}, lambda base: asked.append(base))

    assert found.ref == "builtin/demo"
    assert asked == ["http://127.0.0.1:11434"]


@pytest.mark.parametrize(
    ("host", "base"),
    [
        ("box", "http://box:11434"),
        ("0.0.0.0", "http://127.0.0.1:11434"),
        ("http://0.0.0.0:5", "http://127.0.0.1:5"),
        ("[::1]:5", "http://[::1]:5"),
        ("https://box.example/ollama/v1/", "https://box.example/ollama"),
    ],
)
def test_the_ways_to_write_where_ollama_is(host: str, base: str) -> None:
    asked: list[str] = []

    default_model({"OLLAMA_HOST": host}, lambda base: asked.append(base))

    assert asked == [base]


@pytest.mark.parametrize("host", ["http://[", "ftp://box", "box:notaport", "http://"])
def test_a_place_that_makes_no_sense_is_not_asked(host: str) -> None:
    assert default_model({"OLLAMA_HOST": host}, unasked).ref == "builtin/demo"


def test_a_look_is_only_worth_it_when_an_agent_names_no_model() -> None:
    assert needs_default_model(config_from({}))
    assert needs_default_model(config_from({"agents": {"list": [{"id": "a", "model": "p/m"}, {"id": "b"}]}}))
    assert not needs_default_model(config_from({"agents": {"list": [{"id": "a", "model": "p/m"}]}}))
    assert not needs_default_model(config_from({"agents": {"defaults": {"model": "p/m"}}}))
