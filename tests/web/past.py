"""The gateway as it was some time ago: `python -m tests.web.past <state> <port> <seconds ago>`.

It is a program with a few tools of its own, whose clock is behind by so much: what is done in it lies that far back.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from backchannel.config import load_config
from backchannel.gateway.app import Gateway
from backchannel.gateway.auth import OperatorToken
from backchannel.gateway.logs import configure_logs
from backchannel.gateway.server import ListeningServer, serve
from tests.support.clocks import AheadClock

STOCK = {
    "chain-11s": {"item": "chain, 11-speed", "inStock": 34, "price": 31.5},
    "rim-28": {"item": "rim 28″, 32 holes", "inStock": 2, "price": 54.0, "onOrder": 20, "expected": "Thursday"},
    "pads-b01s": {"item": "brake pads B01S", "inStock": 0, "price": 9.9, "onOrder": 0},
}


def open_gateway(state: Path, port: int, ago_s: float) -> Gateway:
    config = load_config(None, {}, state=state, port=port)
    gateway = Gateway(config, clock=AheadClock(-ago_s))

    @gateway.tool(effects="none")
    async def stock(item: str) -> dict[str, object]:
        """Look up what is in stock."""
        await asyncio.sleep(0.12)
        return STOCK.get(item, {"error": f"no item {item!r}", "items": list(STOCK)})

    @gateway.tool(effects="none")
    async def read_page(url: str) -> str:
        """Read a page of the web."""
        await asyncio.sleep(0.35)
        return f"{url}\n\nDealer prices, spring. Rim 28″: 38.20 from 20 pieces. Chain 11-speed: 19.80. Delivery 3 days."

    @gateway.tool(effects="outside")
    async def place_order(item: str, count: int) -> dict[str, object]:
        """Order from the supplier."""
        await asyncio.sleep(0.2)
        return {"order": "HC-2041", "item": item, "count": count, "arrives": "Thursday"}

    return gateway


def main() -> None:
    state, port, ago_s = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    configure_logs("warning", sys.stderr, as_json=False)

    def ready(place: ListeningServer, token: OperatorToken) -> None:
        print(f"It is running at {place.url} \ntry: it", flush=True)

    asyncio.run(serve(open_gateway(state, port, ago_s), ready))


if __name__ == "__main__":
    main()
