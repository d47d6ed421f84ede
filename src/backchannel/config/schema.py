"""Settings: name, type, limits, default and meaning of each.

`ConfigFile` is the content of `backchannel.json5`. `Config` is the same, checked and complete. Field names are
camel case in the file. To add a setting, add a field with a description here, in `schema_agents` or in
`schema_doors`, and run `make reference`.

A channel has the settings of its adapter. `validation.py` puts them where `ChannelSettings` stands.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Literal, NamedTuple, TypeAlias

from msgspec import Meta, field

from backchannel.config.adapters import DATABASES, default_database_url, is_in_folder
from backchannel.config.findings import ConfigFinding
from backchannel.config.schema_agents import AgentsSettings, McpSettings, ToolsSettings
from backchannel.config.schema_doors import CronSettings, GatewaySettings, HookSettings
from backchannel.config.schema_models import ModelTimeoutSettings
from backchannel.config.zones import last_mark, period_at, zone_named
from backchannel.core.delivery.channels import ChannelSettings
from backchannel.core.keys import DmScope, KeyScheme
from backchannel.core.money.budgets import BudgetRules, BudgetSettings
from backchannel.core.policy.inbound import BindingSettings
from backchannel.core.policy.limits import ExchangeLimitSettings
from backchannel.core.policy.queues import MOST_QUEUED, SessionRules
from backchannel.core.policy.resets import ResetSchedule, ResetSettings
from backchannel.core.policy.send_policy import SendPolicySettings
from backchannel.core.settings import AtLeastOne, Settings, secret, setting

ChatScope: TypeAlias = Literal["per-sender", "global"]
ModelApi: TypeAlias = Literal["openai", "anthropic"]
NotNegative: TypeAlias = Annotated[float, Meta(ge=0)]
PromptCache: TypeAlias = Literal["5m", "1h", "off"]


class SessionSettings(Settings, frozen=True, kw_only=True):
    """How conversations become sessions."""

    main_key: Annotated[
        str,
        setting(
            "The last part of the key of a main session: letters, digits, `_`, `.`, `-`.",
            pattern=r"^[A-Za-z0-9_.-]+$",
            max_length=64,
        ),
    ] = "main"
    scope: Annotated[ChatScope, setting("`global`: all direct chats of an agent are one session, shown as `main`.")] = (
        "per-sender"
    )
    dm_scope: Annotated[
        DmScope, setting("Which direct chats share a session: all, or those of one person, channel or account.")
    ] = DmScope.MAIN
    identity_links: Annotated[
        dict[str, tuple[str, ...]],
        setting('Joins one person\'s ids: `{ alice: ["telegram:123", "discord:987"] }`.'),
    ] = field(default_factory=dict)
    agent_to_agent: Annotated[ExchangeLimitSettings, setting("Limits of talk between sessions.")] = (
        ExchangeLimitSettings()
    )
    send_policy: Annotated[SendPolicySettings, setting("What may be sent where.")] = SendPolicySettings()
    max_queued: Annotated[
        int, setting("Most messages that wait in one session. More are refused until some are done.", ge=1)
    ] = MOST_QUEUED
    reset: Annotated[ResetSettings, setting("When a session begins anew by itself.")] = ResetSettings()


class MessageSettings(Settings, frozen=True, kw_only=True):
    """What people are told besides the agents' own words."""

    failure_notice: Annotated[
        bool, setting("Send one line with the run's id when a message could not be answered.")
    ] = True


class DatabaseSettings(Settings, frozen=True, kw_only=True):
    """Where everything is stored."""

    url: Annotated[
        Annotated[str, Meta(pattern=r"^[a-z][a-z0-9+]*://.", extra={"adapters": DATABASES.group})] | None,
        secret(
            "`sqlite:///…` or `postgresql://user@host:5432/database`, with the extra `postgres` installed. Unset: "
            "`backchannel.db` in the state folder. `BACKCHANNEL_DATABASE_URL` wins.",
        ),
    ] = None


class ClusterSettings(Settings, frozen=True, kw_only=True):
    """Several gateways on one PostgreSQL."""

    lease_seconds: Annotated[
        float, setting("How long a silent gateway keeps its lease before the others take over.", ge=1)
    ] = 15.0
    wakeups: Annotated[
        Literal["notify", "poll"],
        setting(
            "`poll`: for a database without LISTEN; gateways see each other's changes within a second. "
            "All gateways of a database need the same value."
        ),
    ] = "notify"
    locks: Annotated[
        Literal["advisory", "rows"],
        setting("`rows`: for a database without advisory locks. All gateways of a database need the same value."),
    ] = "advisory"


class TranscriptSettings(Settings, frozen=True, kw_only=True):
    """The transcript files beside the database."""

    files: Annotated[
        bool | None,
        setting("Also write transcripts as JSONL files. Unset: on SQLite yes, on PostgreSQL no."),
    ] = None


class ModelCostSettings(Settings, frozen=True, kw_only=True):
    """What a model costs, in dollars per million tokens."""

    input: Annotated[float, setting("Dollars per million input tokens.", ge=0)]
    output: Annotated[float, setting("Dollars per million output tokens.", ge=0)]
    cache_read: Annotated[
        NotNegative | None, setting("Dollars per million tokens read from a cache. Unset: a tenth of `input`.")
    ] = None
    cache_write: Annotated[
        NotNegative | None, setting("Dollars per million tokens written to a cache. Unset: 1.25 times `input`.")
    ] = None


