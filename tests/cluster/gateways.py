"""Several gateways on one database, each with a state folder of its own, in one process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, closing
from pathlib import Path
from typing import Any

import psycopg

from backchannel.config.load import config_from
from backchannel.core.contracts import Model
from backchannel.gateway.app import Gateway
from tests.support.gateways import CONFIG, Equip

LEASE_S = 1.5
PATIENCE_S = 20.0


@asynccontextmanager
async def gateways(
    folder: Path,
    url: str,
    *models: Model,
    count: int = 2,
    config: dict[str, Any] | None = None,
    equip: Equip = lambda gateway: None,
    wakeups: str | Sequence[str] = "notify",
    lease_s: float = LEASE_S,
) -> AsyncIterator[list[Gateway]]:
    """Open gateways that know of each other; a model is the same for all of them.

    Those that are woken up in different ways do not hear each other.
    """
    ways = [wakeups] * count if isinstance(wakeups, str) else wakeups
    async with AsyncExitStack() as exits:
        opened = []
        for number, way in enumerate(ways):
            shared = {"database": {"url": url}, "cluster": {"leaseSeconds": lease_s, "wakeups": way}}
            settings = config_from({**(config or CONFIG), **shared}, {}, state=folder / f"g{number}")
            gateway = Gateway(settings)
            for model in models:
                gateway.add_model(model)
            equip(gateway)
            opened.append(await exits.enter_async_context(gateway))
        for gateway in opened:
            await knows(gateway, count)
        yield opened


async def knows(gateway: Gateway, count: int) -> None:
    """Wait until a gateway knows of so many, itself among them."""
    await until(lambda: len(gateway.runtime.duties.peers) == count)


async def until(is_so: Callable[[], bool]) -> None:
    """Wait for what no event tells: what a gateway thinks of the others."""
    async with asyncio.timeout(PATIENCE_S):
        while not is_so():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


def execute(url: str, statement: str, *values: Any) -> list[tuple[Any, ...]]:
    """Look into the database, or change it, as another program would."""
    with closing(psycopg.connect(url, autocommit=True)) as connection:
        cursor = connection.execute(statement.encode(), values)
        return cursor.fetchall() if cursor.description else []
