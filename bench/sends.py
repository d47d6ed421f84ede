"""Rows about `sessions_send`: what an exchange costs beside plain runs, and how many sessions can be in one."""

from __future__ import annotations

import time

import msgspec

from bench.client import Client, connected
from bench.measures import Figure, Findings, Goal, Timings
from bench.processes.load import check_ok
from bench.processes.models import ASKS, ASKS_SECOND, QUESTION, please_ask
from bench.runs import run_and_wait
from bench.world import BenchWorld

WAIT_S = 60
SEND_LIMIT_MIB = 400
MODEL_SECONDS = 3
"""Each who asks has two model calls, with that of the one asked between them."""


class _Invoked(msgspec.Struct):
    result: msgspec.Raw


async def send_and_wait(client: Client, target: str) -> float:
    """Send as the operator, and wait; gives the milliseconds until the reply was there.

    The next send to the same target waits for the announce of this one, so a row of them takes the time of both runs.
    """
    began = time.perf_counter()
    args = {"sessionKey": target, "message": QUESTION, "timeoutSeconds": WAIT_S}
    answer = await client.ask("tools.invoke", {"tool": "sessions_send", "args": args})
    took = (time.perf_counter() - began) * 1000
    check_ok(bytes(msgspec.json.decode(answer, type=_Invoked).result))
    return took


async def ask_and_wait(client: Client, session: str, target: str) -> float:
    """Let an agent ask another; gives the milliseconds until its own run has ended."""
    began = time.perf_counter()
    _, ended = client.agent(session, please_ask(target))
    check_ok(await ended)
    return (time.perf_counter() - began) * 1000


async def _two_runs(client: Client, session: str) -> float:
    return await run_and_wait(client, session) + await run_and_wait(client, session)


async def _met(client: Client, name: str) -> str:
    """Make a session that has a chat to announce to: somebody has spoken to it there."""
    session = f"agent:main:hook:{name}"
    started = await client.ask("chat.send", {"sessionKey": session, "message": QUESTION, "idempotencyKey": name})
    check_ok(await client.ask("agent.wait", {"runId": msgspec.json.decode(started)["runId"]}))
    return session


async def one_send(world: BenchWorld) -> Findings:
    """`sessions_send` with a wait, beside two plain runs; the target is asked for an announce, and makes none."""
    sizes = world.sizes
    plain, sent, asked = Timings(), Timings(), Timings()
    async with (
        world.gateway(model=ASKS.ref, visibility="all", turns=0) as gateway,
        connected(gateway.url, gateway.token) as client,
    ):
        for turn in range(-1, sizes.rounds):  # the first one warms up
            yield f"round {turn + 1} of {sizes.rounds}"
            target, other = await _met(client, f"target-{turn}"), await _met(client, f"other-{turn}")
            runs = [await _two_runs(client, f"agent:main:hook:plain-{turn}") for _ in range(sizes.calls)]
            sends = [await send_and_wait(client, target) for _ in range(sizes.calls)]
            asks = [await ask_and_wait(client, f"agent:main:hook:asker-{turn}", other) for _ in range(sizes.calls)]
            if turn >= 0:
                plain.add(runs)
                sent.add(sends)
                asked.add(asks)
    floor_is = "two plain runs, agent + agent.wait each"
    yield Figure(
        name="sessions_send with a wait and ANNOUNCE_SKIP, p50",
        value=sent.p50,
        unit="ms",
        floor=plain.p50,
        floor_is=floor_is,
        goal=Goal(times_floor=1.5),
        detail=sent.tail,
    )
    yield Figure(
        name="an agent that asks another, and goes on, p50",
        value=asked.p50,
        unit="ms",
        floor=plain.p50,
        floor_is=floor_is,
        detail=asked.tail,
    )


async def many_sends(world: BenchWorld) -> Findings:
    """Many sessions in exchanges at once, each with a model that takes a second."""
    count = world.sizes.waiting
    yield f"{count} sessions exchange"
    async with world.gateway(max_concurrent=2 * count, model=ASKS_SECOND.ref, visibility="all", turns=0) as gateway:
        done = await world.load(gateway, "asks", connections=8, sessions=count)
        memory = gateway.most_memory_mib
    yield Figure(
        name=f"{count} sessions in exchanges on a model of one second, all done",
        value=done.seconds,
        unit="s",
        floor=float(MODEL_SECONDS),
        floor_is="the model's seconds: two of who asks, one of who is asked",
        goal=Goal(times_floor=1.5),
        detail={"p50": done.p50_ms, "p99": done.p99_ms},
    )
    yield Figure(name="memory meanwhile, at most", value=memory, unit="MiB", goal=Goal(at_most=SEND_LIMIT_MIB))
