"""The send policy at every door through which messages come: what is refused leaves nothing behind."""

from __future__ import annotations

from itertools import product
from typing import Any, NamedTuple

import pytest
import structlog

from backchannel.core.sessions import Address, write_address
from backchannel.storage.tables import TABLES
from tests.tools.door import MESSAGE_DOORS, Doors, Refusal, doors
from tests.tools.shelf import Shelf, agents

pytestmark = pytest.mark.anyio


class Target(NamedTuple):
    """A session, and what it is to the policy."""

    key: str
    channel: str | None
    chat_type: str | None
    address: Address | None = None


TARGETS = [
    Target("agent:main:discord:group:7", "discord", "group"),
    Target("agent:main:discord:channel:lobby:thread:9", "discord", "channel"),
    Target("agent:main:slack:channel:c1", "slack", "channel"),
    Target("agent:main:telegram:direct:anna", "telegram", "direct"),
    Target("agent:main:main", "telegram", "direct", Address(channel="telegram", to="1")),
    Target("agent:ops:main", None, "direct"),
    Target("agent:main:cron:nightly", None, None),
]


class Case(NamedTuple):
    """A policy, and what decides about each target: the place of a rule that denies, `default`, or nothing."""

    policy: dict[str, Any]
    denied_by: dict[str, str]


def rule(action: str, **match: str) -> dict[str, Any]:
    return {"match": match, "action": action}


DISCORD_GROUP, DISCORD_ROOM, SLACK, ANNA, MAIN, OPS, CRON = [target.key for target in TARGETS]
EVERY = [target.key for target in TARGETS]
CASES = {
    "nothing": Case({}, {}),
    "a channel": Case({"rules": [rule("deny", channel="Discord")]}, dict.fromkeys([DISCORD_GROUP, DISCORD_ROOM], "0")),
    "a chat type": Case({"rules": [rule("deny", chatType="channel")]}, dict.fromkeys([DISCORD_ROOM, SLACK], "0")),
    "both": Case({"rules": [rule("deny", channel="discord", chatType="group")]}, {DISCORD_GROUP: "0"}),
    "direct chats": Case({"rules": [rule("deny", chatType="direct")]}, dict.fromkeys([ANNA, MAIN, OPS], "0")),
    "an address": Case({"rules": [rule("deny", channel="telegram")]}, dict.fromkeys([ANNA, MAIN], "0")),
    "a bare key": Case({"rules": [rule("deny", keyPrefix="cron:")]}, {CRON: "0"}),
    "a full key": Case({"rules": [rule("deny", keyPrefix="agent:ops:")]}, {OPS: "0"}),
    "the second rule": Case(
        {"rules": [rule("allow", channel="discord"), rule("deny", keyPrefix="discord:channel:")]}, {DISCORD_ROOM: "1"}
    ),
    "deny over allow": Case({"rules": [rule("allow"), rule("deny", chatType="group")]}, {DISCORD_GROUP: "1"}),
    "everything": Case({"rules": [rule("deny")], "default": "allow"}, dict.fromkeys(EVERY, "0")),
    "the default": Case({"default": "deny"}, dict.fromkeys(EVERY, "default")),
    "all but one": Case(
        {"rules": [rule("allow", channel="slack")], "default": "deny"},
        dict.fromkeys([key for key in EVERY if key != SLACK], "default"),
    ),
}


def settings(policy: dict[str, Any]) -> dict[str, Any]:
    return {**agents("main", "ops"), "session": {"sendPolicy": policy}}


def seed(shelf: Shelf, override: str | None = None) -> None:
    for target in TARGETS:
        if override is not None or target.address is not None:
            shelf.session(target.key, send_policy=override, delivery_context=write_address(target.address))


def written(shelf: Shelf) -> dict[str, int]:
    return {table.name: shelf.count(table.name) for table in TABLES if table.only is None}


def check(refusal: Refusal | None, decided_by: str | None, case: object) -> None:
    """Compare how a message was answered with what should have decided."""
    if decided_by is None:
        assert refusal is None, (case, refusal and refusal.message)
        return
    assert refusal is not None, case
    assert (refusal.wire, refusal.code) == ("FORBIDDEN", "policy_denied"), case
    names = {"default": "session.sendPolicy.default", "override": "sendPolicy of the session"}
    name = names.get(decided_by, f"session.sendPolicy.rules[{decided_by}]")
    assert refusal.rule in (name, None), case
    assert (name if decided_by != "override" else "own sendPolicy") in refusal.message, case


@pytest.mark.parametrize("name", CASES)
async def test_a_message_is_refused_by_the_rule_that_matches_and_nothing_is_left_of_it(shelf: Shelf, name: str) -> None:
    seed(shelf)
    async with doors(shelf, settings(CASES[name].policy), echoing=("main", "ops")) as open_doors:
        for target, door in product(TARGETS, MESSAGE_DOORS):
            decided_by = CASES[name].denied_by.get(target.key)
            before = written(shelf)
            refusal = await open_doors.send(door, target.key, f"by {door}", f"{name} {target.key} {door}")
            check(refusal, decided_by, (target.key, door))
            assert (written(shelf) == before) is (decided_by is not None), (target.key, door)
        assert open_doors.gateway.runtime.guard.shadowed == 0


