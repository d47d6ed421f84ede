"""`backchannel slots`, and what `status` tells of them."""

from __future__ import annotations

from .conftest import Provider
from .program import Program


def test_what_works_is_listed_shown_by_the_status_and_ended(program: Program, provider: Provider) -> None:
    program.write_config(provider.config)
    provider.hold("half", "whole")
    with program.up():
        listed = program.answer("slots")
        assert "KEPT FOR EACH AGENT" in listed and "Nothing is at work." in listed
        run_id = program.json("send", "main", "hello", "--wait", "0")["runId"]
        while not (asking := [use for use in program.json("slots")["slots"] if use["kind"] == "model"]):
            pass
        (use,) = asking
        assert (use["agentId"], use["runId"], use["what"]) == ("main", run_id, "stub/any")
        for shown in (program.answer("slots"), program.answer("status")):
            assert "stub/any" in shown and "works" in shown
        assert "model 1 of 64, run 1 of 64" in program.answer("status")
        assert program.json("status")["slots"]["slots"][0]["sessionKey"] == "agent:main:main"
        assert program.answer("slots", "end", use["id"][:14]) == "It was ended.\n"
        waited = program.run("runs", "wait", run_id)
        assert waited.returncode == 1 and "the operator ended this call" in waited.stderr + waited.stdout
        refused = program.run("slots", "end", use["id"])
        assert refused.returncode == 1 and "no call in this gateway has the id" in refused.stderr
        assert "no slot" in program.run("slots", "end", "ffff").stderr
