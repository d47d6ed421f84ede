"""Libraries that take long to import delay neither the start, nor other work, nor the stop."""

from __future__ import annotations

import json
import socket
import time
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key

from tests.cli.program import Program
from tests.support.far_end import SECRET, event, signed

TELEGRAM: dict[str, Any] = {
    "channels": {"phone": {"adapter": "telegram", "token": "4242:" + "a" * 35, "allowFrom": ["1"]}}
}
MODEL: dict[str, Any] = {
    "models": {"providers": {"far": {"api": "openai", "baseUrl": "http://127.0.0.1:9/v1", "models": [{"id": "x"}]}}},
    "agents": {"list": [{"id": "main", "model": "builtin/demo"}, {"id": "other", "model": "far/x"}]},
}


@pytest.mark.parametrize(("package", "config"), [("aiogram", TELEGRAM), ("pydantic_ai", MODEL)])
def test_a_library_that_is_never_loaded_delays_neither_the_start_nor_a_run_nor_the_stop(
    program: Program, package: str, config: dict[str, Any]
) -> None:
    began = _never_imported(program.home / "libraries", package)
    program.write_config(json.dumps(config))
    with program.up(PYTHONPATH=str(began.parent)) as up:
        up.wait_until(began.exists)
        assert "You said: I am here" in program.answer("chat", "I am here")
        assert up.stop() == 0


def test_a_channel_whose_library_is_never_loaded_delays_no_other_run_and_not_the_stop(program: Program) -> None:
    began = _never_imported(program.home / "libraries", "httpx2")
    wall = {"adapter": "bridge", "url": "http://127.0.0.1:9/", "secret": SECRET, "allowFrom": ["ann"]}
    program.write_config(json.dumps({"channels": {"wall": wall}}))
    with program.up(PYTHONPATH=str(began.parent)) as up:
        body, headers = signed(event())
        urlopen(Request(f"{up.url}/channels/wall/inbound", body, headers), timeout=20).close()
        up.wait_until(began.exists)
        assert "You said: I am here" in program.answer("chat", "I am here")
        assert up.stop() == 0


def test_an_issuer_that_cannot_be_asked_yet_delays_nobody_else(program: Program) -> None:
    began = _never_imported(program.home / "libraries", "httpx2")
    oauth = {"issuer": "http://127.0.0.1:9", "audience": "here"}
    program.write_config(json.dumps({"gateway": {"auth": {"oauth": oauth}}}))
    claims = {"iss": oauth["issuer"], "aud": "here", "sub": "ann", "exp": time.time() + 300}
    token = jwt.encode(claims, generate_private_key(SECP256R1()), "ES256", headers={"kid": "one"})
    with program.up(PYTHONPATH=str(began.parent)) as up, socket.socket() as stranger:
        stranger.connect(("127.0.0.1", int(up.url.rpartition(":")[2].strip("/"))))
        stranger.sendall(f"GET /metrics HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n\r\n".encode())
        up.wait_until(began.exists)
        assert "You said: I am here" in program.answer("chat", "I am here")


def _never_imported(folder: Path, package: str) -> Path:
    """Make a package whose import never ends; gives the file that says that it has begun."""
    began = folder / "began"
    (folder / package).mkdir(parents=True)
    text = f"import pathlib, threading\npathlib.Path({str(began)!r}).touch()\nthreading.Event().wait()\n"
    (folder / package / "__init__.py").write_text(text)
    return began
