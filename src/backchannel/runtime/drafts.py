"""Drafts and typing: signs of a run in its chat before the reply.

A listener hears runs begin and end and their replies grow. Each run whose reply goes to an outside chat has a
`ComposingRun` (`runtime/composing.py`), in memory only. Typing is shown while the run works. Where the channel streams,
the reply is shown as far as it is written. When it has grown for one interval, a row is committed, the draft is posted,
and the platform's id is committed. From then on the draft is edited, which may be repeated and needs no rows.
`storage/units/drafts.py` has the rows. `core/delivery/drafts.py` decides about a draft when its run ends.

A call that is under way is waited for before anything else is sent to its chat (`settled`). Otherwise an older draft
could overwrite the reply, or the reply could miss the id of its draft. Whatever fails here, the run and its reply go
on.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

import structlog

from backchannel.core.contracts import Clock
from backchannel.core.delivery.attempts import MAX_ATTEMPTS, account_hold_ms, retry_wait
from backchannel.core.delivery.channel_list import Channels
from backchannel.core.delivery.channels import (
    Channel,
    ChannelBusy,
    ChannelError,
    ChannelMoved,
    ChannelRefused,
    ChannelSilent,
    Draft,
    Sent,
)
from backchannel.core.delivery.delivery import DeliveryLane, Tries, draft_key
from backchannel.core.delivery.drafts import DraftMove, DraftState, ShownDraft
from backchannel.core.delivery.splitting import opening_of
from backchannel.core.facts import ApprovalChanged, DraftChanged, RunChanged
from backchannel.core.runs import Run, RunState
from backchannel.errors import FenceLost
from backchannel.runtime.clocks import sleep_or_event
from backchannel.runtime.cluster.duties import Duties
from backchannel.runtime.composing import ComposingRun
from backchannel.runtime.events import Event, Hub, ReplyGrew
from backchannel.runtime.holds import AccountHolds
from backchannel.runtime.supervisor import CLOSE_LIMIT_S, DatabaseWait, Tasks
from backchannel.service import Service
from backchannel.storage.store import Store

log = structlog.get_logger(__name__)

CALL_LIMIT_S = 30.0
"""A platform that does not answer for so long is silent: the reply waits no longer for it."""
LINE_PAUSE_S = 0.25
"""How soon at the earliest it is looked again whether the line of a chat is empty."""
_BUSY_PAUSE_S = 5.0
"""How long a busy chat is left alone that does not say how long."""


class Drafts(Service):
    """Shows what runs are writing."""

    name = "drafts"

    def __init__(
        self,
        store: Store,
        channels: Channels,
        clock: Clock,
        holds: AccountHolds,
        hub: Hub,
        wait: DatabaseWait,
        duties: Duties,
    ) -> None:
        self._store = store
        self._channels = channels
        self._clock = clock
        self._holds = holds
        self._durably = wait.durably
        self._sends_over = duties.sends_over  # else an edit could come after the reply
        self._at_work: dict[str, ComposingRun] = {}
        self._drawing: set[ComposingRun] = set()
        self._tasks = Tasks()
        self._removing: set[str] = set()
        """Runs whose draft is being removed."""
        self._told: set[str] = set()
        """Channels of which it was logged that they cannot show typing."""
        self._is_open = False
        hub.listen(self._on_event, RunChanged, ReplyGrew, ApprovalChanged, DraftChanged)

    async def start(self) -> None:
        """Decide on what an earlier process left, before anything is sent, and remove what is to be removed."""
        self._at_work.clear()
        self._removing.clear()
        await self.take_over()
        self._is_open = True

    async def take_over(self) -> None:
        """Decide on the drafts of processes that have ended, before their runs go on."""
        for lost in await self._store.recover_drafts():
            _log_lost(lost, "the gateway stopped while it was being posted")
        for draft in await self._store.left_drafts():
            if draft.state is DraftState.REMOVING and draft.run_id not in self._removing:
                self._begin_removal(draft)

    def _begin_removal(self, draft: ShownDraft) -> None:
        self._removing.add(draft.run_id)
        self._tasks.spawn(self._remove(draft), _REMOVAL)

    async def settled(self, lane: DeliveryLane) -> None:
        """Wait for what is being asked of a chat; a run that has ended asks for nothing more."""
        while calling := [made.calling for made in self._drawing if made.is_for(lane) and made.calling.locked()]:
            async with calling[0]:
                pass

    async def halt(self) -> None:
        await self.close()

    async def close(self) -> None:
        """Stop showing; calls on their way are waited for, what is left to remove goes on at the next start."""
        self._is_open = False
        for composing in [*self._at_work.values(), *self._drawing]:
            composing.over.set()
        removing = {task for task in self._tasks if task.get_name() == _REMOVAL}
        for task in removing:
            task.cancel()
        left = set(self._tasks) - removing
        if left and not self._store.is_closed:
            _, left = await asyncio.wait(left, timeout=CLOSE_LIMIT_S)
        for task in left:
            task.cancel()
        await asyncio.gather(*left, *removing, return_exceptions=True)

    # Hearing

    def _on_event(self, event: Event) -> None:
        if isinstance(event, RunChanged):
            if event.run.deliver:  # most runs that are told of go nowhere
                self._on_run(event.run)
        elif isinstance(event, ReplyGrew):
            if (composing := self._at_work.get(event.run.id)) is not None and self._streams(composing):
                self._grow(composing, event.text)
        elif isinstance(event, ApprovalChanged):
            if (composing := self._at_work.get(event.approval.run_id)) is not None:
                composing.note_question(event.approval)
        elif isinstance(event, DraftChanged) and event.draft.state is DraftState.REMOVING and self._is_open:
            self._begin_removal(event.draft)

    def _on_run(self, run: Run) -> None:
        is_at_work = run.state is RunState.RUNNING and not run.abort_requested
        known = self._at_work.get(run.id)
        if known is None:
            if is_at_work and self._is_open and run.fence == self._store.number:
                self._begin(run)
        elif not is_at_work:
            del self._at_work[run.id]
            known.over.set()

    def _begin(self, run: Run) -> None:
        composing = ComposingRun.of(run, self._channels)
        if composing is not None:
            self._at_work[run.id] = composing
            if composing.types:
                self._tasks.spawn(self._type(composing))

    # Typing

    async def _type(self, composing: ComposingRun) -> None:
        """Ask for signs of typing while a run works; what fails there is nobody's business."""
        lane, channel = composing.lane, composing.channel
        while not composing.over.is_set():
            if not composing.questions and not self._holds.left_s(lane.channel, lane.account_id):
                try:
                    asked = channel.show_typing(lane.to, lane.account_id, lane.thread_id)
                    if asked is None:
                        return
                    async with asyncio.timeout(channel.typing_interval_s):
                        await asked
                except Exception as error:  # noqa: BLE001  # the edge of a channel: it is only a sign
                    if channel.name not in self._told:
                        self._told.add(channel.name)
                        log.debug("no sign of typing was shown", channel=channel.name, error=type(error).__name__)
            await sleep_or_event(self._clock, channel.typing_interval_s, composing.over)

    # Drafts

    def _streams(self, composing: ComposingRun) -> bool:
        return composing.channel.streams and self._sends_over(composing.channel.name)

    def _grow(self, composing: ComposingRun, text: str) -> None:
        composing.text = text
        composing.grew.set()
        if not composing.is_drawn:
            composing.is_drawn = True
            # A reply that is there by then needs no draft, and none whose answer could be lost.
            composing.next_at = self._clock.monotonic() + composing.channel.draft_interval_s
            self._tasks.spawn(self._draw(composing))

    async def _draw(self, composing: ComposingRun) -> None:
        """Show a reply as it grows, until its run is over or nothing more can be shown."""
        self._drawing.add(composing)
        try:
            while not composing.over.is_set():
                await _either(composing.grew, composing.over)
                composing.grew.clear()
                lane = composing.lane
                held_s = self._holds.left_s(lane.channel, lane.account_id)
                wait_s = max(held_s, composing.next_at - self._clock.monotonic())
                if wait_s > 0:
                    await sleep_or_event(self._clock, wait_s, composing.over)
                async with composing.calling:
                    if composing.over.is_set() or not await self._show(composing):
                        return
        except FenceLost:
            return  # the next start finds the row as it is
        except Exception:  # the edge of a draft: its run goes on
            log.exception("a draft could not be shown", channel=composing.lane.channel)
        finally:
            self._drawing.discard(composing)

    async def _show(self, composing: ComposingRun) -> bool:
        """Show what there is; False when nothing more can be shown of this run."""
        channel = composing.channel
        text = opening_of(composing.text, channel.max_text_length, channel.text_length)
        if not text.strip() or text == composing.shown:
            return True
        composing.next_at = self._clock.monotonic() + channel.draft_interval_s
        if composing.draft is None:
            opening = await self._durably(lambda: self._store.open_draft(composing.fence, text))
            if opening.move is DraftMove.WAIT:
                self._pause(composing, LINE_PAUSE_S)
            if opening.draft is None or opening.move not in (DraftMove.POST, DraftMove.EDIT):
                return opening.move is DraftMove.WAIT
            composing.shown_in = opening.draft.lane
            if opening.move is DraftMove.POST:
                return await self._post(composing, opening.draft, text)
            composing.draft = opening.draft
        return await self._edit(composing, composing.draft, text)

    async def _post(self, composing: ComposingRun, draft: ShownDraft, text: str) -> bool:
        run_id = draft.run_id
        if composing.over.is_set():  # while the row was being written
            await self._durably(lambda: self._store.forget_draft(run_id))
            return False
        answer = await self._ask(composing, draft, text)
        if isinstance(answer, Sent) and (message_id := answer.message_id) is not None:
            composing.draft = await self._durably(lambda: self._store.draft_shown(run_id, message_id))
            composing.shown = text
            return composing.draft is not None
        if isinstance(answer, ChannelRefused | ChannelBusy | ChannelMoved):
            await self._durably(lambda: self._store.forget_draft(run_id))
            return await self._go_on(composing, draft, answer)
        await self._durably(lambda: self._store.lose_draft(run_id))
        _log_lost(draft, answer.reason if isinstance(answer, ChannelError) else "the platform gave no id of it")
        return False

    async def _edit(self, composing: ComposingRun, draft: ShownDraft, text: str) -> bool:
        answer = await self._ask(composing, draft, text)
        if isinstance(answer, Sent):
            composing.shown = text
            return True
        if isinstance(answer, ChannelSilent):
            return True  # it may be shown or not: the next edit says the same and more
        # Where the chat has moved or the message is gone there is nothing to edit, and another draft would be a second.
        return await self._go_on(composing, draft, answer) and isinstance(answer, ChannelBusy)

    async def _ask(self, composing: ComposingRun, draft: ShownDraft, text: str) -> Sent | ChannelError:
        try:
            async with asyncio.timeout(CALL_LIMIT_S):
                return await composing.channel.show_draft(_outbound(draft, text, composing.quotes))
        except ChannelError as error:
            log.debug("a draft was not shown", channel=draft.channel, run_id=draft.run_id, error=error.reason)
            return error
        except Exception as error:  # the edge of a channel: it is not known what arrived
            log.exception("a channel failed to show a draft", channel=draft.channel)
            return ChannelSilent(type(error).__name__)

    async def _go_on(self, composing: ComposingRun, draft: ShownDraft, answer: ChannelError) -> bool:
        """Decide whether to show more after a draft that was surely not taken; a busy chat is left alone first."""
        if isinstance(answer, ChannelMoved):
            place = (draft.channel, draft.account_id, draft.target)
            await self._durably(lambda: self._store.move_chat(*place, answer.to))
        elif isinstance(answer, ChannelBusy):
            if (hold_ms := account_hold_ms(answer)) is not None:
                await self._durably(lambda: self._store.hold_account(draft.channel, draft.account_id, hold_ms))
            self._pause(composing, answer.retry_after_s or _BUSY_PAUSE_S)
        return not isinstance(answer, ChannelRefused)

    def _pause(self, composing: ComposingRun, seconds: float) -> None:
        """Come back to a draft after a while, also if it does not grow."""
        composing.next_at = max(composing.next_at, self._clock.monotonic() + seconds)
        composing.grew.set()

    async def _remove(self, draft: ShownDraft) -> None:
        """Delete a draft whose place no reply takes, trying again for a while; the row is there until it is done."""
        channel = self._channels.get(draft.channel)
        tries = Tries(0)
        while channel is not None:
            tries = Tries(tries.attempts + 1, tries.waited_ms)
            answer = await self._ask_removal(channel, draft)
            asked_s = answer.retry_after_s if isinstance(answer, ChannelBusy) else None
            if answer is None or isinstance(answer, ChannelRefused):
                break
            if (wait_ms := retry_wait(tries, asked_s)) is None:
                _log_lost(draft, f"given up after {MAX_ATTEMPTS} attempts to remove it: {answer.reason}")
                break
            tries = Tries(tries.attempts, tries.waited_ms + wait_ms)
            await self._clock.sleep(wait_ms / 1000)
        with suppress(FenceLost):  # the next start finds the row as it is
            await self._durably(lambda: self._store.forget_draft(draft.run_id))
        self._removing.discard(draft.run_id)

    async def _ask_removal(self, channel: Channel, draft: ShownDraft) -> ChannelError | None:
        try:
            async with asyncio.timeout(CALL_LIMIT_S):
                await channel.remove_draft(_outbound(draft, ""))
        except ChannelError as error:
            return error
        except NotImplementedError as error:
            return ChannelRefused(str(error))  # it has shown drafts once, and does no longer
        except Exception as error:  # the edge of a channel: it is tried again
            log.exception("a channel failed to remove a draft", channel=draft.channel)
            return ChannelSilent(type(error).__name__)
        return None


_REMOVAL = "removal of a draft"


def _outbound(draft: ShownDraft, text: str, quotes: str | None = None) -> Draft:
    return Draft(
        key=draft_key(draft.run_id),
        to=draft.target,
        text=text,
        account_id=draft.account_id,
        thread_id=draft.thread_id,
        reply_to=quotes,
        draft_id=draft.message_id,
    )


def _log_lost(draft: ShownDraft, why: str) -> None:
    log.warning("a draft may be left in its chat", run_id=draft.run_id, channel=draft.channel, error=why)


async def _either(first: asyncio.Event, second: asyncio.Event) -> None:
    """Wait until one of two events is set."""
    waits = [asyncio.create_task(event.wait()) for event in (first, second)]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
        await asyncio.gather(*waits, return_exceptions=True)
