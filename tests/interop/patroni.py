"""PostgreSQL under Patroni, with etcd: real programs on loopback, in folders that are gone afterwards.

Patroni and etcd are those of Debian; PostgreSQL is the one of all other tests.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.support.postgres import command_of, programs
from tests.support.privileges import NOBODY

PATIENCE_S = 90.0
TTL_S = 20
"""For how long nobody is elected after the leader's last sign: Patroni takes no less."""
PROGRAMS = ("patroni", "etcd")


class Etcd:
    """One etcd, in which Patroni keeps who leads."""

    def __init__(self, folder: Path) -> None:
        self.client, peer = free_port(), free_port()
        where, peers = f"http://127.0.0.1:{self.client}", f"http://127.0.0.1:{peer}"
        self._process = run(
            folder / "etcd.log",
            *("etcd", "--name", "etcd", "--data-dir", str(folder / "etcd")),
            *("--listen-client-urls", where, "--advertise-client-urls", where),
            *(
                "--listen-peer-urls",
                peers,
                "--initial-advertise-peer-urls",
                peers,
                "--initial-cluster",
                f"etcd={peers}",
            ),
        )

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()


class Node:
    """One PostgreSQL and its Patroni."""

    def __init__(self, folder: Path, name: str, etcd: Etcd) -> None:
        self.name = name
        self.port, self._rest = free_port(), free_port()
        self._folder = folder
        self._data = folder / name
        self._settings = folder / f"{name}.yml"
        self._settings.write_text(json.dumps(self._configuration(etcd)))  # JSON is YAML too
        self._process: subprocess.Popen[bytes] | None = None

    def _configuration(self, etcd: Etcd) -> dict[str, Any]:
        here, user = f"127.0.0.1:{self.port}", {"username": "postgres", "password": "secret"}
        return {
            "scope": "backchannel",
            "name": self.name,
            "restapi": {"listen": f"127.0.0.1:{self._rest}", "connect_address": f"127.0.0.1:{self._rest}"},
            "etcd3": {"host": f"127.0.0.1:{etcd.client}"},
            "bootstrap": {
                "dcs": {
                    "ttl": TTL_S,
                    "loop_wait": 2,
                    "retry_timeout": 5,
                    "synchronous_mode": True,
                    "postgresql": {"use_pg_rewind": True, "parameters": {"wal_log_hints": "on"}},
                },
                "initdb": [{"encoding": "UTF8"}, {"locale": "C"}],
            },
            "postgresql": {
                "listen": here,
                "connect_address": here,
                "data_dir": str(self._data),
                "bin_dir": str(programs()),
                "authentication": {"superuser": user, "replication": {**user, "username": "follower"}, "rewind": user},
                "parameters": {"unix_socket_directories": str(self._folder), "max_connections": 100},
                "pg_hba": ["host all all 127.0.0.1/32 trust", "host replication all 127.0.0.1/32 trust"],
            },
        }

    def start(self) -> None:
        self._process = run(self._folder / f"{self.name}.log", "patroni", str(self._settings))

    def kill(self) -> None:
        """End Patroni and all processes of its server at once, as when the machine fails."""
        assert self._process is not None
        found = (self._data / "postmaster.pid").read_text().split()[0]
        children = Path(f"/proc/{found}/task/{found}/children").read_text().split()
        self._process.kill()
        for pid in (found, *children):
            with suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        self._process.wait()
        self._process = None

    def stop(self) -> None:
        """End it in order: Patroni stops its server."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait(PATIENCE_S)
            self._process = None

    def members(self) -> dict[str, tuple[str, str]]:
        """Ask it who there is: the role and the state of each."""
        with suppress(urllib.error.URLError, OSError):
            with urllib.request.urlopen(f"http://127.0.0.1:{self._rest}/cluster", timeout=5) as answer:
                found = json.load(answer)
            return {each["name"]: (each["role"], each["state"]) for each in found["members"]}
        return {}


class Patroni:
    """Two servers, of which one leads and the other has each commit before it is answered."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="patroni-"))
        if os.geteuid() == 0:
            os.chown(self._folder, NOBODY, NOBODY)
        self._etcd = Etcd(self._folder)
        self.nodes = {name: Node(self._folder, name, self._etcd) for name in ("one", "two")}

    @property
    def url(self) -> str:
        """Name both servers, as the documentation says."""
        hosts = ",".join(f"127.0.0.1:{node.port}" for node in self.nodes.values())
        return f"postgresql://postgres@{hosts}/postgres?target_session_attrs=read-write"

    def start(self) -> None:
        for node in self.nodes.values():
            node.start()
        self.wait_until_safe()

    def wait_until_safe(self) -> Node:
        """Wait until one leads and the other follows synchronously; gives the leader."""
        return self._wait_for({"leader", "sync_standby"})

    def wait_until_led(self, without: Node) -> Node:
        """Wait until another than this one leads."""
        return self._wait_for({"leader"}, without)

    def _wait_for(self, roles: set[str], without: Node | None = None) -> Node:
        ends = time.monotonic() + PATIENCE_S
        members: dict[str, tuple[str, str]] = {}
        while time.monotonic() < ends:
            asked = next(node for node in self.nodes.values() if node is not without)
            members = {name: each for name, each in asked.members().items() if each[1] in ("running", "streaming")}
            led = [self.nodes[name] for name, (role, _) in members.items() if role == "leader"]
            if led and led[0] is not without and roles <= {role for role, _ in members.values()}:
                return led[0]
            time.sleep(0.1)
        raise AssertionError(f"the servers are {members}, and not {roles}: {self.said()}")

    def said(self) -> str:
        """Give the ends of what all of them have logged."""
        return "\n".join(f"{path.name}: {path.read_text()[-1500:]}" for path in self._folder.glob("*.log"))

    def remove(self) -> None:
        for node in self.nodes.values():
            node.stop()
        self._etcd.stop()
        shutil.rmtree(self._folder, ignore_errors=True)


def missing_programs() -> list[str]:
    return [name for name in PROGRAMS if shutil.which(name) is None]


def run(log: Path, program: str, *arguments: str) -> subprocess.Popen[bytes]:
    """Start a program as a user who may run PostgreSQL; it ends with the tests."""
    found = shutil.which(program)
    assert found is not None, program
    with log.open("ab") as said:
        env = {"PATH": os.environ["PATH"], "HOME": str(log.parent)}
        return subprocess.Popen(command_of(found, *arguments), stdout=said, stderr=said, env=env, cwd=log.parent)


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])
