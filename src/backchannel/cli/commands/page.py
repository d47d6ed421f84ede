"""`backchannel open`: open the page of the running gateway in the browser, logged in.

The token stands behind the `#` of the address. A browser does not send that part, and the page removes it at once. So
the token is in no log. This command prints it only when asked to.
"""

from __future__ import annotations

from typing import Annotated
from urllib.parse import quote

import typer

from backchannel.cli.client import GatewayClient
from backchannel.cli.finding import GatewayAddress, find_gateway
from backchannel.cli.options import AsJson, CommandFailed, options_of
from backchannel.cli.output import say_or_json


def open_(
    ctx: typer.Context,
    is_printed: Annotated[bool, typer.Option("--print", help="Only print the link, with the token in it.")] = False,
    as_json: AsJson = False,
) -> None:
    """Open the page in the browser, logged in."""
    options = options_of(ctx)
    address = find_gateway(options, is_patient=True)
    GatewayClient.connect(address).close()  # what is wrong with the address or the token is told here
    page, link = page_address(address.url), page_link(address)
    if is_printed:
        say_or_json(link, {"url": link}, as_json=as_json)
        return
    if not _open(link):
        with_token = options.command("open", "--print")
        raise CommandFailed(
            f"No browser was found. Open {page} in one, and log in with the token; for a link that has it in it: "
            f"{with_token}"
        )
    say_or_json(f"Opened {page}", {"url": page}, as_json=as_json)


def page_address(url: str) -> str:
    """Give the address of the page of a gateway."""
    return f"{url.replace('ws', 'http', 1).removesuffix('/ws')}/"


def page_link(address: GatewayAddress) -> str:
    """Give the address of the page with the token in it."""
    return page_address(address.url) + (f"#token={quote(address.token, safe='')}" if address.token else "")


def _open(link: str) -> bool:
    import webbrowser

    try:
        return webbrowser.open(link)
    except webbrowser.Error:
        return False
