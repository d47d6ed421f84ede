"""Units about what belongs to no session: timers, tokens, calls that came by MCP, and ids of any kind."""

from __future__ import annotations

from functools import partial

from backchannel.core.short_ids import IdKind, WrittenId
from backchannel.storage.transactions import due, ids, mcp_calls, setting_back, timers, tokens
from backchannel.storage.transactions.mcp_calls import McpCall
from backchannel.storage.transactions.timers import Timer
from backchannel.storage.transactions.tokens import TokenRow
from backchannel.storage.units.base import Units


class UpkeepUnits(Units):
    """Timers, tokens, calls that came by MCP, and ids."""

    async def due_timers(self, limit: int) -> list[Timer]:
        return await self._read(partial(timers.due, now=self._now, limit=limit))

    async def carry_out_timer(self, timer: Timer) -> None:
        """Do what is due, and clear or move its row, in one commit."""
        await self._driver.write(partial(due.carry_out, timer=timer, scheme=self.scheme, now=self._now))

    async def postpone_timer(self, timer: Timer, by_ms: int) -> None:
        """Try again later what could not be done."""
        now = self._now
        await self._driver.write(partial(timers.set_timer, kind=timer.kind, ref=timer.ref, due_at=now + by_ms, now=now))

    async def mind_the_clock(self) -> None:
        """Bring within reach what was to happen by a clock that has been set back since."""
        if self._driver.look(partial(setting_back.is_needed, now=self._now)):
            await self._driver.write(partial(setting_back.pull_in, now=self._now))

    async def next_due(self) -> int | None:
        return await self._read(timers.next_due)

    async def create_token(self, token: TokenRow) -> None:
        await self._driver.write(partial(tokens.create, token=token))

    async def tokens(self) -> list[TokenRow]:
        return await self._read(tokens.all_tokens)

    async def token_by_digest(self, digest: str) -> TokenRow | None:
        return self._driver.look(partial(tokens.by_digest, digest=digest))

    async def revoke_token(self, token_id: str) -> bool:
        return await self._driver.write(partial(tokens.revoke, token_id=token_id, now=self._now))

    async def keep_mcp_call(self, call: McpCall) -> None:
        await self._driver.write(partial(mcp_calls.keep, call=call))

    async def mcp_call(self, call_id: str) -> McpCall | None:
        return await self._read(partial(mcp_calls.find, call_id=call_id))

    async def matching_ids(self, kind: IdKind, written: WrittenId) -> list[str]:
        """Find ids by their beginning; a few are enough to see that there are several."""
        return await self._read(partial(ids.matching, kind=kind, written=written))
