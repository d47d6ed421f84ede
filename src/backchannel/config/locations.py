"""Places of the state folder and the configuration file, and the writing of secret files."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

FILE_NAME = "backchannel.json5"


class Locations(NamedTuple):
    """The state folder, the configuration file, and whether that file was named."""

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


def store_private(file: Path, text: str, *, replaces: bool = False) -> bool:
    """Write a file, and its folder if it is missing; False means that one is there and was left alone.

    Raises:
        OSError: it cannot be written; what was there is as it was.
    """
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    draft = file.with_name(f".{file.name}.{secrets.token_hex(4)}")
    number = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(number, "w", encoding="utf-8") as out:
            out.write(text)
            out.flush()
            os.fsync(out.fileno())
        if replaces:
            draft.replace(file)
        else:
            os.link(draft, file)  # never replaces a file, not even one made a moment ago
    except FileExistsError:
        return False
    finally:
        draft.unlink(missing_ok=True)
    return True
