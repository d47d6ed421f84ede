"""Pages that stay logged in: a token made for the device's key, which is worth nothing without that key."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import structlog

from backchannel.core.secrets.devices import DEVICE_LIFE_MS
from backchannel.errors import StorageFull, Unauthorized
from backchannel.gateway.app import Gateway
from backchannel.gateway.auth import TokenHolder
from backchannel.gateway.openclaw.device_login import Devices, ProvenDevice
from backchannel.gateway.server import listening
from backchannel.wire.frames import TokenScope
from tests.support import databases
from tests.support.clocks import AheadClock
from tests.support.device import Device

from .client import OPERATOR, Client, Refused, opened
from .conftest import World

pytestmark = pytest.mark.anyio
ALL = ["operator.read", "operator.write", "operator.admin"]


@asynccontextmanager
async def page(url: str, device: Device, token: str = OPERATOR, **params: Any) -> AsyncIterator[Client]:
    """Connect as a page of the gateway's own origin does."""
    async with opened(url, origin=url.replace("ws:", "http:").removesuffix("/ws")) as client:
        asked = device.connect(await client.event("connect.challenge"), token, **params)
        client.hello = await client.ask("connect", **asked)
        yield client


async def device_token(url: str, device: Device, token: str = OPERATOR, **params: Any) -> str:
    async with page(url, device, token, **params) as client:
        return str(client.hello["auth"]["deviceToken"])


async def auth(url: str, device: Device, token: str = OPERATOR, **params: Any) -> dict[str, Any]:
    """Connect, and tell what the hello says of the login."""
    async with page(url, device, token, **params) as client:
        told: dict[str, Any] = client.hello["auth"]
        return told


async def refusal(url: str, device: Device, token: str, **params: Any) -> dict[str, Any]:
    with pytest.raises(Refused) as refused:
        await auth(url, device, token, by_device=True, **params)
    return refused.value.error


@asynccontextmanager
async def gateway(
    state: Path, operator_token: str = OPERATOR, ahead_ms: float = 0, beside: Path | None = None
) -> AsyncIterator[str]:
    """Run a gateway on a state folder, and on the database of another if that is given; gives its address."""
    config = databases.with_database({"gateway": {"port": 0}}, beside or state)
    made = Gateway(Gateway.open(config, state=state).config, clock=AheadClock(ahead_ms / 1000))
    async with made, listening(made, operator_token) as at:
        yield at.websocket_url


@pytest.mark.both_databases
async def test_a_page_that_logged_in_comes_in_again_by_the_token_of_its_device(world: World, client: Client) -> None:
    device = Device()
    given = await auth(world.url, device)
    assert given["deviceToken"].startswith("bc_") and given["deviceToken"] != OPERATOR
    assert given["scopes"] == ALL and given["issuedAtMs"] > 0
    async with page(world.url, device, given["deviceToken"], by_device=True) as again:
        assert again.hello["auth"] == {"role": "operator", "scopes": ALL}
        assert (await again.ask("sessions.list"))["sessions"] == []
    assert given["deviceToken"] not in json.dumps(await client.ask("tokens.list"))


@pytest.mark.parametrize("version", ["v2", "v3"])
async def test_both_forms_of_what_clients_sign_count(world: World, version: str) -> None:
    device = Device()
    token = await device_token(world.url, device, version=version)
    assert (await auth(world.url, device, token, by_device=True, version=version))["scopes"] == ALL


async def test_logging_in_by_hand_again_gives_the_same_token_so_that_other_tabs_stay(world: World) -> None:
    device = Device()
    token = await device_token(world.url, device)
    assert await device_token(world.url, device) == token
    assert await device_token(world.url, Device()) != token


@pytest.mark.parametrize(
    "wrong",
    [
        {"nonce": "of another connection"},
        {"signature": "AAAA"},
        {"signature": "not base64 at all!"},
        {"publicKey": Device().public_key},
        {"publicKey": ""},
        {"id": Device().id},
        {"signed_at": 1_000},
        {"signature": None},
    ],
    ids=lambda wrong: next(iter(wrong)),
)
async def test_a_device_whose_signature_is_wrong_is_let_in_by_a_right_token_alone(
    world: World, client: Client, wrong: dict[str, Any]
) -> None:
    device = Device()
    assert await auth(world.url, device, **wrong) == {"role": "operator", "scopes": ALL}
    assert (await client.ask("tokens.list"))["tokens"] == []
    token = await device_token(world.url, device)
    assert (await refusal(world.url, device, token, **wrong))["details"]["code"] == "AUTH_DEVICE_TOKEN_MISMATCH"


