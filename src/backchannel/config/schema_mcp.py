"""The settings of MCP servers, whose tools agents may have."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from msgspec import Meta, field

from backchannel.core.settings import NonEmpty, Settings, secret, setting

McpEffects: TypeAlias = Literal["none", "outside"]
_Secrets: TypeAlias = dict[str, Annotated[str, secret("Text.")]]
_Address: TypeAlias = Annotated[str, Meta(pattern=r"^https?://\S+$")]


class McpServerSettings(Settings, frozen=True, kw_only=True):
    """One MCP server: a program that is started, or an address."""

    command: Annotated[
        NonEmpty | None, setting("The program to start; it is spoken to over its standard input and output.")
    ] = None
    args: Annotated[
        tuple[str, ...], setting("Its arguments. Secrets belong into `env`, where nothing shows them.")
    ] = ()
    env: Annotated[
        _Secrets, secret("Its environment, beside `PATH`, `HOME`, `LANG` and the like; nothing else of ours is in it.")
    ] = field(default_factory=dict)
    cwd: Annotated[
        NonEmpty | None,
        setting("The folder it is started in, relative to the configuration file. Unset: the gateway's."),
    ] = None
    url: Annotated[_Address | None, secret("Where it is, `http://…` or `https://…`, instead of `command`.")] = None
    headers: Annotated[_Secrets, secret("Headers of every request to `url`.")] = field(default_factory=dict)
    enabled: Annotated[bool, setting("Whether it is used at all.")] = True
    timeout_seconds: Annotated[float, setting("The longest that one call may take.", gt=0, le=600)] = 60
    trust_annotations: Annotated[
        bool,
        setting(
            "Whether to believe the server which of its tools only read, or may be called twice: after a crash such a "
            "call is made again. Else every tool has outside effects."
        ),
    ] = False
    effects: Annotated[
        dict[str, McpEffects],
        setting('What a second call of a tool could spoil, whatever the server says: `{ "<tool>": "none" }`.'),
    ] = field(default_factory=dict)


class McpSettings(Settings, frozen=True, kw_only=True):
    """MCP servers whose tools agents may have."""

    servers: Annotated[
        dict[str, McpServerSettings],
        setting(
            "MCP servers by name. Their tools are `<name>__<tool>`, together `group:mcp:<name>`; an agent has those "
            "that its `tools.allow` names."
        ),
    ] = field(default_factory=dict)
