"""Replies that are shown while they grow: one message that is edited, whatever happens meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from backchannel.agents.scripted import Reply, ScriptedModel, call
from backchannel.core.contracts import ModelEvent, ModelReply, ModelRequest, TextDelta
from backchannel.core.delivery.attempts import MAX_ATTEMPTS
from backchannel.core.delivery.channels import ChannelBusy, ChannelMoved, ChannelRefused, ChannelSilent, Draft, Sent
from backchannel.core.delivery.delivery import DeliveryState, Post
from backchannel.core.delivery.drafts import LEFT_BEHIND
from backchannel.core.facts import ApprovalChanged
from backchannel.core.keys import SessionKey
from backchannel.core.messages import Usage, text_content
from backchannel.core.policy.answering import Answerer
from backchannel.core.policy.approvals import ApprovalDecided
from backchannel.core.runs import RunKind
from backchannel.core.sessions import Address, SessionPatch
from backchannel.errors import NotFound
from backchannel.gateway.app import Gateway
from backchannel.runtime import asking
from backchannel.runtime.events import ReplyGrew
from tests.channels.desk import ChannelDesk, desk
from tests.support.clocks import StageClock
from tests.support.gateways import CONFIG, MAIN, dying, held, request
from tests.support.logs import captured_logs
from tests.support.platform import Answer, FrozenChannel, Platform, PlatformChannel, said
from tests.support.resting import at_rest
from tests.support.resting import until as until_told

pytestmark = pytest.mark.anyio
S = DeliveryState
GROUP = "agent:main:chat:group:c"
HALF, WHOLE = "half of it.", "half of it. And the other."


class Slow:
    """A model whose reply is held after its first half, until `go` is set."""

    def __init__(self, first: str = HALF, rest: str = " And the other.", **more: Any) -> None:
        self.go, self.reached = asyncio.Event(), asyncio.Event()
        self.reply = Reply(text=(first, rest), gate=self.go, held_at=1, reached=self.reached, **more)
        self.model = ScriptedModel(replies=[self.reply])


async def ask(at: ChannelDesk, message_id: str = "1", text: str = "hello") -> str:
    taken = await at.gateway.inbound.receive("chat", said(text, message_id))
    assert taken.run_id is not None
    return taken.run_id


async def until(platform: Platform, holds: Callable[[], bool]) -> None:
    """Wait until something holds; it is looked at after each call."""
    async with asyncio.timeout(20):
        while not holds():
            platform.called.clear()
            await platform.called.wait()


def whats(platform: Platform) -> list[tuple[str, bool]]:
    return [(made.what, made.is_draft) for made in platform.calls]


async def test_a_reply_grows_in_one_message_and_is_exact_in_the_end(tmp_path: Path) -> None:
    platform, slow = Platform(), Slow()
    async with desk(tmp_path, {}, PlatformChannel(platform), model=slow.model) as at:
        await ask(at)
        await platform.until_called(1)
        assert platform.texts() == [HALF] and platform.posts(drafts=True) == 1
        slow.go.set()
        receipt = await at.becomes(S.SENT)
        await at_rest(at.gateway)
    assert platform.texts() == [WHOLE] and platform.posts(drafts=False) == 0
    (seen,) = platform.seen.values()
    assert (seen.reply_to, seen.is_draft, receipt.parts[0].message_id) == ("1", False, seen.id)


async def test_a_channel_that_does_not_stream_is_asked_for_no_draft(tmp_path: Path) -> None:
    platform, slow = Platform(), Slow()
    async with desk(tmp_path, {}, PlatformChannel(platform, streams=False), model=slow.model) as at:
        await ask(at)
        await slow.reached.wait()
        slow.go.set()
        await at_rest(at.gateway)
    assert whats(platform) == [("post", False)]


async def test_the_final_part_waits_for_a_draft_that_is_on_its_way(tmp_path: Path) -> None:
    platform, slow = Platform(), Slow()
    platform.holds = asyncio.Event()
    async with desk(tmp_path, {}, PlatformChannel(platform), model=slow.model) as at:
        run_id = await ask(at)
        await platform.until_called(1)
        slow.go.set()
        assert (await at.gateway.runtime.wait(run_id, 20)).is_finished
        receipt = await at.becomes(S.PENDING)
        assert (receipt.delivery.attempts, whats(platform)) == (0, [("post", True)])
        platform.holds.set()
        await at_rest(at.gateway)
    assert whats(platform) == [("post", True), ("edit", False)] and platform.texts() == [WHOLE]


async def test_a_long_reply_shows_its_first_part_and_the_others_come_in_the_end(tmp_path: Path) -> None:
    platform, slow = Platform(), Slow("one two three four", "\nfive six seven")
    async with desk(tmp_path, {}, PlatformChannel(platform, max_text_length=14), model=slow.model) as at:
        await ask(at)
        await platform.until_called(1)
        assert platform.texts() == ["one two…"]
        slow.go.set()
        await at_rest(at.gateway)
    assert platform.texts() == ["one two three", "four", "five six seven"] and platform.posts(drafts=True) == 1


@pytest.mark.parametrize("model_says", ["NO_REPLY", "", NotFound("no model")])
async def test_a_draft_that_no_reply_takes_the_place_of_is_removed(tmp_path: Path, model_says: Any) -> None:
    platform = Platform()
    first = Reply(text="let me look", calls=(call("sessions_list"),))
    model = ScriptedModel(replies=[first, model_says])
    silent: dict[str, Any] = {"messages": {"failureNotice": False}}
    async with desk(tmp_path, {}, PlatformChannel(platform), model=model, **silent) as at:
        await ask(at)
        await at_rest(at.gateway)
    assert platform.texts() == [] and platform.posts(drafts=True) == 1 and platform.posts(drafts=False) == 0


async def test_the_notice_of_a_failure_takes_the_place_of_the_draft(tmp_path: Path) -> None:
    platform, slow = Platform(), Slow(error=NotFound("no model"))
    async with desk(tmp_path, {}, PlatformChannel(platform), model=slow.model) as at:
        run_id = await ask(at)
        await platform.until_called(1)
        slow.go.set()
        await at_rest(at.gateway)
    (text,) = platform.texts()
    assert run_id in text and platform.posts(drafts=False) == 0


async def test_what_was_read_of_a_stopped_reply_stays(tmp_path: Path) -> None:
    platform, slow = Platform(), Slow()
    async with desk(tmp_path, {}, PlatformChannel(platform), model=slow.model) as at:
        await ask(at)
        await platform.until_called(1)
        taken = await at.gateway.inbound.receive("chat", said("/stop", "2", sender_id="ann"))
        assert taken.command == "stop"
        await at_rest(at.gateway)
    shown, told = platform.texts()
    assert shown == HALF and "Stopped" in told


async def test_what_came_between_stays_above_the_reply(tmp_path: Path) -> None:
    platform, slow = Platform(), Slow()
    async with desk(tmp_path, {}, PlatformChannel(platform), model=slow.model) as at:
        await ask(at)
        await platform.until_called(1)
        await at.becomes(S.SENT, await at.send(_post("news")))
        slow.go.set()
        await at_rest(at.gateway)
    assert platform.texts() == ["news", WHOLE], "the order is that of the commits"


@pytest.mark.parametrize("delay_s", [0.0, 0.02])
async def test_no_two_edits_of_a_message_are_ever_on_their_way_at_once(
    tmp_path: Path, delay_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asking, "DELTA_INTERVAL_S", 0.0)
    platform = Platform()
    platform.delay = lambda: asyncio.sleep(delay_s)

    class Wordy(ScriptedModel):
        async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
            for n in range(20):
                yield TextDelta(f"word {n}. ")
                await asyncio.sleep(0.001 * (n % 4))  # as models do
            yield ModelReply(content=text_content(WORDS), usage=Usage(), model=self.ref)

    async with desk(tmp_path, {}, PlatformChannel(platform), model=Wordy()) as at:
        for n in range(30):
            await at.gateway.inbound.receive("chat", said("hello", str(n), chat_id=f"C{n}"))
            if n % 5 == 0:
                await at.send(Post(session_key=MAIN, address=Address(channel="chat", to=f"C{n}"), text="news"))
        await at_rest(at.gateway)
    finals = [seen.text for seen in platform.seen.values() if not seen.is_draft]
    assert sorted(finals) == ["news"] * 6 + [WORDS] * 30 and len(platform.seen) == 36
    assert platform.overlaps == [] and platform.posts(drafts=True) > 10


WORDS = "".join(f"word {n}. " for n in range(20))


def _post(text: str) -> Post:
    return Post(session_key=MAIN, address=Address(channel="chat", to="C"), text=text)


async def test_no_draft_overtakes_what_stands_in_line(tmp_path: Path) -> None:
    platform, slow = Platform(), Slow()
    platform.holds = asyncio.Event()
    async with desk(tmp_path, {}, PlatformChannel(platform), model=slow.model) as at:
        await at.send(_post("news"))
        await platform.until_called(1)
        await ask(at)
        await slow.reached.wait()
        await at.send(_post("more news"))
        platform.holds.set()
        await until(platform, lambda: platform.posts(drafts=True) == 1)
        assert platform.texts() == ["news", "more news", HALF]
        slow.go.set()
        await at_rest(at.gateway)
    assert platform.texts() == ["news", "more news", WHOLE]


async def test_a_draft_whose_answer_was_lost_is_neither_posted_again_nor_edited(tmp_path: Path) -> None:
    platform, slow = Platform(), Slow()
    platform.then(Answer(ChannelSilent("no answer"), takes=True))
    with captured_logs() as logs:
        async with desk(tmp_path, {}, PlatformChannel(platform), model=slow.model) as at:
            await ask(at)
            await platform.until_called(1)
            slow.go.set()
            await at_rest(at.gateway)
            (receipt,) = await at.receipts()
    assert whats(platform) == [("post", True), ("post", False)] and platform.texts() == [HALF, WHOLE]
    assert receipt.delivery.state is S.SENT and "a beginning may stand above it" in (receipt.delivery.error or "")
    assert receipt.parts[0].error == receipt.delivery.error
    assert [entry["error"] for entry in logs if entry["event"] == "a draft may be left in its chat"] == ["no answer"]


async def test_a_reply_that_stands_in_a_draft_whose_answer_was_lost_is_uncertain_and_not_posted(tmp_path: Path) -> None:
    platform, slow = Platform(), Slow(WHOLE, "\n")
    platform.then(Answer(ChannelSilent("no answer"), takes=True))
    async with desk(tmp_path, {}, PlatformChannel(platform), model=slow.model) as at:
        await ask(at)
        await platform.until_called(1)
        slow.go.set()
        receipt = await at.becomes(S.UNCERTAIN)
        assert platform.texts() == [WHOLE] and whats(platform) == [("post", True)]
        assert (
            "posted as a draft" in (receipt.delivery.error or "") and receipt.parts[0].error == receipt.delivery.error
        )
        await at.becomes(S.SENT, await at.send(_post("news")))  # it holds up nothing
        await at.gateway.store.retry_delivery(receipt.delivery.id)
        await at.becomes(S.SENT, receipt.delivery.id)
        await at_rest(at.gateway)
        assert await at.gateway.store.drafts() == []
    assert platform.texts() == [WHOLE, "news", f"{WHOLE}\n"], "a person said so"


async def test_the_note_of_a_lost_draft_is_on_the_receipt_of_a_reply_in_parts(tmp_path: Path) -> None:
    platform, slow = Platform(), Slow("one two three four", "\nfive six seven")
    platform.then(Answer(ChannelSilent("no answer"), takes=True))
    async with desk(tmp_path, {}, PlatformChannel(platform, max_text_length=14), model=slow.model) as at:
        await ask(at)
        await platform.until_called(1)
        slow.go.set()
        await at_rest(at.gateway)
        (receipt,) = await at.receipts()
    assert platform.texts() == ["one two…", "one two three", "four", "five six seven"]
    assert [bool(part.error) for part in receipt.parts] == [True, False, False]
    assert receipt.delivery.error == receipt.parts[0].error


async def test_a_reply_that_is_there_within_the_first_interval_has_no_draft(tmp_path: Path) -> None:
    platform, slow, grown = Platform(), Slow(), asyncio.Event()
    async with desk(tmp_path, {}, PlatformChannel(platform, draft_interval_s=1000), model=slow.model) as at:
        at.gateway.runtime.hub.listen(lambda _: grown.set(), ReplyGrew)
        await ask(at)
        await grown.wait()
        slow.go.set()
        await at_rest(at.gateway)
    assert whats(platform) == [("post", False)] and platform.texts() == [WHOLE]


async def test_a_reply_that_grows_longer_than_the_first_interval_is_shown(tmp_path: Path) -> None:
    platform, slow = Platform(), Slow()
    async with desk(tmp_path, {}, PlatformChannel(platform, draft_interval_s=0.05), model=slow.model) as at:
        await ask(at)
        await platform.until_called(1)
        assert platform.texts() == [HALF] and whats(platform) == [("post", True)]
        slow.go.set()
        await at_rest(at.gateway)
    assert platform.texts() == [WHOLE]


async def test_a_busy_chat_is_left_alone_and_gets_its_draft_later(tmp_path: Path) -> None:
    platform, slow = Platform(), Slow()
    platform.then(Answer(ChannelBusy("flood", 0.01)), None, Answer(ChannelBusy("flood", 0.01)))
    async with desk(tmp_path, {}, PlatformChannel(platform), model=slow.model) as at:
        await ask(at)
        await platform.until_called(2)
        assert platform.texts() == [HALF]
        slow.go.set()
        receipt = await at.becomes(S.SENT)
        await at_rest(at.gateway)
    assert platform.texts() == [WHOLE] and platform.posts(drafts=False) == 0
    assert receipt.delivery.attempts <= 2, "busy drafts are no attempts"


async def test_a_limit_of_the_account_that_a_draft_meets_holds_other_chats(tmp_path: Path) -> None:
    platform, slow = Platform(), Slow()
    platform.then(Answer(ChannelBusy("flood", 3000, is_account_wide=True)))
    async with desk(tmp_path, {}, PlatformChannel(platform), model=slow.model) as at:
        run_id = await ask(at)
        await platform.until_called(1)
        slow.go.set()
        assert (await at.gateway.runtime.wait(run_id, 20)).state == "ok", "a run does not wait for its drafts"
        receipt = await at.becomes(S.PENDING)
        assert receipt.delivery.attempts == 0
    assert len(platform.calls) == 1


@pytest.mark.parametrize("error", [ChannelRefused("no"), RuntimeError("a bug")])
async def test_a_channel_that_cannot_show_drafts_still_delivers(tmp_path: Path, error: Exception) -> None:
    class Broken(PlatformChannel):
        async def show_draft(self, draft: Draft) -> Sent:
            raise error

    platform, slow = Platform(), Slow()
    async with desk(tmp_path, {}, Broken(platform), model=slow.model) as at:
        await ask(at)
        await slow.reached.wait()
        slow.go.set()
        await at_rest(at.gateway)
    assert platform.texts() == [WHOLE]


async def test_a_reply_whose_draft_somebody_deleted_is_posted(tmp_path: Path) -> None:
    platform, slow = Platform(), Slow()
    async with desk(tmp_path, {}, PlatformChannel(platform), model=slow.model) as at:
        await ask(at)
        await _known(at)
        platform.seen.clear()
        slow.go.set()
        receipt = await at.becomes(S.SENT)
        await at_rest(at.gateway)
    assert platform.texts() == [WHOLE] and receipt.delivery.error is None
    assert ("delete", True) not in whats(platform), "there is nothing to remove"


async def test_a_reply_whose_draft_may_not_be_edited_is_posted_and_the_draft_removed(tmp_path: Path) -> None:
    platform, slow = Platform(), Slow()
    channel = FrozenChannel(platform)
    async with desk(tmp_path, {}, channel, model=slow.model) as at:
        await ask(at)
        await _known(at)
        slow.go.set()
        receipt = await at.becomes(S.SENT)
        await at_rest(at.gateway)
    assert platform.texts() == [WHOLE] and receipt.delivery.error is None
    assert (channel.refused, platform.posts(drafts=False)) == (1, 1)


async def _known(at: ChannelDesk) -> None:
    await _known_of(at.gateway)


async def _known_of(gateway: Gateway) -> None:
    """Wait until the platform's id of the draft is committed."""

    async def is_known() -> bool:
        return any(draft.message_id for draft in await gateway.store.drafts())

    async with asyncio.timeout(20):
        await until_told(gateway, is_known)


