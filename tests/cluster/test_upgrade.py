"""Gateways of two versions on one database: they are replaced one after the other, if the schema allows it."""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import backchannel
from backchannel.agents.scripted import ScriptedModel
from backchannel.config.load import config_from
from backchannel.config.schema_doors import CronJob
from backchannel.core.cluster.members import TIMERS_DUTY
from backchannel.errors import DatabaseUnusable
from backchannel.gateway.app import Gateway
from backchannel.gateway.condition import examine
from backchannel.storage.databases import database_at
from backchannel.storage.migrations import ADDITIVE, load_oldest_beside
from backchannel.storage.postgres.server import VERSION_TABLE, schema_versions
from backchannel.version import __version__
from tests.cluster.gateways import PATIENCE_S, execute, knows, until
from tests.cluster.lives import ROOT, Gateways, check_done_once
from tests.storage.support import Host
from tests.support.gateways import CONFIG
from tests.support.grown import FIELD
from tests.support.logs import captured_logs
from tests.support.postgres import new_database

pytestmark = pytest.mark.anyio

LEASE_S = 2.0
ADDS = f"""{ADDITIVE}
ALTER TABLE runs ADD COLUMN mood TEXT NOT NULL DEFAULT 'calm';
ALTER TABLE sessions ADD COLUMN colour TEXT;
CREATE TABLE moods (name TEXT PRIMARY KEY, since BIGINT NOT NULL);
CREATE INDEX runs_by_mood ON runs (mood) WHERE mood <> 'calm';
"""
NEXT = "99.0.0"
ADDED = re.compile(r"ALTER TABLE (\w+) ADD COLUMN (\w+)")
"""A column that an older program does not know: the step that adds it may fill it."""
ADDING = re.compile(
    r"CREATE TABLE |CREATE INDEX |ALTER TABLE \w+ ADD COLUMN (?!.*NOT NULL(?!.* DEFAULT ))|"
    r"DROP TABLE (leases|channel_state)$"  # no version has ever used these two
)
CHANGES = "UPDATE runs SET kind = kind; ALTER TABLE runs DROP COLUMN abort_requested;"


def next_version(folder: Path, step: str) -> Path:
    """Make the program that follows this one: its schema is a step further, its version another, its structs larger."""
    tree = folder / "next"
    source = Path(backchannel.__file__).parent
    copy = shutil.copytree(source, tree / "backchannel")
    (copy / "storage" / "schema" / f"{len(schema_versions()) + 1:04}_next.sql").write_text(step)
    (copy / "version.py").write_text(f'__version__ = "{NEXT}"\n')
    with (copy / "core" / "stored.py").open("a") as file:
        file.write("\n\nfrom tests.support.grown import grow_all\n\ngrow_all()\n")
    return tree


async def test_gateways_are_replaced_by_those_of_the_next_version_one_after_the_other(tmp_path: Path) -> None:
    url, tree = new_database(), next_version(tmp_path, ADDS)
    nodes = Gateways(tmp_path, url, LEASE_S, random.Random())
    lives = list(await asyncio.gather(nodes.begin("g0"), nodes.begin("g1")))
    for place, life in enumerate(lives):
        await nodes.stop(life)
        lives[place] = await nodes.begin(life.name, tree)
        for each in lives:  # of both versions, after the first
            await each.more(20)
    for life in lives:
        await nodes.stop(life)
    known = len(schema_versions())
    assert execute(url, f"SELECT version, oldest FROM {VERSION_TABLE}") == [(known + 1, load_oldest_beside())]
    versions = execute(url, "SELECT DISTINCT version FROM processes ORDER BY 1")
    assert versions == sorted([(__version__,), (NEXT,)])
    assert "another gateway has another version" in nodes.log_of("g0").read_text()
    with pytest.raises(DatabaseUnusable, match="was written by a newer Backchannel"):
        database_at(url).prepare(has_past=lambda: False)
    for table in ("messages", "exchanges", "spawns"):
        assert execute(url, f"SELECT count(*) > 0 FROM {table} WHERE body LIKE '%%{FIELD}%%'") == [(True,)]
    await nodes.come_to_rest(tree)
    check_done_once(tmp_path, url, nodes.accepted)


