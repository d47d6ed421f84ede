"""Adapters: they are found by name, each is made where it says, and its settings are told apart by a tag."""

from __future__ import annotations

from importlib import import_module
from typing import Annotated, Any

import msgspec
import pytest

from backchannel.channels.bridge.settings import BridgeSettings
from backchannel.config.adapters import CHANNELS, DATABASES, SANDBOXES, AdapterKind, thread_word_of
from backchannel.config.source import ConfigSource
from backchannel.config.validation import check_shape, setting_paths
from backchannel.core.delivery.channels import ChannelSettings
from backchannel.core.settings import Settings, secret, setting

BRIDGE = {"adapter": "bridge", "url": "http://localhost", "secret": "s" * 16}


class PagerSettings(ChannelSettings, frozen=True, kw_only=True, tag_field="adapter", tag="pager"):
    """A second platform."""

    token: Annotated[str, secret("Its token.", min_length=4)]


class Doors(Settings, frozen=True, kw_only=True):
    """A file with two kinds of channels."""

    channels: Annotated[dict[str, BridgeSettings | PagerSettings], setting("The channels.")]


def problems(**channel: Any) -> list[str]:
    raw = {"channels": {"a": channel}}
    return [str(finding) for finding in check_shape(raw, Doors, ConfigSource(raw))]


def test_each_channel_is_checked_by_the_settings_of_its_adapter() -> None:
    assert problems(**BRIDGE) == [] and problems(adapter="pager", token="abcd", allowFrom=["*"]) == []
    read = msgspec.convert({"channels": {"a": BRIDGE, "b": {"adapter": "pager", "token": "abcd"}}}, Doors)
    assert [type(each) for each in read.channels.values()] == [BridgeSettings, PagerSettings]
    assert "adapter='pager'" in repr(read.channels["b"]) and "abcd" not in repr(read.channels["b"])


@pytest.mark.parametrize(
    ("channel", "problem"),
    [
        ({"adapter": "pager"}, "channels.a: `token` is missing: text of at least 4 characters"),
        ({**BRIDGE, "adapter": "pagr"}, 'channels.a.adapter: got \'pagr\', expected one of "bridge", "pager"; '),
        ({"url": "http://localhost", "secret": "s" * 16}, 'channels.a: `adapter` is missing: one of "bridge", "pager"'),
        (
            {"adapter": "pager", "token": "abcd", "url": "x"},
            "channels.a.url: unknown setting; known here: ackReaction, adapter, ",
        ),
    ],
)
def test_what_is_wrong_is_told_for_the_adapter_that_is_meant(channel: dict[str, Any], problem: str) -> None:
    assert any(found.startswith(problem) for found in problems(**channel)), problems(**channel)


def test_what_adapters_share_is_one_setting() -> None:
    paths = list(setting_paths(Doors))
    assert len(paths) == len(set(paths))
    assert {f"channels.<name>.{name}" for name in ("adapter", "url", "token", "allowFrom")} <= set(paths)


@pytest.mark.parametrize("kind", [CHANNELS, DATABASES, SANDBOXES], ids=lambda kind: str(kind.group))
def test_what_an_adapter_makes_is_where_it_says(kind: AdapterKind) -> None:
    assert len(kind.ours) >= 2
    for name in kind.ours:
        adapter = kind.find(name)
        assert adapter is not None and adapter.name == name
        module, _, made = adapter.make.partition(":")
        assert callable(getattr(import_module(module), made))


def test_a_database_is_known_by_each_scheme_of_its_url() -> None:
    found = [DATABASES.find(scheme) for scheme in ("postgres", "postgresql", "sqlite", "mysql")]
    assert [adapter and adapter.title for adapter in found] == ["PostgreSQL", "PostgreSQL", "SQLite", None]


def test_one_kind_of_database_and_of_sandbox_is_the_default() -> None:
    for kind in (DATABASES, SANDBOXES):
        assert [name for name in kind.ours if (found := kind.find(name)) and found.is_default] == [kind.default]


def test_only_the_name_of_a_platform_tells_its_word_for_threads() -> None:
    assert [thread_word_of(name) for name in ("telegram", "bridge", "desk")] == ["topic", None, None]
