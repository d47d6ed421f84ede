"""Settings of the doors: gateway, cron, hooks.

The settings of a channel are in the folder of its platform (`config/adapters.py`).
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from backchannel.config.schema_models import ModelSetting
from backchannel.core.settings import NonEmpty, Seconds, Settings, secret, setting

UNIT_MS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
DURATION = r"^[1-9][0-9]{0,5}[smhd]$"
"""A pattern: a whole number and a unit."""


def parse_duration(text: str) -> int:
    """Read a text that fits `DURATION`, in milliseconds."""
    return int(text[:-1]) * UNIT_MS[text[-1]]


MIN_SECRET_LENGTH = 16

# Keys fetched without encryption from another machine could have been replaced on the way.
_ISSUER_PLACE = r"^(https://|http://(localhost|127\.0\.0\.1|\[::1\])[:/]|http://(localhost|127\.0\.0\.1|\[::1\])$)\S*$"


class OAuthSettings(Settings, frozen=True, kw_only=True):
    """An OAuth issuer whose tokens are let in too."""

    issuer: Annotated[
        str,
        setting("The issuer of the tokens, as in their `iss`: `https://…`.", pattern=_ISSUER_PLACE),
    ]
    audience: Annotated[
        NonEmpty | None,
        setting(
            "The required `aud` of a token: the address of the MCP door for clients. "
            "Unset: `http://<gateway.host>:<gateway.port>/mcp`."
        ),
    ] = None
    jwks_url: Annotated[
        Annotated[str, Meta(pattern=_ISSUER_PLACE)] | None,
        setting("The address of its keys. Unset: from its metadata."),
    ] = None
    scopes: Annotated[
        dict[str, Literal["read", "write", "admin"]],
        setting("What each scope of a token allows. Other scopes are ignored."),
    ] = msgspec.field(
        default_factory=lambda: {"operator.read": "read", "operator.write": "write", "operator.admin": "admin"}
    )
    session_claim: Annotated[
        str,
        setting("A token with this claim is bound to the session with that key, whatever its scopes.", min_length=1),
    ] = "backchannel_session"


class AuthSettings(Settings, frozen=True, kw_only=True):
    """Who may use the gateway."""

    token: Annotated[
        NonEmpty | None,
        secret(
            "The operator's token. Unset: the first start creates one in the state folder. `BACKCHANNEL_TOKEN` wins."
        ),
    ] = None
    oauth: Annotated[OAuthSettings | None, setting("An OAuth issuer whose tokens are accepted too.")] = None


class LimitSettings(Settings, frozen=True, kw_only=True):
    """How much a client may send."""

    body_bytes: Annotated[int, setting("The largest HTTP body.", ge=1024)] = 1024 * 1024
    hook_body_bytes: Annotated[int, setting("The largest body at `/hooks`.", ge=1024)] = 256 * 1024
    frame_bytes: Annotated[int, setting("The largest WebSocket frame.", ge=1024)] = 4 * 1024 * 1024
    pre_auth_frame_bytes: Annotated[int, setting("The largest frame before `connect`.", ge=1024)] = 64 * 1024
    connections: Annotated[
        int,
        setting("Most WebSocket connections that have logged in. Fewer if the system limits open files.", ge=1),
    ] = 1000
    pre_auth_connections: Annotated[
        int,
        setting("Most connections that have not logged in. A further one closes the oldest.", ge=1),
    ] = 256


class HttpSettings(Settings, frozen=True, kw_only=True):
    """What HTTP offers."""

    chat_completions: Annotated[bool, setting("Serve `/v1`: `chat/completions`, `responses` and `models`.")] = False
    session_ttl: Annotated[
        str,
        setting(
            "When a session of a single `/v1` request is archived, after its last use: `30m`, `24h`, `7d`.",
            pattern=DURATION,
        ),
    ] = "1d"


class ControlUiSettings(Settings, frozen=True, kw_only=True):
    """Pages that others serve, such as OpenClaw's Control UI."""

    allowed_origins: Annotated[
        tuple[str, ...],
        setting("OpenClaw's name for `gateway.allowedOrigins`. Both count."),
    ] = ()


