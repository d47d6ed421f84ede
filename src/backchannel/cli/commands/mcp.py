"""`backchannel mcp`: serve the session tools over standard input and output."""

from __future__ import annotations

from typing import Annotated

import typer

from backchannel.cli.options import AlwaysJson, options_of


def mcp(
    ctx: typer.Context,
    as_session: Annotated[
        str | None, typer.Option("--as", metavar="KEY", help="Call as this session. [default: the operator]")
    ] = None,
    as_json: AlwaysJson = True,
) -> None:
    """Serve the session tools to an MCP client. The client starts this program, and closes standard input to end it."""
    from backchannel.cli.mcp_bridge import serve

    serve(options_of(ctx), as_session)
