"""Chains: how far one cause reaches, and that a refusal shows the path."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backchannel.core.policy.limits import (
    MAX_CHAIN_RUNS,
    MAX_HOPS,
    ExchangeLimitSettings,
    Lineage,
    go_on,
    may_go_on,
    path_at,
    show_path,
)
from backchannel.core.runs import Chain

LIMITS = ExchangeLimitSettings(max_hops=3, max_chain_runs=10)


def lineage(hop: int, runs: int = 1) -> Lineage:
    return Lineage(chain=Chain("cause", hop), path=tuple(f"s{n}" for n in range(hop + 1)), runs=runs)


@pytest.mark.parametrize(("hop", "allowed"), [(0, True), (1, True), (2, True), (3, False), (4, False)])
def test_a_chain_goes_as_many_hops_as_are_set(hop: int, allowed: bool) -> None:
    assert may_go_on(lineage(hop), "next", LIMITS).allowed is allowed


@pytest.mark.parametrize(("runs", "allowed"), [(1, True), (9, True), (10, False), (11, False)])
def test_a_chain_has_as_many_runs_as_are_set(runs: int, allowed: bool) -> None:
    assert may_go_on(lineage(1, runs), "next", LIMITS).allowed is allowed


def test_what_comes_from_outside_starts_a_chain_of_its_own() -> None:
    assert may_go_on(None, "next", ExchangeLimitSettings(max_hops=1, max_chain_runs=1)).allowed
    assert go_on(None, "next", "r1") == (Chain("r1", 0), ("next",))


def test_a_refusal_names_the_setting_and_shows_the_path() -> None:
    far = may_go_on(lineage(3), "next", LIMITS)
    assert far.rule == MAX_HOPS
    assert "s0 → s1 → s2 → s3 → next" in far.reason
    assert "maxHops is 3" in far.reason
    full = may_go_on(lineage(1, 10), "next", LIMITS)
    assert full.rule == MAX_CHAIN_RUNS
    assert "maxChainRuns is 10" in full.reason
    assert "s0 → s1 → next" in full.reason


def test_the_next_run_is_one_hop_further_in_the_same_chain() -> None:
    assert go_on(lineage(1), "next", "r7") == (Chain("cause", 2), ("s0", "s1", "next"))


def test_a_turn_of_the_requester_comes_from_the_target() -> None:
    assert path_at(("a", "b"), "b") == ("a", "b")
    assert path_at(("a", "b"), "a") == ("a", "b", "a")
    assert path_at((), "a") == ("a",)


def test_a_very_long_path_is_shown_without_its_middle() -> None:
    assert show_path(tuple("abcdefghijklm")) == " → ".join("abcdefghijklm")
    assert show_path(tuple("abcdefghijklmnop")) == "a → b → c → d → e → f → (4 more) → k → l → m → n → o → p"


@given(st.integers(1, 12), st.integers(1, 40))
def test_a_chain_that_always_goes_on_is_stopped_by_the_lower_limit(max_hops: int, max_runs: int) -> None:
    limits = ExchangeLimitSettings(max_hops=max_hops, max_chain_runs=max_runs)
    here, runs = Lineage(chain=Chain("cause"), path=("s0",), runs=1), 1
    while may_go_on(here, f"s{runs}", limits).allowed:
        chain, path = go_on(here, f"s{runs}", "unused")
        runs += 1
        here = Lineage(chain=chain, path=path, runs=runs)
    assert here.chain.hop == min(max_hops, max_runs - 1)
    assert len(here.path) == here.chain.hop + 1
