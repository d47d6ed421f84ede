"""Loading a configuration: read, substitute, check everything, complete.

The steps, in order:

1. Read JSON5 with lines (`source`).
2. Rename older settings (`openclaw/settings`).
3. Put in `${NAME}` and the overrides of the environment.
4. Check each setting by its type (`validation`).
5. Check settings against each other (`checks`).
6. Read instruction files.
7. Complete what was left open (`agents.complete`).
8. Look for missing programs (`programs`).

All findings of a step are reported together; a step with errors is the last. Nothing here touches the network.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from backchannel.config.adapters import read_channel
from backchannel.config.agents import complete, first
from backchannel.config.checks import Surroundings, check_rules, check_start
from backchannel.config.findings import ConfigFinding, config_error, show_path
from backchannel.config.locations import locate
from backchannel.config.programs import program_issues
from backchannel.config.schema import Config, ConfigFile
from backchannel.config.schema_agents import AgentsSettings, InstructionsFileSettings
from backchannel.config.source import ConfigSource, load_source, source_from
from backchannel.config.validation import check_shape
from backchannel.core.delivery.channels import ChannelSettings
from backchannel.core.settings import SettingIssue, SettingPath
from backchannel.errors import ConfigError
from backchannel.openclaw.settings import modernise

MAX_INSTRUCTIONS_BYTES = 1024 * 1024


def load_config(
    path: Path | None,
    env: Mapping[str, str],
    *,
    state: Path | None = None,
    host: str | None = None,
    port: int | None = None,
    reads: Collection[str] | None = None,
) -> Config:
    """Load the configuration from `path`, else from where the environment says, else the defaults.

    Some commands read few settings, and may be typed where the gateway's environment is not: `reads` names the groups
    of those. A variable that is not set elsewhere is no error, and what other settings say is then not to be relied on.

    Raises:
        ConfigError: something is wrong; the message has a line for each problem.
    """
    return _load(path, env, state, overrides(env, host, port), reads=reads)


def config_from(
    mapping: Mapping[str, Any],
    env: Mapping[str, str] | None = None,
    *,
    state: Path | None = None,
    base_dir: Path | None = None,
    registered: Iterable[str] = (),
) -> Config:
    """Take the configuration from a mapping, named as in the file and checked as strictly.

    `base_dir` is where instruction files are looked for, and `registered` names agents that the program
    brings itself.

    Raises:
        ConfigError: something is wrong; the message has a line for each problem.
    """
    env = env or {}
    where = locate(state, None, env)
    reading = _Reading(
        source_from(mapping),
        env,
        overrides(env, None, None),
        base_dir=base_dir or Path.cwd(),
        registered=tuple(registered),
    )
    return reading.config(where.state_dir)


def check_config(
    path: Path | None,
    env: Mapping[str, str],
    *,
    state: Path | None = None,
    here: Surroundings | None = None,
) -> list[ConfigFinding]:
    """Find every error and warning in the configuration that `load_config` would read.

    Given what a gateway would have `here`, that includes what keeps one from starting, or is warned of then.
    """
    try:
        return list(_load(path, env, state, overrides(env, None, None), here).warnings)
    except ConfigError as error:
        return [ConfigFinding(**problem) for problem in error.details["problems"]]


def _load(
    path: Path | None,
    env: Mapping[str, str],
    state: Path | None,
    overridden: Mapping[tuple[str, ...], Any],
    here: Surroundings | None = None,
    reads: Collection[str] | None = None,
) -> Config:
    where = locate(state, path, env)
    source = load_source(where.config_file) if where.has_file else source_from({})
    reading = _Reading(source, env, overridden, base_dir=where.config_file.parent, here=here, reads=reads)
    return reading.config(where.state_dir)


@dataclass(slots=True)
class _Reading:
    """One configuration on its way from what was written to what holds."""

    source: ConfigSource
    env: Mapping[str, str]
    overridden: Mapping[tuple[str, ...], Any]
    base_dir: Path
    registered: tuple[str, ...] = ()
    here: Surroundings | None = None
    reads: Collection[str] | None = None
    findings: list[ConfigFinding] = field(default_factory=list)

    def config(self, state_dir: Path) -> Config:
        modern = modernise(self.source.raw)
        self.source = dataclasses.replace(self.source, origins=modern.origins)
        raw, missing = self._substituted(modern.raw)
        unset = {finding.path for finding in missing}  # a variable that is missing is reported once
        misfits = [f for f in check_shape(raw, ConfigFile, self.source) if f.path not in unset]
        if missing and self.reads is not None:
            raw, missing = self._substituted({name: modern.raw[name] for name in self.reads if name in modern.raw})
        self._add([self._finding(issue) for issue in modern.issues] + missing + misfits)
        file = self._converted(raw)
        self._add([self._finding(issue) for issue in check_rules(file, self.registered)])
        if self.here is not None:
            self._add([self._finding(issue) for issue in check_start(file, self.here)])
        file = complete(self._with_workspaces(self._with_instructions(file), state_dir))
        config = Config(
            **{name: getattr(file, name) for name in file.__struct_fields__},
            state_dir=state_dir,
            file=self.source.file,
        )
        if self.reads is None and "PATH" in self.env:
            self._add([self._finding(issue) for issue in program_issues(config, self.env["PATH"])])
        return replace(config, warnings=tuple(self.findings))

    def _converted(self, raw: dict[str, Any]) -> ConfigFile:
        """Convert settings that were checked; those of each channel by its adapter."""
        file = msgspec.convert({name: raw[name] for name in raw if name != "channels"}, ConfigFile)
        channels: dict[str, ChannelSettings] = {}
        refused: list[ConfigFinding] = []
        for name, own in raw.get("channels", {}).items():
            try:
                channels[name] = read_channel(own)
            except msgspec.ValidationError as error:
                refused.append(self._finding(SettingIssue("error", ("channels", name), str(error))))
        self._add(refused)
        return replace(file, channels=channels)

    def _substituted(self, written: dict[str, Any]) -> tuple[dict[str, Any], list[ConfigFinding]]:
        """Give the settings with variables and overrides in place, and the variables that are missing."""
        raw, missing = substitute(written, self.env, self.source)
        replaced = {show_path(path) for path in self.overridden}
        return override(raw, self.overridden), [finding for finding in missing if finding.path not in replaced]

    def _add(self, findings: list[ConfigFinding]) -> None:
        self.findings += map(self._with_origin, findings)
        self.findings.sort(key=lambda finding: finding.line or math.inf)
        if any(finding.level == "error" for finding in self.findings):
            raise config_error(self.findings, self.source.file)

    def _finding(self, issue: SettingIssue) -> ConfigFinding:
        got = f"got {self.source.shown(issue.path, issue.got)}, " if issue.got is not None else ""
        other = f"{self.source.named(issue.other)} " if issue.other else ""
        message = f"{got}{other}{issue.message}"
        return ConfigFinding(issue.level, self.source.named(issue.path), message, self.source.line(issue.path))

    def _with_origin(self, finding: ConfigFinding) -> ConfigFinding:
        """Name the variable instead of the line where the value did not come from the file."""
        for name, path in OVERRIDES.items():
            if finding.path == show_path(path) and path in self.overridden:
                return finding._replace(message=f"{finding.message} (from {name})", line=None)
        if finding.path in ("gateway.host", "gateway.port") and tuple(finding.path.split(".")) in self.overridden:
            return finding._replace(line=None)
        return finding

    def _with_instructions(self, file: ConfigFile) -> ConfigFile:
        """Put the texts of instruction files in their place."""
        problems: list[ConfigFinding] = []

        def read(instructions: str | InstructionsFileSettings | None, path: SettingPath) -> str | None:
            if not isinstance(instructions, InstructionsFileSettings):
                return instructions
            try:
                return _load_instructions(self.base_dir / Path(instructions.file).expanduser())
            except (ValueError, RuntimeError) as error:
                issue = SettingIssue("error", (*path, "instructions", "file"), str(error), instructions.file)
                problems.append(self._finding(issue))
                return None

        agents = file.agents
        listed = tuple(
            replace(agent, instructions=read(agent.instructions, ("agents", "list", index)))
            for index, agent in enumerate(agents.list)
        )
        defaults = replace(agents.defaults, instructions=read(agents.defaults.instructions, ("agents", "defaults")))
        self._add(problems)
        return replace(file, agents=replace(agents, list=listed, defaults=defaults))

    def _with_workspaces(self, file: ConfigFile, state_dir: Path) -> ConfigFile:
        """Make the paths of workspaces absolute."""
        problems: list[ConfigFinding] = []

        def place(written: str | None, path: SettingPath) -> str | None:
            if written is None:
                return None
            try:
                folder = (self.base_dir / Path(written).expanduser()).absolute()
                problem = workspace_problem(folder, state_dir, self.source.file)
            except (RuntimeError, ValueError, OSError) as error:
                folder, problem = Path(written), f"the folder cannot be found: {error}"
            if problem:
                problems.append(self._finding(SettingIssue("error", (*path, "workspace"), problem, written)))
            return str(folder)

        agents = file.agents
        listed = tuple(
            replace(agent, workspace=place(agent.workspace, ("agents", "list", index)))
            for index, agent in enumerate(agents.list)
        )
        defaults = replace(agents.defaults, workspace=place(agents.defaults.workspace, ("agents", "defaults")))
        self._add(problems)
        placed = replace(agents, list=listed, defaults=defaults)
        self._add([self._finding(issue) for issue in nested_workspaces(placed)])
        return replace(file, agents=placed)


def workspace_problem(folder: Path, state_dir: Path, config_file: Path | None) -> str | None:
    """Say why a folder cannot be given to an agent: the token, the conversations or the settings would be in it."""
    place, state = folder.resolve(), state_dir.resolve()
    if place == state or place in state.parents:
        return "the state folder lies in it, with the token and all conversations; name a folder beside it"
    if state in place.parents and not place.match(str(state / "agents" / "*" / "workspace")):
        return "it lies in the state folder; leave it out for one of the agent's own there, or name a folder elsewhere"
    if config_file is not None and place in config_file.resolve().parents:
        return "this configuration file lies in it, so that the agent could change it; name a folder beside it"
    return None


def nested_workspaces(agents: AgentsSettings) -> Iterator[SettingIssue]:
    """Find workspaces within that of a sandboxed agent: its commands could put a link to anywhere in their place."""
    defaults = agents.defaults
    inner: list[tuple[SettingPath, str | None]] = [(("agents", "defaults", "workspace"), defaults.workspace)]
    inner += [(("agents", "list", index, "workspace"), agent.workspace) for index, agent in enumerate(agents.list)]
    for agent in agents.list:
        folder = first(agent.workspace, defaults.workspace)
        mode = first(agent.sandbox.mode, defaults.sandbox.mode) or "off"
        access = first(agent.sandbox.workspace_access, defaults.sandbox.workspace_access) or "rw"
        if folder is None or mode == "off" or access != "rw":
            continue
        message = (
            f"it lies in the workspace of {agent.id}, whose commands in the sandbox could put a link to anywhere "
            "in its place; name a folder beside it"
        )
        for path, other in inner:
            if other is not None and Path(folder).resolve() in Path(other).resolve().parents:
                yield SettingIssue("error", path, message, other)


def _load_instructions(file: Path) -> str:
    try:
        with file.open("rb") as opened:
            content = opened.read(MAX_INSTRUCTIONS_BYTES + 1)
    except OSError as error:
        raise ValueError(f"the file cannot be read: {error.strerror}") from None
    if len(content) > MAX_INSTRUCTIONS_BYTES:
        raise ValueError("the file is larger than 1 MiB")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ValueError("the file is not UTF-8 text") from None


OVERRIDES: dict[str, tuple[str, ...]] = {
    "BACKCHANNEL_TOKEN": ("gateway", "auth", "token"),
    "BACKCHANNEL_DATABASE_URL": ("database", "url"),
}

_REFERENCE = re.compile(r"\$\$\{|\$\{([^}]*)(\}?)")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


def substitute(
    raw: dict[str, Any], env: Mapping[str, str], source: ConfigSource
) -> tuple[dict[str, Any], list[ConfigFinding]]:
    """Replace `${NAME}` in every text by the variable's value; `$${` stands for a plain `${`."""
    findings: list[ConfigFinding] = []

    def replace(text: str, path: SettingPath) -> str:
        def one(match: re.Match[str]) -> str:
            name = match[1]
            if name is None:
                return "${"
            if not match[2]:  # it never ends, and so is none; taken as one, so that the rest is looked at once
                return match[0].replace("$${", "${")
            if name in env:
                return env[name]
            findings.append(ConfigFinding("error", source.named(path), _missing(name), source.line(path)))
            return ""

        return _REFERENCE.sub(one, text)

    substituted: dict[str, Any] = _map_texts(raw, (), replace)
    return substituted, findings


