"""Hooks: `POST /hooks/agent` starts a run, `POST /hooks/wake` leaves a note.

Only the hook token is accepted here, and it is accepted nowhere else. It is checked before the body is read, so that a
request without it costs little. `triggers/hooks.py` decides what a hook may ask for.
"""

from __future__ import annotations

import hmac
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias, TypeVar

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from backchannel.core.contracts import THINKING_LEVELS, Check
from backchannel.core.keys import SessionKey
from backchannel.core.runs import MAX_RUN_S, RunKind, RunRequest, scoped_run_id
from backchannel.core.sessions import WEBCHAT, Address
from backchannel.errors import InvalidRequest, StartupError, Unauthorized
from backchannel.gateway.addressing import check_agent, check_agent_id, operator_keys
from backchannel.gateway.auth import hash_token, read_bearer
from backchannel.gateway.fields import (
    ONE_LINE,
    Label,
    TriggersKey,
    digest_of,
    read_content,
    read_model,
    read_posted,
    read_reply_to,
    read_thinking,
)
from backchannel.gateway.parts import GatewayParts
from backchannel.gateway.ws.peers import let_in
from backchannel.gateway.ws.throttling import FailedAttempts, address_of
from backchannel.tools.base import hash_request
from backchannel.triggers import hooks
from backchannel.wire.shapes import Answer, Params

if TYPE_CHECKING:
    from backchannel.core.contracts import Clock

P = TypeVar("P", bound=Params)
Schema: TypeAlias = dict[str, Any]

HOOKS_AT = "/hooks/"
AGENT, WAKE = f"{HOOKS_AT}agent", f"{HOOKS_AT}wake"

_TOKEN_ID = "hooks"
_IN_A_QUERY = ("token", "access_token")
_WHERE_IT_GOES = "it goes in the header `Authorization: Bearer <hooks.token>`"

Name: TypeAlias = Annotated[str, Meta(min_length=1, max_length=512, pattern=ONE_LINE)]
"""The name of a channel, a chat or an account: one line."""


class HookAgentParams(Params, frozen=True, kw_only=True):
    message: str
    name: Label | None = None
    agent_id: str | None = None
    session_key: str | None = None
    deliver: bool = False
    channel: Name | None = None
    to: Name | None = None
    account_id: Name | None = None
    thread_id: Name | None = None
    model: str | None = None
    thinking: str | None = None
    timeout_seconds: Annotated[float, Meta(gt=0, le=MAX_RUN_S)] | None = None
    idempotency_key: TriggersKey | None = None


_TEXT: Schema = {"type": "string"}
_ELSEWHERE: Schema = {"type": "string", "not": {"const": WEBCHAT.channel}}


def _given(name: str, kind: Schema = _TEXT) -> Schema:
    """Describe requests that have a parameter: null means absent."""
    return {"required": [name], "properties": {name: kind}}


AGENT_RULES: Schema = {
    "allOf": [
        {"if": {"anyOf": [_given("to"), _given("accountId"), _given("threadId")]}, "then": _given("channel")},
        {"if": _given("channel"), "then": _given("deliver", {"const": True})},
        {"if": _given("channel", _ELSEWHERE), "then": _given("to")},
        {"properties": {"thinking": {"enum": [*THINKING_LEVELS, None]}}},
    ]
}
"""The rules that the types above do not say, for the description of this door: of an address, and of a level."""


class HookWakeParams(Params, frozen=True, kw_only=True):
    text: str
    idempotency_key: TriggersKey | None = None


class HookAccepted(Answer, frozen=True, kw_only=True):
    ok: bool
    run_id: str
    session_key: str


class HookNoted(Answer, frozen=True, kw_only=True):
    ok: bool
    message_id: str
    session_key: str


