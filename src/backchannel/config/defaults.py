"""What holds when nothing is said: which model agents use that name none.

A key in the environment decides, then a local Ollama, then the built-in demo model. Only the look for
Ollama touches the network, and only when no key is set; loading a configuration never does.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias
from urllib.parse import urlsplit

import msgspec
from msgspec.structs import replace

from backchannel.config.schema import DEMO_MODEL, Config, DefaultModel
from backchannel.core.hosts import OLLAMA_VARIABLES, ollama_base

ANTHROPIC_MODEL = "anthropic/claude-sonnet-5-5"
OPENAI_MODEL = "openai/gpt-6.1-sol"

Probe: TypeAlias = Callable[[str], str | None]

_CONNECT_S = 0.1
_ANSWER_S = 0.5
_MAX_ANSWER_BYTES = 1024 * 1024


def probe_ollama(base: str) -> str | None:
    """Ask the Ollama at `base` (`http://host:port`) for the model it would use; `None` if there is none."""
    import http.client  # 10 ms of import that nobody pays who has a key

    place = urlsplit(base)
    address = (place.hostname or "127.0.0.1", place.port or (443 if place.scheme == "https" else 80))
    kind = http.client.HTTPSConnection if place.scheme == "https" else http.client.HTTPConnection
    try:
        socket.create_connection(address, timeout=_CONNECT_S).close()
        connection = kind(*address, timeout=_ANSWER_S)
        with contextlib.closing(connection):
            connection.request("GET", f"{place.path}/api/tags")
            answer = connection.getresponse()
            found = msgspec.json.decode(answer.read(_MAX_ANSWER_BYTES)) if answer.status == 200 else None
    except (OSError, http.client.HTTPException, msgspec.DecodeError, ValueError):
        return None
    return _first_chat_model(found)


def default_model(env: Mapping[str, str], probe: Probe = probe_ollama) -> DefaultModel:
    """Find the model of agents that name none: a key in the environment, a local Ollama, else the demo."""
    if env.get("ANTHROPIC_API_KEY"):
        return DefaultModel(ANTHROPIC_MODEL, "ANTHROPIC_API_KEY is set")
    if env.get("OPENAI_API_KEY"):
        return DefaultModel(OPENAI_MODEL, "OPENAI_API_KEY is set")
    base = ollama_base(env)
    if base and (model := probe(base)):
        return DefaultModel(f"ollama/{model}", f"Ollama answers at {base}", f"{base}/v1")
    if variable := next((name for name in OLLAMA_VARIABLES if env.get(name)), None):
        return DEMO_MODEL._replace(why=f"{variable} is set, but no Ollama with a model answers there")
    return DEMO_MODEL._replace(why="no ANTHROPIC_API_KEY, no OPENAI_API_KEY and no local Ollama was found")


def needs_default_model(config: Config) -> bool:
    """Whether some agent names no model, so that a look for one is worth it."""
    return config.agents.defaults.model is None and any(a.model is None for a in config.agents.list)


def with_default_model(config: Config, found: DefaultModel) -> Config:
    """Let agents that name no model use the one that was found."""
    return replace(config, default_model=found)


def _first_chat_model(found: Any) -> str | None:
    models = found.get("models") if isinstance(found, dict) else None
    names = [m.get("name") for m in models if isinstance(m, dict)] if isinstance(models, list) else []
    return next((n for n in names if isinstance(n, str) and n and "embed" not in n), None)