async def test_a_draft_does_not_follow_a_chat_that_moved_and_the_reply_does(tmp_path: Path) -> None:
    platform, slow = Platform(), Slow()
    platform.then(None, Answer(ChannelMoved("upgraded", "N")))
    async with desk(tmp_path, {}, PlatformChannel(platform), model=slow.model) as at:
        await ask(at)
        await _known(at)
        slow.go.set()
        await at_rest(at.gateway)
        (receipt,) = await at.receipts()
    assert platform.texts("N") == [WHOLE]
    assert receipt.delivery.state is S.SENT and receipt.delivery.error == receipt.parts[0].error == LEFT_BEHIND


async def test_the_receipt_says_that_a_beginning_may_stand_in_the_chat_that_moved_meanwhile(tmp_path: Path) -> None:
    platform, slow = Platform(), Slow()
    async with desk(tmp_path, {}, PlatformChannel(platform), model=slow.model) as at:
        await ask(at)
        await _known(at)
        await at.gateway.inbound.taker("chat").moved("default", "C", "N")
        slow.go.set()
        await at_rest(at.gateway)
        (receipt,) = await at.receipts()
    assert platform.texts("N") == [WHOLE]
    assert receipt.delivery.state is S.SENT and receipt.delivery.error == receipt.parts[0].error == LEFT_BEHIND