class GatewaySettings(Settings, frozen=True, kw_only=True):
    """Where the gateway listens and what it accepts."""

    host: Annotated[str, setting("The address to listen on. Any other than loopback needs a token.", min_length=1)] = (
        "127.0.0.1"
    )
    port: Annotated[int, setting("The port to listen on; 0 takes a free one.", ge=0, le=65535)] = 18790
    auth: Annotated[AuthSettings, setting("Who may use the gateway.")] = AuthSettings()
    limits: Annotated[LimitSettings, setting("How much a client may send.")] = LimitSettings()
    http: Annotated[HttpSettings, setting("The HTTP API.")] = HttpSettings()
    allowed_origins: Annotated[
        tuple[str, ...],
        setting("Other origins whose pages may connect, such as `https://chat.example`."),
    ] = ()
    control_ui: Annotated[ControlUiSettings, setting("OpenClaw's Control UI.")] = ControlUiSettings()
    allowed_hosts: Annotated[
        tuple[str, ...],
        setting(
            "Host names that clients may use, besides loopback, `gateway.host` and the host of "
            "a channel's `webhook.url`."
        ),
    ] = ()
    trusted_proxies: Annotated[
        tuple[str, ...],
        setting("Addresses and networks of proxies whose `X-Forwarded-For` is trusted, such as `127.0.0.1`."),
    ] = ()


class CronDeliver(Settings, frozen=True, kw_only=True):
    """Where a job's reply goes."""

    channel: Annotated[str, setting("The channel's name.", min_length=1)]
    to: Annotated[str, setting("The chat.", min_length=1)]
    account_id: Annotated[str | None, setting("The account on that channel.")] = None


LONGEST_CHECK_S = 590
USUAL_CHECK_S = 120.0


class CronWhen(Settings, frozen=True, kw_only=True):
    """A command that decides whether a job runs."""

    command: Annotated[
        str,
        setting(
            "A shell command in the agent's workspace and sandbox. It needs no `tools.allow`. After any exit code but "
            "0, or without output, there is no run.",
            min_length=1,
        ),
    ]
    timeout_seconds: Annotated[
        Annotated[float, Meta(gt=0, le=LONGEST_CHECK_S)] | None,
        setting(f"When it is stopped, and there is no run. Unset: {USUAL_CHECK_S:g}."),
    ] = None

    @property
    def limit_s(self) -> float:
        return self.timeout_seconds or USUAL_CHECK_S


class CronJob(Settings, frozen=True, kw_only=True):
    """One message that is sent by the clock."""

    id: Annotated[str, setting("The job's id; its session is `cron:<id>`.", min_length=1)]
    name: Annotated[str | None, setting("Its name in lists. Unset: its id.")] = None
    schedule: Annotated[str, setting('When: `"0 9 * * *"`, `"every 10m"` (`s m h d`, at least 1 s) or an ISO time.')]
    tz: Annotated[str | None, setting("The schedule's time zone, such as `Europe/Berlin`. Unset: UTC.")] = None
    agent_id: Annotated[str | None, setting("The agent that runs it. Unset: the default agent.")] = None
    message: Annotated[str, setting("The message to the agent.", min_length=1)]
    when: Annotated[
        CronWhen | None,
        setting(
            "Runs first, and decides whether the job does. Its output takes the place of `{output}` in the message."
        ),
    ] = None
    deliver: Annotated[CronDeliver | None, setting("Where the reply goes. Unset: nowhere.")] = None
    model: Annotated[
        ModelSetting | None, setting("The model, or `{ primary, fallbacks }`. Unset: the agent's own.")
    ] = None
    timeout_seconds: Annotated[
        Seconds | None, setting("Time limit of a run. Unset: `agents.defaults.timeoutSeconds`.")
    ] = None
    enabled: Annotated[bool, setting("Whether it fires.")] = True


class CronSettings(Settings, frozen=True, kw_only=True):
    """Messages that are sent by the clock."""

    jobs: Annotated[tuple[CronJob, ...], setting("The jobs.")] = ()


class HookSettings(Settings, frozen=True, kw_only=True):
    """Messages that other programs post to `/hooks`."""

    enabled: Annotated[bool, setting("Serve `/hooks`.")] = False
    token: Annotated[NonEmpty | None, secret("The token of `/hooks`. No other secret may equal it.")] = None
    allow_session_keys: Annotated[
        tuple[str, ...],
        setting(
            "Patterns of session keys that a hook may use, besides `hook:…`. `*` is a wildcard. They match with and "
            "without `agent:<id>:`."
        ),
    ] = ()
    allow_deliver: Annotated[tuple[str, ...], setting("Channels that a hook's reply may go to. Empty: none.")] = ()
