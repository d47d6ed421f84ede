"""Logs: structured, and without secrets."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog

from backchannel.agents.registry import FunctionContext
from backchannel.config import config_from
from backchannel.core.secrets.credentials import MASK
from backchannel.gateway.app import Gateway, RunFailed
from backchannel.gateway.auth import new_token
from backchannel.gateway.logs import configure_logs, secrets_of


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers, root.level
    yield
    root.handlers = handlers
    root.setLevel(level)
    structlog.reset_defaults()


def _lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_our_lines_and_those_of_libraries_look_the_same() -> None:
    out = io.StringIO()
    configure_logs("info", out, as_json=True)

    structlog.get_logger("ours").info("started", port=1)
    logging.getLogger("theirs").warning("slow %s", "disk")
    structlog.get_logger("ours").debug("not shown")

    ours, theirs = _lines(out)
    assert (ours["message"], ours["level"], ours["port"]) == ("started", "info", 1)
    assert (theirs["message"], theirs["level"], theirs["logger"]) == ("slow disk", "warning", "theirs")


def test_secrets_are_masked_wherever_they_stand() -> None:
    out = io.StringIO()
    secret, token = 'se"cret\\value', new_token()
    configure_logs("info", out, as_json=True, secrets=[secret, "short"])

    try:
        raise ValueError(f"bad key {secret}")
    except ValueError:
        structlog.get_logger().exception("failed", key=secret, header=f"Bearer {token}", note="a short note")
    logging.getLogger("theirs").error("sent %s", secret)

    told = out.getvalue()
    assert json.dumps(secret)[1:-1] not in told
    assert token not in told
    assert told.count(MASK) >= 4
    assert "a short note" in told


def test_lines_for_people_are_masked_too() -> None:
    out = io.StringIO()
    configure_logs("info", out, as_json=False, secrets=["a long secret"])

    structlog.get_logger().warning("got a long secret")

    assert "a long secret" not in out.getvalue()
    assert MASK in out.getvalue()


@pytest.mark.parametrize("as_json", [False, True])
def test_nothing_that_was_logged_controls_a_terminal(as_json: bool) -> None:
    out = io.StringIO()
    configure_logs("info", out, as_json=as_json)
    hostile = "\x1b[2J\x9b1m\u202egnp.exe"

    try:
        raise ValueError(f"bad {hostile}")
    except ValueError:
        structlog.get_logger().exception(f"failed {hostile}", name=hostile)
    logging.getLogger("theirs").error("sent %s", hostile)

    written = out.getvalue()
    assert written.count("gnp.exe") == 4
    assert not any(char in written or f"\\u{ord(char):04x}" in written for char in "\x1b\x9b\u202e")


def test_all_secrets_of_a_configuration_are_known() -> None:
    config = config_from(
        {
            "gateway": {"auth": {"token": "the gateway's token"}},
            "models": {"providers": {"own": {"api": "openai", "baseUrl": "http://x/v1", "apiKey": "the own key"}}},
            "channels": {"chat": {"adapter": "bridge", "url": "http://x", "secret": "the channel's secret"}},
        }
    )

    assert sorted(secrets_of(config, {"OPENAI_API_KEY": "the key of the environment"})) == [
        "the channel's secret",
        "the gateway's token",
        "the key of the environment",
        "the own key",
    ]


@pytest.mark.anyio
async def test_a_program_that_set_nothing_up_gets_no_variables_and_no_secrets_in_tracebacks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    structlog.reset_defaults()
    tokens = [new_token().swapcase() for _ in range(2)]  # not as we make them: only the configuration tells

    async def fails(context: FunctionContext) -> str:
        said = context.text.upper()
        raise ValueError(f"{len(said)} letters, {tokens}")

    for token in tokens:
        gateway = Gateway.open({"gateway": {"auth": {"token": token}}}, state=tmp_path / token)
        gateway.add_agent("main", fails)
        async with gateway:
            with pytest.raises(RunFailed):
                await gateway.ask("main", "hello")

    told = capsys.readouterr()
    assert told.out == ""
    assert "Traceback" in told.err and "5 letters" in told.err and MASK in told.err
    assert "HELLO" not in told.err
    last = told.err.split("a run failed")[-1]
    assert not any(token in last for token in tokens)


def test_a_program_that_set_structlog_up_keeps_its_own(tmp_path: Path) -> None:
    out = io.StringIO()
    structlog.configure(logger_factory=structlog.WriteLoggerFactory(out))

    Gateway.open({}, state=tmp_path)
    structlog.get_logger().warning("as it was")

    assert "as it was" in out.getvalue()