async def test_what_the_policy_forbids_meanwhile_is_taken_back(tmp_path: Path) -> None:
    platform, slow = Platform(), Slow()
    async with desk(tmp_path, {}, PlatformChannel(platform), model=slow.model) as at:
        await ask(at)
        await _known(at)
        await at.gateway.store.patch_session(SessionKey.parse(GROUP), SessionPatch(send_policy="deny"))
        slow.go.set()
        await at.becomes(S.SUPPRESSED)
        await at_rest(at.gateway)
    assert platform.texts() == [] and platform.posts(drafts=True) == 1


async def test_what_the_policy_forbids_is_shown_in_no_draft(tmp_path: Path) -> None:
    platform, slow = Platform(), Slow()
    async with desk(tmp_path, {}, PlatformChannel(platform), model=slow.model) as at:
        await at.gateway.store.patch_session(SessionKey.parse(GROUP), SessionPatch(send_policy="deny"))
        where = Address(channel="chat", to="C")
        await at.gateway.runtime.submit(request(GROUP, "go", kind=RunKind.CRON, deliver=True, reply_to=where))
        await slow.reached.wait()
        slow.go.set()
        await at.becomes(S.SUPPRESSED)
    assert platform.calls == []


# After a crash


async def test_a_resumed_run_goes_on_with_the_same_draft(tmp_path: Path) -> None:
    platform, begun = Platform(), asyncio.Event()
    model = ScriptedModel(replies=[held("first words.", reached=begun)])
    async with dying(tmp_path, model, config=CONFIG, equip=_with(platform)) as gateway:
        await gateway.inbound.receive("chat", said("hello", "1"))
        await _known_of(gateway)
    slow = Slow()
    async with desk(tmp_path, {}, PlatformChannel(platform), model=slow.model) as at:
        await until(platform, lambda: platform.texts() == [HALF])
        slow.go.set()
        await at_rest(at.gateway)
    assert platform.texts() == [WHOLE] and platform.posts(drafts=True) == 1 and platform.posts(drafts=False) == 0


