"""Rules across settings: names that must exist, secrets that must differ, and warnings.

Each rule is a function from the settings to its issues; `check_rules` runs them all. An error stops a
start; a warning is about what works and is seldom meant.
"""

from __future__ import annotations

import ipaddress
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from msgspec.structs import fields

from backchannel.config.adapters import SANDBOXES, channel_issues
from backchannel.config.agents import ANY_AGENT, first
from backchannel.config.budget_checks import budget_issues, unpriced_issues
from backchannel.config.findings import show_path
from backchannel.config.jobs import job_problems
from backchannel.config.schedules import schedule_problem
from backchannel.config.schema import ConfigFile, ProviderSettings
from backchannel.config.schema_agents import (
    AgentToolSettings,
    SandboxSettings,
    ToolNameSettings,
    ToolsSettings,
)
from backchannel.config.schema_doors import MIN_SECRET_LENGTH
from backchannel.config.schema_models import ModelRowSettings, ModelSetting
from backchannel.config.zones import time_zone_problem
from backchannel.core.delivery.channels import ChannelSettings, channel_name_problem
from backchannel.core.hosts import LOOPBACK_NAMES
from backchannel.core.keys import DmScope, KeyScheme, normalise_agent_id
from backchannel.core.mcp_names import MCP_GROUP, MCP_SEPARATOR, server_name_problem
from backchannel.core.policy.resets import ResetChat, ResetMode, ResetSettings
from backchannel.core.settings import SettingIssue, SettingPath, Settings, is_secret
from backchannel.core.text import matches, nearest
from backchannel.errors import InvalidSessionKey, UnknownAgent

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}\Z")
_MODEL_REF = re.compile(r"[^/\s]+/\S+\Z")
_MISSPELT = 0.85
"""How alike two names of tools are when one of them is hardly a tool of its own."""
_PLACEHOLDER = "change-me"


def check_rules(file: ConfigFile, registered: Iterable[str] = ()) -> list[SettingIssue]:
    """Check what settings say about each other; `registered` are agents that a program brings itself."""
    issues = [issue for rule in _RULES for issue in rule(file)]
    issues += _named_agents(file, {normalise_agent_id(name) for name in registered})
    return issues


class Surroundings(NamedTuple):
    """What a gateway that is started here would have, beside its settings."""

    why_not_asked: Callable[[str, Iterable[str]], str | None]
    """Says why a provider of models cannot be asked, given the names of those configured; None: it can."""
    tools: Collection[str]
    """The names of the tools that every gateway has."""
    why_no_sandbox: Callable[[str], str | None]
    """Says why sandboxes of a kind cannot be made; None: they can."""
    has_price: Callable[[str, Mapping[str, ProviderSettings]], bool] = lambda ref, own: True
    """Whether the price of a model is known, given the endpoints of the configuration."""
    why_no_channel: Callable[[ChannelSettings], str | None] = lambda settings: None
    """Says why a channel with these settings cannot work; None: it can."""


def check_start(file: ConfigFile, here: Surroundings) -> Iterator[SettingIssue]:
    """Find what `up` refuses or warns of, though each setting may be so."""
    yield from _open_door(file)
    yield from _models_not_to_be_asked(file, here)
    yield from unpriced_issues(file, here.has_price, _model_references(file))
    yield from _misspelt_tools(file, here.tools)
    yield from _tools_of_no_server(file)
    yield from _missing_sandboxes(file, here)
    for name, channel in file.channels.items():
        if problem := here.why_no_channel(channel):
            yield SettingIssue("warning", ("channels", name), problem)


def _missing_sandboxes(file: ConfigFile, here: Surroundings) -> Iterator[SettingIssue]:
    defaults = file.agents.defaults.sandbox
    places: list[tuple[SettingPath, SandboxSettings]] = [(("agents", "defaults", "sandbox", "mode"), defaults)]
    for index, agent in enumerate(file.agents.list):
        places.append((("agents", "list", index, "sandbox", "mode"), agent.sandbox))
    for path, sandbox in places:
        if sandbox.mode in ("non-main", "all"):
            problem = here.why_no_sandbox(first(sandbox.backend, defaults.backend) or SANDBOXES.default)
            if problem:
                message = f"no sandbox can be made here, so such sessions get no tools with outside effects: {problem}"
                yield SettingIssue("warning", path, message)


