"""A gateway that looks used: a day in a bicycle shop, from last night until now."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote
from zoneinfo import ZoneInfo

from tests.support.far_end import Fault
from tests.web import shop
from tests.web.gateways import GatewayProcess, Held, gateway_process

HOUR_S = 3600
WORKSHOP = "agent:main:slack:group:workshop"
SUPPLIERS = "agent:researcher:slack:group:suppliers"
OVERNIGHT, WORKING_DAY, EARLIER = 20 * HOUR_S, 5 * HOUR_S, 40 * 60


def settings(gateway: GatewayProcess) -> dict[str, Any]:
    """Make the configuration of the shop; its jobs come later than now, so that none fires in the day that it shows."""
    here = datetime.now(ZoneInfo("Europe/Oslo"))
    agents = [
        {"id": id, "model": "local/qwen3-32b", "instructions": text, "subagents": {"allowAgents": ["*"]}}
        for id, text in shop.AGENTS.items()
    ]
    models = [{"id": "qwen3-32b", "contextWindow": 32_768, "cost": {"input": 0.4, "output": 1.6}}]
    provider = {"api": "openai", "baseUrl": gateway.stub.base_url, "apiKey": "any", "models": models}
    return {
        "agents": {"list": agents},
        "budgets": [
            {"name": "month", "scope": "gateway", "per": "month", "usd": 0.1, "then": "warn"},
            {"name": "agent-day", "scope": "agent", "per": "day", "tokens": 80_000, "then": "warn"},
            {"name": "chat", "scope": "session", "per": "total", "runs": 9, "then": "warn", "warnAt": 0.5},
        ],
        "models": {"providers": {"local": provider}},
        "channels": {
            "slack": gateway.far_end.settings(requireMention=False),
            "telegram": gateway.far_end.settings(secret="another secret of the tests, long enough"),
        },
        "bindings": [{"match": {"channel": "slack", "chatId": "Suppliers"}, "agentId": "researcher"}],
        "cron": {
            "jobs": [
                {
                    "id": "stock-report",
                    "schedule": f"0 {(here.hour + 2) % 24} * * *",
                    "message": "Write the stock report",
                    "tz": "Europe/Oslo",
                },
                {
                    "id": "newsletter",
                    "schedule": f"0 9 * * {(here.isoweekday() + 2) % 7}",
                    "message": "Draft the newsletter",
                    "agentId": "writer",
                },
                {"id": "year-end", "schedule": "0 8 31 12 *", "message": "Count everything", "enabled": False},
            ]
        },
    }


class Shop:
    """The shop, its people, and what they say."""

    def __init__(self, gateway: GatewayProcess, models: shop.Models) -> None:
        self.gateway = gateway
        self.models = gateway.stub.reply = models
        self._said = 0

    def at(self, ago_s: float) -> None:
        """Go to a time."""
        self.gateway.kill()
        self.gateway.start(ago_s=ago_s)

    def ask(self, session: str, text: str) -> str:
        """Write as the operator, and wait for the reply."""
        run = self.gateway.call("chat.send", sessionKey=session, message=text)["runId"]
        self.gateway.call("agent.wait", runId=run, timeoutMs=10_000)
        return str(run)

    def write(self, chat: str, name: str, text: str) -> None:
        """Write as one of the people of a chat."""
        self._said += 1
        chatted = {"chatType": "group", "chatId": chat, "chatName": chat, "messageId": f"in-{self._said}"}
        self.gateway.write("slack", **chatted, senderId=name.lower(), senderName=name, text=text)
        self.gateway.rest()


def live(shop_: Shop) -> Held:
    """Let a day pass in the shop; what it returns is a reply that is being written."""
    gateway = shop_.gateway
    shop_.at(OVERNIGHT)
    for job in ("stock-report", "newsletter"):
        gateway.call("cron.run", id=job)
    gateway.rest()
    shop_.write("Workshop", "Marek Nowak", "How many rims do we have left?")
    shop_.at(WORKING_DAY)
    shop_.write("Workshop", "Ann Lindqvist", "Two. And please hold one for Marek until Friday")
    shop_.write("Suppliers", "Ann Lindqvist", "From today the researcher is in here")
    _survive_a_kill(shop_)
    shop_.at(EARLIER)
    shop_.ask("main", "What came in overnight?")
    shop_.ask("main", "Yes, please answer her")
    shop_.ask("main", "Please ask the researcher who has rims by Thursday")
    gateway.rest()
    shop_.ask("main", "Three things for today: the returns, the Polish manual, the lost parcel")
    gateway.rest()
    shop_.ask("main", "What have they found?")
    gateway.tell_far_end(Fault(400, body='{"error": "chat not found"}'), Fault(400, body='{"error": "chat not found"}'))
    gateway.call("send", channel="slack", to="Old-Room", message="The shop is closed on Friday.")
    gateway.call("send", channel="slack", to="Lina", message="Your return label is attached.")
    shop_.at(0)
    held = gateway.hold("Here is a first roster. ", "Monday: Ann and Marek. ", "Tuesday: Lina.", at=2)
    gateway.call("chat.send", sessionKey="agent:writer:roster", message="Make next week's roster, please")
    return held


def _survive_a_kill(shop_: Shop) -> None:
    """Let the process die in the middle of a run; the next one goes on with it."""
    gateway, before = shop_.gateway, len(shop_.gateway.stub.requests)
    shop_.models.are_gone = True
    gateway.call("chat.send", sessionKey="main", message="Prepare the spring price list", idempotencyKey="price-list")
    gateway.asked(before + 2)
    shop_.models.are_gone = False
    shop_.at(WORKING_DAY - 40)
    gateway.call("agent.wait", runId="price-list", timeoutMs=10_000)


@contextmanager
def used_gateway(home: Path, *, pace: float = 0) -> Iterator[GatewayProcess]:
    """Start a gateway that looks used; with a pace of 1, models took as long as they do."""
    with gateway_process(home, settings=settings) as gateway:
        held = live(Shop(gateway, shop.Models(pace=pace)))
        yield gateway
        held.release()


def places(gateway: GatewayProcess) -> dict[str, str]:
    """Name every view by its address."""
    exchange = gateway.call("exchanges.list", limit=1)["exchanges"][0]["id"]
    told = gateway.call("chat.search", sessionKey="main", query="Good morning")["matches"][0]["messageId"]
    return {
        "sessions": "#/sessions",
        "session": f"#/sessions/{quote('agent:main:main')}",
        "message": f"#/sessions/{quote('agent:main:main')}?message={told}",
        "tree": f"#/sessions/{quote('agent:main:main')}?tree=1",
        "group": f"#/sessions/{quote(WORKSHOP)}",
        "streaming": f"#/sessions/{quote('agent:writer:roster')}",
        "runs": "#/runs",
        "run": "#/runs/price-list",
        "exchanges": "#/exchanges",
        "exchange": f"#/exchanges/{exchange}",
        **{name: f"#/{name}" for name in ("map", "deliveries", "jobs", "agents", "channels", "budgets", "health")},
    }
