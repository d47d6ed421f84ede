"""Budgets in a configuration: which models need a price."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from backchannel.config.checks import Surroundings, check_start
from backchannel.config.findings import show_path
from backchannel.config.schema import ConfigFile

HERE = Surroundings(
    why_not_asked=lambda provider, own: None,
    tools=(),
    why_no_sandbox=lambda backend: None,
    has_price=lambda ref, own: ref != "x/new",
)
ROW = {"primary": "x/old", "fallbacks": ["x/new"]}


@pytest.mark.parametrize(
    ("agents", "job", "counted", "found"),
    [
        ({"defaults": {"model": "x/new"}}, {}, None, ["agents.defaults.model"]),
        ({"defaults": {"model": ROW}}, {}, "main", ["agents.defaults.model.fallbacks[0]"]),
        ({"defaults": {"context": {"model": "x/new"}}}, {}, "main", ["agents.defaults.context.model"]),
        (
            {"list": [{"id": "a", "subagents": {"model": ROW}}]},
            {},
            "a",
            ["agents.list[0].subagents.model.fallbacks[0]"],
        ),
        ({"list": [{"id": "a", "model": "x/new"}, {"id": "b"}]}, {}, "b", []),
        ({"list": [{"id": "a", "model": "x/old"}, {"id": "b"}], "defaults": {"model": "x/new"}}, {}, "a", []),
        ({"list": [{"id": "a"}, {"id": "b"}]}, {"agentId": "a", "model": "x/new"}, "a", ["cron.jobs[0].model"]),
        ({"list": [{"id": "a"}, {"id": "b"}]}, {"agentId": "a", "model": "x/new"}, "b", []),
    ],
)
def test_a_model_needs_a_price_where_an_agent_may_ask_it_whose_dollars_are_counted(
    agents: dict[str, Any], job: dict[str, Any], counted: str | None, found: list[str]
) -> None:
    budget = {"name": "day", "scope": "gateway", "per": "day", "usd": 1, "then": "stop"}
    if counted is not None:
        budget["match"] = {"agentId": counted}
    job = {"id": "j", "schedule": "every 1h", "message": "go", **job}
    file = msgspec.convert({"agents": agents, "budgets": [budget], "cron": {"jobs": [job]}}, ConfigFile)
    unpriced = [issue for issue in check_start(file, HERE) if "no known price" in issue.message]
    assert [show_path(issue.path) for issue in unpriced] == found
