"""Many deliveries that did not arrive are sent again, or given up, by one request."""

from __future__ import annotations

from pathlib import Path

import pytest

from backchannel.core.delivery.channels import Channel, ChannelRefused, ChannelSilent, OutboundPart, Sent
from backchannel.core.delivery.delivery import Post
from backchannel.core.sessions import Address
from backchannel.gateway.methods import deliveries
from tests.channels.desk import ChannelDesk, desk
from tests.gateway.client import OPERATOR, connected
from tests.support.gateways import MAIN
from tests.support.resting import at_rest

pytestmark = pytest.mark.anyio


class Moody(Channel):
    """A platform that takes no keys, and refuses or swallows everything until it is in the mood."""

    name, max_text_length, takes_key = "moody", 1000, False

    def __init__(self) -> None:
        self.taken: list[str] = []
        self.mood = "refuse"

    async def send(self, part: OutboundPart) -> Sent:
        if self.mood == "refuse":
            raise ChannelRefused("not now")
        if self.mood == "swallow":
            raise ChannelSilent("no answer")
        self.taken.append(part.text)
        return Sent(part.key)


async def posted(world: ChannelDesk, *texts: str) -> list[str]:
    ids = [
        await world.send(Post(session_key=MAIN, address=Address(channel="moody", to="C"), text=text)) for text in texts
    ]
    await at_rest(world.gateway)
    return ids


async def states(world: ChannelDesk) -> list[str]:
    return [receipt.delivery.state.value for receipt in await world.receipts()]


async def test_all_that_failed_are_sent_again_in_their_order_and_the_uncertain_only_when_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deliveries, "_MOST_MENDED", 2)
    channel = Moody()
    async with desk(tmp_path, {}, channel) as world, connected(world.url, OPERATOR) as client:
        await posted(world, "one", "two", "three")
        channel.mood = "swallow"
        await posted(world, "perhaps")
        channel.mood = "fine"
        first = await client.ask("deliveries.retry", state="failed")
        assert first["count"] == 2 and first["refused"] == []
        rest = await client.ask("deliveries.retry", state="failed", cursor=first["nextCursor"])
        assert (rest["count"], "nextCursor" in rest) == (1, False)
        await at_rest(world.gateway)
        assert channel.taken == ["one", "two", "three"]
        assert await states(world) == ["sent", "sent", "sent", "uncertain"]
        assert (await client.ask("deliveries.retry", state="uncertain"))["count"] == 1
        await at_rest(world.gateway)
    assert channel.taken[-1] == "perhaps"


async def test_a_list_tells_of_each_that_could_not_be_helped_and_does_the_others(tmp_path: Path) -> None:
    async with desk(tmp_path, {}, Moody()) as world, connected(world.url, OPERATOR) as client:
        failed = await posted(world, "one", "two")
        told = await client.ask("deliveries.drop", ids=[failed[0], "nobody's", failed[1]])
        assert told["count"] == 2
        ((refused),) = told["refused"]
        assert refused["id"] == "nobody's" and "no delivery" in refused["error"]
        assert await states(world) == ["dropped", "dropped"]


async def test_one_id_still_answers_with_its_receipt(tmp_path: Path) -> None:
    async with desk(tmp_path, {}, Moody()) as world, connected(world.url, OPERATOR) as client:
        (failed,) = await posted(world, "one")
        assert (await client.ask("deliveries.drop", id=failed))["state"] == "dropped"


@pytest.mark.parametrize(
    "params",
    [{}, {"id": "a", "state": "failed"}, {"ids": []}, {"state": "sent"}, {"id": "a", "cursor": "x"}],
)
async def test_anything_else_is_refused_with_what_works(tmp_path: Path, params: dict[str, object]) -> None:
    async with desk(tmp_path, {}) as world, connected(world.url, OPERATOR) as client:
        refused = await client.refused("deliveries.retry", params)
    assert refused["code"] == "INVALID_REQUEST"
