"""Letting strangers in over a socket: who may, what is refused, and what guessing brings."""

from __future__ import annotations

import asyncio
import uuid
from pathlib import Path
from typing import Any

import pytest

from backchannel.core.policy.pairing import ALPHABET, CODE_LENGTH
from tests.channels.desk import ChannelDesk, desk
from tests.support.far_end import FarEnd
from tests.support.openclaw.shapes import Shape
from tests.support.openclaw.violations import violations

from .client import OPERATOR, Client, Refused, connected

pytestmark = pytest.mark.anyio


def settings(far_end: FarEnd) -> dict[str, Any]:
    return {"desk": far_end.settings(allowFrom=[], owners=["olga"], pairing=True)}


async def knock(world: ChannelDesk, sender: str, **more: Any) -> None:
    said = await world.say(senderId=sender, chatId=f"C-{sender}", messageId=uuid.uuid4().hex, **more)
    assert said["verdict"] == "pair" and "code" in said["reason"]


async def test_an_admin_lets_somebody_in_and_takes_it_back_and_others_only_look(tmp_path: Path) -> None:
    async with FarEnd() as far_end, desk(tmp_path, settings(far_end)) as world, connected(world.url) as client:
        await knock(world, "eve", senderName="Eve")
        (waiting,) = (await client.ask("pairing.list", state="pending"))["pairings"]
        assert {**waiting, "code": "", "createdAt": 0, "expiresAt": 0} == {
            "channel": "desk", "accountId": "default", "senderId": "eve", "senderName": "Eve", "state": "pending",
            "code": "", "createdAt": 0, "expiresAt": 0,
        }  # fmt: skip
        assert waiting["expiresAt"] - waiting["createdAt"] == 3_600_000
        assert (await client.ask("status"))["pairings"] == {"pending": 1}
        writer = await client.ask("tokens.create", scopes=["write"])
        async with connected(world.url, writer["token"]) as other:
            assert (await other.ask("pairing.list"))["count"] == 1
            for method, params in (("approve", {"code": waiting["code"]}), ("deny", {"code": waiting["code"]})):
                with pytest.raises(Refused, match="admin"):
                    await other.ask(f"pairing.{method}", **params)
            with pytest.raises(Refused, match="admin"):
                await other.ask("pairing.remove", channel="desk", senderId="eve")
        for _ in range(2):  # a client that lost the answer asks again
            approved = (await client.ask("pairing.approve", code=waiting["code"]))["pairing"]
            assert approved["state"] == "approved" and approved["answeredBy"] == "operator"
            assert "code" not in approved
        assert [message.to for message in await far_end.took(2)] == ["C-eve", "C-eve"]
        assert (await client.ask("pairing.list", state="pending"))["pairings"] == []
        assert (await client.ask("pairing.list"))["pairings"] == [approved]
        with pytest.raises(Refused, match="approved already"):
            await client.ask("pairing.deny", code=waiting["code"])
        assert (await client.ask("pairing.remove", channel="desk", senderId="eve"))["removed"] == [approved]
        refused = await client.refused("pairing.remove", {"channel": "desk", "senderId": "eve"})
        assert refused["details"]["code"] == "pairing_not_found"
        await knock(world, "eve")
        assert len(await far_end.took(3)) == 3


async def test_only_the_account_that_is_named_is_taken_back(tmp_path: Path) -> None:
    async with FarEnd() as far_end, desk(tmp_path, settings(far_end)) as world, connected(world.url) as client:
        await knock(world, "eve")
        await knock(world, "eve", accountId="work")
        removed = await client.ask("pairing.remove", channel="desk", senderId="eve", accountId="work")
        assert [each["accountId"] for each in removed["removed"]] == ["work"]
        assert [each["accountId"] for each in (await client.ask("pairing.list"))["pairings"]] == ["default"]
        await far_end.took(2)


async def test_parameters_are_strict_and_lists_are_paged(tmp_path: Path) -> None:
    async with FarEnd() as far_end, desk(tmp_path, settings(far_end)) as world, connected(world.url) as client:
        for method, params in (
            ("pairing.approve", {}),
            ("pairing.approve", {"code": ""}),
            ("pairing.approve", {"code": 12345678}),
            ("pairing.approve", {"code": "ABCD2345", "sender": "eve"}),
            ("pairing.remove", {"channel": "desk"}),
            ("pairing.list", {"state": "void"}),
            ("pairing.list", {"limit": 0}),
        ):
            assert (await client.refused(method, params))["details"]["code"] == "bad_params", params
        for sender in "abc":
            await knock(world, sender)
        first = await client.ask("pairing.list", limit=2)
        rest = await client.ask("pairing.list", limit=2, cursor=first["nextCursor"])
        assert [row["senderId"] for row in first["pairings"] + rest["pairings"]] == ["c", "b", "a"]
        assert first["hasMore"] and not rest["hasMore"]
        await far_end.took(3)


