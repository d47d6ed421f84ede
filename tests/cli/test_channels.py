"""`backchannel channels`: what works, what does not and since when, and trying one; and what `up` and `status` say."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator

import pytest

from tests.support.far_end import FarEnd, Fault

from .program import Program

SHOP = """
from backchannel import Channel, ChannelHealth, ChannelUnusable, Gateway, OutboundPart, Sent

gateway = Gateway.open({"agents": {"list": [{"id": "main", "model": "builtin/demo"}]}})


class Fine(Channel):
    name = "fine"
    own_names = ("my_bot",)

    async def send(self, part: OutboundPart) -> Sent:
        return Sent("m1")

    async def test(self) -> str:
        return "@my_bot, id 42"


class Refused(Fine):
    name = "refused"
    own_names = ()

    async def run(self, inbound) -> None:
        raise ChannelUnusable("the token is not known to the platform")

    async def test(self) -> str:
        raise ChannelUnusable("the token is not known to the platform")


class Mended(Fine):
    name = "mended"
    own_names = ()

    def health(self) -> ChannelHealth:
        return ChannelHealth(is_up=True, since_ms=1000, error="the line was cut", error_at_ms=500)


class Slow(Fine):
    name = "slow"
    own_names = ()

    def health(self) -> ChannelHealth:
        return ChannelHealth(is_up=False, is_connecting=True, since_ms=1000)


for channel in (Fine(), Refused(), Mended(), Slow()):
    gateway.add_channel(channel)
"""


def test_what_is_logged_of_a_bot_is_a_line_like_any_other(program: Program) -> None:
    program.write_config('{ channels: { chat: { adapter: "telegram", token: "no-token-of-a-bot", owners: ["1"] } } }')
    with program.up() as up:
        up.wait_logged("cannot be used")
        logged = [json.loads(line) for line in up.logged.splitlines()]
        (line,) = [line for line in logged if line["message"] == "a channel cannot be used"]
        assert (line["level"], line["channel"]) == ("error", "chat")


def test_a_channel_that_cannot_log_in_is_named_by_up_and_status_and_everything_else_works(program: Program) -> None:
    (program.home / "shop.py").write_text(SHOP)
    with program.up("--app", "shop:gateway") as up:
        (line,) = [json.loads(line) for line in up.logged.splitlines() if "cannot be used" in line]
        assert (line["level"], line["channel"]) == ("error", "refused") and "Traceback" not in up.logged
        assert line["error"] == "the token is not known to the platform" and "channels.refused" in line["hint"]

        status = program.run("status")
        assert status.returncode == 5  # degraded, and it works
        shown = [words.split() for words in status.stdout.splitlines()]
        assert ["channels", "fine", "up", "for"] in [words[:4] for words in shown]
        assert ["refused", "down", "for"] in [words[:3] for words in shown]
        assert "The channel refused cannot be used: the token is not known to the platform." in status.stdout
        assert "services" not in [words[0] for words in shown if words], "a channel has a line of its own"
        services = {each["name"]: each for each in json.loads(program.run("status", "--json").stdout)["services"]}
        assert services["timers"]["up"] and "lastError" not in services["timers"]
        refused_state = services["channel:refused"]
        assert not refused_state["up"] and refused_state["lastError"] == "the token is not known to the platform"
        assert refused_state["nextTryAt"] > refused_state["since"]

        assert ["mended", "up", "for"] in [words[:3] for words in shown] and "the line was cut" not in status.stdout
        assert ["slow", "connecting", "for"] in [words[:3] for words in shown]

        webchat, fine, mended, refused, slow = program.answer("channels").splitlines()[1:]
        assert webchat.split()[:3] == ["webchat", "webchat", "up"]
        assert fine.split()[:3] == ["fine", "Fine", "up"] and "my_bot" in fine
        assert refused.split()[2] == "down" and refused.endswith("the token is not known to the platform")
        assert mended.split()[2] == "up" and "the line was cut (" in mended and mended.endswith(" ago)")
        assert slow.split()[2] == "connecting"

        assert program.answer("channels", "test", "fine") == "fine: @my_bot, id 42\n"
        failed = program.run("channels", "test", "refused", "--to", "C")  # nothing is sent where that cannot work
        assert (failed.returncode, failed.stdout) == (1, "refused: failed: the token is not known to the platform\n")
        tried = program.json("channels", "test", "fine", "--to", "C")
        assert (tried["status"], tried["delivery"]["state"], tried["delivery"]["to"]) == ("ok", "sent", "C")
        unknown = program.run("channels", "test", "fax")
        assert unknown.returncode == 1 and "there are: webchat, fine, mended, refused, slow" in unknown.stderr


@pytest.fixture
def far_end() -> Iterator[FarEnd]:
    """The far end of a bridge, in a thread of its own beside the test."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    served = FarEnd()
    asyncio.run_coroutine_threadsafe(served.__aenter__(), loop).result(5)
    try:
        yield served
    finally:
        asyncio.run_coroutine_threadsafe(served.__aexit__(), loop).result(5)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(5)
        loop.close()


def test_a_channel_that_can_only_be_tried_by_sending_is_tried_by_its_receipt(program: Program, far_end: FarEnd) -> None:
    program.write_config(json.dumps({"channels": {"desk": far_end.settings()}}))
    with program.up():
        told = program.run("channels", "test", "desk")
        assert told.returncode == 1 and "desk can only be tried by sending" in told.stdout
        assert "channels test desk --to CHAT" in told.stdout
        sent = program.answer("channels", "test", "desk", "--to", "C-1")
        assert sent.endswith(" to C-1 is sent\n") and far_end.texts == [
            "This is a test of Backchannel: what agents say arrives here."
        ]
        far_end.then(Fault(404, body="no such chat"))
        failed = program.run("channels", "test", "desk", "--to", "C-2")
        assert failed.returncode == 1 and "to C-2 is failed: " in failed.stdout and "no such chat" in failed.stdout
