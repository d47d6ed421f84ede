"""Tokens of an OAuth issuer, from a real issuer on a socket, at every door."""

from __future__ import annotations

import asyncio
import hmac
import json
import time
from collections.abc import AsyncIterator, Callable
from typing import Any
from urllib.parse import parse_qs

import httpx2
import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from jwt.algorithms import ECAlgorithm, RSAAlgorithm
from jwt.utils import base64url_decode, base64url_encode
from mcp import Client
from mcp.client.auth.extensions.client_credentials import ClientCredentialsOAuthProvider
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.auth import OAuthClientInformationFull, OAuthToken

from backchannel.config.schema_doors import OAuthSettings
from backchannel.errors import Unavailable
from backchannel.gateway.oauth import FETCH_PAUSE_S, KEYS_LIVE_S, Issuer
from tests.support.clocks import StageClock
from tests.support.servers import LocalServer

from .client import OPERATOR
from .conftest import MakeWorld, World

pytestmark = pytest.mark.anyio

AUDIENCE = "https://gateway.example/mcp"
KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)
OTHER = rsa.generate_private_key(public_exponent=65537, key_size=2048)
CURVE = ec.generate_private_key(ec.SECP256R1())


def public(key: rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey, kid: str, **more: str) -> dict[str, Any]:
    if isinstance(key, rsa.RSAPrivateKey):
        return {**json.loads(RSAAlgorithm.to_jwk(key.public_key())), "kid": kid, **more}
    return {**json.loads(ECAlgorithm.to_jwk(key.public_key())), "kid": kid, **more}


