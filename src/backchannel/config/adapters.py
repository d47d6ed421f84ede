"""The adapters that are there: those of this package, and those that other packages bring.

Ours are the folders of a package that have an `adapter.py`; the folder's name is the adapter's. Others are entry points
of a group, such as `backchannel.channels`. Adapters stand in layers above this one, so they are imported by name, and
only those that a configuration names. Entry points are read when a name is none of ours.

A package of others may fail. `AdapterUnusable` says which package, and why. Its channel is then down and everything
else works.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cache, cached_property
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import fields

from backchannel.core.adapters import Adapter
from backchannel.core.delivery.channels import ChannelSettings
from backchannel.core.keys import ThreadWord
from backchannel.core.settings import SettingIssue, Settings


class AdapterUnusable(Exception):
    """An adapter of another package cannot be used; `reason` names the package."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class AdapterKind:
    """One kind of adapters: where ours are, and how those of others are found."""

    def __init__(self, package: str, group: str, settings: type[Settings] | None = None) -> None:
        """Make it; `settings` is what the settings of each adapter of this kind begin with."""
        self._package = package
        self.group = group
        self._settings = settings

    @cached_property
    def ours(self) -> tuple[str, ...]:
        """The names of the adapters of this package, in order."""
        places = import_module(self._package).__path__
        return tuple(sorted(file.parent.name for place in places for file in Path(place).glob("*/adapter.py")))

    @cached_property
    def _also(self) -> Mapping[str, Adapter]:
        """Our adapters by their further words."""
        return {word: adapter for adapter in map(self.find, self.ours) if adapter is not None for word in adapter.also}

    @cached_property
    def _installed(self) -> Mapping[str, EntryPoint]:
        """The adapters that other packages bring; ours win over them."""
        points = {point.name: point for point in entry_points(group=self.group)}
        return {name: points[name] for name in sorted(points) if name not in self.ours}

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all adapters that are installed, ours first."""
        return (*self.ours, *self._installed)

    @cached_property
    def default(self) -> str:
        """The name of the adapter that is used where a configuration names none."""
        return next(adapter.name for adapter in map(self.find, self.ours) if adapter is not None and adapter.is_default)

    def find(self, name: str) -> Adapter | None:
        """Give the adapter of a name; None if there is none.

        Raises:
            AdapterUnusable: a package brings it, and the package fails.
        """
        if name in self.ours:
            adapter: Adapter = import_module(f"{self._package}.{name}.adapter").ADAPTER
            return adapter
        if (ours := self._also.get(name)) is not None:
            return ours
        point = self._installed.get(name)
        return None if point is None else self._load(point)

    def usable(self) -> Iterator[Adapter]:
        """Give all adapters that can be loaded."""
        for name in self.names:
            try:
                adapter = self.find(name)
            except AdapterUnusable:
                continue
            if adapter is not None:
                yield adapter

    def _load(self, point: EntryPoint) -> Adapter:
        package = _package(point)
        try:
            adapter = point.load()
        except (Exception, SystemExit) as error:  # the edge of a package of others
            raise AdapterUnusable(f"{package} cannot be loaded: {_describe_error(error)}") from error
        if not isinstance(adapter, Adapter):
            raise AdapterUnusable(f"{package} is wrong: {point.value} is no backchannel.Adapter")
        if adapter.name != point.name:
            raise AdapterUnusable(f"{package} is wrong: {point.value} is called {adapter.name!r}, not {point.name!r}")
        if self._settings is not None and not _is_tagged(adapter, self._settings):
            base = self._settings.__name__
            expected = f'a backchannel.{base} with tag_field="adapter", tag="{adapter.name}"'
            raise AdapterUnusable(f"{package} is wrong: the settings of {point.value} are not {expected}")
        return adapter

    def read(self, name: str, given: Mapping[str, Any]) -> Any:
        """Convert the settings of an adapter that were checked.

        Raises:
            AdapterUnusable: a package of others brings it, and the package fails.
            msgspec.ValidationError: the settings have a check of their own, which refuses what is given.
        """
        adapter = self.find(name)
        settings = self._settings if adapter is None else adapter.settings
        try:
            return msgspec.convert(given, settings)
        except msgspec.ValidationError:
            raise
        except Exception as error:
            if name not in self._installed:
                raise
            package = _package(self._installed[name])
            raise AdapterUnusable(f"{package} cannot read its settings: {_describe_error(error)}") from error

    def make(self, adapter: Adapter, *arguments: Any) -> Any:
        """Make what an adapter is for.

        Raises:
            AdapterUnusable: a package of others brings it, and the package fails.
        """
        if adapter.name in self.ours:
            return _named(adapter.make)(*arguments)
        try:
            return _named(adapter.make)(*arguments)
        except (Exception, SystemExit) as error:  # the edge of a package of others
            package = _package(self._installed[adapter.name])
            raise AdapterUnusable(f"{package} cannot make a {adapter.name}: {_describe_error(error)}") from error


def _named(place: str) -> Callable[..., Any]:
    module, _, name = place.partition(":")
    made: Callable[..., Any] = getattr(import_module(module), name)
    return made


def _package(point: EntryPoint) -> str:
    return "a package" if point.dist is None else f"the package {point.dist.name} {point.dist.version}"


def _describe_error(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def _is_tagged(adapter: Adapter, base: type[Settings]) -> bool:
    own = adapter.settings
    if not isinstance(own, type) or not issubclass(own, base):
        return False
    config = own.__struct_config__
    return config.tag_field == "adapter" and config.tag == adapter.name


CHANNELS = AdapterKind("backchannel.channels", "backchannel.channels", ChannelSettings)
DATABASES = AdapterKind("backchannel.storage", "backchannel.databases")
SANDBOXES = AdapterKind("backchannel.agents.sandbox", "backchannel.sandboxes")


class UnusableChannelSettings(ChannelSettings, frozen=True, kw_only=True):
    """The settings of a channel whose adapter fails: only what all channels share is known."""

    adapter: str
    problem: str


def read_channel(given: Mapping[str, Any]) -> ChannelSettings:
    """Convert the settings of a channel that were checked, by its adapter.

    Raises:
        msgspec.ValidationError: the settings of a package have a check of their own, and refuse what is given.
    """
    name = given["adapter"]
    try:
        converted: ChannelSettings = CHANNELS.read(name, given)
    except AdapterUnusable as unusable:
        shared = {field.encode_name for field in fields(ChannelSettings)} & set(given)
        known = {name: given[name] for name in shared}
        return msgspec.convert({**known, "adapter": name, "problem": unusable.reason}, UnusableChannelSettings)
    return converted


def adapter_of(settings: ChannelSettings) -> Adapter | None:
    """Give the adapter that a channel's settings are for; None if it cannot be used, or a program made them."""
    name = None if isinstance(settings, UnusableChannelSettings) else adapter_name(settings)
    return None if name is None else CHANNELS.find(name)


