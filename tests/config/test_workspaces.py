"""The folders that agents' tools work in, as settings: which can be given to an agent, and what sandboxes may use."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from backchannel.config import config_from, load_config
from backchannel.config.agents import SandboxRules, agent
from backchannel.errors import ConfigError


def workspace(tmp_path: Path, folder: str, **more: Any) -> str | None:
    listed = {"agents": {"list": [{"id": "main", "workspace": folder}]}}
    return agent(config_from(listed, {}, state=tmp_path / "state", base_dir=tmp_path, **more), "main").workspace


def test_a_relative_path_is_relative_to_the_configuration(tmp_path: Path) -> None:
    assert workspace(tmp_path, "work") == str(tmp_path / "work")


@pytest.mark.parametrize("folder", [".", "state", "state/agents/main", "state/../state/agents", "/", "link"])
def test_a_folder_in_which_the_token_or_conversations_lie_is_refused(tmp_path: Path, folder: str) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    with pytest.raises(ConfigError, match=r"agents\.list\[0\]\.workspace.*state folder"):
        workspace(tmp_path, folder)


def test_the_usual_place_may_be_named(tmp_path: Path) -> None:
    assert workspace(tmp_path, "state/agents/main/workspace") == str(tmp_path / "state/agents/main/workspace")


def test_a_folder_with_the_configuration_in_it_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "project" / "backchannel.json5"
    file.parent.mkdir()
    file.write_text('{ agents: { defaults: { workspace: "." } } }')
    with pytest.raises(ConfigError, match="this configuration file lies in it"):
        load_config(file, {}, state=tmp_path / "state")


@pytest.mark.parametrize("sandbox", [{"mode": "all"}, {"mode": "non-main", "workspaceAccess": "rw"}])
def test_a_folder_that_a_sandboxed_agent_could_replace_by_a_link_is_refused(
    tmp_path: Path, sandbox: dict[str, str]
) -> None:
    def load(sandbox: dict[str, str], inner: str) -> None:
        listed = [{"id": "a", "workspace": "work", "sandbox": sandbox}, {"id": "b", "workspace": inner}]
        config_from({"agents": {"list": listed}}, {}, state=tmp_path / "state", base_dir=tmp_path)

    (tmp_path / "link").symlink_to(tmp_path / "work")
    for inner in ("work/b", "work/deep/b", "link/b"):
        with pytest.raises(ConfigError, match=r"agents\.list\[1\]\.workspace.*it lies in the workspace of a"):
            load(sandbox, inner)
    load(sandbox, "work")  # shared: nobody inside can replace it
    load(sandbox, "workshop/b")
    load({**sandbox, "workspaceAccess": "ro"}, "work/b")
    load({"mode": "off"}, "work/b")


def test_what_an_agent_says_of_its_sandbox_wins_setting_by_setting(tmp_path: Path) -> None:
    config = config_from(
        {
            "agents": {
                "defaults": {"sandbox": {"network": True, "limits": {"memoryMb": 64, "processes": 9}}},
                "list": [{"id": "a", "sandbox": {"workspaceAccess": "ro", "limits": {"memoryMb": 128}}}, {"id": "b"}],
            }
        },
        {},
        state=tmp_path,
    )
    assert agent(config, "a").sandbox == SandboxRules(network=True, workspace_access="ro", memory_mb=128, processes=9)
    assert agent(config, "b").sandbox == SandboxRules(network=True, memory_mb=64, processes=9)


@pytest.mark.parametrize(
    "sandbox", [{"backend": "vm"}, {"workspaceAccess": "all"}, {"limits": {"memoryMb": 0}}, {"limits": {"cpu": 1}}]
)
def test_a_sandbox_that_cannot_be_is_refused(tmp_path: Path, sandbox: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"agents\.defaults\.sandbox"):
        config_from({"agents": {"defaults": {"sandbox": sandbox}}}, {}, state=tmp_path)
