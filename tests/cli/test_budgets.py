"""`backchannel budgets`: bars for people, the whole list as JSON, and a reset."""

from __future__ import annotations

from .conftest import Provider
from .program import Program


def test_budgets_are_shown_with_bars_stop_messages_and_begin_anew(program: Program, provider: Provider) -> None:
    budgets = 'budgets: [{ name: "day", scope: "gateway", per: "day", runs: 1, then: "stop" }]'
    program.write_config(f"{provider.config.strip().removesuffix('}').rstrip(', ')}, {budgets} }}")
    with program.up():
        assert "0 runs" in program.answer("budgets")
        program.answer("send", "main", "hello")
        shown = program.answer("budgets")
        assert "█" * 20 in shown and "100%" in shown and "stop" in shown and "UNTIL" in shown and "1 run " in shown
        assert "The budget day has spent 1 run of 1 run today; it begins anew at " in program.run("status").stdout
        assert "budget_used_up" in program.run("status", "--json").stdout
        refused = program.run("send", "main", "again")
        assert refused.returncode == 1 and "the budget day has spent 1 run of 1 run today" in refused.stderr
        (listed,) = program.json("budgets")["budgets"]
        assert listed["subjects"] == [{"subject": "", "spent": 1, "reserved": 0, "limit": 1}]
        assert program.answer("budgets", "reset", "day") == "The budget day begins anew.\n"
        program.answer("send", "main", "again")
        assert "no budget is called 'week'" in program.run("budgets", "reset", "week").stderr
