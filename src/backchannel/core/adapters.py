"""The shape of an adapter: one kind of channel, database or sandbox.

An adapter is one value, `ADAPTER`, in the file `adapter.py` of its own folder. It holds everything that the rest of the
program knows of the platform: settings, checks, needed packages, and where the thing itself is made. No other file
names the platform; a test keeps that. `config/adapters.py` finds adapters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from backchannel.core.keys import ThreadWord
from backchannel.core.settings import SettingIssue, Settings


def _no_issues(name: str, settings: Any) -> Iterable[SettingIssue]:
    return ()


def _no_hosts(settings: Any) -> Iterable[str]:
    return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapter:
    """One kind of channel, database or sandbox. What a kind does not have keeps its default."""

    name: str
    """The word for it in the configuration; the folder has the same name."""
    also: tuple[str, ...] = ()
    """Further words for it."""
    title: str
    """Its name for people, such as `Telegram`."""
    make: str
    """Where it is made, as `module:name`. The module is imported when the first one is made."""
    settings: type[Settings] | None = None
    """The settings of a channel: a `ChannelSettings` with `tag_field="adapter"` and the name as its `tag`."""
    needs: tuple[str, ...] = ()
    """Modules that `make` imports and that may not be installed."""
    extra: str | None = None
    """The extra of this package that installs what it needs."""
    check: Callable[[str, Any], Iterable[SettingIssue]] = _no_issues
    """Finds what cannot work in the settings of the channel of a name, or in a database's URL."""
    hosts: Callable[[Any], Iterable[str]] = _no_hosts
    """Lists the host names under which the platform posts to this gateway, given the channel's settings."""
    thread_word: ThreadWord = "thread"
    """The platform's word for a thread, for the keys of sessions."""
    is_default: bool = False
    """Whether it is the one where a configuration names none."""
    why_unseen: Callable[[str], str | None] | None = None
    """Says why a sandbox does not show a program of this machine. None: the sandbox has programs of its own."""
    url_in: Callable[[Any], str] | None = None
    """Gives the URL of a database in a state folder. None: the database is elsewhere."""