def _open_door(file: ConfigFile) -> Iterator[SettingIssue]:
    host, path = file.gateway.host, ("gateway", "host")
    if file.gateway.auth.token is not None or host in LOOPBACK_NAMES:
        return
    try:
        if not ipaddress.ip_address(host.strip("[]")).is_loopback:
            message = "listening there needs a token of your own: set `gateway.auth.token` or BACKCHANNEL_TOKEN"
            yield SettingIssue("error", path, message, host)
    except ValueError:  # a name: where it leads is known when it is looked up
        message = "unless this name leads to this machine alone, `gateway.auth.token` has to be set too"
        yield SettingIssue("warning", path, message, host)


def _models_not_to_be_asked(file: ConfigFile, here: Surroundings) -> Iterator[SettingIssue]:
    own = file.models.providers
    for path, ref in _model_references(file):
        provider = ref.partition("/")[0]
        if provider not in own and (hint := here.why_not_asked(provider, own)):
            yield SettingIssue("warning", path, f"which cannot be asked as things are: {hint}", ref)


def _misspelt_tools(file: ConfigFile, known: Collection[str]) -> Iterator[SettingIssue]:
    """Warn of names that are nearly a tool's; others may be those of tools that a program brings."""
    for path, names in _tool_lists(file):
        for index, name in enumerate(names or ()):
            close = None if name in known or ANY_AGENT in name else nearest(name, known, cutoff=_MISSPELT)
            if close is not None:
                yield SettingIssue("warning", (*path, index), f"no tool has this name; did you mean `{close}`?", name)


def _tools_of_no_server(file: ConfigFile) -> Iterator[SettingIssue]:
    """Warn of tools of MCP servers that are not there; a program may bring a tool with such a name."""
    servers = file.mcp.servers
    for path, names in _tool_lists(file):
        for index, name in enumerate(names or ()):
            server, separator, _ = name.removeprefix(MCP_GROUP).partition(MCP_SEPARATOR)
            is_group = name.startswith(MCP_GROUP)
            known = server in servers or (not is_group and server.lower() in map(str.lower, servers))
            if known or ANY_AGENT in server or not (is_group or separator):
                continue
            close = nearest(server, servers)
            hint = f"did you mean `{close}`?" if close else f"configured: {', '.join(sorted(servers)) or 'none'}"
            yield SettingIssue("warning", (*path, index), f"`mcp.servers` has no `{server}`; {hint}", name)


def _tool_lists(file: ConfigFile) -> Iterator[tuple[SettingPath, Sequence[str] | None]]:
    places: list[tuple[SettingPath, ToolsSettings | AgentToolSettings | ToolNameSettings]] = [
        (("tools",), file.tools),
        (("tools", "subagents", "tools"), file.tools.subagents.tools),
        (("agents", "defaults", "tools"), file.agents.defaults.tools),
    ]
    places += [(("agents", "list", index, "tools"), agent.tools) for index, agent in enumerate(file.agents.list)]
    for path, tools in places:
        yield (*path, "allow"), tools.allow
        yield (*path, "deny"), tools.deny


def _agent_ids(file: ConfigFile) -> Iterator[SettingIssue]:
    seen: dict[str, int] = {}
    for index, agent in enumerate(file.agents.list):
        path: SettingPath = ("agents", "list", index, "id")
        name = _usable_id(agent.id)
        if name is None:
            rule = "expected letters, digits, `_` and `-`, at most 64, such as `research-bot`"
            yield SettingIssue("error", path, rule, agent.id)
        elif seen.setdefault(name, index) != index:
            yield SettingIssue("error", path, "has this id too", agent.id, other=("agents", "list", seen[name]))
    chosen = [index for index, agent in enumerate(file.agents.list) if agent.default]
    for index in chosen[1:]:
        message = "is the default too, and only one agent can be"
        yield SettingIssue("error", ("agents", "list", index, "default"), message, other=("agents", "list", chosen[0]))


def _named_agents(file: ConfigFile, registered: set[str]) -> Iterator[SettingIssue]:
    known = registered | {id for agent in file.agents.list if (id := _usable_id(agent.id))}
    if not file.agents.list:
        known.add("main")
    for path, name in _agent_references(file):
        wanted = _usable_id(name)
        if wanted not in known:
            close = nearest(name, known)
            hint = f"did you mean {close!r}?" if close else f"configured: {', '.join(sorted(known))}"
            yield SettingIssue("error", path, f"no agent has this id; {hint}", name)
    yield from _agents_that_may_talk(file, known)


