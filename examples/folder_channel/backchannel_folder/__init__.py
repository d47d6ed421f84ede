"""The adapter of folders. It is imported when a configuration is checked, so it imports nothing heavy."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

from backchannel import Adapter, ChannelSettings, SettingIssue, setting


class FolderSettings(ChannelSettings, frozen=True, kw_only=True, tag_field="adapter", tag="folder"):
    """A folder with messages."""

    path: Annotated[str, setting("The folder, with `in/` and `out/`.", min_length=1)]


def find_issues(name: str, settings: FolderSettings) -> Iterator[SettingIssue]:
    """Find what `backchannel config check` should say."""
    if not Path(settings.path).is_dir():
        yield SettingIssue("warning", ("path",), "there is no such folder; it is made at the start", settings.path)


ADAPTER = Adapter(
    name="folder",
    title="Folder",
    settings=FolderSettings,
    make="backchannel_folder.channel:FolderChannel",
    check=find_issues,
)
