"""The gateway process of the page's tests: nothing of it is left, whatever goes wrong."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.cli.program import Up
from tests.support.beside import beside
from tests.web.gateways import GatewayProcess

FAILING = (
    "import sys, time; print('Traceback', file=sys.stderr, flush=True); print('try: ', flush=True); time.sleep(60)"
)


def test_a_gateway_whose_log_shows_an_error_is_ended_before_that_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with beside() as side:
        gateway = GatewayProcess(tmp_path, side)
        monkeypatch.setattr(gateway.program, "command", lambda *words: [sys.executable, "-c", FAILING])
        gateway.start()
        process: Up = gateway.process
        with pytest.raises(AssertionError, match="Traceback"):
            gateway.kill()
        assert process.process.poll() is not None
        gateway.kill()  # there is nothing left to end
