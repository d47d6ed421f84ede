"""`openclaw node run`: a machine that connects as a node."""

from __future__ import annotations

import pytest

from tests.web.gateways import GatewayProcess

from .conftest import OpenClaw
from .lines import json_rpc
from .rows import shows

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]


@shows("node", "`node run` connects, and `nodes status` shows it")
@shows("nodes", "`nodes describe`")
def test_a_node_connects_and_is_shown(
    openclaw: OpenClaw, gateway: GatewayProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    port = gateway.url.rpartition(":")[2]
    words = ("--host", "127.0.0.1", "--port", port, "--node-id", "lamp", "--display-name", "Lamp")
    token = {"OPENCLAW_GATEWAY_TOKEN": gateway.token}
    with json_rpc(openclaw, "node", "run", *words, **token) as node, gateway.connected() as client:
        while not (nodes := client.call("node.list")["nodes"]):
            node.wait_alive(0.2)
        assert nodes[0]["displayName"] == "Lamp"
        shown = openclaw.answer("nodes", "status")
        assert nodes[0]["nodeId"][:12] in shown and "Lamp" in shown
        described = openclaw.json("nodes", "describe", "--node", "Lamp")
        assert (described["nodeId"], described["connected"]) == (nodes[0]["nodeId"], True)
        assert described["caps"] == nodes[0]["caps"] and described["caps"]
    assert "failed" not in (said := capsys.readouterr().out) and "unknown method" not in said
