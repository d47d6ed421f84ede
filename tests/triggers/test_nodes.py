"""The pure rules for the owner of a node's session."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backchannel.core.keys import KeyScheme, Kind, SessionKey
from backchannel.errors import Forbidden, InvalidRequest
from backchannel.triggers.nodes import choose_node, is_node, own_key, read_node_id, run_id

SCHEME = KeyScheme()
KITCHEN = SessionKey.node("main", "kitchen")
IDS = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}", fullmatch=True)


@pytest.mark.parametrize("text", ["a", "Kitchen", "pi-4.local", "node-1", "0", "x" * 64])
def test_a_plain_name_is_an_id(text: str) -> None:
    assert read_node_id(text) == text
    assert str(choose_node(text, None, SCHEME)) == f"agent:main:node-{text}"


@pytest.mark.parametrize(
    "text",
    [None, "", " ", "a b", "a:b", "a%3ab", "a/b", "-a", ".", "..", "_a", "a\n", "a\x00", "\u212a", "é", "x" * 65, "*"],
)
def test_what_could_be_taken_for_something_else_is_none(text: str | None) -> None:
    with pytest.raises(InvalidRequest) as refused:
        read_node_id(text)
    assert refused.value.details["param"] == "nodeId"


def test_a_bound_token_is_for_exactly_one_node_of_its_agent() -> None:
    bound = SessionKey.parse("agent:writer:node-kitchen")
    assert choose_node("kitchen", bound, SCHEME) == bound
    for other in ("Kitchen", "kitchen2", "kitche", "node-kitchen"):
        with pytest.raises(Forbidden, match="bound to another session"):
            choose_node(other, bound, SCHEME)


@pytest.mark.parametrize("key", ["main", "hook:kitchen", "node-kitchen:door", "cron:kitchen", "node-node-kitchen"])
def test_a_token_of_another_session_is_for_no_node(key: str) -> None:
    with pytest.raises(Forbidden):
        choose_node("kitchen", SessionKey.parse(f"agent:main:{key}"), SCHEME)


@pytest.mark.parametrize(
    "text",
    [
        "node-kitchen",
        "node:kitchen",
        "NODE-kitchen",
        "Node:kitchen",
        "agent:main:node-kitchen",
        " agent:MAIN:node:kitchen ",
        "node-%6bitchen",
        "current",
        None,
    ],
)
def test_every_spelling_of_its_own_key_is_its_own(text: str | None) -> None:
    assert own_key(KITCHEN, SCHEME, text) == KITCHEN


@pytest.mark.parametrize("text", ["node-kitchen:door", "node:kitchen:door", "agent:main:node-kitchen:door"])
def test_keys_that_begin_with_its_own_are_its_own(text: str) -> None:
    assert str(own_key(KITCHEN, SCHEME, text)) == "agent:main:node-kitchen:door"


def test_what_no_key_can_hold_stays_encoded_in_its_own() -> None:
    assert str(own_key(KITCHEN, SCHEME, "node%2dkitchen:x%00")) == "agent:main:node-kitchen:x%00"


@pytest.mark.parametrize(
    "text",
    [
        "main",
        "node-hall",
        "node:hall",
        "NODE:hall",
        "node-Kitchen",
        "node-KITCHEN",
        "node-kitchen2",
        "node-kitchen-2",
        "node-kitchen%3adoor",
        "node-%68all",
        "node-kitchen%20",
        "agent:writer:node-kitchen",
        "agent:main:main",
        "hook:node-kitchen",
        "telegram:group:node-kitchen",
        "kitchen",
        "node:node-kitchen",
        "0b1c2d3e-0000-4000-8000-000000000000",
    ],
)
def test_a_key_of_somebody_else_is_forbidden_however_it_is_spelt(text: str) -> None:
    with pytest.raises(Forbidden, match="not this node's"):
        own_key(KITCHEN, SCHEME, text)


@given(st.text(max_size=40), IDS)
def test_no_text_names_a_session_of_another_node(text: str, node_id: str) -> None:
    node = SessionKey.node("main", node_id)
    try:
        key = own_key(node, SCHEME, text)
    except (InvalidRequest, Forbidden):
        return
    assert key.agent == "main" and (key == node or str(key).startswith(f"{node}:"))


@given(IDS, IDS, st.text(min_size=1), st.text(min_size=1))
def test_two_nodes_never_name_one_run(one: str, other: str, a: str, b: str) -> None:
    first, second = (run_id(SessionKey.node("main", node), key) for node, key in ((one, a), (other, b)))
    assert (first == second) is ((one, a) == (other, b))


def test_only_the_key_under_which_a_node_connects_is_a_nodes() -> None:
    assert is_node(KITCHEN) and SCHEME.kind(KITCHEN) is Kind.NODE
    for key in ("main", "node-kitchen:door", "hook:node-kitchen", "node-a%3ab"):
        assert not is_node(SessionKey.parse(f"agent:main:{key}"))
