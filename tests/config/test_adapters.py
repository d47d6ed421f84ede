"""Settings that are one of several groups, told apart by a tag, as those of channels are by `adapter`."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
import pytest

from backchannel.channels.bridge.settings import BridgeSettings
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
        ({"adapter": "pager", "token": "abcd", "url": "x"}, "channels.a.url: unknown setting; known here: adapter, "),
    ],
)
def test_what_is_wrong_is_told_for_the_adapter_that_is_meant(channel: dict[str, Any], problem: str) -> None:
    assert any(found.startswith(problem) for found in problems(**channel)), problems(**channel)


def test_what_adapters_share_is_one_setting() -> None:
    paths = list(setting_paths(Doors))
    assert len(paths) == len(set(paths))
    assert {f"channels.<name>.{name}" for name in ("adapter", "url", "token", "allowFrom")} <= set(paths)
