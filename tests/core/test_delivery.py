"""Deliveries: which states follow which, when a part is tried again, whose turn it is, and what a person may do."""

from __future__ import annotations

import itertools
import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backchannel.core.delivery.attempts import (
    MAX_ATTEMPTS,
    MAX_RETRY_TIME_MS,
    AttemptRules,
    after_attempt,
    after_crash,
    retry_wait,
)
from backchannel.core.delivery.channels import ChannelBusy, ChannelError, ChannelRefused, ChannelSilent, Sent
from backchannel.core.delivery.delivery import (
    Delivery,
    DeliveryAction,
    DeliveryLane,
    DeliveryState,
    Part,
    Tries,
    act,
    draft_key,
    make_parts,
    parse_part_key,
    part_key,
    state_of,
)
from backchannel.errors import InvalidRequest

S = DeliveryState
NOW = 1_700_000_000_000


def delivery(position: int = 1, state: DeliveryState = S.PENDING, **changes: object) -> Delivery:
    values: dict[str, object] = {
        "id": f"d{position}",
        "session_key": "agent:main:main",
        "exchange_id": None,
        "run_id": None,
        "channel": "desk",
        "account_id": None,
        "target": "C1",
        "thread_id": None,
        "text": "hello",
        "attempts": 0,
        "error": None,
        "due_at": None,
        "created_at": NOW,
        "updated_at": NOW,
    }
    return Delivery(position=position, state=state, **(values | changes))  # type: ignore[arg-type]


# States


SETTLED = {S.SENT, S.SKIPPED, S.NO_CHANNEL, S.SUPPRESSED, S.CANCELLED, S.DROPPED}


@pytest.mark.parametrize("state", S)
def test_every_state_is_settled_or_open_or_waits_for_a_person(state: DeliveryState) -> None:
    assert [state.is_settled, state.is_open, state.needs_person].count(True) == 1
    assert state.is_settled is (state in SETTLED)
    assert state.is_open is (state in (S.PENDING, S.SENDING))


# Parts


def test_each_part_has_its_own_key_counted_from_one() -> None:
    parts = make_parts("d7", "one\ntwo\nthree", 5)
    assert [(part.n, part.key, part.text) for part in parts] == [
        (1, "d7/1", "one"),
        (2, "d7/2", "two"),
        (3, "d7/3", "three"),
    ]
    assert {part.state for part in parts} == {S.PENDING}
    assert part_key("d7", 1) == "d7/1"
    assert parse_part_key("d7/1") == ("d7", 1) and parse_part_key(part_key("cron:a/b", 12)) == ("cron:a/b", 12)
    assert [parse_part_key(key) for key in ("d7", "/1", "d7/", "d7/x", "d7/1234567890", draft_key("d7"))] == [None] * 6


def test_parts_of_a_rerouted_delivery_use_no_key_again() -> None:
    first = make_parts("d7", "one\ntwo", 5)
    again = make_parts("d7", "one\ntwo", 5, after=first[-1].n)
    assert [part.key for part in again] == ["d7/3", "d7/4"]


def test_a_blank_text_has_no_parts_and_is_skipped() -> None:
    assert make_parts("d7", " \n ", 10) == []
    assert state_of([]) is S.SKIPPED


@pytest.mark.parametrize(
    ("parts", "whole"),
    [
        ([S.PENDING, S.PENDING], S.PENDING),
        ([S.SENDING, S.PENDING], S.SENDING),
        ([S.SENT, S.PENDING], S.PENDING),
        ([S.SENT, S.SENDING], S.SENDING),
        ([S.SENT, S.SENT], S.SENT),
        ([S.SENT, S.FAILED, S.PENDING], S.FAILED),
        ([S.UNCERTAIN, S.PENDING], S.UNCERTAIN),
    ],
)
def test_the_first_part_that_is_not_sent_decides_the_whole(parts: list[DeliveryState], whole: DeliveryState) -> None:
    assert state_of(parts) is whole


# Attempts


def test_retries_come_after_a_second_doubling_to_a_minute_and_end_with_the_tenth_attempt() -> None:
    waits = [retry_wait(Tries(attempts)) for attempts in range(1, 11)]
    seconds = [None if wait is None else wait / 1000 for wait in waits]
    assert seconds == [1, 2, 4, 8, 16, 32, 60, 60, 60, None]


