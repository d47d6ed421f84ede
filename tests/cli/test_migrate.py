"""`backchannel migrate`: what it says, and what it refuses."""

from __future__ import annotations

import json

import pytest

from backchannel.storage.folder import StateFolder
from tests.cli.program import Program
from tests.storage.support import Host, converse
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

    again = program.run("migrate", "--to", url)
    assert again.returncode == 1 and "has a state of its own already" in again.stderr

    other = json.loads(program.answer("migrate", "--to", new_database(is_prepared=False), "--json"))
    assert other["tables"]["messages"] == 2
    assert other["from"] == str(host.database)


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
