"""Ids that are found by their first characters."""

from __future__ import annotations

import pytest

from backchannel.core.short_ids import IdKind, choose_id, parse_written_id
from backchannel.errors import AmbiguousId, DeliveryNotFound, RunNotFound


def chosen(text: str, *found: str, kind: IdKind = IdKind.RUN) -> str:
    return choose_id(kind, parse_written_id(text), found)


def test_the_only_id_that_begins_so_is_meant() -> None:
    assert chosen("1c9b", "1c9bce46") == "1c9bce46"
    assert chosen(" 1c9b\n", "1c9bce46") == "1c9bce46"


def test_an_id_that_is_whole_is_meant_although_others_begin_with_it() -> None:
    assert chosen("order-1", "order-1", "order-10", "order-11") == "order-1"
    assert chosen("x", "x") == "x"


def test_the_run_that_the_others_are_named_after_is_meant() -> None:
    assert chosen("1c9b", "1c9bce46/turn/2", "1c9bce46", "1c9bce46/announce") == "1c9bce46"


def test_several_are_listed_and_no_more_than_five() -> None:
    ids = [f"1c9b-{number}" for number in range(6)]
    with pytest.raises(AmbiguousId, match=r"'1c9b' \(write more of one: 1c9b-0, .*1c9b-4, …\)") as several:
        chosen("1c9b", *ids)
    assert several.value.details["ids"] == ids[:5]


def test_fewer_than_four_characters_name_nothing_but_a_whole_id() -> None:
    with pytest.raises(RunNotFound, match="no run '1c9'; of a longer id, at least 4 characters"):
        chosen("1c9", "1c9bce46")
    with pytest.raises(DeliveryNotFound, match="no delivery 'nope'"):
        chosen("nope", kind=IdKind.DELIVERY)


def test_what_a_table_left_out_in_the_middle_is_read_back() -> None:
    written = parse_written_id("1c9bce46…/turn/2")

    assert written.fits("1c9bce46aa/turn/2")
    assert not written.fits("1c9bce46aa/turn/1")
