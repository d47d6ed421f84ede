"""Rules about budgets: names, units, and prices."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from backchannel.config.schema import ConfigFile, ProviderSettings
from backchannel.config.schema_agents import ListedAgentSettings
from backchannel.core.keys import normalise_agent_id
from backchannel.core.money.budgets import BudgetSettings
from backchannel.core.settings import SettingIssue, SettingPath


def budget_issues(file: ConfigFile) -> Iterator[SettingIssue]:
    """Each budget has a name of its own and one unit, and names an agent that there is."""
    seen: set[str] = set()
    for index, budget in enumerate(file.budgets):
        path: SettingPath = ("budgets", index)
        if budget.name in seen:
            yield SettingIssue("error", (*path, "name"), "another budget has this name", budget.name)
        seen.add(budget.name)
        given = [unit for unit in ("usd", "tokens", "runs") if getattr(budget, unit) is not None]
        if len(given) != 1:
            came = " and ".join(f"`{unit}`" for unit in given) or "none"
            yield SettingIssue("error", path, f"expected one of `usd`, `tokens` and `runs`; there is {came}")
        agents = [normalise_agent_id(agent.id) for agent in file.agents.list]
        named = budget.match.agent_id
        if named is not None and agents and named not in agents:
            known = ", ".join(agents)
            yield SettingIssue(
                "warning", (*path, "match", "agentId"), f"no agent is called so; there are {known}", named
            )


def unpriced_issues(
    file: ConfigFile,
    has_price: Callable[[str, Mapping[str, ProviderSettings]], bool],
    models: Iterable[tuple[SettingPath, str]],
) -> Iterator[SettingIssue]:
    """Dollars can be counted only for models whose price is known."""
    for path, ref in models:
        budgets = (dollar_budget(file.budgets, agent_id) for agent_id in _agents_at(file, path))
        counting = next((budget for budget in budgets if budget is not None), None)
        if counting is not None and not has_price(ref, file.models.providers):
            yield SettingIssue("error", path, no_price(ref, counting.name), ref)


def dollar_budget(budgets: Iterable[BudgetSettings], agent_id: str) -> BudgetSettings | None:
    """Find a budget that counts dollars of an agent."""
    return next((each for each in budgets if each.usd is not None and each.match.agent_id in (None, agent_id)), None)


def no_price(ref: str, budget: str) -> str:
    """Say that a model has no price, and what to do."""
    provider, _, name = ref.partition("/")
    where = f'models.providers.{provider}.models: [{{ id: "{name}", cost: {{ input: …, output: … }} }}]'
    return f"has no known price, and the budget {budget} counts dollars: set its `cost` (`{where}`; 0 is a price)"


def _agents_at(file: ConfigFile, path: SettingPath) -> list[str]:
    """Name the agents that may ask a model of a setting."""
    listed = file.agents.list or (ListedAgentSettings(id="main"),)
    match path:
        case ("agents", "list", int(index), *_):
            listed = (file.agents.list[index],)
        case ("agents", "defaults", "model", *_, "primary") | ("agents", "defaults", "model"):
            listed = tuple(agent for agent in listed if agent.model is None)
        case ("cron", "jobs", int(index), *_) if (named := file.cron.jobs[index].agent_id) is not None:
            return [normalise_agent_id(named)]
    return [normalise_agent_id(agent.id) for agent in listed]
