"""The store: the list of all transactions.

Each entry makes one unit a method. `write` returns a future that is done when the change is durable. `read` and `look`
return what is committed. `listen_for_facts` tells the changes after the commit, in order, before the caller is
answered. The docstring of the unit says what a method takes, returns and raises.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from math import inf
from pathlib import Path
from time import monotonic
from typing import Self

from backchannel.core.cluster.members import GatewayInfo
from backchannel.core.contracts import Clock
from backchannel.core.delivery.drafts import ShownDraft
from backchannel.core.facts import Fact, TranscriptClosed
from backchannel.core.flows.exchange_values import ExchangeOpened
from backchannel.core.keys import KeyScheme
from backchannel.core.policy.queues import DEFAULT_RULES, SessionRules
from backchannel.core.records import UnfinishedWork
from backchannel.core.sessions import Session
from backchannel.core.text import quoted
from backchannel.errors import FenceLost, InvalidRequest, SessionNotFound, Unavailable
from backchannel.storage import clock
from backchannel.storage.databases import database_at
from backchannel.storage.driver import (
    Database,
    Driver,
    DriverContext,
    Faults,
    Wakeups,
    look,
    read,
    write,
    write_beside,
    write_within,
)
from backchannel.storage.files import media
from backchannel.storage.files.folder import StateFolder, archived_path
from backchannel.storage.files.transcripts import Transcripts
from backchannel.storage.ids import new_id
from backchannel.storage.reactions import REACTIONS
from backchannel.storage.schedule_units import ScheduleUnits
from backchannel.storage.tx import NO_OUTLETS, Outlets, UnitContext, no_transcripts
from backchannel.storage.units import approvals as approval_units
from backchannel.storage.units import (
    chats,
    commands,
    compactions,
    cuts,
    deliveries,
    devices,
    idempotency,
    imports,
    inbound,
    inbox,
    messages,
    model_waits,
    pairing,
    recovery,
    search_index,
    sending,
    steps,
)
from backchannel.storage.units import drafts as draft_units
from backchannel.storage.units import runs as run_units
from backchannel.storage.units import sessions as session_units
from backchannel.storage.units import tokens as token_units
from backchannel.storage.units.cluster import echoes as echo_units
from backchannel.storage.units.cluster import growing, members
from backchannel.storage.units.cluster import leftovers as leftover_units
from backchannel.storage.units.contact import attachments, proofs
from backchannel.storage.units.flows import exchanges, spawns
from backchannel.storage.units.money import calls as call_units
from backchannel.storage.units.money import questions as question_units
from backchannel.storage.views import contexts, exchange_lists, exports, families, lookups, run_lists, searching, shown
from backchannel.storage.views import open_work as open_views
from backchannel.storage.views import spending as spending_units
from backchannel.storage.views import timeline as timeline_units
from backchannel.storage.views import troubles as trouble_units


def _growing(*_: object) -> str:
    """Name the lock of growing replies: their units wait for each other only."""
    return "growing"


class Store(ScheduleUnits):
    """The durable facts of one gateway."""

    # Sessions
    session = look(session_units.find)
    session_by_id = look(session_units.by_id)
    session_seen = look(shown.session_seen)
    live_runs = read(shown.live_runs)
    sessions_labelled = read(session_units.labelled)
    session_counts = read(session_units.counts)
    sessions = read(session_units.page)
    newest_sessions = look(session_units.page)
    agents_with_sessions = look(session_units.agents_with_sessions)
    exchanges_of = read(session_units.exchanges_of)
    receipts_of = read(session_units.receipts_of)
    patch_session = write(session_units.patch)
    make_session = write(session_units.make)
    reset_session = write(commands.reset)
    delete_session = write(commands.delete)

    # Messages, in the transcript and pending
    history = read(messages.history)
    opened = read(shown.opened)
    pending = read(inbox.pending)
    context = read(contexts.from_cut)
    lines_between = look(contexts.lines_between)
    own_lines = read(contexts.own_lines)
    move_cut = write_within(cuts.move, run_units.session_held)
    keep_shape = write_within(cuts.keep_shape, run_units.session_held)
    commit_compaction = write_within(compactions.commit, lambda made, *_: made.key)
    undo_compaction = write_within(compactions.undo, lambda key, *_: key)
    compaction = look(compactions.current)
    open_work = read(open_views.open_work)
    message = look(messages.find)
    message_in = look(messages.find_in)
    transcript_with = look(messages.transcript_with)
    last_lines = read(messages.last_of_each)
    cached_share = look(shown.cached_share)
    last_messages = read(shown.last_messages)
    first_said = read(shown.first_said)
    search = read(searching.search_transcript)
    search_ranked = read(searching.ranked)
    count_unindexed = read(search_index.count_waiting)
    unindexed = read(search_index.waiting)
    take_into_index = write_beside(search_index.take_in)
    add_note = write_within(inbox.add_once, lambda key, *_: str(key))

    # Approvals of tool calls, and pairings
    ask_approval = write(approval_units.ask)
    answer_approval = write(approval_units.answer)
    answer_approval_first = write(approval_units.answer_first)
    approval = look(approval_units.find)
    approvals = read(approval_units.page)
    approvals_pending = look(approval_units.count_pending)
    asking_runs = look(approval_units.asking_runs)
    answer_pairing = write(pairing.answer)
    remove_pairing = write(pairing.remove)
    pairings = read(pairing.page)
    pairings_pending = look(pairing.count_pending)

    # Runs and their steps, and function agents
    accept_run = write_within(run_units.accept, run_units.session_of)
    start_next = write_within(run_units.start_next, lambda key: key)
    commit_reply = write_within(steps.commit_reply, run_units.session_held)
    reserve_call = write_within(call_units.reserve, run_units.session_held)
    hold_call = write_within(call_units.hold, lambda hold_id, amount, key, *_: key)
    reset_budget = write(question_units.reset)
    budgets = read(spending_units.budgets)
    release_hold = write_within(call_units.release, lambda *_: "budgets")
    note_retry = write_within(steps.note_retry, run_units.session_held)
    wait_for_model = write_within(model_waits.wait, run_units.session_held)
    release_waiting = write(model_waits.release)
    awaited_providers = read(model_waits.awaited_providers)
    start_call = write_within(steps.start_call, run_units.session_held)
    commit_result = write_within(steps.commit_result, run_units.session_held)
    open_calls = look(steps.open_calls)
    open_function_call = write_within(steps.open_function_call, run_units.session_held)
    commit_function_result = write_within(steps.commit_function_result, run_units.session_held)
    finish_run = write_within(steps.finish, run_units.session_held)
    request_abort = write(run_units.request_abort)
    run = look(run_units.find)
    timeline = read(timeline_units.timeline)
    is_own_run = look(lookups.is_own_run)
    runs = read(run_lists.page)
    count_runs = read(run_lists.count_of)
    sessions_with_queue = read(run_lists.sessions_with_queue)
    next_tried = look(run_lists.next_tried)
    run_counts = read(run_lists.counts)
    interrupted_runs = read(recovery.interrupted)
    resume_run = write(recovery.resume)
    retry_run = write(recovery.retry)
    sign_of_life = write(recovery.sign_of_life)
    remember_function = write(recovery.remember_function)
    forget_function = write(recovery.forget_function)
    function_agents = read(recovery.function_agents)
    runs_waiting_for_functions = read(recovery.runs_waiting_for_functions)
    runs_without_agent = read(recovery.runs_without_agent)

    # Flows of `sessions_send` and `sessions_spawn`
    open_exchange = write(exchanges.open_)
    exchange = look(exchanges.look)
    exchange_story = look(exchanges.story)
    exchange_page = read(exchange_lists.page)
    talk_map = read(exchange_lists.talk_map)
    expire_wait = write(exchanges.expire_wait)
    repeat_spawn = look(spawns.repeat)
    open_spawn = write(spawns.open_)
    family = read(families.family)
    spawn_story = look(families.story)
    branch = read(families.branch)
    newest_trees = read(families.newest_trees)

    # Inbound messages and commands
    take_inbound = write(inbound.take)
    judge_inbound = look(inbound.judge)
    carry_out = write(commands.carry_out_once)
    home_chat = look(chats.home)
    move_chat = write(chats.move)

    # Deliveries and drafts
    post = write(deliveries.post_once)
    claim_part = write(sending.claim)
    settle_part = write(sending.attempted)
    prove_part = write(proofs.prove)
    attachments = read(attachments.of_run)
    open_draft = write(draft_units.open_)
    draft_shown = write(draft_units.shown)
    forget_draft = write(draft_units.forget)
    lose_draft = write(draft_units.lose)
    drafts = read(draft_units.all_drafts)
    left_drafts = read(draft_units.left_drafts)
    hold_account = write(chats.hold)
    account_holds = read(chats.holds)
    lanes_in_line = read(sending.lanes_in_line)
    receipt = look(deliveries.receipt)
    receipts = read(deliveries.page)
    oldest_deliveries = read(deliveries.oldest)
    retry_delivery = write(exchanges.retry_delivery)
    reroute_delivery = write(deliveries.reroute)
    drop_delivery = write(deliveries.drop)
    confirm_delivery = write(deliveries.confirm)

    # Imports and exports
    take_session = write(imports.take)
    sessions_by_key = read(exports.listed_after)
    transcripts = read(session_units.transcripts_after)
    read_transcript = read(exports.read)
    transcript_bytes = read(exports.transcript_bytes)

    # Other gateways on the same database
    renew_lease = write_beside(members.renew)
    take_over = write(members.take_over)
    peers = look(members.peers)
    startable = read(members.startable)
    leftovers = look(leftover_units.look)
    echoes = look(echo_units.facts_of)
    lanes_left = read(sending.lanes_left)
    running_elsewhere = read(growing.running_elsewhere)
    want_growing = write_within(growing.want, _growing)
    wanted_growing = look(growing.wanted)
    write_growing = write_within(growing.write, _growing)
    forget_growing = write_within(growing.forget, _growing)
    store_media_part = write_within(media.store_part, lambda name, *_: name)
    load_media = read(media.load_parts)
    has_media = look(media.is_complete)

    # Tokens, MCP calls, ids, and problems
    create_token = write(token_units.create)
    tokens = read(token_units.all_tokens)
    token_by_digest = look(token_units.by_digest)
    revoke_token = write(token_units.revoke)
    device_tokens = read(devices.all_devices)
    device_token_by_digest = look(devices.by_digest)
    device_token_of = look(devices.of_device)
    keep_device_token = write(devices.keep)
    use_device_token = write(devices.use)
    remove_device = write(devices.remove)
    is_key_used = look(idempotency.is_used)
    keep_mcp_call = write(idempotency.keep_mcp_call)
    mcp_call = read(idempotency.find_mcp_call)
    matching_ids = read(lookups.matching)
    sessions_with_uuid = read(lookups.with_uuid)
    troubles = read(trouble_units.look)
    spending = read(spending_units.look)
    spending_by_tree = read(spending_units.look_by_tree)
    spending_by_session = read(spending_units.look_by_session)
    delivery_counts = read(trouble_units.delivery_counts)
    remember_default_model = write(recovery.remember_default_model)

    def __init__(self, folder: StateFolder, database: Database, scheme: KeyScheme) -> None:
        self.folder = folder
        self.database = database
        self.scheme = scheme
        self._on_facts: Callable[[Sequence[Fact]], None] = lambda facts: None
        self.found = UnfinishedWork()
        """The work that was left when the store was opened."""
        self.lease_ends = inf
        """When the lease ends, by the monotonic clock. The process must stop then."""
        self._wakeups: Wakeups | None = None
        self.driver: Driver
        self._transcripts: Transcripts | None = None

    @classmethod
    async def open(
        cls,
        folder: StateFolder,
        scheme: KeyScheme,
        clock: Clock,
        *,
        url: str,
        on_fatal: Callable[[BaseException], None],
        faults: Faults | None = None,
        writes_files: bool = True,
        member: GatewayInfo | None = None,
        lease_s: float = 15.0,
        locks_rows: bool = False,
        outlets: Outlets = NO_OUTLETS,
        rules: SessionRules = DEFAULT_RULES,
    ) -> Self:
        """Open the database of a URL, creating it if there is none.

        `writes_files` says whether transcripts are also files. `outlets` are the channels. The rest is for several
        gateways on one database. `member` describes this one to the others. `lease_s` is how long they wait for a sign
        of life. `locks_rows` says that all of them lock rows.

        Raises:
            DatabaseUnusable: it is corrupt, not ours, or newer than this program.
            StateFolderInUse: another process uses it.
            StartupError: there is no such store, or it cannot be written.
        """
        store = cls(folder, database_at(url, locks_rows=locks_rows), scheme)
        await asyncio.to_thread(store._prepare)
        context = UnitContext(
            scheme=scheme,
            outlets=outlets,
            rules=rules,
            transcript=store._transcript if writes_files else no_transcripts,
            reactions=REACTIONS,
        )
        store.driver = await store.database.connect(clock, DriverContext(store._committed, on_fatal, context, faults))
        try:
            await store.enter(member or GatewayInfo(), lease_s)
            store.found = await store.driver.look(trouble_units.unfinished)
        except BaseException:  # a store that cannot be opened leaves no thread behind, and the error goes on
            await store.abandon()
            raise
        if writes_files:
            note = store.database.file_beside(folder, "-files")
            store._transcripts = Transcripts(
                partial(store.database.open_reader, is_at_work=True), note, folder.transcript
            )
        return store

    @property
    def rules(self) -> SessionRules:
        """The rules that its units apply to sessions."""
        return self.driver.context.rules

    @property
    def number(self) -> int:
        """This process's start number: the fencing token of every run it holds."""
        return self.driver.context.number

    async def enter(self, member: GatewayInfo, lease_s: float) -> None:
        """Register this process, also again after it lost its lease or was declared dead."""
        if self.database.is_shared:
            await self.driver.enter(members.enter, self._place(), member, round(lease_s * 1000))
        else:
            await self.driver.enter(recovery.enter)

    def _place(self) -> str:
        """Name the state folder by random words that are stored at its first use."""
        path = self.database.file_beside(self.folder, "-place")
        if not path.exists():
            path.write_text(new_id())
        return path.read_text().strip()

    def listen_for_facts(self, on_facts: Callable[[Sequence[Fact]], None]) -> None:
        """Tell a function what each commit changed."""
        self._on_facts = on_facts

    def set_lease_end(self, ends: float) -> None:
        """Move the end of this process's lease, by its monotonic clock."""
        self.lease_ends = ends

    def check_lease(self) -> None:
        """Check the lease before work that another gateway could begin too.

        Raises:
            FenceLost: this process has had no lease for so long that they may.
        """
        if monotonic() >= self.lease_ends:
            raise FenceLost("the lease of this process is over")

    def listen(self, on_text: Callable[[str], None], *, polls: bool) -> None:
        """Listen to other gateways. An empty text means that something may be missed."""
        self._wakeups = self.database.open_wakeups(on_text, polls=polls)

    def wake_others(self, texts: Sequence[str]) -> None:
        """Send texts to the other gateways."""
        if self._wakeups is not None:
            self._wakeups.send(texts)

    def _prepare(self) -> None:
        self.database.hold(self.folder)
        self.database.prepare(has_past=self.folder.has_transcripts)

    async def close(self) -> None:
        """Shut down cleanly. Running runs continue at the next start, without a counted crash."""
        try:
            with suppress(Unavailable):  # no room to write it: the next start takes this end for a crash
                await self.driver.write(recovery.leave)
        finally:
            await self.abandon()

    async def abandon(self) -> None:
        """Close without recording a clean shutdown."""
        if self._wakeups is not None:
            await self._wakeups.close()
        await self.driver.close()
        if self._transcripts is not None:
            await asyncio.to_thread(self._transcripts.close)

    def take_slowest(self) -> tuple[float, str]:
        """Return how long the slowest unit took since the last call, and its name."""
        slowest, self.driver.slowest = self.driver.slowest, (0.0, "")
        return slowest

    @property
    def is_closed(self) -> bool:
        """Whether the store is closed, by `close` or by a failed commit."""
        return self.driver.is_closed

    def _committed(self, facts: Sequence[Fact]) -> None:
        if self._transcripts is not None:
            self._transcripts.committed(facts)
        self._on_facts(facts)

    def closed_elsewhere(self, fact: TranscriptClosed) -> None:
        """Close the file of a transcript that another gateway has closed."""
        if self._transcripts is not None:
            self._transcripts.committed([fact])

    # Units that run only when a look finds work, so that mostly nothing is committed

    async def recover_deliveries(self) -> None:
        """Decide on every part whose process ended while it was being sent."""
        if await self.driver.look(sending.any_sending):
            await self.driver.write(sending.recover)

    async def recover_drafts(self) -> list[ShownDraft]:
        """Decide on the drafts that an earlier process left, and return those that are lost."""
        return await self.driver.write(draft_units.recover) if await self.left_drafts() else []

    async def repeat_send(self, call_id: str) -> ExchangeOpened | None:
        """Resume a tool call that had sent something before a crash; None if it had not."""
        if await self.driver.look(exchanges.sent_by, call_id) is None:
            return None
        return await self.driver.write(exchanges.repeat, call_id)

    async def reschedule_after_clock_set_back(self) -> None:
        """Reschedule rows whose times were written by a clock that has been set back since."""
        if await self.driver.look(clock.is_needed):
            await self.driver.write(clock.pull_in)

    async def check_writable(self) -> None:
        """Find out whether a message could be accepted now.

        Raises:
            Unavailable: it could not; for instance the disk is full, or the lease of this process is over.
        """
        if monotonic() >= self.lease_ends:
            raise Unavailable("the lease of this gateway is over: it takes nothing before it is among the others again")
        await self.driver.check_writable()

    def _transcript(self, agent_id: str, session_id: str) -> str:
        return str(self.folder.transcript(agent_id, session_id))

    async def rebuild_transcript(self, session_id: str) -> int:
        """Rewrite a transcript's file, also of an archived session; returns the number of its lines.

        Raises: Unavailable: the file cannot be written. InvalidRequest: there are no transcript files here.
            SessionNotFound: there is no such transcript.
        """
        if self._transcripts is None:
            raise InvalidRequest("transcripts are not kept as files here: set transcripts.files to true")
        entry = await self.session_by_id(session_id)
        if entry is None:
            raise SessionNotFound(f"no transcript {quoted(session_id)} (transcripts.list shows those there are)")
        rebuilt = self._transcripts.rebuild(session_id, self._transcripts.path_of(entry))
        return await asyncio.wrap_future(rebuilt)

    def transcript_file(self, session: Session) -> Path:
        """Tell where a session's transcript file is, or would be if there are any."""
        path = self.folder.transcript(session.agent_id, session.session_id)
        return path if session.archived_at is None else archived_path(path, session.archived_at)
