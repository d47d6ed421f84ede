"""A channel of your own, both ways: `run` hands in what people write, and `send` posts what agents answer.
Two queues stand in for the platform: a real channel would ask its API instead.

Prints:

    eve: ignore
    ann: answer
    to chat-7: You said: My cat is called Minka.
"""

import asyncio
from typing import Any

from backchannel import Channel, ChannelSettings, ChatType, Gateway, InboundEvent, InboundTaker, OutboundPart, Sent


class PigeonChannel(Channel):
    name = "pigeon"
    settings = ChannelSettings(allow_from=("ann",))  # nobody else is answered

    def __init__(self) -> None:
        self.written: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.posted: asyncio.Queue[str] = asyncio.Queue()

    async def run(self, inbound: InboundTaker) -> None:
        while True:
            message = await self.written.get()
            # The ids are the platform's own: a message with the same one is handled once, however often it comes.
            # One in a group comes with its chat_type, chat_id, thread_id, and whether the agent is mentioned.
            direct = {"chat_type": ChatType.DIRECT, "chat_id": "chat-7"}
            answer = await inbound(InboundEvent(**direct | message))
            print(f"{message['sender_id']}: {answer.verdict}")  # committed: the platform need not keep it any longer

    async def send(self, part: OutboundPart) -> Sent:
        place = part.to if part.thread_id is None else f"{part.to}, thread {part.thread_id}"
        self.posted.put_nowait(f"to {place}: {part.text}")
        return Sent()  # or raise ChannelRefused, ChannelBusy or ChannelSilent


async def main() -> None:
    gateway = Gateway.open({"agents": {"defaults": {"model": "builtin/demo"}}})
    channel = PigeonChannel()
    gateway.add_channel(channel)
    async with gateway:
        channel.written.put_nowait({"sender_id": "eve", "message_id": "1", "text": "let me in"})
        channel.written.put_nowait({"sender_id": "ann", "message_id": "2", "text": "My cat is called Minka."})
        print((await channel.posted.get()).splitlines()[0])


if __name__ == "__main__":
    asyncio.run(main())