async def test_a_job_goes_on_firing_on_the_older_gateway_when_a_newer_one_has_written_it(tmp_path: Path) -> None:
    url, tree = new_database(), next_version(tmp_path, ADDS)
    jobs = [{"id": "tick", "schedule": "every 1s", "message": "tick"}]
    config = {**CONFIG, "database": {"url": url}, "cluster": {"leaseSeconds": LEASE_S}, "cron": {"jobs": jobs}}
    older = Gateway(config_from(config, {}, state=tmp_path / "older"))
    older.add_model(ScriptedModel(replies=lambda request: "tock"))
    async with older, one_beside(tree, config, tmp_path / "newer"):
        assert execute(url, "SELECT process FROM duties WHERE name = %s", TIMERS_DUTY) == [(older.store.number,)]
        ((body, fired_at),) = execute(url, "SELECT body, coalesce(fired_at, 0) FROM cron_jobs WHERE id = 'tick'")
        assert FIELD in body
        await until(lambda: execute(url, "SELECT fired_at > %s FROM cron_jobs", fired_at + 1000) == [(True,)])
        (tick,) = await older.parts.cron.list()
        assert tick.last_run is not None
        await older.parts.cron.add(CronJob(id="mine", schedule="every 1h", message="go"))
        more = f'{{"{FIELD}": 1}}'
        execute(url, "UPDATE cron_jobs SET body = (body::jsonb || %s::jsonb)::text WHERE id = 'mine'", more)
        changed = await older.parts.cron.change("mine", lambda job: replace(job, message="come"))
        assert (changed.stored.job.message, FIELD in changed.stored.body) == ("come", True)


NEWER = """
import asyncio, json, sys
from pathlib import Path
from backchannel.agents.scripted import ScriptedModel
from backchannel.config.load import config_from
from backchannel.gateway.app import Gateway

async def live() -> None:
    gateway = Gateway(config_from(json.loads(sys.argv[1]), {}, state=Path(sys.argv[2])))
    gateway.add_model(ScriptedModel(replies=lambda request: "tock"))
    async with gateway:
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.read)

asyncio.run(live())
"""


