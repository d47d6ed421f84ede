"""Programs of MCP servers: checks that they are installed and visible in a sandbox.

Without these warnings, a run would find out that its server cannot start.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

from backchannel.config.adapters import visibility_in
from backchannel.config.agents import AgentSettings, agent
from backchannel.config.schema import Config
from backchannel.config.schema_agents import McpServerSettings
from backchannel.core.mcp_names import servers_named
from backchannel.core.settings import SettingIssue, SettingPath

USUAL_PATH = "/usr/local/bin:/usr/bin:/bin"
INSIDE = "/workspace"
"""Where the workspace is in a sandbox."""
INSIDE_OUTPUTS = "/outputs"
"""Where the outputs of a session's commands are in its sandbox."""
COMES_WITH = {"uvx": "the package uv", "uv": "the package uv", "npx": "Node.js", "node": "Node.js"}
FETCHES = ("uvx", "npx")
"""Programs that fetch what they run."""


def program_issues(config: Config, search_path: str) -> Iterator[SettingIssue]:
    """Warn of servers whose program is not found, or not where a sandboxed agent that may have its tools needs it."""
    agents = [agent(config, listed.id) for listed in config.agents.list]
    for name, server in config.mcp.servers.items():
        if not server.enabled or server.command is None:
            continue
        path: SettingPath = ("mcp", "servers", name, "command")
        users = [one for one in agents if servers_named(one.allow_tools or (), (name,))]
        if not users or any(_runs_here(user) for user in users):
            problem = _why_missing(server, search_path)
            if problem is not None:
                yield SettingIssue("warning", path, problem, server.command)
                continue
        yield from _sandbox_issues(server.command, path, users)


def _runs_here(user: AgentSettings) -> bool:
    """Whether programs of some of its sessions are this machine's, and not those of an image."""
    return user.sandbox_mode != "all" or visibility_in(user.sandbox.backend) is not None


def _why_missing(server: McpServerSettings, search_path: str) -> str | None:
    command = server.command or ""
    if "/" in command and not command.startswith("/"):
        return None  # it is looked for from the server's own folder
    if shutil.which(command, path=server.env.get("PATH", search_path)) is not None:
        return None
    where = "there is no such program" if "/" in command else "no such program is found on PATH"
    brought = COMES_WITH.get(Path(command).name)
    return f"{where}, so the server cannot start" + (f"; it comes with {brought}" if brought else "")


def _sandbox_issues(command: str, path: SettingPath, users: list[AgentSettings]) -> Iterator[SettingIssue]:
    confined = [user for user in users if user.sandbox_mode != "off"]
    unseen: dict[str, list[str]] = {}
    for user in confined:
        why_unseen = visibility_in(user.sandbox.backend)
        if why_unseen is not None and (problem := why_unseen(command)):
            unseen.setdefault(problem, []).append(user.id)
    for problem, ids in unseen.items():
        yield SettingIssue("warning", path, f"sandboxed sessions of {', '.join(ids)} cannot start it: {problem}")
    offline = [user.id for user in confined if not user.sandbox.network]
    if offline and Path(command).name in FETCHES:
        message = f"it fetches what it runs, and the sandbox of {', '.join(offline)} has no network (sandbox.network)"
        yield SettingIssue("warning", path, message, command)