async def test_a_stolen_token_is_worth_nothing_to_another_device(world: World) -> None:
    token = await device_token(world.url, Device())
    error = await refusal(world.url, Device(), token)
    assert error["code"] == "FORBIDDEN"
    assert error["details"]["code"] == "AUTH_DEVICE_TOKEN_MISMATCH"
    async with opened(world.url) as client:
        with pytest.raises(Refused) as plain:
            await client.connect(token)
    assert plain.value.error["message"] == error["message"], "why it was refused is not told"


async def test_a_signature_counts_on_the_connection_that_it_was_made_for_and_on_no_other(world: World) -> None:
    device = Device()
    token = await device_token(world.url, device)
    async with opened(world.url) as first, opened(world.url) as second:
        asked = device.connect(await first.event("connect.challenge"), token, by_device=True)
        await first.ask("connect", **asked)
        assert (await second.refused("connect", asked))["details"]["code"] == "AUTH_DEVICE_TOKEN_MISMATCH"


async def test_a_signature_for_fewer_rights_gives_no_more(world: World) -> None:
    device = Device()
    token = await device_token(world.url, device)
    async with opened(world.url) as client:
        asked = device.connect(await client.event("connect.challenge"), token, by_device=True, scopes=("read",))
        assert (await client.refused("connect", {**asked, "scopes": ["operator.admin"]}))["details"]["code"] == (
            "AUTH_DEVICE_TOKEN_MISMATCH"
        )


async def test_no_other_door_takes_it(world: World) -> None:
    token = await device_token(world.url, Device())
    async with httpx.AsyncClient(
        base_url=world.at.url, headers={"Authorization": f"Bearer {token}"}, timeout=20
    ) as http:
        for path in ("/tools/invoke", "/mcp"):
            assert (await http.post(path, json={})).status_code == 401, path


@pytest.mark.parametrize("role", ["operator", "node"])
async def test_a_program_gets_none_however_well_it_signs(world: World, client: Client, role: str) -> None:
    async with opened(world.url) as program:
        asked = Device().connect(await program.event("connect.challenge"), OPERATOR)
        assert "deviceToken" not in (await program.ask("connect", **{**asked, "role": role}))["auth"]
    assert (await client.ask("tokens.list"))["tokens"] == []


async def test_an_agents_token_gets_none(world: World, client: Client) -> None:
    made = await client.ask("tokens.create", sessionKey="agent:main:main")
    assert "deviceToken" not in await auth(world.url, Device(), made["token"])


async def test_it_has_no_more_rights_than_the_connection_that_it_was_made_on(world: World, client: Client) -> None:
    made = await client.ask("tokens.create", scopes=["write"])
    device = Device()
    token = await device_token(world.url, device, made["token"], scopes=("operator.read",))
    assert (await auth(world.url, device, token, by_device=True))["scopes"] == ["operator.read"]
    wider = await device_token(world.url, device, made["token"])
    assert wider != token
    assert (await auth(world.url, device, wider, by_device=True))["scopes"] == ["operator.read", "operator.write"]
    await refusal(world.url, device, token)


@pytest.mark.both_databases
async def test_it_is_listed_with_its_device_and_ends_alone_with_its_connections(world: World, client: Client) -> None:
    device = Device()
    token = await device_token(world.url, device)
    (listed,) = (await client.ask("tokens.list"))["tokens"]
    assert (await client.ask("ids.resolve", kind="token", id=listed["id"][:6]))["id"] == listed["id"]
    told = listed["device"]
    assert (told["id"], told["madeFrom"], told["client"]) == (device.id, "operator", "openclaw-control-ui")
    assert told["origin"].startswith("http://127.0.0.1:") and told["endsAt"] == told["lastUsedAt"] + DEVICE_LIFE_MS
    async with page(world.url, device, token, by_device=True) as logged_in:
        await client.ask("tokens.revoke", id=listed["id"])
        assert await logged_in.closed() == 1008
    await refusal(world.url, device, token)
    assert (await client.ask("tokens.list"))["tokens"] == []
    assert await device_token(world.url, device) != token, "who knows the operator's token may log in anew"