async def test_a_draft_that_was_being_posted_when_the_process_died_is_not_posted_again(tmp_path: Path) -> None:
    platform = Platform()
    platform.holds = asyncio.Event()
    model = ScriptedModel(replies=[held("first words.")])
    async with dying(tmp_path, model, config=CONFIG, equip=_with(platform)) as gateway:
        await gateway.inbound.receive("chat", said("hello", "1"))
        await platform.until_called(1)
    platform.holds = None
    with captured_logs() as logs:
        async with desk(tmp_path, {}, PlatformChannel(platform), model=ScriptedModel(replies=[WHOLE])) as at:
            await at_rest(at.gateway)
    assert platform.texts() == ["first words.", WHOLE] and platform.posts(drafts=True) == 1
    assert [entry["run_id"] for entry in logs if entry["event"] == "a draft may be left in its chat"]


async def test_a_draft_that_could_not_be_removed_is_removed_after_a_restart(tmp_path: Path) -> None:
    platform, slow = Platform(), Slow("let me", " see", calls=(call("sessions_list"),))
    slow.model.add("NO_REPLY")
    async with desk(tmp_path, {}, PlatformChannel(platform), model=slow.model) as at:
        run_id = await ask(at)
        await _known(at)
        platform.then(*[Answer(ChannelBusy("later", 3000))] * 3)
        slow.go.set()
        assert (await at.gateway.runtime.wait(run_id, 20)).is_finished
        await until(platform, lambda: ("delete", True) in whats(platform))
    assert len(platform.texts()) == 1
    platform.forgive()
    async with desk(tmp_path, {}, PlatformChannel(platform)) as at:
        await at_rest(at.gateway)
    assert platform.texts() == []


