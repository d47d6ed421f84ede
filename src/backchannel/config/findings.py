"""Findings of a check of the configuration, and their report.

A `ConfigFinding` says where (path and line), what came and what would work. Errors stop a start; warnings
are shown and logged.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from backchannel.core.settings import SettingPath
from backchannel.errors import ConfigError

MAX_FINDINGS = 100  # enough to see what is wrong with a file that is wrong throughout

_MAX_NAME = 64
_PLAIN_NAME = re.compile(r"[A-Za-z_$*][\w$-]*\Z")


class ConfigFinding(NamedTuple):
    """One error or warning about the configuration."""

    level: Literal["error", "warning"]
    path: str
    message: str
    line: int | None = None

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" if self.path else self.message


def show_path(path: SettingPath) -> str:
    """Write a path as people do: `agents.list[1].model`, `channels["my chat"].url`."""
    shown = ""
    for step in path:
        if isinstance(step, int):
            shown += f"[{step}]"
        elif _PLAIN_NAME.match(step) and len(step) <= _MAX_NAME:
            shown += f".{step}" if shown else step
        else:
            shown += '["' + "".join(c if c.isprintable() and c != '"' else "?" for c in step[:_MAX_NAME]) + '"]'
    return shown


def config_error(findings: Sequence[ConfigFinding], file: Path | None) -> ConfigError:
    """Make one error of all that is wrong, a line each; warnings are among its `problems` only."""
    errors = [finding for finding in findings if finding.level == "error"]
    room = max(0, MAX_FINDINGS - len(errors))  # for warnings, which may be many and come first in the file
    warnings = [finding for finding in findings if finding.level == "warning"][:room]
    reported = {id(finding) for finding in (*errors[:MAX_FINDINGS], *warnings)}
    lines = [f"{_place(file, finding.line)}{finding}" for finding in errors[:MAX_FINDINGS]]
    if len(errors) > MAX_FINDINGS:
        lines.append("and more")
    first = errors[0]
    return ConfigError(
        "\n".join(lines),
        file=str(file) if file else None,
        path=first.path,
        line=first.line,
        problems=[finding._asdict() for finding in findings if id(finding) in reported],
    )


def _place(file: Path | None, line: int | None) -> str:
    if file is None:
        return ""
    return f"{file}, line {line}: " if line else f"{file}: "
