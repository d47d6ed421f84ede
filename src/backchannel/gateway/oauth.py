"""Tokens of an OAuth issuer, and the metadata for clients without one.

The issuer's public keys are fetched with the first token, and again when they are old or a token names another key.
Only signatures of a key pair count: a shared secret that verifies a token could also make one.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import msgspec
import structlog
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Message, Scope, Send

from backchannel.agents.loading import load
from backchannel.config.schema_doors import GatewaySettings, OAuthSettings
from backchannel.core.contracts import Clock
from backchannel.core.incoming_json import check_parts
from backchannel.core.keys import SessionKey
from backchannel.errors import InvalidSessionKey, Unavailable
from backchannel.gateway.auth import TokenHolder, expand_scopes

if TYPE_CHECKING:
    import httpx2

log = structlog.get_logger(__name__)

METADATA_AT = "/.well-known/oauth-protected-resource"
LONGEST_TOKEN = 16 * 1024
KEYS_LIVE_S = 600.0
"""The life of fetched keys, after which a revoked key no longer counts."""
FETCH_PAUSE_S = 10.0
"""The shortest time between two fetches, so that invented key ids do not flood the issuer."""
FETCH_S = 5.0
MOST_METADATA_BYTES = 1024 * 1024
MOST_KEYS = 100
"""How many keys of an issuer count: a token that names none is tried with each."""
LEEWAY_S = 30

_ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")


class Issuer:
    """Reads the tokens of the configured issuer."""

    def __init__(self, settings: OAuthSettings, audience: str, clock: Clock, fetch_s: float = FETCH_S) -> None:
        self._settings = settings
        self._audience = audience
        self._keys = IssuerKeys(settings, clock, fetch_s)

    async def find(self, token: str) -> TokenHolder | None:
        """Find the holder of a token; None if it is not the issuer's, not for this gateway, or expired.

        Raises:
            Unavailable: the issuer's keys cannot be had.
        """
        if token.count(".") != 2 or len(token) > LONGEST_TOKEN:
            return None
        import jwt  # with its cryptography it takes a tenth of a second, and few gateways have an issuer

        try:
            header = jwt.get_unverified_header(token)
            if header.get("alg") not in _ALGORITHMS:
                return None
            for key in await self._keys.named(header.get("kid")):
                if (claims := self._verified(token, key, header["alg"])) is not None:
                    return self._caller(claims)
        except jwt.PyJWTError:
            return None  # not a token at all: which of the many ways is of no use to an honest client
        return None

    def _verified(self, token: str, key: dict[str, Any], algorithm: str) -> dict[str, Any] | None:
        import jwt

        if key.get("kty") == "oct" or key.get("use", "sig") != "sig" or key.get("alg", algorithm) != algorithm:
            return None
        try:
            return dict(
                jwt.decode(
                    token,
                    jwt.PyJWK(key, algorithm),
                    algorithms=[algorithm],
                    audience=self._audience,
                    issuer=self._settings.issuer,
                    leeway=LEEWAY_S,
                    options={"require": ["exp", "iss", "aud", "sub"]},
                )
            )
        except jwt.PyJWTError as error:
            log.info("a token of the issuer was refused", reason=type(error).__name__)
            return None

    def _caller(self, claims: dict[str, Any]) -> TokenHolder | None:
        """Make a caller from verified claims. An empty session claim gives no access."""
        who = "oauth:" + hashlib.sha256(f"{claims['iss']} {claims['sub']}".encode()).hexdigest()[:24]
        bound = claims.get(self._settings.session_claim)
        if bound is None:
            given = {self._settings.scopes[scope] for scope in _scopes(claims) if scope in self._settings.scopes}
            return TokenHolder(who, expand_scopes(given), is_issued=True)
        try:
            return TokenHolder(who, frozenset(), str(SessionKey.parse(str(bound))), is_issued=True)
        except InvalidSessionKey:
            log.warning("a token is bound to what is no session key", claim=self._settings.session_claim)
            return None


def issuer_of(settings: GatewaySettings, clock: Clock) -> Issuer | None:
    """Make a reader of the configured issuer's tokens."""
    oauth = settings.auth.oauth
    if oauth is None:
        return None
    return Issuer(oauth, oauth.audience or f"http://{settings.host}:{settings.port}/mcp", clock)


def _scopes(claims: dict[str, Any]) -> Iterable[str]:
    """Read the scopes of a token, as RFC 9068 writes them or as a list."""
    given = claims.get("scope", claims.get("scp", ""))
    if isinstance(given, list):
        return [scope for scope in given if isinstance(scope, str)]
    return given.split() if isinstance(given, str) else ()