class ProviderModelSettings(Settings, frozen=True, kw_only=True):
    """One model of an own endpoint."""

    id: Annotated[str, setting("Its name at the endpoint.", min_length=1)]
    context_window: Annotated[AtLeastOne | None, setting("Its context window in tokens.")] = None
    cost: Annotated[ModelCostSettings | None, setting("Its price, in dollars per million tokens.")] = None
    max_tokens: Annotated[
        AtLeastOne | None,
        setting("The longest reply in tokens, sent with each request. Unset: 8192 where a budget counts."),
    ] = None
    vision: Annotated[bool | None, setting("Whether it sees pictures. Unset: guessed from its name, else yes.")] = None


class ProviderSettings(Settings, frozen=True, kw_only=True):
    """An endpoint of your own; its models are `<name>/<model>`."""

    api: Annotated[ModelApi, setting("Its wire format.")]
    base_url: Annotated[str, setting("Its address, `http://…` or `https://…`.", pattern=r"^https?://\S+$")]
    api_key: Annotated[str | None, secret("Its key. Unset: none is sent.")] = None
    models: Annotated[
        tuple[ProviderModelSettings, ...] | None, setting("Its models. If set, only these are valid.")
    ] = None
    timeouts: Annotated[ModelTimeoutSettings, setting("How long its models may take.")] = ModelTimeoutSettings()


class ModelsSettings(Settings, frozen=True, kw_only=True):
    """Where models are found besides the well-known providers, and how they are asked."""

    cache: Annotated[
        PromptCache,
        setting("How long providers are asked to keep the beginning of a request. `off`: they are not asked."),
    ] = "5m"
    timeouts: Annotated[ModelTimeoutSettings, setting("How long a model may take.")] = ModelTimeoutSettings()
    providers: Annotated[dict[str, ProviderSettings], setting("Your own endpoints, by name.")] = field(
        default_factory=dict
    )


class ConfigFile(Settings, frozen=True, kw_only=True):
    """The configuration file."""

    tz: Annotated[
        str | None,
        setting(
            "The time zone of days and hours, such as `Europe/Berlin`. Unset: the machine's. Cron jobs have their own."
        ),
    ] = None
    session: Annotated[SessionSettings, setting("How conversations become sessions.")] = SessionSettings()
    messages: Annotated[MessageSettings, setting("Messages of the gateway to people.")] = MessageSettings()
    agents: Annotated[AgentsSettings, setting("The agents.")] = AgentsSettings()
    tools: Annotated[ToolsSettings, setting("The tools of all agents.")] = ToolsSettings()
    mcp: Annotated[McpSettings, setting("MCP servers whose tools agents may have.")] = McpSettings()
    models: Annotated[ModelsSettings, setting("Your own model endpoints.")] = ModelsSettings()
    budgets: Annotated[tuple[BudgetSettings, ...], setting("Limits on what is spent.")] = ()
    gateway: Annotated[GatewaySettings, setting("The gateway: address, access and limits.")] = GatewaySettings()
    database: Annotated[DatabaseSettings, setting("Where everything is stored.")] = DatabaseSettings()
    cluster: Annotated[ClusterSettings, setting("Several gateways on one database.")] = ClusterSettings()
    transcripts: Annotated[TranscriptSettings, setting("The transcript files.")] = TranscriptSettings()
    channels: Annotated[dict[str, ChannelSettings], setting("The chat channels, by name.")] = field(
        default_factory=dict
    )
    bindings: Annotated[tuple[BindingSettings, ...], setting("Which agent answers where; the first match counts.")] = ()
    cron: Annotated[CronSettings, setting("Scheduled messages.")] = CronSettings()
    hooks: Annotated[HookSettings, setting("Messages posted to `/hooks`.")] = HookSettings()


class DefaultModel(NamedTuple):
    """The model of agents that name none, and how it was found."""

    ref: str
    why: str
    base_url: str | None = None


DEMO_MODEL = DefaultModel("builtin/demo", "the built-in demo model, which works offline")


class Config(ConfigFile, frozen=True, kw_only=True):
    """A configuration that was checked: at least one agent, exactly one default, ids normalised."""

    state_dir: Path
    file: Path | None = None
    default_model: DefaultModel = DEMO_MODEL
    warnings: tuple[ConfigFinding, ...] = ()

    @property
    def database_url(self) -> str:
        """Where the store is: as configured, else in the state folder."""
        return self.database.url or default_database_url(self.state_dir)

    @property
    def writes_transcript_files(self) -> bool:
        """Whether transcripts are also kept as files."""
        if self.transcripts.files is not None:
            return self.transcripts.files
        return is_in_folder(self.database_url)

    @property
    def session_rules(self) -> SessionRules:
        """The rules that the store applies to sessions."""
        zone = zone_named(self.tz)
        resets = ResetSchedule(self.session.reset, partial(last_mark, zone))
        budgets = BudgetRules(self.budgets, partial(period_at, zone)) if self.budgets else None
        return SessionRules(
            resets, self.session.max_queued, tells_failures=self.messages.failure_notice, budgets=budgets
        )

    @property
    def default_agent(self) -> str:
        """The id of the agent that answers what names no agent."""
        return next(agent.id for agent in self.agents.list if agent.default)

    @property
    def key_scheme(self) -> KeyScheme:
        """Which key a conversation has."""
        session = self.session
        return KeyScheme(
            main_key=session.main_key,
            global_scope=session.scope == "global",
            dm_scope=session.dm_scope,
            default_agent=self.default_agent,
        )
