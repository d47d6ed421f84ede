"""A sandbox of docker or podman, by the command that starts it; no daemon is asked."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from backchannel.agents.programs import Program, ProgramLimits, environment
from backchannel.agents.sandbox.docker import backend
from backchannel.config.agents import SandboxRules


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Have a podman, and no docker, that answers as one whose daemon is down."""
    program = tmp_path / "bin" / "podman"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho 'cannot connect' >&2\nexit 125\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}")
    return program


@pytest.mark.usefixtures("client")
def test_a_container_is_confined_as_the_settings_say(tmp_path: Path) -> None:
    program = Program(("npx", "server"), tmp_path / "ws" / "sub", environment({"KEY": "secret"}))
    rules = SandboxRules(backend="docker", image="node:22", memory_mb=512, processes=50, cpu_seconds=9)
    made = backend.wrapped(program, rules, tmp_path / "ws", tmp_path / "outs")
    line = " ".join(made.argv)
    assert line.startswith("podman run --rm --interactive --init --name backchannel-")
    for words in (
        "--network none --read-only",
        "--cap-drop ALL --security-opt no-new-privileges",
        f"--user {os.geteuid()}:{os.getegid()}",
        "--memory 512m --memory-swap 512m --pids-limit 50 --ulimit cpu=9",
        "--tmpfs /tmp:rw,size=256m --shm-size 256m",
        f"--volume {tmp_path}/ws:/workspace:rw --volume {tmp_path}/outs:/outputs:ro",
        "--workdir /workspace/sub --env HOME=/workspace --env KEY",
    ):
        assert words in line
    assert line.endswith("node:22 npx server")
    assert "secret" not in line and made.env["KEY"] == "secret"
    assert made.after == ("podman", "rm", "--force", made.argv[made.argv.index("--name") + 1])
    # The workspace is counted around the client; the other limits are not for the client's own process.
    assert made.limits == ProgramLimits(disk_bytes=128 << 20, folder_bytes=10240 << 20, folder_files=250_000)


@pytest.mark.usefixtures("client")
def test_a_container_is_told_of_certificates_of_its_own_and_not_of_those_of_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", "/home/me/ca.pem")
    monkeypatch.setenv("SSL_CERT_DIR", "/home/me/certs")
    program = Program(("npx", "server"), tmp_path, environment({"SSL_CERT_FILE": "/image/ca.pem"}))
    made = backend.wrapped(program, SandboxRules(backend="docker", image="node:22"), tmp_path, tmp_path)
    assert made.env["SSL_CERT_FILE"] == "/image/ca.pem"
    assert "SSL_CERT_DIR" not in made.env


@pytest.mark.usefixtures("client")
@pytest.mark.parametrize(("access", "volume"), [("ro", ":/workspace:ro"), ("none", None)])
def test_a_container_has_of_the_workspace_what_the_settings_say(
    tmp_path: Path, access: str, volume: str | None
) -> None:
    program = Program(("true",), tmp_path, environment())
    rules = SandboxRules(backend="docker", network=True, workspace_access=access)  # type: ignore[arg-type]  # of the list
    argv = backend.wrapped(program, rules, tmp_path, tmp_path / "outs").argv
    assert f"{tmp_path}/outs:/outputs:ro" in argv
    assert argv.count("--volume") == (1 if volume is None else 2)
    assert volume is None or f"{tmp_path}{volume}" in argv
    assert argv[argv.index("--network") + 1] == "bridge"
    assert argv[argv.index("--workdir") + 1] == ("/tmp" if volume is None else "/workspace")


@pytest.mark.usefixtures("client")
def test_a_daemon_that_does_not_answer_is_told() -> None:
    assert backend.why_not() == "podman does not work here: cannot connect"


def test_where_there_is_neither_it_says_which_package_brings_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert "apt-get install podman" in (backend.why_not() or "")
