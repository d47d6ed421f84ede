"""Prompt caches of providers, after their published rules: how much of a request is read from one.

OpenAI caches by itself: the longest beginning that an earlier request with the same `prompt_cache_key` had, from 1,024
tokens on, in steps of 128. Anthropic caches where a request has a mark, at most four. It finds an earlier mark at most
20 blocks before one of this request's. A token is taken to be four bytes.
"""

from __future__ import annotations

import json
from typing import Any

Body = dict[str, Any]


class OpenAiCache:
    """Counts the tokens of requests, and those that were read from the cache."""

    def __init__(self) -> None:
        self.sent = self.read = 0
        self._known: dict[str, list[bytes]] = {}

    def count(self, body: Body) -> None:
        told = [body.get("tools"), body.get("instructions"), body.get("messages") or body.get("input")]
        text = json.dumps(told).encode()
        key = str(body.get("prompt_cache_key"))
        shared = max((_shared(text, known) for known in self._known.get(key, [])), default=0) // 4
        self.sent += len(text) // 4
        self.read += shared // 128 * 128 if shared >= 1024 else 0
        self._known.setdefault(key, []).append(text)
        del self._known[key][:-8]


def _shared(one: bytes, other: bytes) -> int:
    """Count the bytes that two texts begin with in common."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[:middle] == other[:middle]:
            low = middle
        else:
            high = middle - 1
    return low


class AnthropicCache:
    """The same for a provider that caches at marks."""

    most_marks, looks_back, shortest = 4, 20, 1024

    def __init__(self) -> None:
        self.sent = self.read = 0
        self._known: set[int] = set()

    def count(self, body: Body) -> None:
        blocks = [*_listed(body.get("tools")), *_listed(body.get("system")), *_blocks(body["messages"])]
        marks = [i for i, block in enumerate(blocks) if "cache_control" in block]
        assert len(marks) <= self.most_marks, f"{len(marks)} cache marks"
        size, digest, sizes, digests = 0, 0, list[int](), list[int]()
        for block in blocks:
            text = json.dumps({name: value for name, value in block.items() if name != "cache_control"})
            size, digest = size + len(text), hash((digest, text))
            sizes.append(size // 4)
            digests.append(digest)
        found = [
            i
            for mark in marks
            for i in range(mark, max(mark - self.looks_back, -1), -1)
            if digests[i] in self._known and sizes[i] >= self.shortest
        ]
        self.sent += size // 4
        self.read += sizes[max(found)] if found else 0
        self._known.update(digests[mark] for mark in marks)


def _listed(value: Any) -> list[Body]:
    if value is None:
        return []
    return [{"text": value}] if isinstance(value, str) else list(value)


def _blocks(messages: list[Body]) -> list[Body]:
    return [{"role": message["role"], **block} for message in messages for block in _listed(message["content"])]