def override(raw: dict[str, Any], values: Mapping[tuple[str, ...], Any]) -> dict[str, Any]:
    """Put values over those of the file. A group that is not an object is left: the check reports it."""
    for path, value in values.items():
        raw = _put(raw, path, value)
    return raw


def overrides(env: Mapping[str, str], host: str | None, port: int | None) -> dict[tuple[str, ...], Any]:
    """What the environment and the command line say instead of the file. An empty variable says nothing."""
    values: dict[tuple[str, ...], Any] = {path: env[name] for name, path in OVERRIDES.items() if env.get(name)}
    if host is not None:
        values["gateway", "host"] = host
    if port is not None:
        values["gateway", "port"] = port
    return values


def _missing(name: str) -> str:
    if _NAME.match(name):
        return f"the environment variable {name} is not set (set it, or write `$${{` for a plain `${{`)"
    return "`${…}` must hold the name of an environment variable (write `$${` for a plain `${`)"


def _map_texts(value: Any, path: SettingPath, replace: Callable[[str, SettingPath], str]) -> Any:
    if isinstance(value, str):
        return replace(value, path)
    if isinstance(value, list):
        return [_map_texts(item, (*path, index), replace) for index, item in enumerate(value)]
    if isinstance(value, dict):
        return {key: _map_texts(item, (*path, key), replace) for key, item in value.items()}
    return value


def _put(raw: dict[str, Any], path: tuple[str, ...], value: Any) -> dict[str, Any]:
    name, *rest = path
    if not rest:
        return {**raw, name: value}
    inner = raw.get(name, {})
    return {**raw, name: _put(inner, tuple(rest), value)} if isinstance(inner, dict) else raw
