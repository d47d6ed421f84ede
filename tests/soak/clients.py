"""The clients of the soak: people in chats, programs with a token or a hook, and the platform."""

from __future__ import annotations

import asyncio
import itertools
import random
from contextlib import suppress
from typing import Any

import httpx

from tests.soak import hands
from tests.soak.lives import Lives
from tests.soak.served import CHANNEL, TOKEN, chat, key, please_ask, task
from tests.support.far_end import FarEnd, event, signed

PATIENCE_S = 10.0
"""How long a person waits for the reply before writing again: a run that was set aside takes longer."""
PAUSE_S = 3.0
"""How long a program lets pass before it asks for the next, at most: what is accepted has to be done as well."""
ANSWER_LIMIT_S = 60.0
UNAVAILABLE = 503


class Platform(FarEnd):
    """The far end, in which people wait for what they are told."""

    def __init__(self) -> None:
        super().__init__()
        self._awaited: dict[str, asyncio.Event] = {}

    async def told(self, text: str, seconds: float) -> None:
        """Wait until this was posted, but not for ever."""
        came = self._awaited.setdefault(text, asyncio.Event())
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await came.wait()

    def _take(self, key: str, body: dict[str, Any]) -> None:
        super()._take(key, body)
        self._awaited.setdefault(body["text"], asyncio.Event()).set()


class Clients:
    """People and programs; each sends the same again until it is acknowledged, and then the next."""

    def __init__(self, lives: Lives, platform: Platform, sessions: int, seed: int) -> None:
        self._lives = lives
        self._platform = platform
        self._sessions = sessions
        self._seed = seed
        self._is_over = False
        self._room = asyncio.Event()
        self._room.set()
        self.acknowledged: dict[str, str] = {}
        """The run of each message, by the message's name."""
        self.repeats = 0

    def no_more(self) -> None:
        """Let each finish what it is about."""
        self._is_over = True
        self._room.set()

    def hold(self, is_held: bool) -> None:
        """Let nobody ask for more while enough is queued, or go on."""
        if is_held and not self._is_over:
            self._room.clear()
        else:
            self._room.set()

    async def _introduce(self, http: httpx.AsyncClient) -> None:
        """Say something in each chat, so that there is a session to be asked."""
        await asyncio.gather(*(self._write(http, n, f"p-{n}-0", []) for n in range(self._sessions)))

    async def talk(self, http: httpx.AsyncClient) -> None:
        """Let everybody talk until there shall be no more."""
        await self._introduce(http)
        async with asyncio.TaskGroup() as group:
            for n in range(self._sessions):
                group.create_task(self._person(http, n))
            for n in range(self._sessions // 4):
                group.create_task(self._program(http, n))
                group.create_task(self._spawner(http, n))
                group.create_task(self._worker(http, n))

    async def _person(self, http: httpx.AsyncClient, n: int) -> None:
        chance = random.Random(f"{self._seed} person {n}")
        others = [key(other) for other in range(self._sessions) if other != n]
        for count in itertools.count(1):
            await self._room.wait()
            if self._is_over:
                return
            name = f"p-{n}-{count}"
            targets = chance.sample(others, chance.choice((1, 1, 2)))
            await self._write(http, n, name, targets, wait_s=chance.choice((0, 0, 2, 5)))
            await self._platform.told(f"reply {name}", PATIENCE_S)

    async def _write(self, http: httpx.AsyncClient, n: int, name: str, targets: list[str], wait_s: float = 0) -> None:
        text = please_ask(name, targets, wait_s)
        said = event(chatType="group", chatId=chat(n), senderId=f"s{n}", messageId=name, text=text, mentioned=True)
        body, headers = signed(said)
        answer = await self._post(http, f"/channels/{CHANNEL}/inbound", content=body, headers=headers)
        self.acknowledged[name] = answer["runId"]

    async def _program(self, http: httpx.AsyncClient, n: int) -> None:
        chance = random.Random(f"{self._seed} program {n}")
        for count in itertools.count(1):
            await self._room.wait()
            if self._is_over:
                return
            name = f"q-{n}-{count}"
            asker, target = chance.sample([key(n) for n in range(self._sessions)], 2)
            args = {"sessionKey": target, "message": f"question {name}", "timeoutSeconds": chance.choice((0, 1, 2))}
            asked: dict[str, Any] = {"tool": "sessions_send", "args": args, "idempotencyKey": name}
            if chance.random() < 0.5:
                asked["sessionKey"] = asker
            headers = {"Authorization": f"Bearer {TOKEN}"}
            result = (await self._post(http, "/tools/invoke", json=asked, headers=headers))["result"]
            if "runId" in result:
                assert result["runId"] == name
                self.acknowledged[name] = name
            else:
                assert "circle" in result["error"] or "wait" in result["error"], result
            await self._platform.told(f"news of {name}", chance.uniform(0, PAUSE_S))

    async def _spawner(self, http: httpx.AsyncClient, n: int) -> None:
        """Hand work to sub-agents in the name of a session."""
        chance = random.Random(f"{self._seed} spawner {n}")
        headers = {"Authorization": f"Bearer {TOKEN}"}
        for count in itertools.count(1):
            await self._room.wait()
            if self._is_over:
                return
            name = f"s-{n}-{count}"
            asked = {
                "tool": "sessions_spawn",
                "args": {"task": task(name), "cleanup": chance.choice(("keep", "delete"))},
                "sessionKey": key(n),
                "idempotencyKey": name,
            }
            result = (await self._post(http, "/tools/invoke", json=asked, headers=headers))["result"]
            if result["status"] == "accepted":
                assert result["runId"] == name
                self.acknowledged[name] = name
            else:
                assert "maxChildren" in result["error"], result
            await self._platform.told(f"result of {name}", chance.uniform(0, PAUSE_S))

    async def _worker(self, http: httpx.AsyncClient, n: int) -> None:
        """Give an agent with hands something to do, by a hook."""
        chance = random.Random(f"{self._seed} worker {n}")
        headers = {"Authorization": f"Bearer {hands.HOOK_TOKEN}"}
        for count in itertools.count(1):
            await self._room.wait()
            if self._is_over:
                return
            name = f"h-{n}-{count}"
            given = {"agentId": hands.HANDS[n % len(hands.HANDS)], "sessionKey": f"hook:work-{n}"}
            said = {"message": name, "idempotencyKey": name, **given}
            answer = await self._post(http, "/hooks/agent", json=said, headers=headers)
            self.acknowledged[name] = answer["runId"]
            await self._platform.told(f"work of {name}", chance.uniform(0, PAUSE_S))

    async def _post(self, http: httpx.AsyncClient, path: str, **more: Any) -> Any:
        """Post it to whichever gateway is there, until one has answered."""
        dead = None
        while True:
            place = await self._lives.at(after=dead)
            with suppress(httpx.TransportError):
                answer = await http.post(place.url + path, **more)
                if answer.status_code != UNAVAILABLE:
                    assert answer.is_success, answer.text
                    return answer.json()
                assert "shutting_down" in answer.text, answer.text
            self.repeats += 1
            dead = place


def http_client() -> httpx.AsyncClient:
    """Make a client whose connections die with the request: one to a dead process is of no use."""
    limits = httpx.Limits(max_keepalive_connections=0)
    return httpx.AsyncClient(timeout=ANSWER_LIMIT_S, limits=limits, trust_env=False)