async def test_who_logs_a_device_out_closes_the_page_that_logged_in_by_hand_too(world: World, client: Client) -> None:
    device = Device()
    async with page(world.url, device) as logged_in, page(world.url, Device()) as another:
        (listed,) = [each for each in (await client.ask("device.pair.list"))["paired"] if each["deviceId"] == device.id]
        assert listed["connected"]
        await client.ask("device.pair.remove", deviceId=device.id)
        assert await logged_in.closed() == 1008
        assert await another.ask("health")


@pytest.mark.both_databases
async def test_it_ends_with_the_token_that_it_was_made_from(world: World, client: Client) -> None:
    made = await client.ask("tokens.create", scopes=["admin"])
    device = Device()
    token, operators = await device_token(world.url, device, made["token"]), await device_token(world.url, device)
    assert {each["device"]["madeFrom"] for each in (await client.ask("tokens.list"))["tokens"][1:]} == {
        "operator",
        made["id"],
    }
    async with page(world.url, device, token, by_device=True) as logged_in:
        await client.ask("tokens.revoke", id=made["id"])
        assert await logged_in.closed() == 1008
    await refusal(world.url, device, token)
    assert (await auth(world.url, device, operators, by_device=True))["scopes"] == ALL


async def test_a_token_that_is_revoked_while_a_page_logs_in_with_it_does_not_let_it_in(
    world: World, client: Client
) -> None:
    made = await client.ask("tokens.create", scopes=["read"])
    await client.ask("tokens.revoke", id=made["id"])
    parts = world.gateway.parts
    holder = TokenHolder(made["id"], frozenset({TokenScope.READ}))
    device = ProvenDevice(Device().id, "key", "page", "Linux")
    with pytest.raises(Unauthorized):
        await Devices(parts.store, OPERATOR, parts.clock).issue(holder, made["token"], device, "http://127.0.0.1")


@pytest.mark.both_databases
async def test_it_outlives_a_restart_but_not_another_operators_token(tmp_path: Path, anyio_backend: str) -> None:
    device, state = Device(), tmp_path / "state"
    async with gateway(state) as url:
        token = await device_token(url, device)
    async with gateway(state) as url:
        assert (await auth(url, device, token, by_device=True))["scopes"] == ALL
    async with gateway(state, "another-token-of-the-operator") as url:
        await refusal(url, device, token)
        async with opened(url) as client:
            await client.connect("another-token-of-the-operator")
            (listed,) = (await client.ask("tokens.list"))["tokens"]
            assert listed["device"]["isStale"]
            assert (await client.ask("device.pair.list"))["paired"] == []
            assert await client.ask("device.pair.remove", deviceId=device.id) == {"deviceId": device.id}


@pytest.mark.parametrize("database_kind", ["postgres"], indirect=True)
async def test_it_counts_on_every_gateway_of_a_database_that_has_the_same_operators_token(
    tmp_path: Path, anyio_backend: str
) -> None:
    device, state = Device(), tmp_path / "first"
    async with (
        gateway(state) as first,
        gateway(tmp_path / "second", beside=state) as second,
        gateway(tmp_path / "third", "a-token-of-its-own", beside=state) as third,
    ):
        token = await device_token(first, device)
        assert (await auth(second, device, token, by_device=True))["scopes"] == ALL
        await refusal(third, device, token)
        of_third = await device_token(third, device, "a-token-of-its-own")
        assert (await auth(third, device, of_third, by_device=True))["scopes"] == ALL
        async with opened(second) as client:
            await client.connect()
            await client.ask("device.pair.remove", deviceId=device.id)
        for url, ended in ((first, token), (second, token), (third, of_third)):
            await refusal(url, device, ended)


