"""Names of MCP tools: `<server>__<tool>`, valid for every provider and stable across starts.

A server's name has no `__` and does not end with `_`. So the first `__` of a tool's name ends the server's name, and
tools of two servers never collide. Servers choose the names of their tools. A name that a provider would refuse is made
valid. Where two names become the same, each gets a part of its hash. So a tool's name depends on the names alone, not
on their order.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable
from functools import lru_cache

MCP_SEPARATOR = "__"
MCP_GROUP = "group:mcp:"
LONGEST_SERVER = 32
LONGEST_TOOL = 64
"""How long a tool's name may be for every provider."""

_SERVER = re.compile(r"[A-Za-z0-9]+(?:(?:-+|_)[A-Za-z0-9]+)*\Z")
_INVALID = re.compile(r"[^A-Za-z0-9_-]")
_SEVERAL = re.compile(r"_{2,}")
_HASH_LENGTH = 8


def server_name_problem(name: str) -> str | None:
    """Say why a server cannot have this name, and which one would do."""
    if _SERVER.match(name) and len(name) <= LONGEST_SERVER:
        return None
    rule = f"a server's name is letters, digits, `-` and single `_`, at most {LONGEST_SERVER}"
    better = _SEVERAL.sub("_", _INVALID.sub("-", name)).strip("-_")[:LONGEST_SERVER].strip("-_")
    return f"{rule}; its tools begin with it" + (f" (`{better}` would do)" if better else "")


def tool_names(server: str, given: Iterable[str]) -> dict[str, str]:
    """Give each tool of a server the name that agents call it by; one that is valid as it is keeps it."""
    valid = {name: f"{server}{MCP_SEPARATOR}{_INVALID.sub('_', name)}" for name in given}
    wanted = Counter(valid.values())
    names: dict[str, str] = {}
    for name, own in valid.items():
        is_its_own = not _INVALID.search(name) or wanted[own] == 1
        names[name] = own if is_its_own and len(own) <= LONGEST_TOOL else _hashed(own, name)
    return names


def _hashed(valid: str, name: str) -> str:
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:_HASH_LENGTH]
    return f"{valid[: LONGEST_TOOL - _HASH_LENGTH - 1]}_{digest}"


def names_all(word: str) -> bool:
    """Whether a word of `tools.allow` is only a wildcard. It allows all tools, except those that must be named."""
    return not word.strip().strip("*")


def may_name(word: str, server: str) -> bool:
    """Whether a word of `tools.allow` may name a tool of this server, whichever tools it has."""
    if names_all(word):
        return False  # that leaves out what has to be named
    if word.startswith("group:"):
        return word == f"{MCP_GROUP}{server}"
    own = f"{server}{MCP_SEPARATOR}".lower()
    start, wildcard, _ = word.strip().lower().partition("*")
    return start.startswith(own) or (bool(wildcard) and own.startswith(start))


@lru_cache(maxsize=256)
def servers_named(words: tuple[str, ...], servers: tuple[str, ...]) -> tuple[str, ...]:
    """List the servers that may have a tool named in `tools.allow`. This is asked before every run."""
    return tuple(server for server in servers if any(may_name(word, server) for word in words))
