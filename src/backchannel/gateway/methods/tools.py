"""`tools.invoke`: the session tools over WebSocket, and `policy.explain`: what the rules say to them and to a send."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from backchannel.gateway.auth import InvokeParams, caller_of, has_tool, invoke_as
from backchannel.gateway.parts import GatewayParts
from backchannel.gateway.ws.connections import Call, Method
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


async def tools_invoke(call: Call, params: InvokeParams) -> ToolInvoked:
    """Calls a session tool, on behalf of the operator, of the session named, or of the token's own."""
    return ToolInvoked(ok=True, result=await invoke_as(call.parts, call.holder, params))


async def policy_explain(call: Call, params: ExplainParams) -> Explanation:
    """Tells what each session tool and each send from one session to another would do, and which setting decides."""
    caller = await caller_of(call.parts, call.holder, params.caller)
    explained = await explain(call.parts, caller, params.target, params.channel, params.chat_type)
    return replace(explained, tools=[_of_caller(call.parts, caller, each) for each in explained.tools])


def _of_caller(parts: GatewayParts, caller: Caller, explained: DecisionExplained) -> DecisionExplained:
    """Deny a tool that the caller has not, whatever the rules would say to it."""
    if caller.key is None or has_tool(parts, caller, explained.what):
        return explained
    return DecisionExplained(
        what=explained.what, allowed=False, reason=parts.toolset.why_not(caller.key, explained.what)
    )


METHODS: tuple[Method[Any], ...] = (
    Method("tools.invoke", InvokeParams, TokenScope.READ, tools_invoke, "`{ok, result}`", for_agents=True),
    Method("policy.explain", ExplainParams, TokenScope.READ, policy_explain, "`{caller, target, tools, send}`"),
)
