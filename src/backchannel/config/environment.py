"""What the environment adds to a configuration: `${NAME}` in texts, and settings it overrides."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from backchannel.config.findings import Finding, SettingPath
from backchannel.config.source import Source

OVERRIDES: dict[str, tuple[str, ...]] = {
    "BACKCHANNEL_TOKEN": ("gateway", "auth", "token"),
    "BACKCHANNEL_DATABASE_URL": ("database", "url"),
}

_REFERENCE = re.compile(r"\$\$\{|\$\{([^}]*)(\}?)")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


def substitute(raw: dict[str, Any], env: Mapping[str, str], source: Source) -> tuple[dict[str, Any], list[Finding]]:
    """Replace `${NAME}` in every text by the variable's value; `$${` stands for a plain `${`."""
    findings: list[Finding] = []

    def replace(text: str, path: SettingPath) -> str:
        def one(match: re.Match[str]) -> str:
            name = match[1]
            if name is None:
                return "${"
            if not match[2]:  # it never ends, and so is none; taken as one, so that the rest is looked at once
                return match[0].replace("$${", "${")
            if name in env:
                return env[name]
            findings.append(Finding("error", source.named(path), _missing(name), source.line(path)))
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
