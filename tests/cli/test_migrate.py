"""`backchannel migrate`: what it says, and what it refuses."""

from __future__ import annotations

import json

import pytest

from backchannel.storage.files.folder import StateFolder
from tests.cli.program import Program
from tests.storage.support import MAIN, Host, converse, texts
from tests.support.postgres import new_database


@pytest.mark.anyio
async def test_everything_is_moved_and_counted_and_the_file_stays(program: Program) -> None:
    url = new_database(is_prepared=False)
    host = Host(program.state)
    await converse(await host.start())
    await host.stop()

    said = program.answer("migrate", "--to", url)
    assert "messages" in said and "both sides have the same number in every table" in said
    assert "BACKCHANNEL_DATABASE_URL" in said

    again = program.answer("migrate", "--to", url)
    assert again == f"Everything in {host.database} was moved before: nothing was changed.\n"
    assert program.json("migrate", "--to", url)["wasDone"] is True

    other = json.loads(program.answer("migrate", "--to", new_database(is_prepared=False), "--json"))
    assert other["tables"]["messages"] == 2
    assert other["from"] == str(host.database)


@pytest.mark.anyio
async def test_the_way_back_is_the_same_command(program: Program) -> None:
    url = new_database()
    there = Host(program.state, url)
    await converse(await there.start())
    await there.stop()
    wrong = program.run("migrate", "--to", "sqlite")
    assert wrong.returncode == 1 and "database.url names no PostgreSQL database" in wrong.stderr
    assert "or in BACKCHANNEL_DATABASE_URL" in wrong.stderr

    said = program.answer("migrate", "--to", "sqlite", BACKCHANNEL_DATABASE_URL=url)
    assert "both sides have the same number in every table" in said and "Take database.url out" in said
    again = program.answer("migrate", "--to", "sqlite", BACKCHANNEL_DATABASE_URL=url)
    assert "was moved before: nothing was changed" in again
    here = Host(program.state)
    assert len(await texts(await here.start(), MAIN)) == 2
    await here.stop()
    taken = program.run("migrate", "--to", "sqlite", BACKCHANNEL_DATABASE_URL=new_database())
    assert taken.returncode == 1 and "move it away first" in taken.stderr


def test_a_move_from_nothing_or_under_a_running_gateway_is_refused(program: Program) -> None:
    url = "postgresql://me:hush-hush@127.0.0.1:1/x"
    program.write_config("{ channels: { telegram: { adapter: 'telegram', token: '${ONLY_UP_HAS_IT}' } } }")
    nothing = program.run("migrate", "--to", url)
    assert nothing.returncode == 1 and "there is nothing to move" in nothing.stderr

    folder = StateFolder.hold(program.state)
    host = Host(program.state)
    host.database.touch()
    try:
        held = program.run("migrate", "--to", url)
    finally:
        folder.release()
    assert held.returncode == 1 and "another gateway" in held.stderr

    away = program.run("migrate", "--to", url)
    assert away.returncode == 1 and "cannot be reached" in away.stderr and "hush" not in away.stderr
