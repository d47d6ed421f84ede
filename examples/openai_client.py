"""The OpenAI-style door: a gateway on a free port, used with the `openai` client as if it were a model.
The `model` is an agent, and `user` names the session, which remembers what was said.

Prints:

    agents: main
    You said: My cat is called Minka.

    I keep it in mind as the first thing you said here. Say `help` to see what I understand.
    streamed: You said, in order:
    1. My cat is called Minka.
"""

import asyncio

from openai import AsyncOpenAI

from backchannel import Gateway
from backchannel.gateway.server import listening

TOKEN = "a-token-only-for-this-example"
CONFIG = {
    "agents": {"list": [{"id": "main", "model": "builtin/demo"}]},
    "gateway": {"port": 0, "http": {"chatCompletions": True}},
}


async def main() -> None:
    async with (
        Gateway.open(CONFIG) as gateway,
        listening(gateway, TOKEN) as place,
        AsyncOpenAI(base_url=f"{place.url}/v1", api_key=TOKEN) as client,
    ):
        print("agents:", ", ".join([model.id async for model in client.models.list()]))

        completion = await client.chat.completions.create(
            model="main", user="ann", messages=[{"role": "user", "content": "My cat is called Minka."}]
        )
        print(completion.choices[0].message.content)

        stream = await client.chat.completions.create(
            model="main", user="ann", messages=[{"role": "user", "content": "What did I say?"}], stream=True
        )
        print("streamed: ", end="")
        async for chunk in stream:
            print(chunk.choices[0].delta.content or "", end="", flush=True)
        print()


asyncio.run(main())