@pytest.mark.parametrize(
    ("asked_s", "attempts", "delay_ms"),
    [
        (None, 1, 1000),
        (0, 1, 1000),
        (0.25, 1, 1000),
        (1.5, 1, 1500),
        (30, 1, 30_000),
        (5, 5, 16_000),
        (600, 9, 600_000),
        (86_400, 1, MAX_RETRY_TIME_MS),
        (math.inf, 1, MAX_RETRY_TIME_MS),
        (1e308, 1, MAX_RETRY_TIME_MS),
        (math.nan, 1, 1000),
        (-5, 1, 1000),
    ],
)
def test_a_channel_is_left_alone_as_long_as_it_asks_but_within_the_hour(
    asked_s: float | None, attempts: int, delay_ms: int
) -> None:
    assert retry_wait(Tries(attempts), asked_s) == delay_ms


@given(
    st.integers(1, 30),
    st.integers(0, 2 * MAX_RETRY_TIME_MS),
    st.none() | st.floats(allow_nan=True, allow_infinity=True),
)
def test_a_retry_comes_later_and_within_attempts_and_time(attempts: int, waited_ms: int, asked_s: float | None) -> None:
    wait_ms = retry_wait(Tries(attempts, waited_ms), asked_s)
    assert (wait_ms is None) is (attempts >= MAX_ATTEMPTS or waited_ms >= MAX_RETRY_TIME_MS)
    assert wait_ms is None or 0 < wait_ms <= MAX_RETRY_TIME_MS - waited_ms


def test_one_last_attempt_is_made_at_the_end_of_the_hour() -> None:
    last = retry_wait(Tries(2, 5000), 7200)
    assert last == MAX_RETRY_TIME_MS - 5000
    assert retry_wait(Tries(3, 5000 + last)) is None


REFUSED, BUSY, SILENT = ChannelRefused("no such chat"), ChannelBusy("slow down", 5), ChannelSilent("no answer")


@pytest.mark.parametrize(
    ("answer", "takes_key", "attempts", "state", "wait_ms"),
    [
        (Sent("m1"), True, 1, S.SENT, None),
        (Sent("m1"), False, 10, S.SENT, None),
        (REFUSED, True, 1, S.FAILED, None),
        (REFUSED, False, 1, S.FAILED, None),
        (BUSY, True, 1, S.PENDING, 5000),
        (BUSY, False, 1, S.PENDING, 5000),
        (BUSY, False, 10, S.FAILED, None),
        (SILENT, True, 1, S.PENDING, 1000),
        (SILENT, True, 9, S.PENDING, 60_000),
        (SILENT, True, 10, S.FAILED, None),
        (SILENT, False, 1, S.UNCERTAIN, None),
        (SILENT, False, 10, S.UNCERTAIN, None),
    ],
)
def test_what_the_channel_said_decides_what_becomes_of_a_part(
    answer: Sent | ChannelError, takes_key: bool, attempts: int, state: DeliveryState, wait_ms: int | None
) -> None:
    attempted = after_attempt(answer, Tries(attempts), AttemptRules(takes_key=takes_key))
    assert attempted.state is state
    assert attempted.wait_ms == wait_ms
    if isinstance(answer, Sent):
        assert (attempted.message_id, attempted.error) == ("m1", None)
    else:
        assert attempted.error is not None and answer.reason in attempted.error


def test_a_part_in_doubt_is_never_sent_twice_without_a_key() -> None:
    attempted = after_attempt(SILENT, Tries(1), AttemptRules(takes_key=False))
    assert attempted.error == (
        "no answer; it is not known whether the message arrived, and sending it again could post it twice"
    )


def test_giving_up_in_doubt_says_so() -> None:
    silent = after_attempt(SILENT, Tries(10), AttemptRules(takes_key=True))
    assert silent.error is not None
    assert silent.error.startswith("given up after 10 attempts: no answer; it may have arrived all the same")
    busy = after_attempt(BUSY, Tries(1, MAX_RETRY_TIME_MS), AttemptRules(takes_key=True))
    assert busy.error == "given up after 1 attempt: slow down"


def test_a_long_reason_is_cut() -> None:
    attempted = after_attempt(ChannelRefused("x" * 10_000), Tries(1), AttemptRules(takes_key=True))
    assert attempted.error is not None and len(attempted.error) == 500