@asynccontextmanager
async def one_beside(tree: Path, config: dict[str, Any], state: Path) -> AsyncIterator[None]:
    """Have a gateway of the program in another folder at work."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", NEWER, json.dumps(config), str(state)),
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(tree)},
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    assert await process.stdout.readline() == b"ready\n"
    try:
        yield
    finally:
        async with asyncio.timeout(PATIENCE_S):
            await process.communicate(b"")
    assert process.returncode == 0


async def test_a_version_that_an_older_one_cannot_go_on_beside_waits_until_that_has_stopped(tmp_path: Path) -> None:
    url, tree, known = new_database(), next_version(tmp_path, CHANGES), len(schema_versions())
    older = Host(tmp_path / "older", url)
    await older.start()
    refused = await asyncio.to_thread(brought_up_to_date, tree, url)
    assert "stop all gateways of the older version first" in refused
    assert execute(url, f"SELECT version FROM {VERSION_TABLE}") == [(known,)]
    await older.store.check_writable()
    await older.stop()
    assert await asyncio.to_thread(brought_up_to_date, tree, url) == ""
    assert execute(url, f"SELECT version, oldest FROM {VERSION_TABLE}") == [(known + 1, known + 1)]


def brought_up_to_date(tree: Path, url: str) -> str:
    """Let the program of a folder make a database current, as its start does; returns what it complains of."""
    program = (
        "from backchannel.storage.postgres import server\n"
        "from backchannel.storage.databases import database_at\n"
        "server.ALONE_LIMIT_S = 0.2\n"
        f"database_at({url!r}).prepare(has_past=bool)"
    )
    environment = os.environ | {"PYTHONPATH": str(tree)}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)
    return done.stderr


async def test_a_gateway_ends_that_a_newer_program_has_left_behind_while_its_connection_was_broken(
    tmp_path: Path,
) -> None:
    url = new_database()
    older = Host(tmp_path / "older", url)
    await older.start()
    execute(url, f"UPDATE {VERSION_TABLE} SET version = 999, oldest = 999")
    execute(
        url,
        "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity "
        "WHERE datname = current_database() AND pid <> pg_backend_pid()",
    )
    with pytest.raises(asyncio.CancelledError):  # nobody is told: the process ends
        await older.store.sign_of_life()
    assert [str(error) for error in older.fatal if isinstance(error, DatabaseUnusable)] != []
    await older.end()


async def test_gateways_that_differ_say_so_in_their_state_and_in_the_log(tmp_path: Path, url: str) -> None:
    shared = {"database": {"url": url}, "cluster": {"leaseSeconds": LEASE_S}}
    another = {"messages": {"failureNotice": False}}
    one = Gateway(config_from({**CONFIG, **shared}, {}, state=tmp_path / "one"))
    other = Gateway(config_from({**CONFIG, **shared, **another}, {}, state=tmp_path / "other"))
    with captured_logs() as logs:
        async with one, other:
            await knows(one, 2)
            assert [what for _, what in await differences(one)] == ["configuration"]
            execute(url, "UPDATE processes SET version = '0.0.1' WHERE number = %s", other.store.number)
            await until(lambda: any(peer.member.version == "0.0.1" for peer in one.runtime.duties.peers))
            assert [what for _, what in await differences(one)] == ["version", "configuration"]
            assert {name for name, _ in await differences(one)} == {"gateways_differ"}
    assert "another gateway has another configuration" in [entry["event"] for entry in logs]


async def differences(gateway: Gateway) -> list[tuple[str, str]]:
    """Read what is wrong with a gateway: the code of each problem, and what it is about."""
    problems = (await examine(gateway.parts)).problems
    found = [(problem.code, re.search(r"has another (\w+)", problem.message)) for problem in problems]
    return [(code, about[1]) for code, about in found if about]


def test_a_step_that_says_so_only_adds_to_the_schema() -> None:
    folder = Path(backchannel.__file__).parent / "storage" / "schema"
    for script in folder.glob("*.sql"):
        if ADDITIVE in script.read_text().splitlines():
            lines = "\n".join(line.split("--")[0] for line in script.read_text().splitlines())
            statements = [" ".join(statement.split()) for statement in lines.split(";") if statement.strip()]
            new = ADDED.findall("; ".join(statements))
            for statement in statements:
                fills = any(statement.startswith(f"UPDATE {table} SET {column} = ") for table, column in new)
                assert fills or ADDING.match(statement), f"{script.name}: {statement}"


@pytest.mark.parametrize(
    ("statement", "adds"),
    [
        ("CREATE TABLE a (b TEXT NOT NULL)", True),
        ("CREATE INDEX a ON b (c)", True),
        ("ALTER TABLE a ADD COLUMN b TEXT", True),
        ("ALTER TABLE a ADD COLUMN b BIGINT NOT NULL DEFAULT 0", True),
        ("ALTER TABLE a ADD COLUMN b BIGINT NOT NULL", False),
        ("CREATE UNIQUE INDEX a ON b (c)", False),
        ("ALTER TABLE a DROP COLUMN b", False),
        ("DROP TABLE leases", True),
        ("DROP TABLE runs", False),
        ("UPDATE a SET b = 1", False),
    ],
)
def test_what_an_older_program_can_go_on_beside_is_known(statement: str, adds: bool) -> None:
    assert bool(ADDING.match(statement)) == adds