class IssuerKeys:
    """The issuer's public keys, fetched when they are needed."""

    def __init__(self, settings: OAuthSettings, clock: Clock, fetch_s: float) -> None:
        self._settings = settings
        self._clock = clock
        self._fetch_s = fetch_s
        self._keys: list[dict[str, Any]] = []
        self._fetched_at: float | None = None
        self._tried_at: float | None = None
        self._fetching = asyncio.Lock()

    async def named(self, kid: object) -> list[dict[str, Any]]:
        """Give the keys that may have signed a token: the one it names, or all.

        Raises:
            Unavailable: there are none yet, and they cannot be fetched.
        """
        found = self._named(kid)
        if not found or self._is_since(self._fetched_at, KEYS_LIVE_S):
            async with self._fetching:  # those who waited find what the first has fetched
                await self._fetch()
            found = self._named(kid)
        if not found and self._fetched_at is None:
            raise Unavailable(
                "the keys of the OAuth issuer cannot be fetched now: try again, or use a token of this gateway"
            )
        return found

    def _named(self, kid: object) -> list[dict[str, Any]]:
        return [key for key in self._keys if kid is None or key.get("kid") == kid]

    def _is_since(self, at: float | None, seconds: float) -> bool:
        return at is None or self._clock.monotonic() - at >= seconds

    async def _fetch(self) -> None:
        """Fetch the keys, unless just tried. After a failure the old keys stay valid."""
        if not self._is_since(self._tried_at, FETCH_PAUSE_S):
            return
        self._tried_at = self._clock.monotonic()
        client = await load(self._make_client)
        import httpx2  # it is loaded by now

        try:
            async with asyncio.timeout(self._fetch_s), client as http:
                keys = await _load_json(http, self._settings.jwks_url or await self._find_keys(http))
                self._keys = [key for key in keys["keys"][:MOST_KEYS] if isinstance(key, dict)]
                self._fetched_at = self._clock.monotonic()
        except (httpx2.HTTPError, httpx2.InvalidURL, TimeoutError, ValueError, KeyError, TypeError) as error:
            log.warning(
                "the keys of the OAuth issuer could not be fetched", issuer=self._settings.issuer, error=repr(error)
            )

    def _make_client(self) -> httpx2.AsyncClient:
        """Make the client in a thread: its library and certificates take a tenth of a second."""
        import httpx2

        return httpx2.AsyncClient(timeout=self._fetch_s)

    async def _find_keys(self, http: httpx2.AsyncClient) -> str:
        """Ask the issuer for the address of its keys."""
        import httpx2

        base = self._settings.issuer.rstrip("/")
        scheme, _, rest = base.partition("://")
        host, slash, path = rest.partition("/")
        inserted = f"{scheme}://{host}/.well-known/oauth-authorization-server{slash}{path}"
        for place in (f"{base}/.well-known/openid-configuration", inserted):
            try:
                metadata = await _load_json(http, place)
            except (httpx2.HTTPStatusError, ValueError):
                continue
            keys = str(metadata.get("jwks_uri"))
            # An issuer on this machine may do without encryption; what it names must not come from farther away.
            if metadata.get("issuer") == self._settings.issuer and keys.startswith((f"{base}/", "https://")):
                return keys
        raise ValueError("the issuer does not say where its keys are (set gateway.auth.oauth.jwksUrl)")


async def _load_json(http: httpx2.AsyncClient, url: str) -> dict[str, Any]:
    """Ask for a JSON object.

    Raises:
        ValueError: it is none, or too large to be read in a moment.
    """
    headers = {"accept": "application/json", "accept-encoding": "identity"}
    async with http.stream("GET", url, headers=headers) as response:
        response.raise_for_status()
        body = b""
        async for piece in response.aiter_raw():  # what is compressed may be a thousand times as long as it came
            body += piece
            if len(body) > MOST_METADATA_BYTES:
                raise ValueError(f"{url} answers with more than {MOST_METADATA_BYTES} bytes")
    check_parts(body)
    try:
        return msgspec.json.decode(body, type=dict[str, Any])
    except RecursionError:
        raise ValueError(f"{url} answers with JSON that is nested too deeply") from None


class Resource:
    """The metadata for clients without a token: where the issuer is, and which scopes to ask for."""

    def __init__(self, settings: GatewaySettings) -> None:
        self._oauth = settings.auth.oauth
        self._audience = settings.auth.oauth.audience if settings.auth.oauth else None

    def routes(self) -> list[Route]:
        """Serve the metadata at the root and for `/mcp`, if there is an issuer."""
        if self._oauth is None:
            return []
        return [Route(METADATA_AT, self._show), Route(METADATA_AT + "/mcp", self._show)]

    async def _show(self, request: Request) -> Response:
        assert self._oauth is not None
        path = request.url.path.removeprefix(METADATA_AT)
        is_address = self._audience is not None and self._audience.startswith(("http://", "https://"))
        shown = {
            "resource": self._audience if is_address else f"{_base(request.scope)}{path}",
            "resource_name": "Backchannel",
            "authorization_servers": [self._oauth.issuer],
            "scopes_supported": list(self._oauth.scopes),
            "bearer_methods_supported": ["header"],
        }
        return JSONResponse(shown, headers={"cache-control": "max-age=300"})

    def challenging(self, scope: Scope, send: Send) -> Send:
        """Add the address of the metadata to a 401 answer."""
        if self._oauth is None or scope["type"] != "http":
            return send
        place = f"{_base(scope)}{METADATA_AT}{'/mcp' if scope['path'] == '/mcp' else ''}"

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start" and message["status"] == 401:
                headers = MutableHeaders(scope=message)
                if headers.get("www-authenticate") == "Bearer":
                    headers["www-authenticate"] = f'Bearer resource_metadata="{place}"'
            await send(message)

        return sending


def _base(scope: Scope) -> str:
    """The address in the request; `Host` has been checked."""
    return f"{scope['scheme']}://{Headers(scope=scope).get('host', '')}"