@pytest.mark.parametrize(("state", "takes_key"), list(itertools.product(S, [True, False])))
def test_after_a_crash_only_what_was_on_its_way_is_in_doubt(state: DeliveryState, takes_key: bool) -> None:
    attempted = after_crash(
        Part(delivery_id="d1", n=1, text="hello", state=state, attempts=1), rules=AttemptRules(takes_key=takes_key)
    )
    if state is not S.SENDING:
        assert attempted is None
        return
    assert attempted is not None and attempted.error is not None
    assert attempted.state is (S.PENDING if takes_key else S.UNCERTAIN)
    assert attempted.wait_ms is None


def test_a_part_that_may_kill_the_process_waits_longer_each_time_and_is_given_up_after_an_hour_of_waits() -> None:
    part = Part(delivery_id="d1", n=1, text="hello", state=S.SENDING, attempts=1)
    waits: list[int] = []
    while (made := after_crash(part, AttemptRules(takes_key=True))) is not None and made.state is S.PENDING:
        waits.append(made.wait_ms or 0)
        part = msgspec.structs.replace(
            part, attempts=part.attempts + 1, crashes=part.crashes + 1, waited_ms=part.waited_ms + waits[-1]
        )
    assert waits[:5] == [0, 0, 1000, 2000, 4000] and max(waits) == 60_000 and sum(waits) == MAX_RETRY_TIME_MS
    assert made is not None and made.state is S.FAILED
    assert made.error is not None and made.error.endswith("a retry does not post it twice")


def test_an_attempt_that_ended_with_our_process_does_not_count_as_one_of_the_platform() -> None:
    part = Part(delivery_id="d1", n=1, text="hello", state=S.SENDING, attempts=MAX_ATTEMPTS + 1, crashes=MAX_ATTEMPTS)
    assert after_attempt(SILENT, part.tries, AttemptRules(takes_key=True)).wait_ms == retry_wait(Tries(1))


# Order


def test_no_account_and_the_default_account_are_one_lane() -> None:
    assert delivery(1).lane == delivery(2, account_id="default").lane == DeliveryLane.of("desk", "C1")


@pytest.mark.parametrize("missing", ["text", "channel", "target"])
def test_a_receipt_without_text_or_address_stands_in_no_lane(missing: str) -> None:
    assert delivery(1, S.PENDING, **{missing: None}).lane is None


# What a person may do


@pytest.mark.parametrize(("action", "state"), list(itertools.product(DeliveryAction, S)))
def test_a_person_acts_on_failed_and_uncertain_deliveries_only(action: DeliveryAction, state: DeliveryState) -> None:
    may_confirm = action is not DeliveryAction.CONFIRM or state is not S.FAILED
    if state in (S.FAILED, S.UNCERTAIN) and may_confirm:
        after = act(action, delivery(state=state))
        ends = {DeliveryAction.DROP: S.DROPPED, DeliveryAction.CONFIRM: S.SENT}
        assert after is ends.get(action, S.PENDING)
        return
    with pytest.raises(InvalidRequest) as raised:
        act(action, delivery(state=state))
    assert f"cannot {action} delivery d1: it is {state}" in raised.value.message
    assert ("only failed and uncertain" if may_confirm else "only uncertain") in raised.value.message
    assert raised.value.details == {"deliveryId": "d1", "state": state.value}


def test_a_receipt_whose_text_was_never_written_can_be_retried_or_dropped_but_not_rerouted() -> None:
    failed = delivery(state=S.FAILED, text=None)
    assert act(DeliveryAction.RETRY, failed) is S.PENDING
    assert act(DeliveryAction.DROP, failed) is S.DROPPED
    with pytest.raises(InvalidRequest, match="retry it"):
        act(DeliveryAction.REROUTE, failed)


def test_what_waits_for_a_channel_that_is_gone_can_be_dropped_or_sent_elsewhere() -> None:
    waiting = delivery(state=S.PENDING)
    assert act(DeliveryAction.DROP, waiting, has_channel=False) is S.DROPPED
    assert act(DeliveryAction.REROUTE, waiting, has_channel=False) is S.PENDING
    with pytest.raises(InvalidRequest, match="re-route or drop it"):
        act(DeliveryAction.RETRY, waiting, has_channel=False)
    with pytest.raises(InvalidRequest, match="re-route or drop it"):
        act(DeliveryAction.CONFIRM, waiting, has_channel=False)
    with pytest.raises(InvalidRequest, match="being sent right now"):
        act(DeliveryAction.DROP, delivery(state=S.SENDING), has_channel=False)
    with pytest.raises(InvalidRequest, match="still trying"):
        act(DeliveryAction.DROP, delivery(state=S.PENDING, text=None), has_channel=False)
