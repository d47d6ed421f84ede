"""The store: every state change is one transaction, and this is the list of them.

Each method hands one unit from `transactions/` to the driver. What is returned is durable. What changed is told to
`on_facts` after the commit, in order, before the caller is answered.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Self, TypeVar

from backchannel.core.channels import ChannelError, Sent
from backchannel.core.commands import Command, CommandReply, Standing
from backchannel.core.contracts import Clock
from backchannel.core.delivery import Delivery, DeliveryLane, DeliveryState, Part
from backchannel.core.exchange import SendLimits
from backchannel.core.exchange_values import Change, Refused
from backchannel.core.facts import Fact
from backchannel.core.keys import KeyScheme, SessionKey
from backchannel.core.messages import Message, decode_messages
from backchannel.core.runs import Accepted, Fence, Outcome, Run, RunRequest, RunState, Started, Step, ToolCall
from backchannel.core.sessions import Address, Page, Session, SessionFilter, SessionPatch
from backchannel.errors import InvalidRequest, Unavailable
from backchannel.storage.folder import StateFolder
from backchannel.storage.migrations import prepare_sqlite
from backchannel.storage.sqlite import Faults, SqliteDriver
from backchannel.storage.transactions import (
    calls,
    commands,
    deliveries,
    exchanges,
    idempotency,
    inbound,
    inbox,
    messages,
    recovery,
    runs,
    sessions,
    steps,
    timers,
    tokens,
)
from backchannel.storage.transactions.deliveries import Claimed, NoOutlets, Outlets, Post, Receipt
from backchannel.storage.transactions.exchanges import Ask, Opened, Story
from backchannel.storage.transactions.inbound import Arrival, Taken
from backchannel.storage.transactions.messages import HistoryPage
from backchannel.storage.transactions.recovery import Interrupted
from backchannel.storage.transactions.sessions import SessionIdEntry
from backchannel.storage.transactions.steps import Committed
from backchannel.storage.transactions.timers import Timer
from backchannel.storage.transactions.tokens import TokenRow
from backchannel.storage.transcripts import Transcripts, archived_path
from backchannel.storage.tx import Check, Tx, Unit

T = TypeVar("T")


class Store:
    """The durable facts of one gateway."""

    def __init__(self, folder: StateFolder, scheme: KeyScheme, clock: Clock) -> None:
        self.folder = folder
        self.scheme = scheme
        self.number = 0
        """This process's start number: the fence of every run it holds."""
        self.on_facts: Callable[[Sequence[Fact]], None] = lambda facts: None
        self.outlets: Outlets = NoOutlets()
        """Where deliveries can go; the runtime says so before anything is accepted."""
        self._clock = clock
        self._driver: SqliteDriver
        self._transcripts: Transcripts | None = None

    @classmethod
    async def open(
        cls,
        folder: StateFolder,
        scheme: KeyScheme,
        clock: Clock,
        *,
        on_fatal: Callable[[BaseException], None],
        database: Path | None = None,
        faults: Faults | None = None,
        writes_files: bool = True,
    ) -> Self:
        """Open or create the database, in the state folder unless another place is named.

        `writes_files` says whether transcripts are kept as files too.

        Raises:
            DatabaseUnusable: it is corrupt, not ours, or newer than this program.
        """
        store = cls(folder, scheme, clock)
        path = database or folder.database
        await asyncio.to_thread(prepare_sqlite, path)
        store._driver = SqliteDriver(path, on_facts=store._committed, on_fatal=on_fatal, faults=faults)
        try:
            store.number = await store._driver.write(partial(recovery.enter, now=clock.now_ms()))
        except BaseException:
            await store.abandon()
            raise
        if writes_files:
            store._transcripts = Transcripts(path, folder.transcript)
        return store

    async def close(self) -> None:
        """End cleanly: runs in progress go on at the next start, and this end is not counted against them."""
        try:
            with suppress(Unavailable):  # no room to say it: the next start takes this end for a crash
                await self._driver.write(partial(recovery.leave, number=self.number, now=self._now))
        finally:
            await self.abandon()

    async def abandon(self) -> None:
        """Let go of the files without a word, as a process that dies does."""
        await self._driver.close()
        if self._transcripts is not None:
            await asyncio.to_thread(self._transcripts.close)

    @property
    def commits(self) -> int:
        """How many commits this process has made; `units` tells how many units of work they held."""
        return self._driver.commits

    @property
    def units(self) -> int:
        return self._driver.units

    @property
    def is_closed(self) -> bool:
        """Whether nothing is written any more: by `close`, or because a commit failed."""
        return self._driver.is_closed

    @property
    def _now(self) -> int:
        return self._clock.now_ms()

    def _committed(self, facts: Sequence[Fact]) -> None:
        if self._transcripts is not None:
            self._transcripts.committed(facts)
        self.on_facts(facts)

    async def _read(self, unit: Unit[T]) -> T:
        return await self._driver.read(unit)

    async def check_writable(self) -> None:
        """Make a small commit.

        Raises:
            Unavailable: it was refused, for instance because the disk is full.
        """
        await self._driver.write(partial(recovery.touch, number=self.number))

    # Sessions

    async def session(self, key: str) -> Session | None:
        """Load a session, archived or not."""
        return self._driver.look(partial(sessions.find, key=key))

    async def session_by_id(self, session_id: str) -> SessionIdEntry | None:
        """Tell whose transcript this is or was."""
        return self._driver.look(partial(sessions.by_id, session_id=session_id))

    async def sessions_labelled(self, label: str, agent_id: str | None) -> list[Session]:
        return await self._read(partial(sessions.labelled, label=label, agent_id=agent_id))

    async def sessions(
        self, wanted: SessionFilter, *, after: Page | None, limit: int, offset: int = 0
    ) -> list[Session]:
        """List sessions, newest first."""
        return await self._read(partial(sessions.page, wanted=wanted, after=after, limit=limit, offset=offset))

    async def children(self, key: str) -> list[Session]:
        """List the sessions that one has spawned."""
        return await self._read(partial(sessions.children, key=key))

    async def agents_with_sessions(self) -> list[str]:
        return self._driver.look(sessions.agents_with_sessions)

    async def exchanges_of(self, key: str) -> list[tuple[str, str, int]]:
        return await self._read(partial(sessions.exchanges_of, key=key))

    async def receipts_of(self, key: str, since: int) -> list[tuple[str, str, int, str | None]]:
        return await self._read(partial(sessions.receipts_of, key=key, since=since))

    async def patch_session(
        self, key: SessionKey, change: SessionPatch, *, expected_session_id: str | None = None
    ) -> Session:
        """Change a session's settings, making it if it is new.

        Raises:
            LabelInUse, SessionIdReplaced
        """
        unit = partial(
            sessions.patch,
            key=key,
            scheme=self.scheme,
            change=change,
            expected_session_id=expected_session_id,
            now=self._now,
        )
        return await self._driver.write(unit)

    async def reset_session(self, key: SessionKey) -> Session:
        """Start a new transcript under the same key, and ask the active run to stop."""

        return await self._driver.write(partial(commands.reset, key=str(key), now=self._now))

    async def delete_session(self, key: SessionKey) -> Session:
        """Archive a session; one with an active run follows when that has stopped."""

        def unit(tx: Tx) -> Session:
            sessions.check_deletable(tx, key, self.scheme)
            commands.interrupt(tx, sessions.need(tx, str(key)), Change.DELETE, now)
            runs.abort_all(tx, str(key), now)
            return sessions.mark_for_deletion(tx, str(key), now)

        now = self._now
        return await self._driver.write(unit)

    # Messages

    async def history(
        self,
        session_id: str,
        *,
        limit: int,
        before: str | None = None,
        after: str | None = None,
        with_tools: bool = True,
    ) -> HistoryPage:
        unit = partial(
            messages.history,
            session_id=session_id,
            limit=limit,
            before=before,
            after=after,
            with_tools=with_tools,
        )
        return await self._read(unit)

    async def context(self, session_id: str, *, max_bytes: int) -> tuple[SessionIdEntry, HistoryPage]:
        """Read the newest part of a transcript for a model, and the mark of its headers."""

        def unit(tx: Tx) -> tuple[SessionIdEntry, HistoryPage]:
            entry = sessions.by_id(tx, session_id)
            if entry is None:
                raise LookupError(f"no transcript {session_id!r}")
            return entry, messages.read_back(tx, session_id, max_bytes=max_bytes)

        return self._driver.look(unit)

    async def message(self, message_id: str) -> Message | None:
        return self._driver.look(partial(messages.find, message_id=message_id))

    async def message_in(self, session_id: str, message_id: str) -> Message:
        """Load one message of a transcript.

        Raises:
            NotFound: it is not there.
        """
        return self._driver.look(partial(messages.find_in, session_id=session_id, message_id=message_id))

    async def last_messages(
        self, session_ids: Sequence[str], per_session: int, *, with_tools: bool
    ) -> dict[str, list[Message]]:
        """Read the last messages of many sessions in one query."""
        found = await self.last_lines(session_ids, per_session, with_tools=with_tools)
        return {session_id: decode_messages(lines) for session_id, lines in found.items()}

    async def last_lines(
        self, session_ids: Sequence[str], per_session: int, *, with_tools: bool
    ) -> dict[str, list[str]]:
        """Read the same as they are stored, for those who need not read all of them."""
        return await self._read(
            partial(messages.last_of_each, session_ids=session_ids, per_session=per_session, with_tools=with_tools)
        )

    async def pending(self, key: str) -> list[Message]:
        """Read what was accepted and is not yet in the transcript."""
        return await self._read(partial(inbox.pending, key=key))

    async def add_note(self, key: SessionKey, note: Message) -> None:
        await self._driver.write(partial(inbox.add_note, key=key, scheme=self.scheme, note=note, now=self._now))

    # Runs

    def accept_run(self, request: RunRequest, *, start: bool, check: Check | None = None) -> asyncio.Future[Accepted]:
        """Accept a message with its run; with `start`, start it in the same commit when its lane is free.

        `check` sees the session in the same unit, and raises what refuses the message.
        """
        number = self.number if start else None
        return self._driver.write(
            partial(runs.accept, request=request, scheme=self.scheme, number=number, now=self._now, check=check)
        )

    async def start_next(self, key: str) -> Started | None:
        """Start the session's first queued run, if its lane is free."""
        return await self._driver.write(partial(runs.start_next, key=key, number=self.number, now=self._now))

    async def commit_reply(self, fence: Fence, step: Step) -> Committed:
        """Write a model's reply; the last one ends the run."""
        return await self._driver.write(partial(steps.commit_reply, fence=fence, step=step, now=self._now))

    async def start_call(self, fence: Fence, call_id: str) -> None:
        await self._driver.write(partial(steps.start_call, fence=fence, call_id=call_id))

    async def commit_result(self, fence: Fence, result: Message, ran_ms: int) -> None:
        await self._driver.write(partial(steps.commit_result, fence=fence, result=result, ran_ms=ran_ms, now=self._now))

    async def open_calls(self, run_id: str) -> list[ToolCall]:
        """List a run's tool calls that have no result yet."""
        return self._driver.look(partial(calls.open_calls, run_id=run_id))

    async def open_function_call(self, fence: Fence, call: ToolCall) -> ToolCall:
        """Record a function agent's call, or return what is recorded of it already."""
        return await self._driver.write(partial(steps.open_function_call, fence=fence, call=call))

    async def commit_function_result(self, fence: Fence, call_id: str, result: str, ran_ms: int) -> None:
        unit = partial(
            steps.commit_function_result, fence=fence, call_id=call_id, result=result, ran_ms=ran_ms, now=self._now
        )
        await self._driver.write(unit)

    async def finish_run(
        self, fence: Fence, outcome: Outcome, *, reply: Message | None, at_step: int, ran_ms: int
    ) -> Run:
        """End a run otherwise than by its last reply."""
        return await self._driver.write(
            partial(
                runs.finish,
                fence=fence,
                outcome=outcome,
                reply=reply,
                at_step=at_step,
                ran_ms=ran_ms,
                now=self._now,
            )
        )

    async def request_abort(self, key: str, run_id: str | None) -> list[Run]:
        return await self._driver.write(partial(runs.request_abort, key=key, run_id=run_id, now=self._now))

    async def run(self, run_id: str) -> Run | None:
        return self._driver.look(partial(runs.find, run_id=run_id))

    async def runs(
        self,
        *,
        session_key: str | None = None,
        states: Sequence[RunState] = (),
        limit: int,
        before: int | None = None,
    ) -> list[Run]:
        """List runs, newest first; `before` is the position of the last one seen."""
        return await self._read(partial(runs.page, session_key=session_key, states=states, limit=limit, before=before))

    async def sessions_with_queue(self) -> list[str]:
        return await self._read(runs.sessions_with_queue)

    async def run_counts(self) -> dict[str, int]:
        return await self._read(runs.counts)

    # Exchanges

    async def open_exchange(self, ask: Ask, limits: SendLimits, check: Check) -> Opened | Refused:
        """Accept a send with its primary run, its receipt and its wait; the same call again finds the first."""
        unit = partial(exchanges.open_, ask=ask, scheme=self.scheme, limits=limits, check=check, now=self._now)
        return await self._driver.write(unit)

    async def exchange(self, exchange_id: str) -> Opened:
        return self._driver.look(partial(exchanges.look, exchange_id=exchange_id))

    async def exchange_story(self, exchange_id: str | None = None, run_id: str | None = None) -> Story:
        """Load an exchange, by its id or by one of its runs, with all that became of it.

        Raises:
            ExchangeNotFound: there is none.
        """
        return self._driver.look(partial(exchanges.story, exchange_id=exchange_id, run_id=run_id))

    async def expire_wait(self, exchange_id: str) -> Opened:
        """End a caller's wait whose time ran out, unless the run has ended by now."""
        return await self._driver.write(partial(exchanges.expire_wait, exchange_id=exchange_id, now=self._now))

    # Inbound messages

    def take_inbound(self, arrival: Arrival, *, start: bool) -> asyncio.Future[Taken]:
        """Handle an inbound message, once for ever; with `start`, start its run when its lane is free."""
        number = self.number if start else None
        return self._driver.write(
            partial(
                inbound.take, arrival=arrival, scheme=self.scheme, outlets=self.outlets, number=number, now=self._now
            )
        )

    async def carry_out(
        self,
        command: Command | CommandReply,
        key: SessionKey,
        standing: Standing,
        agent_model: str | None,
        *,
        idempotency_key: str | None = None,
        digest: str | None = None,
    ) -> str:
        """Do what a chat command asks of a session, once for each key; returns what is answered.

        Raises:
            IdempotencyConflict: the key stands for something else.
        """

        def unit(tx: Tx) -> str:
            if idempotency_key is not None and (known := idempotency.find_result(tx, idempotency_key, digest)):
                return known
            if isinstance(command, CommandReply):
                text = command.text
            else:
                text = commands.carry_out(tx, command, key, self.scheme, standing, agent_model, now)
            if idempotency_key is not None:
                idempotency.remember_result(tx, idempotency_key, digest, text, now)
            return text

        now = self._now
        return await self._driver.write(unit)

    # Deliveries

    async def post(self, post: Post, *, idempotency_key: str | None = None, digest: str | None = None) -> Receipt:
        """Put a text in line to be sent; the same key again answers with the first receipt.

        Raises:
            IdempotencyConflict: the key stands for something else.
        """

        def unit(tx: Tx) -> Receipt:
            if idempotency_key is not None and (known := idempotency.find_result(tx, idempotency_key, digest)):
                return deliveries.receipt(tx, known)
            made = deliveries.post(tx, post, now, outlets)
            if idempotency_key is not None:
                idempotency.remember_result(tx, idempotency_key, digest, made.id, now)
            return deliveries.receipt(tx, made.id)

        now, outlets = self._now, self.outlets
        return await self._driver.write(unit)

    def claim_part(self, lane: DeliveryLane) -> asyncio.Future[Claimed | None]:
        """Mark the next part of a lane as being sent, if it is time."""
        return self._driver.write(partial(deliveries.claim, lane=lane, outlets=self.outlets, now=self._now))

    def settle_part(self, part: Part, answer: Sent | ChannelError, *, takes_key: bool) -> asyncio.Future[Delivery]:
        """Write what an attempt to send a part came to."""
        unit = partial(deliveries.attempted, claimed=part, answer=answer, takes_key=takes_key, now=self._now)
        return self._driver.write(unit)

    async def recover_deliveries(self, takes_key: Callable[[str], bool]) -> None:
        """Decide on every part that was being sent when its process ended."""
        if self._driver.look(deliveries.any_sending):
            await self._driver.write(partial(deliveries.recover, takes_key=takes_key, now=self._now))

    async def lanes_in_line(self) -> list[DeliveryLane]:
        return await self._read(deliveries.lanes_in_line)

    async def lanes_due(self) -> list[DeliveryLane]:
        """Name the lanes whose retry has come."""
        return self._driver.look(partial(deliveries.lanes_due, now=self._now))

    async def next_delivery_due(self) -> int | None:
        """Tell when the next retry is due, after those that are."""
        return self._driver.look(partial(deliveries.next_due, now=self._now))

    async def receipt(self, delivery_id: str) -> Receipt:
        """Load a delivery with its parts.

        Raises:
            DeliveryNotFound: there is none of this id.
        """
        return self._driver.look(partial(deliveries.receipt, delivery_id=delivery_id))

    async def receipts(
        self,
        *,
        session_key: str | None = None,
        state: DeliveryState | None = None,
        limit: int,
        before: int | None = None,
    ) -> list[Receipt]:
        """List deliveries, newest first; `before` is the number of the last one seen."""
        unit = partial(deliveries.page, session_key=session_key, state=state, limit=limit, before=before)
        return await self._read(unit)

    async def retry_delivery(self, delivery_id: str) -> Receipt:
        """Put a delivery back in line; one whose announce run failed has that run again."""

        def unit(tx: Tx) -> Receipt:
            if exchanges.announce_again(tx, deliveries.need(tx, delivery_id), now):
                return deliveries.receipt(tx, delivery_id)
            return deliveries.retry(tx, delivery_id, outlets, now)

        now, outlets = self._now, self.outlets
        return await self._driver.write(unit)

    async def reroute_delivery(self, delivery_id: str, address: Address) -> Receipt:
        return await self._driver.write(
            partial(deliveries.reroute, delivery_id=delivery_id, address=address, outlets=self.outlets, now=self._now)
        )

    async def drop_delivery(self, delivery_id: str) -> Receipt:
        return await self._driver.write(partial(deliveries.drop, delivery_id=delivery_id, now=self._now))

    # Recovery

    async def interrupted_runs(self) -> list[Interrupted]:
        return await self._read(recovery.interrupted)

    async def resume_run(self, run_id: str) -> Started | None:
        """Take over an interrupted run, or end it if it may not go on."""
        return await self._driver.write(partial(recovery.resume, run_id=run_id, number=self.number, now=self._now))

    async def retry_run(self, run_id: str) -> Run:
        return await self._driver.write(partial(recovery.retry, run_id=run_id, now=self._now))

    # Timers

    async def due_timers(self, limit: int) -> list[Timer]:
        return await self._read(partial(timers.due, now=self._now, limit=limit))

    async def next_due(self) -> int | None:
        return await self._read(timers.next_due)

    # Tokens

    async def create_token(self, token: TokenRow) -> None:
        await self._driver.write(partial(tokens.create, token=token))

    async def tokens(self) -> list[TokenRow]:
        return await self._read(tokens.all_tokens)

    async def token_by_digest(self, digest: str) -> TokenRow | None:
        return self._driver.look(partial(tokens.by_digest, digest=digest))

    async def revoke_token(self, token_id: str) -> bool:
        return await self._driver.write(partial(tokens.revoke, token_id=token_id, now=self._now))

    # Transcript files

    async def rebuild_transcript(self, session: Session) -> int:
        """Write a session's transcript file anew; returns the number of its lines.

        Raises:
            Unavailable: the file cannot be written.
            InvalidRequest: there are no transcript files here.
        """
        if self._transcripts is None:
            raise InvalidRequest("transcripts are not kept as files here: set transcripts.files to true")
        path = self.folder.transcript(session.agent_id, session.session_id)
        if session.archived_at is not None:
            path = archived_path(path, session.archived_at)
        return await asyncio.wrap_future(self._transcripts.rebuild(session.session_id, path))
