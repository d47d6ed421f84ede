"""Owners of one channel answer what was asked there, and nothing else."""

from __future__ import annotations

import re
import sqlite3
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest

from backchannel.agents.scripted import Scripted, ScriptedModel, call
from backchannel.core.contracts import ModelRequest, ToolContext
from backchannel.core.facts import ApprovalChanged
from backchannel.core.messages import Role
from backchannel.core.policy.approvals import Approval, ApprovalState
from backchannel.storage.migrations import load_versions
from tests.channels.desk import ChannelDesk, desk
from tests.gateway.client import OPERATOR, connected
from tests.support.databases import is_postgres, open_database, with_database
from tests.support.far_end import FarEnd, event, signed

pytestmark = pytest.mark.anyio
TOOLS: dict[str, Any] = {"approval": [{"tool": "post", "ask": "always"}]}


def working(request: ModelRequest) -> Scripted:
    """Post, or have a sub-agent post."""
    newest = request.messages[-1]
    if newest.role is Role.TOOL_RESULT:
        return f"so: {newest.text[:40]}"
    return [call("sessions_spawn", task="post it")] if newest.text == "spawn" else [call("post", text="hello")]


class TwoChannels:
    """Two channels of one gateway: olga owns `desk`, mum owns `fam`."""

    def __init__(self, world: ChannelDesk, state: Path, ends: dict[str, FarEnd]) -> None:
        self.world, self.gateway, self._state, self._ends = world, world.gateway, state, ends
        self.posted: list[str] = []

        @world.gateway.tool(effects="outside")
        async def post(text: str, context: ToolContext) -> str:
            self.posted.append(text)
            return "posted"

    async def says(self, channel: str, who: str, text: str) -> str:
        """Say something that is answered; returns the answer."""
        end = self._ends[channel]
        heard = len(end.messages)
        body, headers = signed(event(senderId=who, chatId=who, text=text, messageId=uuid.uuid4().hex), end.secret)
        await self.gateway.inbound.post(channel, body, headers)
        return (await end.took(heard + 1))[heard].text

    async def pending(self) -> Approval:
        """Wait for the one call that waits, and return it."""
        while not (found := await self.gateway.store.approvals(state=ApprovalState.PENDING, limit=9)):
            await self.world.heard.until(lambda: bool(self.world.heard.of(ApprovalChanged)))
        (approval,) = found
        return approval

    def add(self, id: str, channel: str | None) -> None:
        """Write a question that somebody else was asked."""
        with closing(open_database(self._state)) as database, database:
            database.execute(
                "INSERT INTO approvals (id, call_id, run_id, session_key, tool, arguments, state, created_at, fence, "
                "channel) VALUES (?, ?, 'r', 'agent:main:x', 'post', '{}', 'pending', 1, 0, ?)",
                (id, id, channel),
            )


@asynccontextmanager
async def two_channels(state: Path) -> AsyncIterator[TwoChannels]:
    async with FarEnd() as far_end, FarEnd("another secret of the tests") as family:
        ends = {"desk": far_end, "fam": family}
        channels = {"desk": far_end.settings(owners=["olga"]), "fam": family.settings(owners=["mum"])}
        config = with_database({"tools": TOOLS, "session": {"dmScope": "per-channel-peer"}}, state)
        async with desk(state, channels, model=ScriptedModel(replies=working), **config) as world:
            yield TwoChannels(world, state, ends)


@pytest.mark.both_databases
async def test_an_owner_of_another_channel_answers_nothing_whole_or_short_and_learns_nothing(tmp_path: Path) -> None:
    async with two_channels(tmp_path) as here:
        assert "May I call post?" in await here.says("desk", "ann", "go")
        id = (await here.pending()).id
        for written in (id, id[:4], f"{id} always"):
            shown = written.split()[0]
            refused = await here.says("fam", "mum", f"/approve {written}")
            assert refused == f"no approval '{shown}' (and none has an id that begins with it)"
            assert refused.replace(shown, "ffff") == await here.says("fam", "mum", "/approve ffff")
            assert "no approval" in await here.says("fam", "mum", f"/deny {written.split()[0]}")
        assert (await here.pending()).id == id and here.posted == []
        assert "is approved" in await here.says("desk", "olga", f"/approve {id[:4]}")
        assert (await here.gateway.store.approvals(limit=9))[0].answered_by == "desk olga"


