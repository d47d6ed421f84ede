"""Settings of a session: `sessions.patch`.

A client that may write may change the name, look, model and levels of a session, and may archive it. Settings that
decide where its messages go need the scope admin, as in OpenClaw's gateway.
"""

from __future__ import annotations

from typing import Any, Literal

from msgspec import UNSET, UnsetType

from backchannel.core.keys import SessionKey
from backchannel.core.sessions import SessionPatch
from backchannel.core.text import quoted
from backchannel.errors import InvalidRequest, MainSessionKept, ScopeMissing
from backchannel.gateway.addressing import check_agent, resolve
from backchannel.gateway.calls import Call, method
from backchannel.gateway.fields import Label, read_model, read_thinking
from backchannel.gateway.methods.sessions import changed
from backchannel.wire.answers import SessionPatched
from backchannel.wire.frames import TokenScope
from backchannel.wire.shapes import SharedParams, encoded_name

_ADMINS = ("display_name", "send_policy", "verbose_level", "elevated_level")
_ONLY_CONFIGURED = (
    "permission_mode",
    "tool_overrides",
    "exec_host",
    "exec_security",
    "exec_ask",
    "exec_node",
    "inherited_tool_allow",
    "inherited_tool_deny",
)


class SessionsPatchParams(SharedParams, frozen=True, kw_only=True):
    key: str
    agent_id: str | None = None
    expected_session_id: str | None = None
    label: Label | UnsetType | None = UNSET
    display_name: Label | UnsetType | None = UNSET
    send_policy: Literal["allow", "deny"] | UnsetType | None = UNSET
    model: str | UnsetType | None = UNSET
    thinking_level: str | UnsetType | None = UNSET
    verbose_level: Literal["on", "full", "off"] | UnsetType | None = UNSET
    archived: bool | UnsetType = UNSET
    elevated_level: Any = UNSET
    permission_mode: Any = None
    tool_overrides: Any = None
    exec_host: Any = None
    exec_security: Any = None
    exec_ask: Any = None
    exec_node: Any = None
    inherited_tool_allow: Any = None
    inherited_tool_deny: Any = None


@method("sessions.patch", TokenScope.WRITE)
async def sessions_patch(call: Call, params: SessionsPatchParams) -> SessionPatched:
    """Changes a session's settings, and makes the session if it is new; null clears a setting.

    `displayName`, `sendPolicy`, `verboseLevel` and `elevatedLevel` need `operator.admin`. Archiving stops the session's
    run and keeps its transcript. The `verboseLevel` `full` is stored as `on`.

    Some settings of OpenClaw's clients are accepted and have no effect: `pinned`, `unread`, `icon`, `color`,
    `fastMode`, `reasoningLevel`, `traceLevel`, `responseUsage`, `elevatedLevel` and others. Limits of tools, such as
    `permissionMode`, are refused, since nothing here would enforce them.
    """
    parts = call.parts
    _check_scope(call, params)
    _check_nothing_is_pretended(params)
    resolved = await resolve(parts, params.key, params.agent_id)
    if not resolved.exists:
        check_agent(parts, resolved.key.agent)
    if isinstance(params.model, str):
        read_model(parts, params.model)
    if isinstance(params.thinking_level, str):
        read_thinking(params.thinking_level, "thinkingLevel")
    await _check_archiving(call, params, resolved.key)
    change = SessionPatch(
        label=params.label,
        display_name=params.display_name,
        send_policy=params.send_policy,
        model=params.model,
        thinking_level=params.thinking_level,
        verbose_level="on" if params.verbose_level == "full" else params.verbose_level,  # there is one level of it here
    )
    expected = params.expected_session_id or resolved.session_id
    session = await parts.store.patch_session(resolved.key, change, expected_session_id=expected)
    if params.archived is True:
        # A commit of its own: it must not archive a session that took the key meanwhile.
        session = await parts.runtime.delete(resolved.key, expected_session_id=session.session_id)
    return await changed(call, session)


def _check_scope(call: Call, params: SessionsPatchParams) -> None:
    """Refuse settings that need the scope admin.

    Raises:
        ScopeMissing: nothing was changed.
    """
    needing = [encoded_name(params, name) for name in _ADMINS if getattr(params, name) is not UNSET]
    if needing and TokenScope.ADMIN not in call.holder.scopes:
        raise ScopeMissing(
            f"sessions.patch needs the scope {TokenScope.ADMIN.value} to change {', '.join(needing)}",
            scope=TokenScope.ADMIN.value,
        )


def _check_nothing_is_pretended(params: SessionsPatchParams) -> None:
    """Refuse limits of tools, which nothing here would enforce.

    Raises:
        InvalidRequest: one is given.
    """
    for name in _ONLY_CONFIGURED:
        if getattr(params, name) is not None:
            param = encoded_name(params, name)
            raise InvalidRequest(
                f"{param}: sessions do not have this setting (the agent's configuration decides what tools may do)",
                param=param,
            )


async def _check_archiving(call: Call, params: SessionsPatchParams, key: SessionKey) -> None:
    if params.archived is True and call.parts.scheme.is_main(key):
        raise MainSessionKept(f"{quoted(params.key)} is a main session: it can be reset, not archived")
    if params.archived is False:
        session = await call.parts.store.session(str(key))
        if session is not None and session.archived_at is not None:
            raise InvalidRequest(
                "archived: an archived session does not come back (a message to its key starts a new one)",
                param="archived",
            )
