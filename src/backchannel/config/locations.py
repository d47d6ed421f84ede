"""Where the state folder and the configuration file are."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

FILE_NAME = "backchannel.json5"


class Locations(NamedTuple):
    """The state folder, the configuration file, and whether somebody asked for that very file."""

    state_dir: Path
    config_file: Path
    is_named: bool

    @property
    def has_file(self) -> bool:
        """Whether a file is to be read: a named one must be there, the one in the state folder may be."""
        return self.is_named or _is_there(self.config_file)


def locate(state: Path | None, config: Path | None, env: Mapping[str, str]) -> Locations:
    """Find both: what was given wins over the environment, and that over the usual place."""
    state_dir = _absolute(state or env.get("BACKCHANNEL_STATE_DIR") or "~/.backchannel", env)
    named = config or env.get("BACKCHANNEL_CONFIG")
    config_file = _absolute(named, env) if named else state_dir / FILE_NAME
    return Locations(state_dir, config_file, bool(named))


def _absolute(path: Path | str, env: Mapping[str, str]) -> Path:
    parts = Path(path).parts
    if parts and parts[0] == "~" and env.get("HOME"):
        return Path(env["HOME"], *parts[1:]).absolute()
    with contextlib.suppress(RuntimeError):  # `~somebody` who does not exist is a folder of that name
        path = Path(path).expanduser()
    return Path(path).absolute()


def _is_there(file: Path) -> bool:
    try:
        file.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True  # reading it will say what is wrong
    return True
