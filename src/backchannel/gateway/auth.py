"""Access: tokens and their holders, the caller of a tool, and foreign pages.

The operator's token is configured, or made at first start and kept in the state folder. There are stored operator
tokens with fewer scopes, and agents' tokens, each bound to one session. Stored tokens are kept only as SHA-256 hashes.
A token comes in the `Authorization` header or the connect frame, never in a query. No log or error shows one.

The token decides who calls a tool; an argument never does. With an operator's token the caller is the operator, or the
session named, under its own visibility, policy and sandbox. An agent's token calls only as its own session.

Two checks keep foreign pages out of a browser's connections. `Host` must name this gateway, so that DNS rebinding does
not work. An `Origin` must be the gateway's own or configured.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import secrets
import socket
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol
from urllib.parse import urlsplit

import msgspec
from starlette.requests import HTTPConnection

from backchannel.agents.toolset import NEVER_FOR_SUBAGENTS
from backchannel.config.locations import store_private
from backchannel.config.schema_doors import GatewaySettings
from backchannel.core.caller_keys import CallerKeys
from backchannel.core.contracts import Clock
from backchannel.core.hosts import LOOPBACK_NAMES
from backchannel.core.keys import SessionKey
from backchannel.core.records import TokenRow
from backchannel.core.text import quoted, shown_name
from backchannel.errors import (
    Forbidden,
    GatewayError,
    InvalidRequest,
    NotFound,
    OriginNotAllowed,
    ScopeMissing,
    SessionNotFound,
    StartupError,
    Unauthorized,
    UnknownAgent,
)
from backchannel.gateway.addressing import check_agent, resolve
from backchannel.gateway.fields import IdempotencyKey
from backchannel.gateway.parts import GatewayParts
from backchannel.gateway.ws.peers import let_in
from backchannel.gateway.ws.throttling import FailedAttempts, address_of
from backchannel.openclaw.words import APPROVALS_SCOPE, PAIRING_SCOPE
from backchannel.tools.base import Caller, Until
from backchannel.tools.registry import find_tool, invoke
from backchannel.wire.frames import Connect, TokenScope
from backchannel.wire.shapes import Params

OPERATOR_TOKEN_ID = "operator"
TOKEN_PREFIX = "bc_"
MAX_WRONG_REMEMBERED = 10_000

_ORDER = (TokenScope.READ, TokenScope.WRITE, TokenScope.ADMIN)


MOST_CAPS = 64
"""The number of capabilities of a node that are kept."""


@dataclass(frozen=True, slots=True)
class NodeSays:
    """A node's report about itself, for people; it proves nothing."""

    name: str | None
    platform: str | None
    version: str | None
    device_family: str | None
    caps: tuple[str, ...]

    @classmethod
    def read(cls, asked: Connect) -> NodeSays:
        """Read a node's report, as far as it can be shown."""
        client = asked.client
        caps = [name for cap in asked.caps[:MOST_CAPS] if (name := shown_name(cap))]
        return cls(
            shown_name(client.display_name),
            shown_name(client.platform),
            shown_name(client.version),
            shown_name(client.device_family),
            tuple(dict.fromkeys(caps)),
        )


@dataclass(frozen=True, slots=True)
class TokenHolder:
    """The holder of a token: the operator, an agent's session, or a node."""

    token_id: str
    scopes: frozenset[TokenScope]
    session_key: str | None = None
    node: SessionKey | None = None
    """The session of a node; a node has no scopes, whatever its token has."""
    node_says: NodeSays | None = None
    """A node's report about itself."""
    is_issued: bool = False
    """Whether its token is that of an OAuth issuer."""
    device_token: str | None = None
    """The id of its device token; `token_id` is that token's parent."""
    parts: frozenset[str] = frozenset()
    """The parts of the scope admin that it asked for, if its token has that scope."""

    @property
    def is_agent(self) -> bool:
        return self.session_key is not None

    @property
    def role(self) -> str:
        if self.node is not None:
            return "node"
        return "agent" if self.is_agent else "operator"

    def as_node(self, key: SessionKey, says: NodeSays) -> TokenHolder:
        """Make it a node, which has only its own sessions."""
        return TokenHolder(self.token_id, frozenset(), node=key, node_says=says, is_issued=self.is_issued)

    def with_scopes(self, asked: Iterable[str] | None) -> TokenHolder:
        """Grant the scopes that were asked for and the token has; asking for none means all."""
        if not asked:
            return self
        asked = set(asked)
        parts = asked & {PAIRING_SCOPE, APPROVALS_SCOPE} if TokenScope.ADMIN in self.scopes else frozenset()
        return replace(self, scopes=self.scopes & expand_scopes(asked), parts=frozenset(parts))

    @property
    def shown_scopes(self) -> list[str]:
        return show_scopes(self.scopes)


