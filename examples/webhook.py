"""A webhook: a build server posts what happened, and an agent works on it in a session for builds.
What is posted twice under one key is handled once; a wake only leaves a note in the main session.

Prints:

    posted: 202, run hook/build-17 on agent:main:hook:builds
    the agent works on: build 17 failed
    posted again: 202, run hook/build-17 on agent:main:hook:builds
    noted: 200
    in the main session: all builds are green
"""

import asyncio

import httpx2

from backchannel import FunctionContext, Gateway
from backchannel.gateway.server import listening

HOOK_TOKEN = "only-for-the-build-server"
CONFIG = {"gateway": {"port": 0}, "hooks": {"enabled": True, "token": HOOK_TOKEN}}


async def main() -> None:
    gateway = Gateway.open(CONFIG)
    worked_on: asyncio.Queue[str] = asyncio.Queue()

    @gateway.agent("main")
    async def mechanic(run: FunctionContext) -> str:
        await worked_on.put(run.text)
        return "I will look."

    async with (
        gateway,
        listening(gateway, "the-operators-token") as place,
        httpx2.AsyncClient(base_url=place.url, headers={"Authorization": f"Bearer {HOOK_TOKEN}"}) as build_server,
    ):
        failed = {"message": "build 17 failed", "name": "CI", "sessionKey": "hook:builds", "idempotencyKey": "build-17"}
        print("posted:", shown(await build_server.post("/hooks/agent", json=failed)))
        print("the agent works on:", await worked_on.get())
        # No answer came, perhaps? Posting it again is safe.
        print("posted again:", shown(await build_server.post("/hooks/agent", json=failed)))

        noted = await build_server.post("/hooks/wake", json={"text": "all builds are green"})
        print("noted:", noted.status_code)
        history = await gateway.tools().sessions_history("main")
        print("in the main session:", history["messages"][0]["content"][0]["text"])


def shown(answer: httpx2.Response) -> str:
    accepted = answer.json()
    return f"{answer.status_code}, run {accepted['runId']} on {accepted['sessionKey']}"


asyncio.run(main())