class StubIssuer(LocalServer):
    """An issuer: its metadata and its keys."""

    def __init__(self) -> None:
        super().__init__()
        self.url = ""
        self.audience = AUDIENCE
        self.keys: list[dict[str, Any]] = [public(KEY, "one"), public(CURVE, "curve")]
        self.asked: list[str] = []
        self.posted: dict[str, list[str]] = {}
        self.answers: Callable[[str], tuple[int, bytes]] | None = None
        self.hangs: asyncio.Event | None = None

    def opened(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        path = head.split(" ")[1]
        self.asked.append(path)
        if (length := head.lower().partition("content-length: ")[2].split()[:1]) and int(length[0]):
            self.posted = parse_qs((await reader.readexactly(int(length[0]))).decode())
        if self.hangs is not None:
            await self.hangs.wait()
        status, body = (self.answers or self._answer)(path)
        head = f"HTTP/1.1 {status} -\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
        writer.write(head.encode() + body)
        await writer.drain()

    def _answer(self, path: str) -> tuple[int, bytes]:
        if path.startswith("/.well-known/"):
            return 200, json.dumps(self._metadata()).encode()
        if path == "/token":
            granted = {"access_token": self.token(), "token_type": "Bearer", "expires_in": 300}
            return 200, json.dumps(granted).encode()
        return (200, json.dumps({"keys": self.keys}).encode()) if path == "/keys" else (404, b"")

    def _metadata(self) -> dict[str, Any]:
        return {
            "issuer": self.url,
            "jwks_uri": f"{self.url}/keys",
            "authorization_endpoint": f"{self.url}/authorize",
            "token_endpoint": f"{self.url}/token",
            "response_types_supported": ["code"],
            "grant_types_supported": ["client_credentials"],
            "token_endpoint_auth_methods_supported": ["client_secret_post"],
        }

    def token(self, key: Any = KEY, kid: str | None = "one", algorithm: str = "RS256", **claims: Any) -> str:
        given = {
            "iss": self.url,
            "aud": self.audience,
            "sub": "ann",
            "exp": time.time() + 300,
            "scope": "operator.read",
        }
        given = {name: value for name, value in {**given, **claims}.items() if value is not None}
        return jwt.encode(given, key, algorithm, headers=None if kid is None else {"kid": kid})


@pytest.fixture
async def issuer(anyio_backend: str) -> AsyncIterator[StubIssuer]:
    async with StubIssuer() as made:
        yield made


@pytest.fixture
async def world(make_world: MakeWorld, issuer: StubIssuer) -> AsyncIterator[World]:
    oauth = {"issuer": issuer.url, "audience": AUDIENCE, "scopes": {"operator.read": "read", "all": "admin"}}
    async with make_world({"gateway": {"auth": {"oauth": oauth}}}) as made:
        yield made


async def status(world: World, token: str, tool: str = "sessions_list", **args: Any) -> int:
    headers = {"authorization": f"Bearer {token}"}
    async with httpx2.AsyncClient(headers=headers, trust_env=False, timeout=20) as http:
        answer = await http.post(f"{world.at.url}/tools/invoke", json={"tool": tool, "args": args})
        return answer.status_code


async def get(world: World, path: str, **headers: str) -> httpx2.Response:
    async with httpx2.AsyncClient(trust_env=False, timeout=20) as http:
        return await http.get(f"{world.at.url}{path}", headers=headers)


# Who is let in


async def test_a_token_of_the_issuer_is_let_in_with_the_scopes_that_it_has(world: World, issuer: StubIssuer) -> None:
    spawn = {"task": "dig"}
    assert await status(world, issuer.token()) == 200
    assert await status(world, issuer.token(), "sessions_spawn", **spawn) == 403
    assert await status(world, issuer.token(scope="unknown all"), "sessions_spawn", **spawn) == 200
    assert await status(world, issuer.token(scope=None, scp=["all"]), "sessions_spawn", **spawn) == 200
    assert await status(world, issuer.token(scope="unknown")) == 403


async def test_the_gateways_own_tokens_go_on(world: World) -> None:
    assert await status(world, OPERATOR) == 200


async def test_it_is_let_in_by_mcp_and_by_websocket(world: World, issuer: StubIssuer) -> None:
    headers = {"authorization": f"Bearer {issuer.token()}"}
    async with (
        httpx2.AsyncClient(headers=headers, trust_env=False, timeout=20) as http,
        Client(streamable_http_client(f"{world.at.url}/mcp", http_client=http)) as client,
    ):
        assert "sessions_list" in [tool.name for tool in (await client.list_tools()).tools]
    async with world.client(issuer.token(scope="all")) as connected:
        await connected.ask("sessions.list")


async def test_a_claim_binds_a_token_to_a_session(world: World, issuer: StubIssuer) -> None:
    await world.gateway.ask("agent:echo:main", "hello")
    await world.gateway.ask("agent:speaker:main", "hello")
    bound = issuer.token(scope="all", backchannel_session="agent:echo:main")

    assert await status(world, bound, "sessions_list") == 200
    headers = {"authorization": f"Bearer {bound}"}
    async with httpx2.AsyncClient(headers=headers, trust_env=False, timeout=20) as http:
        listed = await http.post(f"{world.at.url}/tools/invoke", json={"tool": "sessions_list", "args": {}})
        other = {"tool": "sessions_list", "args": {}, "sessionKey": "agent:speaker:main"}
        refused = await http.post(f"{world.at.url}/tools/invoke", json=other)
    assert listed.json()["result"]["count"] == 1
    assert refused.status_code == 403
    assert await status(world, issuer.token(scope="all", backchannel_session="nothing")) == 401


@pytest.mark.parametrize(
    ("key", "made"),
    [
        ("another audience", {"aud": "https://other.example"}),
        ("no audience", {"aud": None}),
        ("another issuer", {"iss": "https://evil.example"}),
        ("expired", {"exp": 1}),
        ("without an end", {"exp": None}),
        ("not yet", {"nbf": 4_000_000_000}),
        ("nobody's", {"sub": None}),
        ("signed by another", {"key": OTHER}),
        ("named after a key that is not there", {"kid": "two"}),
        ("by a key of another kind", {"key": CURVE, "algorithm": "ES256"}),
    ],
)
async def test_a_token_that_is_not_right_is_refused(
    world: World, issuer: StubIssuer, key: str, made: dict[str, Any]
) -> None:
    assert await status(world, issuer.token(**made)) == 401


async def test_a_token_need_not_name_its_key(world: World, issuer: StubIssuer) -> None:
    assert await status(world, issuer.token(CURVE, None, "ES256")) == 200


def forged_with(secret: bytes, claims: dict[str, Any], header: dict[str, Any]) -> str:
    """Sign by hand, since a library refuses to."""
    signed = b".".join(base64url_encode(json.dumps(part).encode()) for part in (header, claims))
    return b".".join([signed, base64url_encode(hmac.digest(secret, signed, "sha256"))]).decode()


async def test_no_token_is_taken_that_whoever_reads_the_keys_could_make(world: World, issuer: StubIssuer) -> None:
    """The public key as a shared secret, no signature at all, and a shared secret among the keys."""
    claims = {"iss": issuer.url, "aud": AUDIENCE, "sub": "ann", "exp": time.time() + 300, "scope": "all"}
    secret = "c2VjcmV0IHNlY3JldCBzZWNyZXQgc2VjcmV0IHNlY3JldCE"
    issuer.keys.append({"kty": "oct", "k": secret, "kid": "shared", "alg": "HS256"})
    pem = KEY.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    by_public_key = forged_with(pem, claims, {"alg": "HS256", "kid": "one"})
    unsigned = forged_with(b"", claims, {"alg": "none", "kid": "one"}).rpartition(".")[0] + "."
    shared = forged_with(base64url_decode(secret), claims, {"alg": "HS256", "kid": "shared"})

    for forged in (by_public_key, unsigned, shared, "a.b.c", "..", "e30.e30.e30"):
        assert await status(world, forged) == 401, forged


async def test_a_key_that_is_not_for_signing_does_not_count(world: World, issuer: StubIssuer) -> None:
    issuer.keys = [public(KEY, "one", use="enc"), public(OTHER, "other", alg="RS512")]
    assert await status(world, issuer.token()) == 401
    assert await status(world, issuer.token(OTHER, "other")) == 401
    assert await status(world, issuer.token(OTHER, "other", "RS512")) == 200


# The keys


@pytest.fixture
async def clock(anyio_backend: str) -> StageClock:
    return StageClock.held("2026-01-01")


def reader(issuer: StubIssuer, clock: StageClock, **settings: Any) -> Issuer:
    return Issuer(OAuthSettings(issuer=issuer.url, **settings), AUDIENCE, clock)


async def test_keys_are_fetched_once_and_again_for_a_new_one(issuer: StubIssuer, clock: StageClock) -> None:
    tokens = reader(issuer, clock)
    found = await asyncio.gather(*(tokens.find(issuer.token()) for _ in range(5)))
    assert all(found)
    assert issuer.asked == ["/.well-known/openid-configuration", "/keys"]

    issuer.keys = [public(OTHER, "two")]
    assert await tokens.find(issuer.token(OTHER, "two")) is None  # nobody makes the gateway fetch at every request
    clock.move_on(FETCH_PAUSE_S)
    assert await tokens.find(issuer.token(OTHER, "two")) is not None
    assert await tokens.find(issuer.token()) is None


async def test_a_key_that_was_taken_back_no_longer_counts_after_a_while(issuer: StubIssuer, clock: StageClock) -> None:
    tokens = reader(issuer, clock)
    assert await tokens.find(issuer.token())
    issuer.keys = [public(OTHER, "two")]
    clock.move_on(KEYS_LIVE_S)
    assert await tokens.find(issuer.token()) is None


async def test_the_keys_may_be_said_to_be_elsewhere(issuer: StubIssuer, clock: StageClock) -> None:
    assert await reader(issuer, clock, jwks_url=f"{issuer.url}/keys").find(issuer.token())
    assert issuer.asked == ["/keys"]


@pytest.mark.parametrize(
    "answer", [(500, b""), (200, b"<html>"), (200, b"[]"), (200, b'{"keys": 1}'), (200, b" " * 2**21)]
)
async def test_an_issuer_that_does_not_answer_is_no_wrong_token(
    issuer: StubIssuer, clock: StageClock, answer: tuple[int, bytes]
) -> None:
    issuer.answers = lambda path: answer
    tokens = reader(issuer, clock)
    with pytest.raises(Unavailable, match="cannot be fetched"):
        await tokens.find(issuer.token())

    issuer.answers = None
    clock.move_on(FETCH_PAUSE_S)
    assert await tokens.find(issuer.token())


async def test_keys_that_would_take_long_to_read_are_not_read(issuer: StubIssuer, clock: StageClock) -> None:
    keys = b"[]," * 300_000 + json.dumps(public(KEY, "one")).encode()
    issuer.answers = lambda path: (200, b'{"keys":[' + keys + b"]}")
    with pytest.raises(Unavailable, match="cannot be fetched"):
        await reader(issuer, clock, jwks_url=f"{issuer.url}/keys").find(issuer.token())


async def test_an_issuer_that_hangs_is_not_waited_for(issuer: StubIssuer, clock: StageClock) -> None:
    issuer.hangs = asyncio.Event()
    tokens = Issuer(OAuthSettings(issuer=issuer.url), AUDIENCE, clock, fetch_s=0.05)
    async with asyncio.timeout(20):
        with pytest.raises(Unavailable):
            await tokens.find(issuer.token())


async def test_keys_go_on_counting_while_the_issuer_is_away(issuer: StubIssuer, clock: StageClock) -> None:
    tokens = reader(issuer, clock)
    assert await tokens.find(issuer.token())
    issuer.answers = lambda path: (503, b"")
    clock.move_on(KEYS_LIVE_S)
    assert await tokens.find(issuer.token())


@pytest.mark.parametrize("told", [{"issuer": "https://evil.example"}, {"jwks_uri": "http://evil.example/keys"}, {}])
async def test_metadata_that_are_not_the_issuers_are_not_believed(
    issuer: StubIssuer, clock: StageClock, told: dict[str, str]
) -> None:
    right = {"issuer": issuer.url, "jwks_uri": f"{issuer.url}/keys"}
    body = json.dumps({**right, **told} if told else {"issuer": issuer.url}).encode()
    issuer.answers = lambda path: (200, body)
    with pytest.raises(Unavailable):
        await reader(issuer, clock).find(issuer.token())


@pytest.mark.parametrize("value", [5, {"a": 1}, [5, None], None, "", "  "])
async def test_scopes_without_form_allow_nothing(issuer: StubIssuer, clock: StageClock, value: Any) -> None:
    found = await reader(issuer, clock).find(issuer.token(scope=value))

    assert found is not None and found.scopes == frozenset()


# What clients are told


@pytest.mark.parametrize("path", ["", "/mcp"])
async def test_a_client_without_a_token_learns_where_to_get_one(world: World, issuer: StubIssuer, path: str) -> None:
    told = (await get(world, f"/.well-known/oauth-protected-resource{path}")).json()

    assert told["authorization_servers"] == [issuer.url]
    assert told["resource"] == AUDIENCE
    assert told["scopes_supported"] == ["operator.read", "all"]


async def test_a_refusal_says_where_that_is_told(world: World) -> None:
    async with httpx2.AsyncClient(trust_env=False, timeout=20) as http:
        refused = await http.post(f"{world.at.url}/mcp", json={})
    at = f"{world.at.url}/.well-known/oauth-protected-resource/mcp"

    assert refused.status_code == 401
    assert refused.headers["www-authenticate"] == f'Bearer resource_metadata="{at}"'
    assert (await get(world, "/metrics")).headers["www-authenticate"] == (
        f'Bearer resource_metadata="{at.removesuffix("/mcp")}"'
    )


class Remembered:
    """What the official client keeps of its login."""

    def __init__(self) -> None:
        self.tokens: OAuthToken | None = None
        self.info: OAuthClientInformationFull | None = None

    async def get_tokens(self) -> OAuthToken | None:
        return self.tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        self.tokens = tokens

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return self.info

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        self.info = client_info


async def test_the_official_client_finds_the_issuer_and_logs_in_by_itself(
    make_world: MakeWorld, issuer: StubIssuer
) -> None:
    oauth = {"issuer": issuer.url, "audience": AUDIENCE.replace("https://", "urn:")}
    async with make_world({"gateway": {"auth": {"oauth": oauth}}}) as world:
        issuer.audience = oauth["audience"]
        login = ClientCredentialsOAuthProvider(
            f"{world.at.url}/mcp", Remembered(), "a-program", "its secret", "client_secret_post", issuer=issuer.url
        )
        async with (
            httpx2.AsyncClient(auth=login, trust_env=False, timeout=20) as http,
            Client(streamable_http_client(f"{world.at.url}/mcp", http_client=http)) as client,
        ):
            names = [tool.name for tool in (await client.list_tools()).tools]

    assert "sessions_list" in names
    assert issuer.posted["resource"] == [f"{world.at.url}/mcp"]
    assert issuer.posted["scope"] == ["operator.read operator.write operator.admin"]


async def test_without_an_issuer_there_is_a_plain_challenge_and_nothing_under_well_known(make_world: MakeWorld) -> None:
    async with make_world() as world:
        for path in ("/.well-known/oauth-protected-resource", "/.well-known/oauth-protected-resource/mcp"):
            assert (await get(world, path)).status_code == 404
        assert (await get(world, "/metrics")).headers["www-authenticate"] == "Bearer"


async def test_the_address_that_a_client_came_by_is_the_resource_if_the_audience_is_none(
    make_world: MakeWorld, issuer: StubIssuer
) -> None:
    oauth = {"issuer": issuer.url, "audience": "backchannel"}
    async with make_world({"gateway": {"auth": {"oauth": oauth}}}) as world:
        told = (await get(world, "/.well-known/oauth-protected-resource/mcp")).json()
        assert told["resource"] == f"{world.at.url}/mcp"
        assert await status(world, issuer.token(aud=["backchannel", "other"])) == 200
