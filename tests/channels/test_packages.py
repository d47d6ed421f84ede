"""Channels of other packages: installed with pip, named in a configuration, found by their entry points."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.program import PATIENCE_S, Program

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "folder_channel"
SAID = {"chatType": "direct", "chatId": "ann", "senderId": "ann", "messageId": "1", "text": "red shoes"}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the example into a folder, without a network."""
    folder = tmp_path_factory.mktemp("site")
    offline = ["--no-deps", "--no-build-isolation", "--no-index", "--no-compile", "--disable-pip-version-check"]
    command = [sys.executable, "-m", "pip", "install", "-q", *offline, "--target", str(folder), str(EXAMPLE)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S * 2, check=False)
    assert done.returncode == 0, done.stderr
    return folder


def program_with(home: Path, *places: Path, **channels: object) -> Program:
    """Make the program, with packages in these folders besides its own."""
    program = Program(home)
    program.env["PYTHONPATH"] = ":".join(map(str, places))
    program.write_config(json.dumps({"channels": channels}))
    return program


def drop(home: Path) -> dict[str, object]:
    (home / "drop" / "in").mkdir(parents=True)
    return {"adapter": "folder", "path": str(home / "drop"), "allowFrom": ["ann"]}


def say(home: Path, message_id: str = "1") -> None:
    """Put a message into the folder, whole."""
    file = home / "drop" / "in" / f"{message_id}.part"
    file.write_text(json.dumps({**SAID, "messageId": message_id}))
    file.rename(file.with_suffix(".json"))


def listed(program: Program) -> dict[str, dict[str, str]]:
    return {each["name"]: each for each in program.json("channels")["channels"]}


def bring(site: Path, code: str, name: str = "wrong") -> Path:
    """Write a package with one entry point, as pip leaves it."""
    info = site / f"backchannel_{name}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: backchannel-{name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[backchannel.channels]\n{name} = backchannel_{name}:ADAPTER\n")
    (site / f"backchannel_{name}.py").write_text(code)
    return site


def test_an_installed_channel_is_named_in_the_configuration_and_answers(site: Path, tmp_path: Path) -> None:
    program = program_with(tmp_path, site, drop=drop(tmp_path))
    with program.up() as up:
        say(tmp_path)
        up.wait_until(lambda: any((tmp_path / "drop" / "out").glob("*.txt")))
        channel = listed(program)["drop"]
    (reply,) = (tmp_path / "drop" / "out").iterdir()
    assert reply.read_text().startswith("to ann: ") and "red shoes" in reply.read_text()
    assert not list((tmp_path / "drop" / "in").iterdir())
    assert (channel["name"], channel["adapter"], channel["status"]) == ("drop", "folder", "ok")


def test_its_settings_are_checked_like_all_others(site: Path, tmp_path: Path) -> None:
    away = str(tmp_path / "away")
    program = program_with(tmp_path, site, drop={"adapter": "folder", "path": away, "allowFrom": ["ann"], "pth": "x"})
    found = json.loads(program.run("config", "check", "--json").stdout)["findings"]
    assert [(each["path"], each["message"]) for each in found] == [
        ("channels.drop.pth", "unknown setting; did you mean `path`?")
    ]
    program.write_config(json.dumps({"channels": {"drop": {"adapter": "folder", "path": away, "allowFrom": ["ann"]}}}))
    (finding,) = json.loads(program.run("config", "check", "--json").stdout)["findings"]
    assert (finding["level"], finding["path"]) == ("warning", "channels.drop.path")
    assert "there is no such folder" in finding["message"]


def test_an_adapter_that_no_package_brings_is_refused_with_those_there_are(site: Path, tmp_path: Path) -> None:
    program = program_with(tmp_path, site, drop={"adapter": "foldr", "path": "x"})
    done = program.run("config", "check", "--json")
    (finding,) = json.loads(done.stdout)["findings"]
    assert done.returncode != 0 and finding["path"] == "channels.drop.adapter"
    assert all(f'"{name}"' in finding["message"] for name in ("bridge", "telegram", "folder"))
    assert "did you mean `folder`?" in finding["message"]


