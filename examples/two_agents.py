"""Two function agents: a writer asks a researcher with sessions_send, and then the two say a few words more.
The call is durable: if the process died, it would return the same reply again, and the researcher would be asked once.

Prints:

    The writer says: Did you know? A cat sleeps 13 hours a day.
    writer, turn 1: Where did you read that?
    researcher, turn 2: In a book about cats.
    writer, turn 3: REPLY_SKIP
"""

import asyncio

from backchannel import FunctionContext, Gateway

CONFIG = {
    "agents": {"list": [{"id": "writer"}, {"id": "researcher"}]},
    "tools": {"sessions": {"visibility": "all"}, "agentToAgent": {"enabled": True}},
}
FACTS = {"cat": "A cat sleeps 13 hours a day."}
TURNS = {"1": "Where did you read that?", "2": "In a book about cats."}


async def main() -> None:
    gateway = Gateway.open(CONFIG)
    is_over = asyncio.Event()

    def take_turn(run: FunctionContext) -> str | None:
        """Answer in a reply-back turn, whose first line says so; exactly REPLY_SKIP stops."""
        first_line = run.text.splitlines()[0]
        if "reply-back turn" not in first_line:
            return None
        number = first_line.split()[4]
        answer = TURNS.get(number, "REPLY_SKIP")
        print(f"{run.agent_id}, turn {number}: {answer}")
        if answer == "REPLY_SKIP":
            is_over.set()
        return answer

    @gateway.agent("researcher")
    async def researcher(run: FunctionContext) -> str:
        question = run.text.splitlines()[0]  # below it stands who asks
        return take_turn(run) or FACTS.get(question, "Nothing is known about that.")

    @gateway.agent("writer")
    async def writer(run: FunctionContext) -> str:
        if answer := take_turn(run):
            return answer
        sent = await run.call("sessions_send", sessionKey="agent:researcher:main", message=run.text)
        return f"Did you know? {sent['reply']}" if sent["status"] == "ok" else f"I could not ask: {sent['error']}"

    async with gateway:
        print("The writer says:", await gateway.ask("agent:writer:main", "cat"))
        await is_over.wait()


asyncio.run(main())
