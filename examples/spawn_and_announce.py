"""An agent hands its work to sub-agents and answers at once; each reports by itself, and then the agent is woken.
The wake comes once, when all are done. It is all in the state folder: a crash at any point would lose none of it.

Prints:

    At once: I have started 2 sub-agents.
    Later: I was woken with 2 results:
    Status: success, Result: The word "cakes" has 5 letters.
    Status: success, Result: The word "tea" has 3 letters.
"""

import asyncio
import re

from backchannel import FunctionContext, Gateway

CONFIG = {
    "agents": {
        "defaults": {"subagents": {"announce": "wake"}},
        "list": [{"id": "main", "subagents": {"allowAgents": ["counter"]}}, {"id": "counter"}],
    },
}


async def main() -> None:
    gateway = Gateway.open(CONFIG)
    woken: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    @gateway.agent("counter")
    async def counter(run: FunctionContext) -> str:
        """Work as a sub-agent: first on the task, then on what the one who gave it shall be told."""
        if run.text.startswith("[Sub-agent, announce step]"):
            done = [message.text for message in await run.history() if message.role == "assistant"]
            return done[-1]  # exactly ANNOUNCE_SKIP would report nothing
        return f'The word "{run.text}" has {len(run.text)} letters.'

    @gateway.agent("main")
    async def boss(run: FunctionContext) -> str:
        if run.text.startswith("[Results of your sub-agents]"):
            woken.set_result(run.text)
            return "NO_REPLY"  # there is nothing to add
        words = run.text.split()
        for word in words:  # if the process died in between, none would be started twice
            await run.call("sessions_spawn", task=word, agentId="counter")
        return f"I have started {len(words)} sub-agents."

    async with gateway:
        print("At once:", await gateway.ask("main", "tea cakes"))
        results = sorted(re.findall(r"^(Status: .*)\n(Result: .*)$", await woken, re.MULTILINE))
        print(f"Later: I was woken with {len(results)} results:")
        for result in results:
            print(*result, sep=", ")


asyncio.run(main())