SETTINGS = """
from backchannel import Adapter, ChannelSettings
class Wrong(ChannelSettings, frozen=True, kw_only=True, tag_field="adapter", tag="wrong"):
    token: str
"""
ADAPTER = 'ADAPTER = Adapter(name="wrong", title="Wrong", settings=Wrong, make="backchannel_wrong:make")\n'
OWN_CHECK = "    def __post_init__(self): {}\n"


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("import pigeons", "cannot be loaded: ModuleNotFoundError: No module named 'pigeons'"),
        ("ADAPTER = 'no adapter'", "backchannel_wrong:ADAPTER is no backchannel.Adapter"),
        (SETTINGS + ADAPTER.replace('"wrong"', '"right"', 1), "is called 'right', not 'wrong'"),
        (SETTINGS.replace('tag="wrong"', 'tag="right"') + ADAPTER, "are not a backchannel.ChannelSettings"),
        (SETTINGS + "def make(*given): return given[3]\n" + ADAPTER, "cannot make a wrong: IndexError"),
        (SETTINGS + "def make(*given): raise SystemExit(5)\n" + ADAPTER, "cannot make a wrong: SystemExit"),
        (SETTINGS + ADAPTER.replace('"backchannel_wrong:make"', "7"), "cannot make a wrong: AttributeError"),
        (SETTINGS + OWN_CHECK.format("{}['x']") + ADAPTER, "cannot read its settings: KeyError"),
    ],
    ids=["import", "value", "name", "settings", "make", "exit", "place", "read"],
)
def test_a_package_that_fails_is_named_and_stops_nothing_else(site: Path, tmp_path: Path, code: str, told: str) -> None:
    other = bring(tmp_path / "other", code)
    secret = "a-token-of-somebody"
    wrong = {"adapter": "wrong", "token": secret, "allowFrom": ["ann"]}
    program = program_with(tmp_path, site, other, drop=drop(tmp_path), wrong=wrong)
    with program.up() as up:
        say(tmp_path)
        up.wait_until(lambda: any((tmp_path / "drop" / "out").glob("*.txt")))
        up.wait_logged("a channel cannot be used")
        channels = listed(program)
        logs = up.said + up.logged
    assert channels["drop"]["status"] == "ok"
    assert (channels["wrong"]["adapter"], channels["wrong"]["status"]) == ("wrong", "down")
    error = channels["wrong"]["lastError"]
    assert "the package backchannel-wrong 1.0" in error and told in error
    assert "the package backchannel-wrong 1.0" in logs and secret not in logs


@pytest.mark.parametrize(
    ("code", "level", "told"),
    [
        (OWN_CHECK.format("raise ValueError('the token is too old')") + ADAPTER, "error", "the token is too old"),
        (OWN_CHECK.format("{}['x']") + ADAPTER, "warning", "the channel stays down: the package backchannel-wrong 1.0"),
        (
            ADAPTER.replace(")\n", ", check=lambda name, settings: [5])\n"),
            "warning",
            "5 is no backchannel.SettingIssue",
        ),
        (
            ADAPTER.replace(")\n", ", needs=('pigeons.home',))\n"),
            "warning",
            "pigeons.home is not installed, which Wrong needs",
        ),
    ],
    ids=["refused", "read", "issue", "needs"],
)
def test_a_check_of_a_package_is_told_as_a_finding(tmp_path: Path, code: str, level: str, told: str) -> None:
    other = bring(tmp_path / "other", SETTINGS + code)
    program = program_with(tmp_path, other, wrong={"adapter": "wrong", "token": "a-token", "allowFrom": ["ann"]})
    found = json.loads(program.run("config", "check", "--json").stdout)["findings"]
    (finding,) = [each for each in found if each["path"] == "channels.wrong"]
    assert finding["level"] == level and told in finding["message"]
