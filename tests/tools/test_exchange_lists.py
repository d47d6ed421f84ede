"""`exchanges.*`: lists, the conversation of one, and who talked to whom, through a socket."""

from __future__ import annotations

from typing import Any

import pytest

from backchannel.agents.scripted import Reply
from backchannel.core.messages import Usage
from backchannel.core.sessions import Address, write_address
from tests.support.gateways import held, settled
from tests.support.talks import A, B, C, Player, config, send
from tests.tools.door import Doors, doors
from tests.tools.shelf import Shelf

pytestmark = pytest.mark.anyio

ABC = config("a", "b", "c")


def priced(text: str) -> Reply:
    return Reply(text=text, usage=Usage(input=10, output=2, cost=0.25))


async def ask(at: Doors, to: str, message: str = "hello", **more: Any) -> dict[str, Any]:
    """Send as the operator, or as the session named."""
    args = {"sessionKey": to, "message": message, "timeoutSeconds": 5}
    result: dict[str, Any] = (await at.client.ask("tools.invoke", tool="sessions_send", args=args, **more))["result"]
    return result


async def test_an_exchange_is_told_as_a_conversation_with_its_control_words_and_cost(shelf: Shelf) -> None:
    shelf.session(B, "hello", delivery_context=write_address(Address(channel="webchat")))
    a = Player("a", person=send(message="how are you?"), turn=priced("and you?"))
    b = Player("b", request=priced("fine"), turn=priced("REPLY_SKIP"), announce=priced("we talked"))
    async with doors(shelf, ABC, a.model, b.model) as at:
        await at.client.run(sessionKey=A, message="ask b")
        await settled(at.gateway)
        (listed,) = (await at.client.ask("exchanges.list"))["exchanges"]
        told = (await at.client.ask("exchanges.get", id=listed["id"]))["exchange"]

    said = told.pop("conversation")
    assert told == listed, "a list has all but the conversation"
    assert (told["turns"], told["cost"]) == (2, 1.0)
    assert [(step["kind"], step["sessionKey"], step["reply"]) for step in said] == [
        ("primary", B, "fine"),
        ("turn", A, "and you?"),
        ("turn", B, "REPLY_SKIP"),
        ("announce", B, "we talked"),
    ]
    assert [step.get("asked") for step in said] == ["how are you?", None, None, None]
    assert [step.get("control") for step in said] == [None, None, "REPLY_SKIP", None]
    assert [step.get("isControl", False) for step in said] == [False, False, True, False]
    assert {(step["status"], step["cost"], step["tokens"]) for step in said} == {("ok", 0.25, 12)}
    assert all(step["at"] <= step["endedAt"] for step in said)


async def test_a_list_is_paged_narrowed_to_a_session_and_to_states(shelf: Shelf) -> None:
    b, c = Player("b", request=["one", "two", "three", held()]), Player("c", request="yes")
    async with doors(shelf, ABC, b.model, c.model) as at:
        for n in range(3):
            await ask(at, B, f"message {n}")
        await ask(at, C, "to c", sessionKey=A)
        at_work = await at.client.ask(
            "tools.invoke",
            tool="sessions_send",
            args={"sessionKey": B, "message": "held", "timeoutSeconds": 0},
        )
        seen: list[dict[str, Any]] = []
        page: dict[str, Any] = {"nextCursor": None}
        while "nextCursor" in page:
            page = await at.client.ask("exchanges.list", limit=2, cursor=page["nextCursor"])
            seen += page["exchanges"]
        assert [shown["message"] for shown in seen] == ["held", "to c", "message 2", "message 1", "message 0"]

        of_a = await at.client.ask("exchanges.list", sessionKey=A)
        assert [shown["message"] for shown in of_a["exchanges"]] == ["to c"]
        of_b = await at.client.ask("exchanges.list", sessionKey=B, limit=2)
        assert [shown["message"] for shown in of_b["exchanges"]] == ["held", "message 2"] and of_b["hasMore"] is True
        older = await at.client.ask("exchanges.list", sessionKey=B, limit=2, cursor=of_b["nextCursor"])
        assert [shown["message"] for shown in older["exchanges"]] == ["message 1", "message 0"]
        still_open = await at.client.ask("exchanges.list", states=["primary", "handover", "turn", "announce"])
        assert "held" in [shown["message"] for shown in still_open["exchanges"]]
        done = await at.client.ask("exchanges.list", states=["done"], sessionKey=B)
        assert at_work["result"]["runId"] not in [shown["runs"][0]["runId"] for shown in done["exchanges"]]

        assert (await at.client.refused("exchanges.list", {"states": ["nothing"]}))["details"]["param"] == "states[0]"
        foreign = {"sessionKey": A, "cursor": of_b["nextCursor"]}
        assert (await at.client.refused("exchanges.list", foreign))["details"]["param"] == "cursor"


async def test_long_texts_are_cut_in_a_list_and_whole_in_one(shelf: Shelf) -> None:
    b = Player("b", request="y" * 10_000)
    async with doors(shelf, ABC, b.model) as at:
        await ask(at, B, "x" * 10_000)
        (listed,) = (await at.client.ask("exchanges.list"))["exchanges"]
        whole = (await at.client.ask("exchanges.get", id=listed["id"]))["exchange"]
    assert [len(shown["message"]) for shown in (listed, whole)] == [500, 10_000]
    assert [len(shown["runs"][0]["reply"]) for shown in (listed, whole)] == [500, 10_000]


async def test_the_map_counts_sends_replies_and_spawns_with_their_cost(shelf: Shelf) -> None:
    b = Player("b", request=[priced("one"), priced("NO_REPLY")], person="dug", announce="ANNOUNCE_SKIP")
    c = Player("c", request=priced("yes"))
    async with doors(shelf, ABC, b.model, c.model) as at:
        await ask(at, B)
        await ask(at, B)
        await ask(at, C, sessionKey=B)
        await at.client.ask(
            "tools.invoke", tool="sessions_spawn", args={"task": "dig", "label": "digger"}, sessionKey=B
        )
        await settled(at.gateway)
        told = await at.client.ask("exchanges.map")
        lately = await at.client.ask("exchanges.map", activeMinutes=1_000_000)

    nodes = {node["key"]: node for node in told["nodes"]}
    edges = {(edge["from"], nodes[edge["to"]]["name"]): edge for edge in told["edges"]}
    assert edges.keys() == {(None, "b"), (B, "c"), (B, "digger")}
    by_operator = edges[None, "b"]
    assert (by_operator["sends"], by_operator["replies"], by_operator["spawns"]) == (2, 1, 0)
    assert by_operator["cost"] == pytest.approx(0.5)
    assert (edges[B, "c"]["sends"], edges[B, "c"]["replies"]) == (1, 1)
    assert (edges[B, "digger"]["spawns"], edges[B, "digger"]["sends"]) == (1, 0)
    assert nodes[B] == {"key": B, "name": "b", "kind": "main", "agentId": "b"}
    assert lately["edges"] == told["edges"] and lately["since"] < lately["ts"] and "since" not in told


async def test_an_exchange_that_ends_a_wait_tells_those_who_watch(shelf: Shelf) -> None:
    b = Player("b", request=held())
    async with doors(shelf, ABC, b.model) as at:
        await at.client.ask("sessions.subscribe")
        args = {"sessionKey": B, "message": "well?", "timeoutSeconds": 1}
        await at.client.ask("tools.invoke", tool="sessions_send", args=args, sessionKey=A)
        await at.client.event("sessions.changed", sessionKey=B, reason="exchange")
