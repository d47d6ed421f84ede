"""Hosts: the names of this machine itself, and the address of Ollama."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlsplit

LOOPBACK_NAMES = frozenset(["localhost", "127.0.0.1", "::1"])
OLLAMA_PORT = 11434
OLLAMA_VARIABLES = ("OLLAMA_BASE_URL", "OLLAMA_HOST")
"""The variables that may say where Ollama is; the first that is set decides."""

_EVERYWHERE = ("0.0.0.0", "::")  # noqa: S104 (read, not bound)


def is_local_url(url: str) -> bool:
    """Whether an address is on this machine, by its name: a proxy of the environment does not lead there."""
    return urlsplit(url).hostname in LOOPBACK_NAMES


def ollama_base(env: Mapping[str, str]) -> str | None:
    """Read where Ollama is, as `http://host:port`; None if the variable holds no address.

    The variables may hold a host, `host:port`, or a URL, with `/v1` or without.
    """
    text = next((env[name] for name in OLLAMA_VARIABLES if env.get(name)), "127.0.0.1")
    is_bare = "://" not in text
    try:
        place = urlsplit(f"http://{text}" if is_bare else text)
        port = place.port
    except ValueError:
        return None
    if place.scheme not in ("http", "https") or not place.hostname:
        return None
    # 0.0.0.0 is an address to listen on, not one to connect to.
    is_everywhere = place.hostname in _EVERYWHERE
    host = "127.0.0.1" if is_everywhere else place.hostname
    host = f"[{host}]" if ":" in host else host
    if port is None and (is_bare or is_everywhere):
        port = OLLAMA_PORT
    path = place.path.rstrip("/").removesuffix("/v1")
    return f"{place.scheme}://{host}{'' if port is None else f':{port}'}{path}"