def show_scopes(scopes: Iterable[TokenScope]) -> list[str]:
    """Name scopes in order, the smallest first."""
    return [scope.value for scope in sorted(scopes, key=_ORDER.index)]


def expand_scopes(words: Iterable[str]) -> frozenset[TokenScope]:
    """Read scopes as people write them, with those they include; unknown ones are left out."""
    known = {scope.value: index for index, scope in enumerate(_ORDER)}
    known |= {scope.value.removeprefix("operator."): index for index, scope in enumerate(_ORDER)}
    highest = max((known.get(word.strip().lower(), -1) for word in words), default=-1)
    return frozenset(_ORDER[: highest + 1])


def read_scopes(words: Iterable[str]) -> frozenset[TokenScope]:
    """Read scopes that must all be known.

    Raises:
        InvalidRequest: one is not.
    """
    words = list(words)
    for word in words:
        if not expand_scopes([word]):
            raise InvalidRequest(f"unknown scope {quoted(word, 64)} (expected read, write or admin)", param="scopes")
    return expand_scopes(words)


class OperatorToken(NamedTuple):
    """The operator's token, and whether this start made it."""

    token: str
    is_new: bool

    def __repr__(self) -> str:
        return f"OperatorToken(<hidden>, is_new={self.is_new})"


def load_operator_token(state_dir: Path, configured: str | None) -> OperatorToken:
    """Give the configured token, else that of the state folder, made if missing.

    Raises:
        StartupError: the file can be neither read nor made, or is empty.
    """
    if configured:
        return OperatorToken(configured, is_new=False)
    file = state_dir / "token"
    try:
        made = not file.exists() and store_private(file, new_token() + "\n")
        token = file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise StartupError(f"cannot keep the operator token in {file}: {error}") from error
    if not token:
        raise StartupError(f"{file} is empty (delete it to have a new token made, or set gateway.auth.token)")
    return OperatorToken(token, is_new=made)


def new_token() -> str:
    """Make a token that cannot be guessed."""
    return TOKEN_PREFIX + secrets.token_urlsafe(32)


def hash_token(token: str) -> str:
    """Hash a token as it is stored; it is random, so no salt is needed."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


class Tokens(Protocol):
    """The store of tokens."""

    async def token_by_digest(self, digest: str) -> TokenRow | None: ...


class OtherTokens(Protocol):
    """Reads tokens that are not the gateway's own."""

    async def find(self, token: str) -> TokenHolder | None: ...