async def test_a_short_id_is_unique_among_what_its_writer_may_answer(tmp_path: Path) -> None:
    async with two_channels(tmp_path) as here:
        await here.says("desk", "ann", "go")
        id = (await here.pending()).id
        for number in range(7):  # more than are ever listed
            here.add(f"{id[:4]}000{number}", "fam")
        here.add(f"{id[:4]}zzzz", None)
        assert "is approved" in await here.says("desk", "olga", f"/approve {id[:4]}")
        ambiguous = await here.says("fam", "mum", f"/approve {id[:4]}")
        assert "several approval ids begin with" in ambiguous and id not in ambiguous and "zzzz" not in ambiguous


async def test_what_was_asked_on_no_channel_is_for_an_operator_alone(tmp_path: Path) -> None:
    async with two_channels(tmp_path) as here, connected(here.world.url, OPERATOR) as client:
        await client.ask("chat.send", sessionKey="agent:main:quiet", message="go")
        id = (await here.pending()).id
        assert "no approval" in await here.says("desk", "olga", f"/approve {id}")
        answered = await client.ask("chat.send", sessionKey="main", message=f"/approve {id[:4]}")
        assert "is approved" in answered["reply"]


@pytest.mark.both_databases
async def test_a_sub_agent_asks_in_the_chat_that_its_result_is_told_to(tmp_path: Path) -> None:
    async with two_channels(tmp_path) as here, connected(here.world.url, OPERATOR) as client:
        await here.says("desk", "ann", "spawn")
        approval = await here.pending()
        assert ":subagent:" in approval.session_key and approval.channel == "desk"
        assert "no approval" in await here.says("fam", "mum", f"/deny {approval.id}")
        assert "is denied" in await client_says(client, f"/deny {approval.id}")
        await client.ask("chat.send", sessionKey="agent:main:desk:direct:ann", message="spawn")
        assert (await here.pending()).channel is None  # the page asked, whoever else writes there


async def client_says(client: Any, text: str) -> str:
    return str((await client.ask("chat.send", sessionKey="main", message=text))["reply"])


CHANGE = re.compile(
    r"ALTER TABLE (\w+) ADD COLUMN (\w+)|CREATE (?:VIRTUAL )?(TABLE|INDEX|TRIGGER) (\w+)|DROP TABLE (\w+)"
)


def undo_steps(database: sqlite3.Connection, version: int) -> None:
    """Take back what the steps of the schema after a version have changed, the last one first."""
    steps = load_versions("sqlite", counter="INTEGER PRIMARY KEY AUTOINCREMENT")[version:]
    for statement in reversed([statement for step in steps for statement in step]):
        match CHANGE.match(statement.strip()):
            case None:
                continue
            case found if found[2]:
                database.execute(f"ALTER TABLE {found[1]} DROP COLUMN {found[2]}")
            case found if found[4]:
                database.execute(f"DROP {found[3]} {found[4]}")
            case found:
                database.execute(f"CREATE TABLE {found[5]} (name TEXT)")
    database.execute(f"PRAGMA user_version = {version}")


async def test_a_question_from_before_the_channel_was_kept_is_answered_where_it_was_sent(tmp_path: Path) -> None:
    if is_postgres():
        pytest.skip("a schema of before is put together in a file of its own")
    async with two_channels(tmp_path) as here:
        await here.says("desk", "ann", "go")
    with closing(open_database(tmp_path)) as database:  # as the version before left it
        undo_steps(database, 18)
    async with two_channels(tmp_path) as here:
        assert (await here.pending()).channel == "desk"
