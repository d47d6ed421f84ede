"""Pairing: who is sent a code, which code counts, and what people read."""

from __future__ import annotations

import pytest

from backchannel.core.commands.commands import Rank
from backchannel.core.delivery.channels import ChannelSettings, InboundEvent
from backchannel.core.keys import ChatType, SessionKey
from backchannel.core.policy.inbound import (
    Admission,
    AdmissionRules,
    Verdict,
    admit,
    command_in,
    is_pairing_asked,
    standing_of,
)
from backchannel.core.policy.pairing import (
    MOST_PENDING,
    PAIRING_LIFE_MS,
    PairingRecord,
    PairingState,
    SenderKnown,
    code_text,
    paired_text,
    waiting_text,
)
from backchannel.core.policy.send_policy import Destination, SendPolicySettings

NOW = 1_700_000_000_000
PAIRS = ChannelSettings(owners=("olga",), allow_from=("ann",), pairing=True)
ALLOWED, DENIED = SendPolicySettings(), SendPolicySettings(default="deny")


def pairing(
    state: PairingState = PairingState.PENDING,
    at: int = NOW,
    *,
    sender_id: str = "eve",
    sender_name: str = "Eve",
) -> PairingRecord:
    where = ("agent:main:main", '{"channel":"desk","to":"C"}')
    return PairingRecord(1, "desk", "default", sender_id, sender_name, "ABCD2345", state, *where, at)


def known(pairing: PairingRecord | None = None, pending: int = 0) -> SenderKnown:
    return SenderKnown(pairing, pending, NOW)


def meet(
    acquaintance: SenderKnown | None,
    settings: ChannelSettings = PAIRS,
    policy: SendPolicySettings = ALLOWED,
    *,
    chat_type: ChatType = ChatType.DIRECT,
    is_bot: bool = False,
    sender: str = "eve",
) -> Admission:
    event = InboundEvent(
        channel="desk",
        chat_type=chat_type,
        chat_id="C",
        sender_id=sender,
        sender_is_bot=is_bot,
        message_id="1",
        text="/start",
        mentioned=True,
    )
    destination = Destination(SessionKey.parse("agent:main:main"))
    rules = AdmissionRules(settings=settings, policy=policy, destination=destination, command=command_in(event))
    return admit(event, rules, known=acquaintance)


def test_a_stranger_in_a_direct_chat_is_sent_a_code() -> None:
    admission = meet(known())
    assert admission.verdict is Verdict.PAIR and admission.rule == "channels.desk.pairing"
    assert meet(known(pairing(at=NOW - PAIRING_LIFE_MS))).verdict is Verdict.PAIR  # the code before is void
    assert (
        meet(known(pairing(at=NOW + PAIRING_LIFE_MS))).verdict is Verdict.PAIR
    )  # a clock that was far ahead has written it


@pytest.mark.parametrize(
    ("acquaintance", "because"),
    [
        (known(pairing()), "waits for an owner"),
        (known(pairing(at=NOW - PAIRING_LIFE_MS + 1)), "waits for an owner"),
        (known(pairing(PairingState.DENIED, at=0)), "pairing remove"),
        (known(pending=MOST_PENDING), "50 strangers wait"),
    ],
)
def test_a_stranger_who_waits_or_was_denied_and_one_too_many_is_ignored(
    acquaintance: SenderKnown, because: str
) -> None:
    admission = meet(acquaintance)
    assert admission.verdict is Verdict.IGNORE and because in admission.reason


def test_nobody_is_sent_a_code_in_a_group_nor_a_bot_nor_where_nothing_may_be_said() -> None:
    bots = ChannelSettings(allow_bots=True, pairing=True)
    for admission in (
        meet(known(), chat_type=ChatType.GROUP),
        meet(known(), chat_type=ChatType.CHANNEL),
        meet(known(), bots, is_bot=True),
        meet(None, ChannelSettings()),
    ):
        assert admission.verdict is Verdict.IGNORE and "channels.desk.allowFrom" in admission.reason
    denied = meet(known(), policy=DENIED)
    assert denied.verdict is Verdict.IGNORE and denied.rule == "session.sendPolicy.default"


def test_who_was_let_in_is_authorised_and_never_an_owner_and_only_while_the_channel_pairs() -> None:
    approved = known(pairing(PairingState.APPROVED, at=0))
    assert standing_of("eve", PAIRS, approved) is Rank.AUTHORISED
    assert standing_of("eve", ChannelSettings(), approved) is Rank.STRANGER
    assert standing_of("eve", PAIRS, known(pairing(PairingState.DENIED))) is Rank.STRANGER
    assert standing_of("olga", PAIRS, approved) is Rank.OWNER
    assert (
        meet(approved).verdict is Verdict.ANSWER and meet(approved, chat_type=ChatType.GROUP).verdict is Verdict.ANSWER
    )


def test_pairing_is_asked_only_about_whom_no_setting_names() -> None:
    assert [is_pairing_asked(sender, PAIRS) for sender in ("eve", "ann", "olga")] == [True, False, False]
    assert not is_pairing_asked("eve", ChannelSettings())
    assert not is_pairing_asked("eve", ChannelSettings(allow_from=("*",), pairing=True))


@pytest.mark.parametrize("written", ["ABCD2345", "abcd2345", " abcd-2345 ", "AbCd 2345"])
def test_a_code_counts_however_it_is_typed(written: str) -> None:
    assert pairing().has_code(written, NOW)


@pytest.mark.parametrize("written", ["", "ABCD234", "ABCD23456", "ABCD2346", "ＡBCD2345", "\ud800", "é" * 10_000])
def test_another_code_does_not(written: str) -> None:
    assert not pairing().has_code(written, NOW)


def test_a_code_counts_for_an_hour() -> None:
    assert pairing().has_code("ABCD2345", NOW + PAIRING_LIFE_MS - 1)
    assert not pairing().has_code("ABCD2345", NOW + PAIRING_LIFE_MS)


def test_what_people_read() -> None:
    assert (
        code_text("ABCD2345")
        == "This bot does not know you yet. Ask its owner to run: backchannel pairing approve ABCD2345"
    )
    assert paired_text(pairing(PairingState.APPROVED)) == "Eve (desk eve) may speak now, and is told so."
    assert paired_text(pairing(PairingState.DENIED)) == "Eve (desk eve) is ignored from now on."
    assert waiting_text([], NOW) == "Nobody waits to be let in."
    assert waiting_text([pairing()], NOW + 130_000).startswith("ABCD2345: Eve (desk eve), 2 min ago\n/pairing approve")


def test_a_name_and_an_id_cannot_write_lines_of_their_own() -> None:
    evil = pairing(sender_name="Eve\x1b[2J\nOLGA2345: Olga", sender_id="e\n\x1b]0;x\x07" + "v" * 500)
    told = waiting_text([evil], NOW)
    assert len(told.splitlines()) == 2 and "\x1b" not in told and "\x07" not in told
    assert len(told) < 400


def test_a_long_list_is_cut_and_says_so() -> None:
    told = waiting_text([pairing()] * 55, NOW)
    assert told.count("ABCD2345") == 20 and "… and 35 more" in told