class Access:
    """Authenticates by token. A valid one is never slowed down by wrong ones of the same address."""

    def __init__(self, tokens: Tokens, operator_token: str, clock: Clock, others: OtherTokens | None = None) -> None:
        self._tokens = tokens
        self._others = others
        self._operator_hash = hash_token(operator_token)
        self._failures = FailedAttempts(clock, "login")
        self._wrong: OrderedDict[str, None] = OrderedDict()
        """Hashes that no token has, so that a repeated wrong token is not looked up each time.

        Tokens are random, so no later token has such a hash.
        """

    async def admit(self, request: HTTPConnection) -> TokenHolder:
        """Authenticate a request by its `Authorization` header; its connection then counts as logged in.

        Raises:
            Unauthorized, SlowDown: see `login`.
        """
        caller = await self.login(read_bearer(request.headers.get("authorization")), address_of(request))
        let_in(request.scope)
        return caller

    async def login(self, token: str | None, address: str) -> TokenHolder:
        """Find the holder of a token.

        Raises:
            Unauthorized: there is no token, or it is not valid.
            SlowDown: it is not valid, and too many such came from this address.
        """
        if not token:
            raise Unauthorized("a token is needed (in the Authorization header or in connect's auth.token)")
        digest = hash_token(token)
        caller = await self._find(digest)
        if caller is None and self._others is not None:
            caller = await self._others.find(token)
        if caller is None:
            self._failures.add(address, digest)
            raise Unauthorized("the token is not valid here (mistyped, revoked, or one of another gateway)")
        return caller

    async def _find(self, digest: str) -> TokenHolder | None:
        if hmac.compare_digest(digest, self._operator_hash):
            return TokenHolder(OPERATOR_TOKEN_ID, frozenset(_ORDER))
        if digest in self._wrong:
            return None
        # Looking up by hash leaks no timing: what an attacker could learn of is the hash of a guess.
        row = await self._tokens.token_by_digest(digest)
        if row is None or row.revoked_at is not None:
            self._remember_wrong(digest)
            return None
        scopes = frozenset[TokenScope]() if row.session_key else expand_scopes(row.scopes)
        return TokenHolder(row.id, scopes, row.session_key)

    def _remember_wrong(self, digest: str) -> None:
        self._wrong[digest] = None
        if len(self._wrong) > MAX_WRONG_REMEMBERED:
            self._wrong.popitem(last=False)


def read_bearer(authorization: str | None) -> str | None:
    """Take the token out of an `Authorization` header."""
    if authorization is None:
        return None
    kind, _, token = authorization.strip().partition(" ")
    return token.strip() or None if kind.lower() == "bearer" else None


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the host."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        pass
    try:
        found = socket.getaddrinfo(host, None)
    except OSError:
        return False
    return all(ipaddress.ip_address(str(entry[4][0]).partition("%")[0]).is_loopback for entry in found)


def check_bind(settings: GatewaySettings) -> None:
    """Refuse to be reachable from outside with a token that was not chosen.

    Raises:
        StartupError: the host is not loopback and no token is configured.
    """
    if settings.auth.token is None and not is_loopback(settings.host):
        raise StartupError(
            f"listening on {settings.host} needs a token of your own "
            "(set gateway.auth.token or BACKCHANNEL_TOKEN, or listen on 127.0.0.1)"
        )


class OriginCheck:
    """Checks `Host` and `Origin`, the same for HTTP and WebSocket."""

    def __init__(self, settings: GatewaySettings, webhooks: frozenset[str] = frozenset()) -> None:
        """Make it; `webhooks` are the hosts of webhook addresses given to platforms."""
        self._names = LOOPBACK_NAMES | webhooks | {settings.host.lower().strip("[]")}
        self._names |= {name.lower().strip("[]") for name in settings.allowed_hosts}
        allowed = (*settings.allowed_origins, *settings.control_ui.allowed_origins)
        self._origins = frozenset(origin.lower().rstrip("/") for origin in allowed)
        self._is_everywhere = settings.host in ("0.0.0.0", "::")  # noqa: S104 - compared, not bound

    def check_host(self, host: str | None) -> None:
        """Refuse a request that was meant for another host.

        Raises:
            Forbidden: `Host` does not name this gateway.
        """
        name = _host_name(host or "")
        if name is None or not self._is_known(name):
            raise Forbidden(f"{quoted(host or '')} is not a name of this gateway (add it to gateway.allowedHosts)")

    def foreign(self, host: str | None, origin: str | None) -> OriginNotAllowed | None:
        """Say why a page may not use the gateway; None if it may, or without a page."""
        if origin is None or self._is_own(origin.strip().lower(), (host or "").strip().lower()):
            return None
        return OriginNotAllowed(
            f"pages of {quoted(origin)} may not use the gateway (add it to gateway.controlUi.allowedOrigins)"
        )

    def _is_known(self, name: str) -> bool:
        if name in self._names:
            return True
        try:
            ip = ipaddress.ip_address(name)
        except ValueError:
            return False
        # A re-bound DNS name never shows as an address, and a gateway that listens everywhere has any address.
        return ip.is_loopback or self._is_everywhere

    def _is_own(self, origin: str, host: str) -> bool:
        if origin in self._origins or "*" in self._origins:
            return True
        scheme, _, place = origin.partition("://")
        return scheme in ("http", "https") and place == host


