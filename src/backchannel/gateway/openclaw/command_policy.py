"""Which agents may run commands, and whether they have to ask, in the words of OpenClaw's policy for commands."""

from __future__ import annotations

import hashlib
from typing import Any, Literal

import msgspec

from backchannel.core.policy.approvals import asks
from backchannel.core.text import matches
from backchannel.gateway.parts import GatewayParts
from backchannel.gateway.ws.connections import Call, Method
from backchannel.wire.frames import SharedNoParams, TokenScope
from backchannel.wire.shapes import Answer

_EXEC = "exec"


class CommandPolicy(Answer, frozen=True, kw_only=True, omit_defaults=False):
    security: Literal["deny", "full"] = "deny"
    ask: Literal["off", "on-miss", "always"] = "off"
    ask_fallback: Literal["deny"] = "deny"
    auto_allow_skills: bool = False


class CommandPolicies(Answer, frozen=True, kw_only=True, omit_defaults=False):
    version: int = 1
    defaults: CommandPolicy = CommandPolicy()
    agents: dict[str, CommandPolicy]


class CommandPolicyFile(Answer, frozen=True, kw_only=True, omit_defaults=False):
    path: str
    exists: bool
    hash: str
    file: CommandPolicies


async def exec_approvals_get(call: Call, params: SharedNoParams) -> CommandPolicyFile:
    """Tells which agents have the tool `exec`, and whether they have to ask; the configuration says so."""
    settings = call.parts.config
    file = CommandPolicies(agents={id_: _policy(call.parts, id_) for id_ in call.parts.agents.ids()})
    return CommandPolicyFile(
        path=str(settings.file or settings.state_dir / "backchannel.json5"),
        exists=settings.file is not None,
        hash=hashlib.sha256(msgspec.json.encode(file)).hexdigest(),
        file=file,
    )


def _policy(parts: GatewayParts, agent_id: str) -> CommandPolicy:
    if _EXEC not in parts.toolset.of(agent_id, str(parts.scheme.main(agent_id))):
        return CommandPolicy()
    rules = parts.config.tools.approval
    if asks(rules, _EXEC, {}):
        return CommandPolicy(security="full", ask="always")
    is_asked = any(rule.ask == "always" and matches(rule.tool, _EXEC) for rule in rules)
    return CommandPolicy(security="full", ask="on-miss" if is_asked else "off")


METHODS: tuple[Method[Any], ...] = (
    Method(
        "exec.approvals.get",
        SharedNoParams,
        TokenScope.READ,
        exec_approvals_get,
        "`{path, exists, hash, file {version, defaults, agents: {<id>: {security: deny | full, ask: off | on-miss | "
        "always, askFallback, autoAllowSkills}}}}`; `on-miss` is asked for some commands only",
    ),
)