def _agents_that_may_talk(file: ConfigFile, known: set[str]) -> Iterator[SettingIssue]:
    for index, pattern in enumerate(file.tools.agent_to_agent.allow or ()):
        if not any(matches(pattern, name) for name in known):
            close = nearest(pattern, known)
            hint = f"did you mean {close!r}?" if close else f"configured: {', '.join(sorted(known))}"
            message = f"it is the id of no agent, nor a pattern for one, and allows nothing; {hint}"
            yield SettingIssue("warning", ("tools", "agentToAgent", "allow", index), message, pattern)


def _agent_references(file: ConfigFile) -> Iterator[tuple[SettingPath, str]]:
    for index, binding in enumerate(file.bindings):
        yield ("bindings", index, "agentId"), binding.agent_id
    for index, job in enumerate(file.cron.jobs):
        if job.agent_id is not None:
            yield ("cron", "jobs", index, "agentId"), job.agent_id
    lists: list[tuple[SettingPath, Sequence[str] | None]] = [
        (("agents", "defaults", "subagents", "allowAgents"), file.agents.defaults.subagents.allow_agents)
    ]
    for index, agent in enumerate(file.agents.list):
        lists.append((("agents", "list", index, "subagents", "allowAgents"), agent.subagents.allow_agents))
    for path, names in lists:
        for index, name in enumerate(names or ()):
            if name != ANY_AGENT:
                yield (*path, index), name


def _usable_id(name: str) -> str | None:
    try:
        return normalise_agent_id(name)
    except UnknownAgent:
        return None


def _models(file: ConfigFile) -> Iterator[SettingIssue]:
    for name, provider in file.models.providers.items():
        path: SettingPath = ("models", "providers", name)
        if not _NAME.match(name) or name == "builtin":
            yield SettingIssue("error", path, "a provider's name is letters, digits, `_`, `.`, `-`, and not `builtin`")
        for id, count in Counter(model.id for model in provider.models or ()).items():
            if count > 1:
                yield SettingIssue("error", (*path, "models"), f"the model {id!r} is listed {count} times")
    for path, ref in _model_references(file):
        if problem := _model_problem(file, ref):
            yield SettingIssue("error", path, problem, ref)


def _model_references(file: ConfigFile) -> Iterator[tuple[SettingPath, str]]:
    defaults = file.agents.defaults
    given: list[tuple[SettingPath, ModelSetting | None]] = [
        (("agents", "defaults", "model"), defaults.model),
        (("agents", "defaults", "subagents", "model"), defaults.subagents.model),
        (("agents", "defaults", "context", "model"), defaults.context.model),
    ]
    for index, agent in enumerate(file.agents.list):
        given.append((("agents", "list", index, "model"), agent.model))
        given.append((("agents", "list", index, "subagents", "model"), agent.subagents.model))
    given += [(("cron", "jobs", index, "model"), job.model) for index, job in enumerate(file.cron.jobs)]
    for path, model in given:
        if isinstance(model, ModelRowSettings):
            yield (*path, "primary"), model.primary
            yield from (((*path, "fallbacks", i), ref) for i, ref in enumerate(model.fallbacks or ()))
        elif model is not None:
            yield path, model


def _model_problem(file: ConfigFile, ref: str) -> str | None:
    if not _MODEL_REF.match(ref):
        return "expected `provider/model`, such as `openai/gpt-5-mini`"
    provider, _, model = ref.partition("/")
    settings = file.models.providers.get(provider)
    if settings is None or settings.models is None:
        return None
    known = [listed.id for listed in settings.models]
    if model in known:
        return None
    close = nearest(model, known)
    hint = f"did you mean `{provider}/{close}`?" if close else f"it has: {', '.join(known) or 'none'}"
    return f"`models.providers.{provider}` lists no such model; {hint}"


def _session_keys(file: ConfigFile) -> Iterator[SettingIssue]:
    main_key = file.session.main_key
    try:
        KeyScheme(main_key=main_key)
        usable = not main_key.lower().startswith("node-")
    except InvalidSessionKey:
        usable = False
    if not usable:
        message = "this word has a meaning of its own; choose another, such as `main`"
        yield SettingIssue("error", ("session", "mainKey"), message, main_key)
    holders: dict[str, str] = {}
    for person, ids in file.session.identity_links.items():
        for index, id in enumerate(ids):
            if holders.setdefault(id.lower(), person) != person:
                message = f"this id is already linked to {holders[id.lower()]!r}"
                yield SettingIssue("error", ("session", "identityLinks", person, index), message, id)


