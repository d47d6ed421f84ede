"""A cron job: added while the gateway runs, fired by the clock and by hand.
It is kept in the state folder: a time that passes while no gateway runs comes once when one does.

Prints:

    cron:stocktaking:…Z: 1 teapot
    cron:stocktaking:…Z: 2 teapots
    by hand, cron:stocktaking:…Z: 3 teapots
    next on a Monday at 9
"""

import asyncio
import time

from backchannel import FunctionContext, Gateway
from backchannel.config.schema_doors import CronJob


async def main() -> None:
    gateway = Gateway.open()
    counts: asyncio.Queue[str] = asyncio.Queue()
    teapots = 0

    @gateway.agent("main")
    async def clerk(run: FunctionContext) -> str:
        nonlocal teapots
        teapots += 1
        await counts.put(f"{run.run_id}: {teapots} teapot{'s' if teapots > 1 else ''}")
        return "Counted."

    async with gateway:
        await gateway.cron.add(CronJob(id="stocktaking", schedule="every 1s", message="Count the teapots."))
        print(await counts.get())
        print(await counts.get())

        await gateway.cron.remove("stocktaking")  # its session stays, and the next job of this id goes on in it
        monday = CronJob(id="stocktaking", schedule="0 9 * * MON", tz="Europe/Berlin", message="Count the teapots.")
        added = await gateway.cron.add(monday)
        await gateway.cron.run("stocktaking")
        print("by hand,", await counts.get())
        assert added.stored.next_at is not None
        print("next on a", time.strftime("%A", time.gmtime(added.stored.next_at / 1000)), "at 9")


asyncio.run(main())