async def test_a_draft_of_a_channel_that_streams_no_longer_is_removed(tmp_path: Path) -> None:
    platform = Platform()
    model = ScriptedModel(replies=[held("first words.")])
    async with dying(tmp_path, model, config=CONFIG, equip=_with(platform)) as gateway:
        await gateway.inbound.receive("chat", said("hello", "1"))
        await _known_of(gateway)
    plain = PlatformChannel(platform, streams=False)
    async with desk(tmp_path, {}, plain, model=ScriptedModel(replies=[WHOLE])) as at:
        await at_rest(at.gateway)
    assert platform.texts() == [WHOLE]


@pytest.mark.parametrize(("reply", "state"), [(WHOLE, S.SENT), ("first words.", S.UNCERTAIN)])
async def test_a_lost_draft_of_a_channel_that_streams_no_longer_is_settled_all_the_same(
    tmp_path: Path, reply: str, state: S
) -> None:
    platform = Platform()
    platform.holds = asyncio.Event()
    model = ScriptedModel(replies=[held("first words.")])
    async with dying(tmp_path, model, config=CONFIG, equip=_with(platform)) as gateway:
        await gateway.inbound.receive("chat", said("hello", "1"))
        await platform.until_called(1)
    platform.holds = None
    plain = PlatformChannel(platform, streams=False)
    async with desk(tmp_path, {}, plain, model=ScriptedModel(replies=[reply])) as at:
        receipt = await at.becomes(state)
        await at_rest(at.gateway)
        assert await at.gateway.store.drafts() == []
    assert platform.texts() == list(dict.fromkeys(["first words.", reply])), "what may be there is not posted twice"
    told = receipt.parts[0].note or receipt.parts[0].error or ""
    assert "draft" in told


