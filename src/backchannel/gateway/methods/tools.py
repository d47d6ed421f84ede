"""Session tools over WebSocket, and the decisions of the policies."""

from __future__ import annotations

from msgspec.structs import replace

from backchannel.gateway.auth import InvokeParams, caller_of, has_tool, invoke_as
from backchannel.gateway.calls import Call, method
from backchannel.gateway.parts import GatewayParts
from backchannel.tools.base import Caller
from backchannel.tools.targets import explain
from backchannel.wire.answers import Explanation, ToolInvoked
from backchannel.wire.frames import TokenScope
from backchannel.wire.rows import DecisionExplained
from backchannel.wire.shapes import Params


class ExplainParams(Params, frozen=True, kw_only=True):
    target: str
    caller: str | None = None
    channel: str | None = None
    chat_type: str | None = None


@method("tools.invoke", TokenScope.READ, for_agents=True)
async def tools_invoke(call: Call, params: InvokeParams) -> ToolInvoked:
    """Calls a session tool as the operator, as the session named, or as the token's own session."""
    return ToolInvoked(ok=True, result=await invoke_as(call.parts, call.holder, params))


@method("policy.explain", TokenScope.READ)
async def policy_explain(call: Call, params: ExplainParams) -> Explanation:
    """Explains whether each session tool and a send from one session to another are allowed, and by which setting."""
    caller = await caller_of(call.parts, call.holder, params.caller)
    explained = await explain(call.parts, caller, params.target, params.channel, params.chat_type)
    return replace(explained, tools=[_of_caller(call.parts, caller, each) for each in explained.tools])


def _of_caller(parts: GatewayParts, caller: Caller, explained: DecisionExplained) -> DecisionExplained:
    """Deny a tool that the caller does not have, whatever the rules say."""
    if caller.key is None or has_tool(parts, caller, explained.what):
        return explained
    return DecisionExplained(
        what=explained.what, allowed=False, reason=parts.toolset.why_not(caller.key, explained.what)
    )