class HookDoor:
    """Serves the two routes, if hooks are enabled.

    Raises:
        StartupError: the hook token is the operator's.
    """

    def __init__(self, parts: GatewayParts, operator_token: str) -> None:
        self._parts = parts
        self._settings = parts.config.hooks
        self._guard: HookGuard | None = None
        if self._settings.enabled and self._settings.token is not None:
            if hmac.compare_digest(hash_token(self._settings.token), hash_token(operator_token)):
                raise StartupError("hooks.token must differ from the operator's token (choose another for the hooks)")
            self._guard = HookGuard(self._settings.token, parts.clock)

    def routes(self) -> list[Route]:
        if self._guard is None:
            return []
        return [Route(AGENT, self._agent, methods=["POST"]), Route(WAKE, self._wake, methods=["POST"])]

    async def _agent(self, request: Request) -> Response:
        params = await self._read(request, HookAgentParams)
        key = self._key(params)
        place = f"a new session of {key.agent}" if params.session_key is None else str(key)
        posted = RunRequest(
            key=key,
            content=read_content(params.message),
            provenance=hooks.POSTED,
            label=params.name,
            kind=RunKind.HOOK,
            id=_scoped(params.idempotency_key),
            digest=digest_of(_TOKEN_ID, AGENT, place, params),
            deliver=params.deliver,
            reply_to=self._reply_to(params),
            model=read_model(self._parts, params.model),
            thinking=read_thinking(params.thinking),
            timeout_s=params.timeout_seconds,
        )
        run = (await self._parts.runtime.submit(posted, self._check(params))).run
        return _show(202, HookAccepted(ok=True, run_id=run.id, session_key=self._parts.rows.key(run.session_key)))

    async def _wake(self, request: Request) -> Response:
        params = await self._read(request, HookWakeParams)
        read_content(params.text, "text")
        key = self._parts.scheme.main(self._parts.scheme.default_agent)
        note = hooks.wake_note(params.text, self._parts.clock.now_ms())
        digest = hash_request(_TOKEN_ID, WAKE, str(key), params.text)
        message_id = await self._parts.store.add_note(key, note, _scoped(params.idempotency_key), digest)
        return _show(200, HookNoted(ok=True, message_id=message_id, session_key=self._parts.rows.key(str(key))))

    async def _read(self, request: Request, params: type[P]) -> P:
        assert self._guard is not None, "without a guard there are no routes"
        self._guard.check(request)
        return read_posted(request.url.path, await request.body(), params)

    def _key(self, params: HookAgentParams) -> SessionKey:
        keys = operator_keys(self._parts, params.agent_id)
        if params.session_key is None:
            return hooks.new_key(keys.agent)
        key = hooks.read_key(keys, params.session_key, self._settings.allow_session_keys)
        if params.agent_id is not None:
            check_agent_id(keys, key)
        check_agent(self._parts, key.agent)
        return key

    def _reply_to(self, params: HookAgentParams) -> Address | None:
        address = read_reply_to(self._parts, params)
        if address is None:
            return None
        if not params.deliver:
            raise InvalidRequest("channel: it has no effect without deliver: true", param="channel")
        hooks.check_channel(address.channel, self._settings.allow_deliver)
        return address

    def _check(self, params: HookAgentParams) -> Check | None:
        """Check the session's return address at acceptance, if the reply goes there."""
        if not params.deliver or params.channel is not None:
            return None
        return lambda session: hooks.check_return_address(session, self._settings.allow_deliver)


class HookGuard:
    """Checks the hook token, and slows down addresses with wrong ones, apart from other logins."""

    def __init__(self, token: str, clock: Clock) -> None:
        self._hash = hash_token(token)
        self._failures = FailedAttempts(clock, "hook")

    def check(self, request: Request) -> None:
        """Refuse a request without the hook token.

        Raises:
            Unauthorized, SlowDown
        """
        if any(name in request.query_params for name in _IN_A_QUERY):
            raise Unauthorized(f"a token in the query is refused, because queries are logged: {_WHERE_IT_GOES}")
        token = read_bearer(request.headers.get("authorization"))
        if not token:
            raise Unauthorized(f"the hook token is needed: {_WHERE_IT_GOES}")
        digest = hash_token(token)
        if not hmac.compare_digest(digest, self._hash):
            self._failures.add(address_of(request), digest)
            raise Unauthorized(f"this is not the hook token, and no other token is accepted here: {_WHERE_IT_GOES}")
        let_in(request.scope)


def _scoped(idempotency_key: str | None) -> str | None:
    return None if idempotency_key is None else scoped_run_id(hooks.HOOK, idempotency_key)


def _show(status: int, answer: Answer) -> Response:
    return Response(msgspec.json.encode(answer), status_code=status, media_type="application/json")