def adapter_name(settings: ChannelSettings) -> str | None:
    """Give the word that a channel's settings have for their adapter; None if a program made them."""
    if isinstance(settings, UnusableChannelSettings):
        return settings.adapter
    tag = settings.__struct_config__.tag
    return tag if isinstance(tag, str) else None


def channel_issues(name: str, settings: ChannelSettings) -> Iterator[SettingIssue]:
    """Find what the adapter of a channel says about its settings. Paths begin at the channel."""
    if isinstance(settings, UnusableChannelSettings):
        yield SettingIssue("warning", (), f"the channel stays down: {settings.problem}")
    adapter = adapter_of(settings)
    if adapter is None:
        return
    try:
        for issue in adapter.check(name, settings):
            if not isinstance(issue, SettingIssue):
                raise TypeError(f"{issue!r} is no backchannel.SettingIssue")
            yield issue
        tuple(adapter.hosts(settings))
    except Exception as error:  # noqa: BLE001  # the edge of a package of others: the settings are used all the same
        yield SettingIssue("warning", (), f"the adapter {adapter.name} could not check it: {_describe_error(error)}")


def webhook_hosts(channels: Iterable[ChannelSettings]) -> frozenset[str]:
    """List the host names under which platforms post to this gateway; a proxy may pass them on as `Host`."""
    found: set[str] = set()
    for settings in channels:
        if (adapter := adapter_of(settings)) is not None:
            with suppress(Exception):  # the edge of a package of others: `channel_issues` has told it
                found.update(adapter.hosts(settings))
    return frozenset(found)


@cache
def thread_word_of(name: str) -> ThreadWord | None:
    """Give the word for a thread of the platform that a channel is named after; None if that has no word of its own.

    A bridge that is called like a platform leads there, and its sessions have the keys that the platform's have.
    """
    adapter = CHANNELS.find(name) if name in CHANNELS.ours else None
    return None if adapter is None or adapter.thread_word == "thread" else adapter.thread_word


def database_kind(url: str) -> Adapter | None:
    """Give the adapter of a database's URL; None if there is none.

    Raises:
        AdapterUnusable: a package brings it, and the package fails.
    """
    return DATABASES.find(url.partition(":")[0])


def is_database_url(url: str) -> bool:
    """Whether a URL is one of a database that is installed. One whose package fails says so at the start."""
    try:
        adapter = database_kind(url)
    except AdapterUnusable:
        return True
    return adapter is not None and not list(adapter.check("database", url))


def is_in_folder(url: str) -> bool:
    """Whether a database is a file, such as the one that lies in the state folder."""
    try:
        adapter = database_kind(url)
    except AdapterUnusable:
        return False
    return adapter is not None and adapter.url_in is not None


def default_database_url(state_dir: Path) -> str:
    """Give the URL of the database that a state folder has where the configuration names none."""
    adapter = DATABASES.find(DATABASES.default)
    if adapter is None or adapter.url_in is None:
        raise ValueError("the default database is one in the state folder")
    return adapter.url_in(state_dir)


def visibility_in(sandbox: str) -> Callable[[str], str | None] | None:
    """Give what says why a kind of sandbox does not show a program; None: it has programs of its own, or fails."""
    try:
        adapter = SANDBOXES.find(sandbox)
    except AdapterUnusable:
        return None
    return None if adapter is None else adapter.why_unseen


def why_missing(adapter: Adapter) -> str | None:
    """Say which package an adapter lacks here, and how to install it; None: it has all."""
    lacking = next((name for name in adapter.needs if not _is_installed(name)), None)
    return None if lacking is None else not_installed(adapter, lacking)


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # not even the package that the module is in
        return False


def not_installed(adapter: Adapter, package: str | None) -> str:
    """Say how to install what is missing, for the Python that runs this: from an index, and in a clone as well."""
    if adapter.extra is None:
        return f"{package} is not installed, which {adapter.title} needs"
    install = f"{shlex.quote(sys.executable)} -m pip install 'backchannel[{adapter.extra}]'"
    return f"{package} is not installed, which {adapter.title} needs: {install}"
