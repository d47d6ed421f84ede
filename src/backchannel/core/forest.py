"""Trees of sessions by who spawned whom: each session stands under its parent once."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from backchannel.core.flows.spawn_values import SpawnRecord
from backchannel.core.messages import Usage
from backchannel.core.sessions import Session


class Forest(msgspec.Struct, frozen=True):
    """The roots, and the children of each key; both in the order in which the keys were given."""

    roots: list[str]
    children: dict[str, list[str]]


class Relative(msgspec.Struct, frozen=True):
    """A session among those that it was spawned by and has spawned."""

    session: Session
    story: SpawnRecord | None
    """Of a sub-agent."""
    spawned: int
    """How many sessions it has spawned in all."""
    tree_usage: Usage
    """Its own, and that of all that descend from it."""


class Relatives(msgspec.Struct, frozen=True):
    """Sessions that belong together, and how they stand to each other."""

    forest: Forest
    members: dict[str, Relative]
    is_cut: bool
    """Whether there are more."""


def grow_forest(parents: Mapping[str, str | None]) -> Forest:
    """Put each key under its parent; one whose parent is not among them is a root.

    Keys that spawned each other, which only damaged rows can say, stand under the first of them.
    """
    children: dict[str, list[str]] = {key: [] for key in parents}
    roots = [key for key, parent in parents.items() if parent not in parents]
    for key, parent in parents.items():
        if parent in children and parent is not None:
            children[parent].append(key)
    placed = _below(roots, children, set())
    for key in parents:
        if key not in placed:
            for siblings in children.values():
                if key in siblings:
                    siblings.remove(key)
            roots.append(key)
            placed = _below([key], children, placed)
    return Forest(roots, children)


def _below(keys: list[str], children: Mapping[str, list[str]], placed: set[str]) -> set[str]:
    waiting = list(keys)
    while waiting:
        key = waiting.pop()
        if key not in placed:
            placed.add(key)
            waiting += children[key]
    return placed