async def test_who_guesses_codes_learns_nothing_and_is_slowed_down(tmp_path: Path) -> None:
    async with FarEnd() as far_end, desk(tmp_path, settings(far_end)) as world, connected(world.url) as client:
        nobody = await client.refused("pairing.approve", {"code": "A" * CODE_LENGTH})
        await knock(world, "eve")
        somebody = await client.refused("pairing.approve", {"code": "B" * CODE_LENGTH})
        assert nobody == somebody  # whether anybody waits is not told
        guesses = [letter + "A" * (CODE_LENGTH - 1) for letter in ALPHABET] * 6
        errors = await asyncio.gather(*(_guess(client, guess) for guess in guesses))
        kinds = [error["details"]["code"] for error in errors]
        assert kinds.count("pairing_not_found") < 25 and kinds.count("rate_limited") > 160
        assert all(error["retryAfterMs"] > 0 for error in errors if error["details"]["code"] == "rate_limited")
        (waiting,) = (await client.ask("pairing.list"))["pairings"]
        assert waiting["state"] == "pending"
        assert (await client.ask("pairing.approve", code=waiting["code"]))["pairing"]["state"] == "approved"
        await far_end.took(2)


async def _guess(client: Client, code: str) -> dict[str, Any]:
    return await client.refused("pairing.approve", {"code": code})


async def test_an_operator_answers_in_webchat_with_the_scope_admin_alone(tmp_path: Path) -> None:
    async with FarEnd() as far_end, desk(tmp_path, settings(far_end)) as world, connected(world.url) as client:
        await knock(world, "eve")
        (waiting,) = (await client.ask("pairing.list"))["pairings"]
        writer = await client.ask("tokens.create", scopes=["write"])
        async with connected(world.url, writer["token"]) as other:
            assert "is for owners only" in await _say(other, "/pairing list")
        assert waiting["code"] in await _say(client, "/pairing")
        assert "may speak now" in await _say(client, f"/pairing approve {waiting['code']}")
        assert "nobody waits with this code" in await _say(client, "/pairing approve AAAAAAAA")
        assert "does not know 'allow AAAA'" in await _say(client, "/pairing allow AAAA")
        (approved,) = (await client.ask("pairing.list"))["pairings"]
        assert approved["state"] == "approved" and approved["answeredBy"] == "an operator"
        await far_end.took(2)


async def _say(client: Client, text: str) -> str:
    sent = await client.ask("chat.send", sessionKey="main", message=text)
    message = (await client.event("chat", runId=sent["runId"], state="final"))["message"]
    return str(message["content"][0]["text"])


async def test_an_agent_token_has_no_say(tmp_path: Path) -> None:
    async with (
        FarEnd() as far_end,
        desk(tmp_path, settings(far_end)) as world,
        connected(world.url, OPERATOR) as client,
    ):
        await client.ask("agent", message="hello", sessionKey="main", idempotencyKey="k")
        bound = await client.ask("tokens.create", sessionKey="agent:main:main")
        async with connected(world.url, bound["token"]) as agent:
            for method, params in (("pairing.list", {}), ("pairing.approve", {"code": "ABCD2345"})):
                assert "agent's token" in (await agent.refused(method, params))["message"]


async def test_openclaws_clients_see_who_waits_and_let_them_in_or_dismiss_them(tmp_path: Path) -> None:
    async with FarEnd() as far_end, desk(tmp_path, settings(far_end)) as world, connected(world.url) as client:
        for name in ("eve", "bob"):
            await knock(world, name, senderName=name.title())
        async with connected(world.url, scopes=["operator.pairing"]) as command:  # what OpenClaw's asks for
            told = await command.ask("channels.pairing.list")
        assert not violations(Shape("ChannelsPairingListResult"), told)
        assert [each["channel"] for each in told["accounts"]] == ["desk"] and told["commandOwnerConfigured"]
        bob, eve = told["requests"]
        assert (bob["senderLabel"], eve["senderLabel"]) == ("Bob", "Eve")
        assert (await client.ask("channels.pairing.list", channel="other"))["requests"] == []
        asked = {"channel": "desk", "accountId": "default"}
        let_in = await client.ask("channels.pairing.approve", **asked, requestId=eve["requestId"])
        assert not violations(Shape("ChannelsPairingApproveResult"), let_in)
        dismissed = await client.ask("channels.pairing.dismiss", **asked, requestId=bob["requestId"])
        assert dismissed == {"requestId": bob["requestId"], "senderId": "bob"}
        assert [(each["senderId"], each["state"]) for each in (await client.ask("pairing.list"))["pairings"]] == [
            ("eve", "approved")
        ]
        for request in (bob, {"requestId": "none"}):
            error = await client.refused("channels.pairing.approve", {**asked, "requestId": request["requestId"]})
            assert error["details"]["code"] == "pairing_not_found"
        await far_end.took(3)
