"""Waits for a person's permission: without a time limit, without a slot, and over restarts."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from backchannel.core.facts import ApprovalChanged
from backchannel.core.policy.approvals import Approval, ApprovalRuleSettings, asks
from backchannel.core.runs import Fence, Run, ToolCall
from backchannel.runtime.events import Hub, WaitStarted
from backchannel.runtime.slots import RunSlots
from backchannel.service import Reactions, Service
from backchannel.storage.store import Store


class Approvals(Service):
    """Asks for the calls that the rules name, and waits for the answers."""

    def __init__(
        self, store: Store, rules: Sequence[ApprovalRuleSettings], lives_ms: int, hub: Hub, slots: RunSlots
    ) -> None:
        self._store = store
        self._rules = rules
        self._lives_ms = lives_ms
        self._hub = hub
        self._slots = slots
        self._waiting: dict[str, asyncio.Event] = {}

    def reactions(self) -> Reactions:
        return {ApprovalChanged: self.on_change}

    def on_change(self, fact: ApprovalChanged) -> None:
        """React to a commit: a call whose question is answered goes on."""
        if not fact.approval.is_pending:
            answered = self._waiting.pop(fact.approval.id, None)
            if answered is not None:
                answered.set()

    def waited_for(self) -> list[str]:
        """Name the questions that a call waits for."""
        return list(self._waiting)

    def are_needed_for(self, call: ToolCall) -> bool:
        """Whether a call has to be allowed."""
        return asks(self._rules, call.name, call.block.arguments)

    async def ask(self, fence: Fence, call: ToolCall) -> Approval:
        """Ask for a call; the question is durable when this returns, and may have been answered before."""
        return await self._store.ask_approval(fence, call, self._lives_ms)

    async def answered(self, approval: Approval, run: Run | None = None) -> Approval:
        """Wait for an answer; `run` waits, if it is not the one that asked."""
        key, run_id = (approval.session_key, approval.run_id) if run is None else (run.session_key, run.id)
        async with self._slots.paused(key, run_id):
            self._hub.publish(WaitStarted(run_id))
            while approval.is_pending:
                # Listen before looking: an answer that comes in between is not missed.
                event = self._waiting.setdefault(approval.id, asyncio.Event())
                found = await self._store.approval(approval.id)
                if found is None:
                    raise LookupError(f"the approval {approval.id!r} is gone")
                approval = found
                if approval.is_pending:
                    await event.wait()
        return approval