async def test_a_reply_that_is_rerouted_leaves_no_draft_behind(tmp_path: Path) -> None:
    platform, slow = Platform(), Slow()
    async with desk(tmp_path, {}, PlatformChannel(platform), model=slow.model, clock=StageClock()) as at:
        await ask(at)
        await _known(at)
        platform.then(*[Answer(ChannelSilent("no answer"))] * (MAX_ATTEMPTS + 1))
        slow.go.set()
        failed = await at.becomes(S.FAILED)
        platform.forgive()
        await at.gateway.store.reroute_delivery(failed.delivery.id, Address(channel="chat", to="D"))
        await at.becomes(S.SENT, failed.delivery.id)
        await at_rest(at.gateway)
    assert (platform.texts("C"), platform.texts("D")) == ([], [WHOLE])


async def test_a_lost_answer_to_the_last_edit_is_asked_for_again(tmp_path: Path) -> None:
    platform, slow = Platform(), Slow(WHOLE, "")
    async with desk(tmp_path, {}, PlatformChannel(platform), model=slow.model) as at:
        await ask(at)
        await _known(at)
        platform.then(Answer(ChannelSilent("no answer"), takes=True))
        slow.go.set()
        receipt = await at.becomes(S.SENT)
    assert whats(platform) == [("post", True), ("edit", False), ("edit", False)] and platform.texts() == [WHOLE]
    assert receipt.delivery.attempts == 2, "an edit may be repeated"


