"""The page reads the messages of a transcript as `core/readable.py` does, by their steps."""

from __future__ import annotations

import json
from typing import Any

from msgspec.structs import replace
from playwright.sync_api import Browser

from backchannel.core.commands.control_words import CONTROL_WORDS
from backchannel.core.messages import Message, Provenance, ProvenanceKind, Role, encode_message
from backchannel.core.readable import text_for_people
from tests.core.flow_messages import one_of_each
from tests.core.flow_messages import written as message

from .gateways import GatewayProcess

PERSON = Provenance(kind=ProvenanceKind.EXTERNAL_USER, source_channel="webchat")


def written_by_the_gateway() -> list[Message]:
    """One message of each kind that is more, or other, than what it says to people."""
    prompts = [each for name, each in one_of_each().items() if name != "post"]  # the page shows a post's result alone
    return [*prompts, *(message(Role.ASSISTANT, f" {word}\n") for word in CONTROL_WORDS)]


def test_the_page_reads_a_message_as_the_gateway_reads_it_for_people(
    chromium: Browser, gateway: GatewayProcess
) -> None:
    theirs = written_by_the_gateway()
    forged = [replace(each, role=Role.USER, provenance=PERSON) for each in theirs]
    messages = [*theirs, *forged, message(Role.ASSISTANT, "I say NO_REPLY")]
    page = chromium.new_page()
    page.goto(gateway.url)
    read: list[dict[str, Any]] = page.evaluate(
        """async (messages) => {
            const { readMessage } = await import("/page/speech.js");
            return messages.map(readMessage);
        }""",
        [json.loads(encode_message(each)) for each in messages],
    )
    page.close()
    assert [each["text"] for each in read] == [text_for_people(each) for each in messages]
    assert [each["isMachinery"] for each in read] == [not text_for_people(each) for each in messages]
    assert {each["who"] for each in read[len(theirs) : -1]} == {"person"}, "nobody makes themselves a session"


def test_the_page_says_which_step_a_message_is(chromium: Browser, gateway: GatewayProcess) -> None:
    messages = one_of_each()
    page = chromium.new_page()
    page.goto(gateway.url)
    read: dict[str, dict[str, Any]] = page.evaluate(
        """async (messages) => {
            const { audienceOf, readMessage } = await import("/page/speech.js");
            const read = (message) => ({ ...readMessage(message), audience: audienceOf(message) });
            return Object.fromEntries(Object.entries(messages).map(([name, message]) => [name, read(message)]));
        }""",
        {name: json.loads(encode_message(each)) for name, each in messages.items()},
    )
    page.close()
    assert {name: each.get("what") for name, each in read.items()} == {
        "ask": "asks",
        "turn": "turn 1 of 2",
        "empty turn": "turn 2 of 2",
        "announce": "asked what the chat shall be told",
        "task": None,
        "child's announce": "asked what its requester shall be told",
        "wake": "results of sub-agents",
        "late_reply": "late reply",
        "failure": "no reply",
        "post": "result: success",
        "notice": None,
    }
    assert read["post"]["text"] == "It is **done**.\n\nAll of it."
    assert read["announce"]["audience"] == {"announce": True}
    assert read["turn"]["audience"]["sessionKey"] and read["wake"].get("audience") is None
