"""Types of the gateway's answers, imported when a command first uses one.

Making these types takes a fifth of the time of `backchannel --help`, which needs none of them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from backchannel.openclaw.jobs import *  # noqa: F403
    from backchannel.openclaw.rows import *  # noqa: F403
    from backchannel.wire.answers import *  # noqa: F403
    from backchannel.wire.rows import *  # noqa: F403
    from backchannel.wire.state_answers import *  # noqa: F403
    from backchannel.wire.timeline import *  # noqa: F403
else:

    def __getattr__(name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        for module in (
            "wire.answers",
            "wire.rows",
            "wire.state_answers",
            "openclaw.jobs",
            "openclaw.rows",
            "wire.timeline",
        ):
            if found := getattr(import_module(f"backchannel.{module}"), name, None):
                return found
        raise AttributeError(name)