def _with(platform: Platform) -> Callable[[Gateway], None]:
    return lambda gateway: gateway.add_channel(PlatformChannel(platform))


# Typing


async def test_a_chat_sees_that_somebody_is_typing_while_a_run_works(tmp_path: Path) -> None:
    platform, slow = Platform(), Slow()
    channel = PlatformChannel(platform, streams=False, typing_interval_s=0.01)
    async with desk(tmp_path, {}, channel, model=slow.model) as at:
        await ask(at)
        await platform.typed(3)
        slow.go.set()
        await at_rest(at.gateway)
        signs = len(platform.typing)
        await at.becomes(S.SENT, await at.send(_post("later")))
    assert set(platform.typing) == {"C"} and len(platform.typing) == signs


async def test_nobody_is_typing_while_a_run_waits_for_a_persons_word(tmp_path: Path) -> None:
    platform, slow = Platform(), Slow()
    slow.model = ScriptedModel(replies=[[call("wipe")], slow.reply, "done"])
    channel = PlatformChannel(platform, streams=False, typing_interval_s=0.01)
    asking: dict[str, Any] = {"tools": {"approval": [{"tool": "wipe", "ask": "always"}]}}
    async with desk(tmp_path, {}, channel, model=slow.model, **asking) as at:

        @at.gateway.tool(effects="outside")
        async def wipe() -> str:
            return "wiped"

        await ask(at)
        await at.heard.until(lambda: bool(at.heard.of(ApprovalChanged)))
        waiting = platform.typing.count("C")
        await at.gateway.inbound.receive("chat", said("hello", "2", chat_id="D"))
        await until(platform, lambda: platform.typing.count("D") > 5)
        assert platform.typing.count("C") <= waiting + 1
        approval = at.heard.of(ApprovalChanged)[0].approval
        await at.gateway.store.answer_approval(approval.id, ApprovalDecided.APPROVE, Answerer("ann"))
        slow.go.set()
        await at_rest(at.gateway)
    assert "done" in platform.texts("C")


async def test_signs_of_typing_that_fail_change_nothing(tmp_path: Path) -> None:
    class Shy(PlatformChannel):
        async def show_typing(self, to: str, account_id: str | None, thread_id: str | None) -> None:
            self.platform.show_typing(to)
            raise RuntimeError("not now")

    platform, slow = Platform(), Slow()
    async with desk(tmp_path, {}, Shy(platform, typing_interval_s=0.01), model=slow.model) as at:
        await ask(at)
        await platform.typed(3)
        slow.go.set()
        await at_rest(at.gateway)
    assert platform.texts() == [WHOLE]


async def test_nobody_is_typing_for_a_reply_that_goes_nowhere(tmp_path: Path) -> None:
    platform, slow = Platform(), Slow()
    async with desk(tmp_path, {}, PlatformChannel(platform), model=slow.model) as at:
        where = Address(channel="chat", to="C")
        await at.gateway.runtime.submit(request(GROUP, "go", reply_to=where))
        await slow.reached.wait()
        slow.go.set()
        await at_rest(at.gateway)
    assert platform.typing == [] and platform.calls == []
