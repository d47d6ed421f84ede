"""Ids by their beginning, through a socket; every other method takes whole ones only."""

from __future__ import annotations

import pytest

from .client import Client, Refused

pytestmark = pytest.mark.anyio


async def test_a_run_a_session_and_a_token_are_found_by_their_beginning(client: Client) -> None:
    await client.ask("agent", message="hi", agentId="echo", idempotencyKey="1c9bce46f00d")
    row = (await client.ask("sessions.list"))["sessions"][0]
    token = await client.ask("tokens.create", scopes=["read"])

    async def found(kind: str, written: str) -> str:
        return str((await client.ask("ids.resolve", kind=kind, id=written))["id"])

    assert await found("run", "1c9b") == "1c9bce46f00d"
    assert await found("run", "1c9b…00d") == "1c9bce46f00d"
    assert await found("session", row["sessionId"][:8]) == row["sessionId"]
    assert await found("session", "agent:ec…:main") == "agent:echo:main"
    assert await found("token", token["id"][:6]) == token["id"]


async def test_several_and_none_are_errors_of_their_own(client: Client) -> None:
    for key in ("order-10", "order-11"):
        await client.ask("agent", message="hi", agentId="echo", idempotencyKey=key)

    with pytest.raises(Refused) as several:
        await client.ask("ids.resolve", kind="run", id="order-1")
    with pytest.raises(Refused) as none:
        await client.ask("ids.resolve", kind="delivery", id="order-1")

    assert several.value.code == "ambiguous_id"
    assert several.value.error["details"]["ids"] == ["order-10", "order-11"]
    assert none.value.code == "delivery_not_found"


async def test_a_method_never_takes_another_run_for_one_that_is_not_there(client: Client) -> None:
    await client.ask("agent", message="hi", agentId="echo", idempotencyKey="order-10")

    for method in ("runs.get", "runs.retry"):
        with pytest.raises(Refused) as refused:
            await client.ask(method, runId="order-1")
        assert refused.value.code == "run_not_found"


async def test_a_session_id_that_a_reset_replaced_is_not_found_by_its_beginning(client: Client) -> None:
    await client.ask("agent", message="hi", agentId="echo")
    old = (await client.ask("sessions.list"))["sessions"][0]["sessionId"]
    await client.ask("sessions.reset", key="agent:echo:main")

    with pytest.raises(Refused) as refused:
        await client.ask("ids.resolve", kind="session", id=old[:8])

    assert refused.value.code == "session_not_found"
