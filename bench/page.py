"""The page in a real browser, with very many sessions and a very long transcript."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from bench.client import connected
from bench.measures import Figure, Findings, Goal, Timings
from bench.states import State
from bench.world import BenchWorld, Server

if TYPE_CHECKING:
    from playwright.async_api import Browser, Page

FRAME_LIMIT_MS = 50.0
PATIENCE_MS = 60_000
SCRIPT = Path(__file__).parent / "page.js"


async def page_views(world: BenchWorld) -> Findings:
    """The list, a long transcript, scrolling through it, and what is new on the screen."""
    program = shutil.which("chromium") or shutil.which("chromium-headless-shell")
    if program is None:
        yield "not measured: there is no chromium here"
        return
    sessions, messages = _sizes(world)
    yield f"making {sessions:,} sessions"
    state = world.state(sessions=sessions, messages=(messages,))
    async with world.gateway(state.path) as gateway, _browser(program) as browser:
        first, rows, opened = Timings(), Timings(), Timings()
        for turn in range(world.sizes.rounds):
            yield f"opening the list and a transcript, {turn + 1} of {world.sizes.rounds}"
            async with _page(browser, gateway) as page:
                painted, listed = await _first_paint(page)
                first.add([painted])
                rows.add([listed])
                opened.add([await _open(page)])
        of = f"{sessions:,} sessions"
        yield Figure(name=f"page, first paint, {of}", value=first.p50, unit="ms", goal=Goal(at_most=500))
        yield Figure(name=f"page, rows on the screen, {of}", value=rows.p50, unit="ms", goal=Goal(at_most=1000))
        of = f"{messages:,} messages"
        yield Figure(name=f"page, a transcript opened, {of}", value=opened.p50, unit="ms", goal=Goal(at_most=500))
        async for found in _in_a_transcript(world, browser, gateway, state, messages):
            yield found


def _sizes(world: BenchWorld) -> tuple[int, int]:
    """Take ten thousand of each, or as many as are wanted at most."""
    return min(10_000, world.sizes.sessions[-1]), min(10_000, world.sizes.messages[-1])


async def _in_a_transcript(
    world: BenchWorld, browser: Browser, gateway: Server, state: State, messages: int
) -> AsyncIterator[Figure | str]:
    """Scroll through all of it; then see what is said meanwhile, in the transcript and in the list beside it."""
    key, _ = state.long[messages]
    async with _page(browser, gateway) as page, connected(gateway.url, gateway.token) as client:
        await _first_paint(page)
        await _open(page)
        yield "scrolling through all of it"
        frames: list[float] = await page.evaluate("bench.scrollThrough()")
        slow = [frame for frame in frames if frame > FRAME_LIMIT_MS]
        yield Figure(
            name=f"page, scrolling through {messages:,} messages, slowest of 100 frames",
            value=Timings([frames]).at(99),
            unit="ms",
            goal=Goal(at_most=FRAME_LIMIT_MS),
            detail={"frames": len(frames), "over50ms": len(slow), "slowest": max(frames)},
        )
        yield "saying something"
        in_log, in_list = Timings(), Timings()
        for turn in range(world.sizes.rounds * 2):
            text = f"bench update {turn} of this run"
            in_log.add([await _seen(page, f"expectSaid({text!r})", partial(client.agent, key, text))])
            other = state.key(turn)
            in_list.add([await _seen(page, f"expectFirst({other!r})", partial(client.agent, other, text))])
        yield Figure(name="page, a message seen after its event", value=in_log.p50, unit="ms", goal=Goal(at_most=100))
        yield Figure(
            name="page, a session at the top of the list", value=in_list.p50, unit="ms", goal=Goal(at_most=500)
        )


@asynccontextmanager
async def _browser(program: str) -> AsyncIterator[Browser]:
    from playwright.async_api import async_playwright

    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=program)
        yield browser
        await browser.close()


@asynccontextmanager
async def _page(browser: Browser, gateway: Server) -> AsyncIterator[Page]:
    """Open the page as somebody does who has logged in before, with nothing in the browser's cache."""
    place = urlsplit(gateway.url)
    origin = f"http://{place.netloc}"
    kept: Any = [{"origin": origin, "localStorage": [{"name": "backchannel.token", "value": gateway.token}]}]
    context = await browser.new_context(viewport={"width": 1280, "height": 800}, storage_state={"origins": kept})
    context.set_default_timeout(PATIENCE_MS)
    await context.add_init_script(path=SCRIPT)
    page = await context.new_page()
    await page.goto(f"{origin}/")
    yield page
    await context.close()


async def _first_paint(page: Page) -> tuple[float, float]:
    """Wait for the list; give when anything was painted, and when its rows were, since the page was asked for."""
    painted, listed = await page.evaluate("bench.listed()")
    return float(painted), float(listed)


async def _seen(page: Page, expect: str, say: Callable[[], Iterable[Awaitable[bytes]]]) -> float:
    """Say something, and give how long after its event what is expected was painted."""
    await page.evaluate(f"bench.{expect}")
    await asyncio.gather(*say())
    return float(await page.evaluate("bench.seen()"))


async def _open(page: Page) -> float:
    """Open the newest session, which has the long transcript; give how long it took until it was painted."""
    await page.locator(".session-row").first.click()
    return float(await page.evaluate("bench.opened()"))