def _channels(file: ConfigFile) -> Iterator[SettingIssue]:
    for name, channel in file.channels.items():
        path: SettingPath = ("channels", name)
        if problem := channel_name_problem(name):
            yield SettingIssue("error", path, problem)
        if not (channel.allow_from or channel.owners or channel.pairing):
            yield SettingIssue("warning", path, "nobody is answered here: `allowFrom` and `owners` are empty")
        for issue in channel_issues(name, channel):
            yield issue._replace(path=(*path, *issue.path))
    for index, binding in enumerate(file.bindings):
        if binding.match.channel not in file.channels:
            message = "no such channel is configured, so this binding has no effect"
            yield SettingIssue("warning", ("bindings", index, "match", "channel"), message, binding.match.channel)


def _secrets(file: ConfigFile) -> Iterator[SettingIssue]:
    secrets: list[tuple[SettingPath, str | None]] = [
        (("gateway", "auth", "token"), file.gateway.auth.token),
        (("hooks", "token"), file.hooks.token),
        *_secrets_in(("channels",), file.channels),
    ]
    holders: dict[str, SettingPath] = {}
    for path, value in secrets:
        if value is None:
            continue
        if value in holders:
            yield SettingIssue("error", path, f"must differ from `{show_path(holders[value])}`")
        holders.setdefault(value, path)
        if _PLACEHOLDER in value.lower():
            yield SettingIssue("warning", path, "is the one of an example, which everybody knows; choose your own")
        if len(value) < MIN_SECRET_LENGTH:
            yield SettingIssue("warning", path, f"is short; {MIN_SECRET_LENGTH} characters or more are hard to guess")
    if file.hooks.enabled and file.hooks.token is None:
        yield SettingIssue("error", ("hooks", "enabled"), "hooks need a token of their own: set `hooks.token`")


def _secrets_in(path: SettingPath, value: object) -> Iterator[tuple[SettingPath, str | None]]:
    """Find the secrets in a group of settings, or in several of them, by name."""
    if isinstance(value, dict):
        for name, each in value.items():
            yield from _secrets_in((*path, name), each)
    elif isinstance(value, Settings):
        for field in fields(value):
            inner = getattr(value, field.name)
            if is_secret(field.type):
                yield (*path, field.encode_name), inner
            else:
                yield from _secrets_in((*path, field.encode_name), inner)


def _trusted_proxies(file: ConfigFile) -> Iterator[SettingIssue]:
    for index, text in enumerate(file.gateway.trusted_proxies):
        try:
            ipaddress.ip_network(text, strict=False)
        except ValueError:
            rule = "expected an address or a network, such as `127.0.0.1` or `10.0.0.0/8`"
            yield SettingIssue("error", ("gateway", "trustedProxies", index), rule, text)


def _hooks(file: ConfigFile) -> Iterator[SettingIssue]:
    for index, channel in enumerate(file.hooks.allow_deliver):
        if channel not in file.channels and channel != "webchat":
            message = "no such channel is configured, so no reply can go there"
            yield SettingIssue("warning", ("hooks", "allowDeliver", index), message, channel)


def _cron(file: ConfigFile) -> Iterator[SettingIssue]:
    seen: dict[str, int] = {}
    for index, job in enumerate(file.cron.jobs):
        path: SettingPath = ("cron", "jobs", index)
        wrong = list(job_problems(job))
        yield from (SettingIssue("error", (*path, *each.path), each.what, each.value) for each in wrong)
        if not any(each.path == ("id",) for each in wrong) and seen.setdefault(job.id, index) != index:
            yield SettingIssue("error", (*path, "id"), f"cron.jobs[{seen[job.id]}] has this id too", job.id)
        if problem := schedule_problem(job.schedule):
            yield SettingIssue("error", (*path, "schedule"), problem, job.schedule)
        if job.tz is not None and (problem := time_zone_problem(job.tz)):
            yield SettingIssue("error", (*path, "tz"), problem, job.tz)


def _cron_deliveries(file: ConfigFile) -> Iterator[SettingIssue]:
    for index, job in enumerate(file.cron.jobs):
        if job.deliver is not None and job.deliver.channel not in file.channels:
            close = nearest(job.deliver.channel, file.channels)
            hint = f"did you mean {close!r}?" if close else f"configured: {', '.join(sorted(file.channels)) or 'none'}"
            path: SettingPath = ("cron", "jobs", index, "deliver", "channel")
            yield SettingIssue("error", path, f"no channel has this name; {hint}", job.deliver.channel)


def _time_zone(file: ConfigFile) -> Iterator[SettingIssue]:
    if file.tz is not None and (problem := time_zone_problem(file.tz)):
        yield SettingIssue("error", ("tz",), problem, file.tz)


