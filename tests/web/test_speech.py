"""The page reads the messages of a transcript by the rules of `core/readable.py`."""

from __future__ import annotations

import json
from typing import Any

from msgspec.structs import replace
from playwright.sync_api import Browser

from backchannel.core.commands.control_words import CONTROL_WORDS
from backchannel.core.flows.exchange import announce_run, failure_note, late_reply_note, primary_run, turn_run
from backchannel.core.flows.exchange_values import ExchangeState
from backchannel.core.flows.spawn import SPAWN_TOOL
from backchannel.core.flows.spawn_texts import announce_prompt, wake_text
from backchannel.core.messages import Message, Provenance, ProvenanceKind, Role, TextBlock, encode_message
from backchannel.core.readable import text_for_people
from tests.core.exchanges import opened
from tests.core.spawns import spawned

from .gateways import GatewayProcess

PERSON = Provenance(kind=ProvenanceKind.EXTERNAL_USER, source_channel="webchat")
SYSTEM = Provenance(kind=ProvenanceKind.INTERNAL_SYSTEM, source_tool=SPAWN_TOOL)


def message(role: Role, *texts: str, provenance: Provenance | None = None) -> Message:
    content = tuple(TextBlock(text=text) for text in texts)
    return Message(id="m", role=role, content=content, timestamp=1, provenance=provenance)


def written_by_the_gateway() -> list[Message]:
    """One message of each kind that is more, or other, than what it says to people."""
    exchange = replace(opened(), reply="fine,\n```\n`thanks`\n```", latest="fine,\n```\n`thanks`\n```")
    runs = [
        primary_run(exchange),
        turn_run(replace(exchange, state=ExchangeState.TURN, turn=1)),
        turn_run(replace(exchange, state=ExchangeState.TURN, turn=2, latest=None)),
        announce_run(replace(exchange, state=ExchangeState.ANNOUNCE)),
    ]
    notes = [*late_reply_note(exchange), *failure_note(exchange, "out of money")]
    wake = wake_text((("Sub-agent one", "Status: success"), ("Sub-agent two", "a\n\nb")), has_chat=True)
    return [
        *(message(Role.USER, *run.texts, provenance=run.provenance) for run in runs),
        *(message(Role.USER, note.text, provenance=note.provenance) for note in notes),
        *(message(Role.USER, text, provenance=SYSTEM) for text in (announce_prompt(spawned()), wake)),
        *(message(Role.ASSISTANT, f" {word}\n") for word in CONTROL_WORDS),
    ]


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
