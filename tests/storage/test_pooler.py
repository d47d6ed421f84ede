"""A pooler between the gateway and PostgreSQL: refused if it pools by transaction, of use if it pools by session."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from urllib.parse import quote, urlsplit

import psycopg
import pytest

from backchannel.core.keys import SessionKey
from backchannel.errors import DatabaseLocked, DatabaseUnusable
from backchannel.storage.databases import database_at
from tests.storage.support import MAIN, Host, accept, converse, texts
from tests.storage.test_standing import locking, row_of
from tests.support.postgres import Cluster, command_of, new_database
from tests.support.privileges import NOBODY

pytestmark = [pytest.mark.anyio, pytest.mark.postgres]

PATIENCE_S = 20.0
_CONFIG = """
[databases]
* = host={server} user=postgres
[pgbouncer]
listen_addr =
unix_socket_dir = {folder}
listen_port = 6432
auth_type = any
pool_mode = {mode}
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    cluster = Cluster()
    yield cluster
    cluster.remove()


@pytest.fixture
def pooled(cluster: Cluster) -> Iterator[Callable[[str], str]]:
    """Names a new database as it is found through a PgBouncer of a mode."""
    program = shutil.which("pgbouncer", path=f"{os.environ['PATH']}:/usr/sbin")
    if program is None and os.environ.get("CI"):
        pytest.fail("pgbouncer is not installed")
    if program is None:
        pytest.skip("pgbouncer is not installed")
    started: list[subprocess.Popen[bytes]] = []
    folder = Path(tempfile.mkdtemp(prefix="pgbouncer-"))

    def start(mode: str) -> str:
        url = new_database(server=cluster.url)
        config = folder / "pgbouncer.ini"
        config.write_text(_CONFIG.format(server=cluster.socket.parent, folder=folder, mode=mode))
        if os.geteuid() == 0:
            os.chown(folder, NOBODY, NOBODY)
        command = command_of(str(program), "-q", str(config))
        started.append(subprocess.Popen(command, stderr=subprocess.DEVNULL))
        through = f"postgresql://postgres@{urlsplit(url).path}?host={quote(str(folder))}&port=6432"
        _wait_for(through)
        return through

    yield start
    for process in started:
        process.send_signal(signal.SIGKILL)
        process.wait(PATIENCE_S)
    shutil.rmtree(folder)


def _wait_for(url: str) -> None:
    ends = time.monotonic() + PATIENCE_S
    while True:
        try:
            psycopg.connect(url).close()
            return
        except psycopg.OperationalError:
            assert time.monotonic() < ends
            time.sleep(0.02)


@contextmanager
def busy(url: str) -> Iterator[None]:
    """Let other programs use the pool, so that connections go to and fro."""
    is_over = threading.Event()

    def use() -> None:
        with closing(psycopg.connect(url, autocommit=True, prepare_threshold=None)) as connection:
            while not is_over.is_set():
                with suppress(psycopg.Error), connection.transaction():
                    connection.execute("SELECT pg_sleep(0.001)")

    threads = [threading.Thread(target=use) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        is_over.set()
        for thread in threads:
            thread.join()


@pytest.mark.parametrize("mode", ["transaction", "statement"])
async def test_a_pooler_that_gives_each_transaction_another_connection_is_refused_at_the_start_by_name(
    pooled: Callable[[str], str], mode: str, tmp_path: Path
) -> None:
    url = pooled(mode)
    for _ in range(3):
        with pytest.raises(DatabaseUnusable, match=r"PgBouncer with pool_mode = transaction: .* pool_mode = session"):
            await Host(tmp_path / "state", url).start()


async def test_such_a_pooler_is_noticed_while_other_programs_use_it(pooled: Callable[[str], str]) -> None:
    url = pooled("transaction")
    with busy(url):
        for _ in range(10):
            with pytest.raises(DatabaseUnusable, match="is a pooler"):
                database_at(url).prepare(has_past=lambda: False)


async def test_a_pooler_that_pools_by_session_serves_a_gateway_also_to_name_who_holds_a_lock(
    pooled: Callable[[str], str], tmp_path: Path, cluster: Cluster
) -> None:
    url = pooled("session")
    host = Host(tmp_path / "state", url)
    await host.start()
    await converse(host.store, "hello")
    direct = f"postgresql://postgres@{urlsplit(url).path}?host={quote(str(cluster.socket.parent))}"
    with locking(direct, row_of("main")), pytest.raises(DatabaseLocked, match="a row is locked by psql"):
        await accept(host.store, "locked", SessionKey.of("main", "main"))
    assert await texts(host.store, MAIN) == ["hello", "re: hello"]
    await host.end()
