"""The adapter of bubblewrap."""

from __future__ import annotations

import shutil
from pathlib import Path

from backchannel.config.programs import INSIDE, USUAL_PATH
from backchannel.core.adapters import Adapter

_SEEN = ("/usr", "/bin", "/sbin", "/lib", "/lib64", INSIDE)


def why_unseen(command: str) -> str | None:
    """Say why a program cannot be started in a sandbox; None: as far as can be told, it can."""
    if "/" in command and not command.startswith("/"):
        return None  # it is looked for from the workspace
    found = command if "/" in command else shutil.which(command, path=USUAL_PATH)
    if found is not None and all(_is_seen(path) for path in (Path(found), Path(found).resolve())):
        return None
    return f"in the sandbox only /usr and the workspace (as {INSIDE}) are seen, and `{command}` is not there"


def _is_seen(path: Path) -> bool:
    return any(path.is_relative_to(folder) for folder in _SEEN)


ADAPTER = Adapter(
    name="bubblewrap",
    title="bubblewrap",
    make="backchannel.agents.sandbox.bubblewrap.backend:make_backend",
    is_default=True,
    why_unseen=why_unseen,
)