@pytest.mark.parametrize("override", ["allow", "deny"])
@pytest.mark.parametrize("name", ["nothing", "a channel", "everything", "the default"])
async def test_a_sessions_own_setting_wins_over_every_rule(shelf: Shelf, name: str, override: str) -> None:
    seed(shelf, override)
    async with doors(shelf, settings(CASES[name].policy), echoing=("main", "ops")) as open_doors:
        before = written(shelf)
        for target, door in product(TARGETS, MESSAGE_DOORS):
            refusal = await open_doors.send(door, target.key, "hello")
            check(refusal, "override" if override == "deny" else None, (target.key, door))
        assert (written(shelf) == before) is (override == "deny")


@pytest.mark.parametrize("door", MESSAGE_DOORS)
async def test_a_shadow_lets_through_and_counts(shelf: Shelf, door: str) -> None:
    policy = {"rules": [rule("deny", chatType="group")], "shadow": True}
    async with doors(shelf, settings(policy), echoing=("main", "ops")) as open_doors:
        guard = open_doors.gateway.runtime.guard
        with structlog.testing.capture_logs() as logs:
            assert await open_doors.send(door, DISCORD_GROUP, "hello") is None
            assert guard.shadowed == 1
            assert await open_doors.send(door, SLACK, "hello") is None
        assert guard.shadowed == 1
        (told,) = [entry for entry in logs if "send policy would deny" in entry["event"]]
        assert told["session_key"] == DISCORD_GROUP and "session.sendPolicy.rules[0]" in told["reason"]


@pytest.mark.parametrize("door", MESSAGE_DOORS)
async def test_an_override_is_set_changed_and_cleared_by_a_patch(shelf: Shelf, door: str) -> None:
    async with doors(shelf, settings(CASES["a channel"].policy), echoing=("main", "ops")) as open_doors:

        async def patch(value: str | None) -> dict[str, Any]:
            answer = await open_doors.client.ask("sessions.patch", key=DISCORD_GROUP, sendPolicy=value)
            entry: dict[str, Any] = answer["entry"]
            return entry

        check(await open_doors.send(door, DISCORD_GROUP, "1"), "0", door)
        assert (await patch("allow"))["sendPolicy"] == "allow"
        check(await open_doors.send(door, DISCORD_GROUP, "2"), None, door)
        assert (await patch("deny"))["sendPolicy"] == "deny"
        check(await open_doors.send(door, DISCORD_GROUP, "3"), "override", door)
        assert "sendPolicy" not in await patch(None)
        check(await open_doors.send(door, DISCORD_GROUP, "4"), "0", door)
        error = await open_doors.client.refused("sessions.patch", {"key": DISCORD_GROUP, "sendPolicy": "maybe"})
        assert error["details"]["code"] == "bad_params" and '"allow", "deny"' in error["message"]


@pytest.mark.parametrize("door", MESSAGE_DOORS)
async def test_a_repeat_of_an_accepted_request_is_answered_though_it_would_be_refused_now(
    shelf: Shelf, door: str
) -> None:
    async with doors(shelf, settings({}), echoing=("main", "ops")) as open_doors:
        assert await open_doors.send(door, CRON, "hello", "once") is None
        await open_doors.client.ask("sessions.patch", key=CRON, sendPolicy="deny")
        before = written(shelf)
        assert await open_doors.send(door, CRON, "hello", "once") is None
        check(await open_doors.send(door, CRON, "hello", "another"), "override", door)
        assert written(shelf) == before
        await open_doors.client.ask("sessions.patch", key=CRON, sendPolicy=None)
        # A refusal used the key up for nobody: the same request is accepted now.
        assert await open_doors.send(door, CRON, "hello", "another") is None


async def test_a_refused_message_makes_no_session_that_a_list_would_show(shelf: Shelf) -> None:
    async with doors(shelf, settings({"default": "deny"}), echoing=("main",)) as open_doors:
        for door in MESSAGE_DOORS:
            check(await open_doors.send(door, CRON, "hello"), "default", door)
        assert await _listed(open_doors) == []
        assert open_doors.client.seen("chat") == open_doors.client.seen("agent") == []


async def _listed(open_doors: Doors) -> list[str]:
    return [row["key"] for row in (await open_doors.gateway.tools().sessions_list())["sessions"]]


async def test_a_main_session_under_another_name_is_still_main_to_a_rule(shelf: Shelf) -> None:
    for session in ({"scope": "global"}, {"mainKey": "home"}):
        config = settings({"rules": [rule("deny", keyPrefix="main")]})
        config["session"] |= session
        async with doors(shelf, config, echoing=("main", "ops")) as open_doors:
            for door in MESSAGE_DOORS:
                check(await open_doors.send(door, "agent:main:main", "hello"), "0", (session, door))
                check(await open_doors.send(door, CRON, "hello"), None, (session, door))
