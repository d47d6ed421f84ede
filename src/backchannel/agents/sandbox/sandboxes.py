"""Sandboxes of sessions: which backend, what it shows, how it wraps a program.

A sandbox is not kept: every program gets one of its own. What sessions of one agent share is the workspace.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from backchannel.agents import cgroups
from backchannel.agents.programs import Program
from backchannel.agents.registry import Agents
from backchannel.agents.sandbox.backends import backend_named
from backchannel.config.adapters import visibility_in
from backchannel.config.agents import AgentSettings, SandboxRules
from backchannel.config.programs import INSIDE, INSIDE_OUTPUTS
from backchannel.core.keys import KeyScheme, SessionKey
from backchannel.core.policy.visibility import is_sandboxed


def workspace_of(settings: AgentSettings, state_dir: Path) -> Path:
    """Tell where an agent's workspace is; all of its sessions and sub-agents share it."""
    if settings.workspace is not None:
        return Path(settings.workspace)
    return (state_dir / "agents" / settings.id / "workspace").absolute()


@dataclass(frozen=True, slots=True)
class Sandbox:
    """What programs of one session run in."""

    INSIDE: ClassVar[str] = INSIDE
    """Where the workspace is inside."""
    INSIDE_OUTPUTS: ClassVar[str] = INSIDE_OUTPUTS
    """Where the outputs are inside."""

    rules: SandboxRules
    workspace: Path
    outputs: Path
    """Where the outputs of its commands are kept, for it to read."""

    @property
    def problem(self) -> str | None:
        """Say why programs cannot run in it on this machine, and which package is missing."""
        return backend_named(self.rules.backend).why_not()

    def why_unseen(self, command: str) -> str | None:
        """Say why a program of this machine cannot be started in it; of an image nothing is known."""
        why_unseen = visibility_in(self.rules.backend)
        return None if why_unseen is None else why_unseen(command)

    def wrap(self, program: Program) -> Program:
        """Put a program into it; a `cwd` in the workspace is kept. The leash goes around this: `leashed(wrap(…))`."""
        for folder in (self.workspace, self.outputs):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        made = backend_named(self.rules.backend).wrapped(program, self.rules, self.workspace, self.outputs)
        if made.limits.memory_bytes is None:
            return made  # the container has a group of its own
        return cgroups.grouped(made, made.limits.memory_bytes, self.rules.processes)


class Sandboxes:
    """Finds the sandbox of a session."""

    def __init__(self, agents: Agents, scheme: KeyScheme, state_dir: Path) -> None:
        self._agents = agents
        self._scheme = scheme
        self._state_dir = state_dir

    def of(self, agent_id: str, session_key: str) -> Sandbox | None:
        """Give the sandbox that a session's programs run in; None means that it runs without one."""
        settings = self._agents.get(agent_id)
        if not is_sandboxed(SessionKey.stored(session_key), self._scheme, settings.sandbox_mode):
            return None
        return Sandbox(settings.sandbox, self.workspace(agent_id), self.outputs(agent_id, session_key))

    def workspace(self, agent_id: str) -> Path:
        return workspace_of(self._agents.get(agent_id), self._state_dir)

    def outputs(self, agent_id: str, session_key: str) -> Path:
        """Tell where the outputs of a session's commands are kept; no session sees those of another."""
        name = hashlib.sha256(session_key.encode()).hexdigest()[:16]
        return (self._state_dir / "agents" / agent_id / "outputs" / name).absolute()

    def how_memory_is_bounded(self) -> str | None:
        """Say what keeps `limits.memoryMb` on this machine; None where no sandbox leaves that to us.

        It starts programs to find out, the first time: not for the event loop.
        """
        every = map(self._agents.get, self._agents.ids())
        kinds = sorted({each.sandbox.backend for each in every if each.sandbox_mode != "off"})
        return next(filter(None, (backend_named(kind).how_memory_is_bounded() for kind in kinds)), None)

    def problems(self) -> dict[str, list[str]]:
        """Say why sandboxes that are asked for cannot be made here, each with the agents that have none for it.

        It starts programs to find out, the first time: not for the event loop.
        """
        found: dict[str, list[str]] = {}
        for settings in map(self._agents.get, self._agents.ids()):
            if settings.sandbox_mode != "off":
                problem = backend_named(settings.sandbox.backend).why_not()
                if problem is not None:
                    found.setdefault(problem, []).append(settings.id)
        return found
