"""`@openclaw/gateway-client`, the library that OpenClaw's clients connect with, and what its package of schemas has."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.interop.conftest import Node
from tests.support.openclaw.cut import CUT, cut, written
from tests.web.gateways import GatewayProcess

from .rows import shows

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]


@shows("library", "`@openclaw/gateway-client`: the handshake, a message, the events of its run")
@pytest.mark.anyio
async def test_the_library_connects_sends_and_hears(packages: Node, gateway: GatewayProcess) -> None:
    told: list[Any] = []
    url = gateway.url.replace("http:", "ws:")
    async with packages.started("client.mjs", url, gateway.token, "agent:main:library") as script:
        while {"chat": "final", "run": "lib"} not in told:
            told.append(await script.line())
    assert told[0] == {"hello": "hello-ok", "protocol": 4}
    assert {"chat": "delta", "run": "lib"} in told


def test_the_cut_of_the_schemas_is_what_the_package_has(packages: Node) -> None:
    schemas = packages.folder / "node_modules" / "@openclaw" / "gateway-protocol" / "protocol.schema.json"
    published = json.loads(schemas.read_text(encoding="utf-8"))
    assert CUT.read_text(encoding="utf-8") == written(cut(published)), "cut it anew: tests/support/openclaw/__init__.py"