def _host_name(host: str) -> str | None:
    """Take the name out of a `Host` header, without its port."""
    try:
        return urlsplit(f"//{host.strip()}").hostname
    except ValueError:
        return None


_SCOPES = {"read": TokenScope.READ, "write": TokenScope.WRITE}


class InvokeParams(Params, frozen=True, kw_only=True):
    """A call of a tool, over WebSocket and HTTP alike."""

    tool: str
    args: dict[str, Any] = msgspec.field(default_factory=dict)
    session_key: str | None = None
    idempotency_key: IdempotencyKey | None = None


async def invoke_as(parts: GatewayParts, holder: TokenHolder, params: InvokeParams, until: Until | None = None) -> Any:
    """Call a session tool for the holder of a token; `until` ends its waits when the gateway stops.

    Raises:
        UnknownTool, InvalidRequest: the call does not fit.
        Forbidden, ScopeMissing: the token may not make it.
    """
    tool = find_tool(params.tool)
    needed = _SCOPES[tool.scope]
    if not holder.is_agent and needed not in holder.scopes:
        raise ScopeMissing(f"{tool.name} needs the scope {needed.value}", scope=needed.value)
    caller = await caller_of(parts, holder, params.session_key)
    check_tool(parts, caller, tool.name)
    calling = Caller(caller.key, params.idempotency_key, token_id=holder.token_id, until=until)
    return await invoke(parts, calling, tool.name, params.args)


def check_tool(parts: GatewayParts, caller: Caller, name: str) -> None:
    """Refuse a tool that the caller does not have; a sub-agent's spawn is refused by the tool itself.

    Raises:
        Forbidden: the message names the setting that decided.
    """
    key = caller.key
    if key is None or has_tool(parts, caller, name) or (key.is_subagent and name == NEVER_FOR_SUBAGENTS):
        return
    shown = CallerKeys(parts.scheme, None).show(key)
    raise Forbidden(f"{name} is not among the tools of {shown}: {parts.toolset.why_not(key, name)}", tool=name)


def has_tool(parts: GatewayParts, caller: Caller, name: str) -> bool:
    """Whether the caller has a tool: a session has those of its agent, the operator has all."""
    key = caller.key
    return key is None or name in parts.toolset.of(key.agent, str(key))


async def caller_of(parts: GatewayParts, holder: TokenHolder, session: str | None) -> Caller:
    """Decide who calls: the operator or a session.

    Raises:
        Forbidden: it is bound to another session, or the session named cannot be a caller.
    """
    if holder.session_key is not None:
        bound = parts.scheme.in_force(SessionKey.parse(holder.session_key))
        if session is not None and not await _means(parts, session, bound):
            raise Forbidden("this token is bound to one session, and may not call as another")
        return await _calling_as(parts, bound)
    if session is None:
        return Caller()
    try:
        key = (await resolve(parts, session)).key
    except (InvalidRequest, NotFound) as error:
        raise _cannot_call(error) from error
    return await _calling_as(parts, key)


async def _calling_as(parts: GatewayParts, key: SessionKey) -> Caller:
    """Make an existing session the caller; the main session of a configured agent always exists."""
    try:
        check_agent(parts, key.agent)
        found = await parts.store.session(str(key))
        if not parts.scheme.is_main(key) and (found is None or found.archived_at is not None):
            raise SessionNotFound(f"there is no session {str(key)!r}")
    except (UnknownAgent, SessionNotFound) as error:
        raise _cannot_call(error) from error
    return Caller(key)


def _cannot_call(error: GatewayError) -> Forbidden:
    return Forbidden(f"sessionKey: nobody can call as this session: {error.message}", param="sessionKey")


async def _means(parts: GatewayParts, text: str, bound: SessionKey) -> bool:
    if text in ("current", str(bound)):
        return True
    try:
        return (await resolve(parts, text, bound.agent)).key == bound
    except GatewayError:
        return False
