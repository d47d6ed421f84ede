"""A web application with a gateway inside, whose state folder outlives it.
A message is accepted just before the first process ends; the second one answers it.

Prints:

    First life: order-17 is accepted, and the application ends.
    Second life: Packed: one teapot
    Asked again: Packed: one teapot
    It was packed 1 time.
"""

import asyncio
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx2
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from backchannel import FunctionContext, Gateway

packed: list[str] = []


def make_app(state: str, *, is_slow: bool) -> Starlette:
    """Make the application; all that must be kept is in the folder `state`."""
    gateway = Gateway.open(state=state)

    @gateway.agent("main")
    async def packer(run: FunctionContext) -> str:
        if is_slow:
            await asyncio.sleep(60)  # the application ends before this does
        packed.append(run.text)
        return f"Packed: {run.text}"

    async def accept(request: Request) -> JSONResponse:
        order = await request.json()
        # The order's number is the run's id: an order that is posted twice is packed once.
        run = await gateway.submit("main", order["what"], run_id=order["id"])
        return JSONResponse({"id": run.id}, status_code=202)

    async def answer(request: Request) -> JSONResponse:
        order = await request.json()
        return JSONResponse({"reply": await gateway.ask("main", order["what"], run_id=order["id"])})

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async with gateway:
            yield

    routes = [Route("/orders", accept, methods=["POST"]), Route("/orders/answer", answer, methods=["POST"])]
    return Starlette(routes=routes, lifespan=lifespan)


@asynccontextmanager
async def running(app: Starlette) -> AsyncIterator[httpx2.AsyncClient]:
    """Run the application in this process, and give a client of it."""
    async with (
        app.router.lifespan_context(app),
        httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://app") as client,
    ):
        yield client


async def main() -> None:
    order = {"id": "order-17", "what": "one teapot"}
    with tempfile.TemporaryDirectory() as state:
        async with running(make_app(state, is_slow=True)) as client:
            accepted = (await client.post("/orders", json=order)).json()
            print(f"First life: {accepted['id']} is accepted, and the application ends.")
        async with running(make_app(state, is_slow=False)) as client:
            print("Second life:", (await client.post("/orders/answer", json=order)).json()["reply"])
            print("Asked again:", (await client.post("/orders/answer", json=order)).json()["reply"])
    print(f"It was packed {len(packed)} time.")


asyncio.run(main())