def _resets(file: ConfigFile) -> Iterator[SettingIssue]:
    """A reset after idle time needs that time, and its other settings need a mode."""
    path, reset = ("session", "reset"), file.session.reset
    rules = {chat: reset.of(chat) for chat in ResetChat}
    for chat, rule in rules.items():
        if rule.lacks_minutes:
            own = getattr(reset.by_type, chat.value).mode is not None
            where = (*path, "byType", chat.value) if own else path
            yield SettingIssue("error", where, '`idleMinutes` is missing: mode "idle" needs it, such as 120')
            if not own:
                return  # one setting is missing, however many types it is for
    is_set = reset.idle_minutes is not None or reset.at_hour != ResetSettings().at_hour or reset.carry
    if is_set and all(rule.mode is ResetMode.OFF for rule in rules.values()):
        yield SettingIssue("warning", path, 'has no effect until `mode` is "daily" or "idle"')


def _context_marks(file: ConfigFile) -> Iterator[SettingIssue]:
    """With `hard` at or below `at`, each summary would stand in the way of a run."""
    context = file.agents.defaults.context
    if context.hard <= context.at:
        path = ("agents", "defaults", "context", "hard")
        yield SettingIssue("error", path, f"got {context.hard:g}, expected more than `at`, which is {context.at:g}")


def _shared_main_session(file: ConfigFile) -> Iterator[SettingIssue]:
    if file.session.dm_scope is not DmScope.MAIN and file.session.scope != "global":
        return
    links = {id.lower(): person for person, ids in file.session.identity_links.items() for id in ids}
    people = {
        links.get(id := f"{name}:{sender}".lower(), id)
        for name, channel in file.channels.items()
        for sender in (*channel.allow_from, *channel.owners)
    }
    if len(people) > 1 or any(channel.pairing or ANY_AGENT in channel.allow_from for channel in file.channels.values()):
        where: SettingPath = ("session", "scope" if file.session.scope == "global" else "dmScope")
        message = (
            "several people share each agent's main session and see each other's messages; "
            '`dmScope: "per-peer"` (and `scope: "per-sender"`) keeps them apart, '
            "`session.identityLinks` joins the ids of one person"
        )
        yield SettingIssue("warning", where, message)


def _mcp_servers(file: ConfigFile) -> Iterator[SettingIssue]:
    """An MCP server has a name that tools can begin with, and is a program or an address."""
    folded: dict[str, str] = {}
    for name, server in file.mcp.servers.items():
        path: SettingPath = ("mcp", "servers", name)
        if problem := server_name_problem(name):
            yield SettingIssue("error", path, problem)
        elif (other := folded.setdefault(name.lower(), name)) != name:
            yield SettingIssue(
                "error", path, f"`mcp.servers.{other}` has this name too; case makes no difference to tools.allow"
            )
        if (server.command is None) == (server.url is None):
            came = "neither is there" if server.command is None else "both are there"
            yield SettingIssue("error", path, f"expected `command` (a program) or `url` (an address); {came}")
        elif server.url is not None and (server.args or server.env or server.cwd):
            yield SettingIssue("error", path, "`args`, `env` and `cwd` are for a `command`; a `url` takes `headers`")
        elif server.command is not None and server.headers:
            yield SettingIssue("error", path, "`headers` are for a `url`; a `command` takes `env`")


def _without_effect(file: ConfigFile) -> Iterator[SettingIssue]:
    defaults = file.agents.defaults
    shared = first(defaults.tools.sessions.visibility, file.tools.sessions.visibility)
    seen = [first(agent.tools.sessions.visibility, shared) for agent in file.agents.list] or [shared]
    if file.tools.agent_to_agent.enabled and "all" not in seen:
        message = 'has no effect until `tools.sessions.visibility` is "all", for all agents or for some'
        yield SettingIssue("warning", ("tools", "agentToAgent", "enabled"), message)
    if "sessions_spawn" in file.tools.subagents.tools.allow:
        path: SettingPath = ("tools", "subagents", "tools", "allow")
        yield SettingIssue("warning", path, "sub-agents never have `sessions_spawn`")


_RULES: tuple[Callable[[ConfigFile], Iterator[SettingIssue]], ...] = (
    _agent_ids,
    _models,
    _session_keys,
    _channels,
    _secrets,
    _trusted_proxies,
    _hooks,
    _cron,
    _cron_deliveries,
    _time_zone,
    _resets,
    _context_marks,
    _shared_main_session,
    _mcp_servers,
    budget_issues,
    _without_effect,
)
