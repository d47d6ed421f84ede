"""Why no gateway can be reached on a state folder, and what would help.

`up` is not always what helps: on the folder of an application its function agents would be missing, and it is refused
while the application runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from backchannel.errors import GatewayError
from backchannel.storage.folder import database_file, holder_of

if TYPE_CHECKING:
    from backchannel.config import Config


def say_why(config: Config, start: str) -> str:
    """Say who holds the folder without a door, or whose it is, or else how to start a gateway on it."""
    folder = config.state_dir
    if holder := holder_of(folder):
        return (
            f"A program (process {holder}) uses the state folder {folder} and listens nowhere: no command reaches it. "
            "Ask in that program, or let it serve: docs/how-to/embed.md, `Also listening`."
        )
    if functions := _function_agents(config):
        return (
            f"No program runs on the state folder {folder}. An application brings these agents as functions: "
            f"{', '.join(functions)}. Start it; nothing else answers in their place."
        )
    return f"No gateway runs on the state folder {folder}. Start one with: {start}"


def _function_agents(config: Config) -> list[str]:
    """Name the agents that an application has brought, as far as the database can be read."""
    from backchannel.storage.reading import open_reader
    from backchannel.storage.transactions import functions

    try:
        file = database_file(config.database_url)
        if not file.is_file():
            return []
        with open_reader(file) as reader, reader.snapshot() as tx:
            return functions.known(tx)
    except GatewayError:  # what is wrong with it is for `up` to tell
        return []
