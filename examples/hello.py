"""The smallest program: one agent, two messages, and a session that remembers what was said.
It uses the built-in demo model, so it needs no key and no network.

Prints:

    You said: My cat is called Minka.

    I keep it in mind as the first thing you said here. Say `help` to see what I understand.
    ---
    You said, in order:
    1. My cat is called Minka.
"""

import asyncio

from backchannel import Gateway


async def main() -> None:
    config = {"agents": {"list": [{"id": "main", "model": "builtin/demo"}]}}
    async with Gateway.open(config) as gateway:
        print(await gateway.ask("main", "My cat is called Minka."))
        print("---")
        print(await gateway.ask("main", "What did I say?"))


asyncio.run(main())
