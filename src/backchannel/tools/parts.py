"""What the tools work with: the parts of a gateway, put together in `gateway/app.py`."""

from __future__ import annotations

from dataclasses import dataclass

from backchannel.agents.models import Models
from backchannel.agents.registry import Agents
from backchannel.config.schema import Config
from backchannel.core.contracts import Clock
from backchannel.core.keys import KeyScheme, SessionKey
from backchannel.core.visibility import OPERATOR, Viewer
from backchannel.runtime.exchanges import Exchanges
from backchannel.storage.store import Store


@dataclass(frozen=True, slots=True)
class Caller:
    """On whose behalf a tool is called: a session, or the operator, who has no key."""

    key: SessionKey | None = None
    call_id: str | None = None
    """What makes a repeated call the same call."""
    run_id: str | None = None
    """The run in which the session calls; None for a call from outside a run."""
    token_id: str | None = None
    """Whose token it came by, from outside."""


@dataclass(frozen=True, slots=True)
class Parts:
    """The store and the registries."""

    config: Config
    store: Store
    agents: Agents
    models: Models
    scheme: KeyScheme
    clock: Clock
    exchanges: Exchanges

    def viewer(self, caller: Caller) -> Viewer:
        """Join a caller with the settings that decide what it sees."""
        if caller.key is None:
            return OPERATOR
        settings = self.agents.get(caller.key.agent)
        return Viewer.of(caller.key, self.scheme, settings, self.config.tools.agent_to_agent)
