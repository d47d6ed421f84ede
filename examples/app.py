"""A program with an agent and a tool of its own, served by `backchannel up --app app:gateway`.
Run by itself it asks its agent once, without any door.

Prints:

    3 teapots are left.
"""

import asyncio

from backchannel import FunctionContext, Gateway

gateway = Gateway.open()
stock = {"teapot": 3}


@gateway.tool(effects="none")
async def count(what: str) -> int:
    """Count what is left in the shop."""
    return stock.get(what, 0)


@gateway.agent("main")
async def clerk(run: FunctionContext) -> str:
    what = run.text.rstrip("?").split()[-1].rstrip("s")
    left = await run.call("count", what=what)
    return f"{left} {what}{'' if left == 1 else 's'} {'is' if left == 1 else 'are'} left."


async def main() -> None:
    async with gateway:
        print(await gateway.ask("main", "How many teapots?"))


if __name__ == "__main__":
    asyncio.run(main())