async def test_it_ends_when_it_was_not_used_for_a_month(tmp_path: Path, anyio_backend: str) -> None:
    device, state = Device(), tmp_path / "state"
    async with gateway(state) as url:
        token = await device_token(url, device)
    for ahead in (0.9, 1.8, 2.7):
        async with gateway(state, ahead_ms=ahead * DEVICE_LIFE_MS) as url:
            assert (await auth(url, device, token, by_device=True))["scopes"] == ALL
    async with gateway(state, ahead_ms=3.8 * DEVICE_LIFE_MS) as url:
        await refusal(url, device, token)
        await device_token(url, Device())
        async with opened(url) as client:
            await client.connect()
            assert len((await client.ask("tokens.list"))["tokens"]) == 1, "the old one was swept away"


async def test_a_full_disk_keeps_no_page_out(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    async def full(*_: object) -> None:
        raise StorageFull("the disk is full")

    device, store = Device(), world.gateway.parts.store
    token = await device_token(world.url, device)
    monkeypatch.setattr(store, "use_device_token", full)
    monkeypatch.setattr(store, "keep_device_token", full)
    monkeypatch.setattr("backchannel.core.secrets.devices.USED_MS", 0)
    assert (await auth(world.url, device, token, by_device=True))["scopes"] == ALL
    assert await auth(world.url, Device()) == {"role": "operator", "scopes": ALL}


async def test_what_a_page_sent_before_it_was_loaded_anew_is_known_after_it(world: World) -> None:
    device = Device()
    message = {"sessionKey": "agent:echo:main", "message": "once", "idempotencyKey": "k1"}
    async with page(world.url, device) as by_hand:
        token = by_hand.hello["auth"]["deviceToken"]
        await by_hand.ask("chat.send", **message)
        await by_hand.event("chat", runId="k1", state="final")
    async with page(world.url, device, token, by_device=True) as again:
        assert (await again.ask("chat.send", **message))["runId"] == "k1"
        history = await again.ask("chat.history", sessionKey="agent:echo:main")
        assert [each["role"] for each in history["messages"]] == ["user", "assistant"]


async def test_no_log_shows_a_device_token(world: World) -> None:
    device = Device()
    with structlog.testing.capture_logs() as logged:
        token = await device_token(world.url, device)
        await refusal(world.url, Device(), token)
    assert logged and token not in str(logged)


class TestOpenClawsMethods:
    async def test_a_device_is_listed_as_paired_and_removed(self, world: World) -> None:
        device = Device()
        token = await device_token(world.url, device)
        async with (
            page(world.url, device, token, by_device=True) as logged_in,
            world.client(scopes=["operator.pairing"]) as command,
        ):
            (listed,) = (await command.ask("device.pair.list"))["paired"]
            assert (listed["deviceId"], listed["publicKey"]) == (device.id, device.public_key)
            assert listed["connected"] and listed["scopes"] == ALL and len(listed["tokens"]) == 1
            assert await command.ask("device.pair.remove", deviceId=device.id) == {"deviceId": device.id}
            assert await logged_in.closed() == 1008
            assert (await command.ask("device.pair.list"))["paired"] == []
            error = await command.refused("device.pair.remove", {"deviceId": device.id})
            assert error["details"]["code"] == "token_not_found"
        await refusal(world.url, device, token)

    async def test_the_token_of_a_device_is_revoked(self, world: World, client: Client) -> None:
        device = Device()
        token = await device_token(world.url, device)
        wrong = await client.refused("device.token.revoke", {"deviceId": device.id, "role": "node"})
        assert wrong["details"]["code"] == "token_not_found"
        ended = await client.ask("device.token.revoke", deviceId=device.id, role="operator")
        assert (ended["deviceId"], ended["role"]) == (device.id, "operator")
        await refusal(world.url, device, token)

    async def test_a_token_that_may_not_do_all_may_not_see_to_devices(self, world: World, client: Client) -> None:
        made = await client.ask("tokens.create", scopes=["write"])
        async with world.client(made["token"], scopes=["operator.pairing", "operator.write"]) as limited:
            for method in ("device.pair.list", "device.pair.remove", "device.token.revoke"):
                assert (await limited.refused(method))["details"]["code"] == "scope_missing"
