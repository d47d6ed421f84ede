"""A plain install: the wheel, without extras, in an empty environment, does all that the documents promise."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from tests.cli.program import Program
from tests.support.far_end import FarEnd, event, signed

ROOT = Path(__file__).parent.parent
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
PAGE = ROOT / "src" / "backchannel" / "web"
PIP = [sys.executable, "-m", "pip"]
INSTALL_S = 400


@pytest.mark.timeout(INSTALL_S + 120)
def test_a_plain_install_serves_the_page_delivers_over_a_bridge_and_runs_every_example(tmp_path: Path) -> None:
    """One test, because making the environment takes far longer than all that is tried in it."""
    bin_folder = _install(tmp_path)

    assert _installed(bin_folder, "pytest", "httpx") == []
    asyncio.run(_deliver(tmp_path, str(bin_folder / "backchannel")))
    failed = {example.name: _errors_of(bin_folder / "python", example, tmp_path) for example in EXAMPLES}
    assert {name: errors for name, errors in failed.items() if errors} == {}


def _install(folder: Path) -> Path:
    """Build the wheel and install it; returns the folder of its programs.

    The environment has no pip of its own, and what nobody imports is not compiled: either takes longer than all else.
    """
    constraints = {"PIP_CONSTRAINT": str(ROOT / "constraints.txt"), "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    _run([*PIP, "wheel", "-q", "--no-deps", "-w", str(folder), str(ROOT)], constraints)
    _run([sys.executable, "-m", "venv", "--without-pip", str(folder / "env")])
    (wheel,) = folder.glob("backchannel-*.whl")
    bin_folder = folder / "env" / "bin"
    _run([*PIP, "--python", str(bin_folder / "python"), "install", "-q", "--no-compile", str(wheel)], constraints)
    return bin_folder


def _run(command: list[str], env: dict[str, str] | None = None) -> None:
    done = subprocess.run(
        command, env=os.environ | (env or {}), capture_output=True, text=True, timeout=INSTALL_S, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]


def _installed(bin_folder: Path, *names: str) -> list[str]:
    """Which of these packages are in the environment after all."""
    command = [*PIP, "--python", str(bin_folder / "python"), "list", "--format=json"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True)
    present = {package["name"] for package in json.loads(listed.stdout)}
    return [name for name in names if name in present]


async def _deliver(home: Path, executable: str) -> None:
    """Let somebody look at the page and write over a bridge, and wait for the reply to come out there."""
    program = Program(home, executable)
    async with FarEnd() as far_end:
        program.write_config(json.dumps({"channels": {"desk": far_end.settings()}}))
        with program.up() as up:
            served = [await asyncio.to_thread(_get, f"{up.url}{path}") for path in ("/", "/page/main.js")]
            body, headers = signed(event(text="red shoes"))
            request = urllib.request.Request(f"{up.url}/channels/desk/inbound", body, headers)
            taken = await asyncio.to_thread(_post, request)
            (message,) = await far_end.took(1)

    assert served == [(PAGE / name).read_text() for name in ("index.html", "main.js")], "the page is in the wheel"
    assert taken["verdict"] == "answer"
    assert message.to == "Chat-1"
    assert "red shoes" in message.text


def _get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=10) as answer:
        text: str = answer.read().decode()
    return text


def _post(request: urllib.request.Request) -> dict[str, object]:
    with urllib.request.urlopen(request, timeout=10) as answer:
        taken: dict[str, object] = json.load(answer)
    return taken


def _errors_of(python: Path, example: Path, home: Path) -> str:
    """Run an example from an empty folder, and give what it says if it fails; what it prints is checked elsewhere."""
    done = subprocess.run(
        [python, example],
        env={"PATH": os.environ["PATH"], "HOME": str(home), "HTTPS_PROXY": "http://127.0.0.1:9"},
        cwd=home,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    return "" if done.returncode == 0 else done.stderr or f"exit code {done.returncode}"
