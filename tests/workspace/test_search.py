"""Searching the workspace: with ripgrep in a sandbox, and with our own program, to the same effect."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from backchannel.workspace import searching
from tests.workspace.desk import WorkspaceSession

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["ripgrep", "our own"])
def either(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, real_sandbox: None) -> str:
    if request.param == "our own":
        monkeypatch.setenv("PATH", "/nowhere")  # there is no bubblewrap, so ripgrep is not used
    elif not Path("/usr/bin/rg").exists():
        if os.environ.get("CI"):
            pytest.fail("the package ripgrep is not installed")
        pytest.skip("the package ripgrep is not installed")
    return str(request.param)


@pytest.mark.usefixtures("either")
async def test_matches_are_found_line_by_line_in_order(desk: WorkspaceSession) -> None:
    for name, text in {
        "b.py": "import os\r\nprint(os.name)\n",
        "a/deep/x.txt": "nothing\nimport: sys\n",
        "odd:1:name": "import odd\n",
        ".hidden": "import hidden\n",
        "node_modules/x.js": "import far\n",
        ".gitignore": "b.py\n",
    }.items():
        (desk.root / name).parent.mkdir(parents=True, exist_ok=True)
        (desk.root / name).write_bytes(text.encode())
    (desk.root / "binary").write_bytes(b"import\0")
    (desk.root / "link").symlink_to("b.py")
    assert (
        await desk("search", pattern=r"^import\b")
        == "a/deep/x.txt:2:import: sys\nb.py:1:import os\nodd:1:name:1:import odd"
    )
    assert await desk("search", pattern="import", path="a") == "a/deep/x.txt:2:import: sys"
    assert await desk("search", pattern="import", path="b.py") == "b.py:1:import os"
    assert await desk("search", pattern="^$") == "[nothing was found]"
    assert await desk("search", pattern="--files") == "[nothing was found]"
    assert "no such file or folder" in await desk.refusal("search", pattern="x", path="c")


@pytest.mark.usefixtures("either")
async def test_a_pattern_that_is_none_is_told(desk: WorkspaceSession) -> None:
    assert "pattern" in await desk.refusal("search", pattern="(")
    assert "pattern" in await desk.refusal("search", pattern="a\nb")


@pytest.mark.usefixtures("either")
async def test_what_may_not_be_read_is_left_out_and_the_rest_is_found(desk: WorkspaceSession) -> None:
    for name in ("a", "closed/b"):
        (desk.root / name).parent.mkdir(exist_ok=True)
        (desk.root / name).write_text("needle\n")
    (desk.root / "closed").chmod(0)
    try:
        assert (await desk("search", pattern="needle")).startswith("a:1:needle")
        assert (await desk("search", pattern="thread")).startswith("[nothing was found]")
    finally:
        (desk.root / "closed").chmod(0o700)


@pytest.mark.usefixtures("either")
async def test_a_name_with_a_line_break_cannot_pass_for_another(desk: WorkspaceSession) -> None:
    (desk.root / "a").write_text("needle\n")
    (desk.root / "x\na").write_text("needle in another\n")
    assert await desk("search", pattern="needle") == "a:1:needle"


@pytest.mark.usefixtures("either")
async def test_what_is_found_is_bounded(desk: WorkspaceSession) -> None:
    for number in range(30):
        (desk.root / f"{number:02}").write_text("needle " + "x" * 100_000 + "\n" + "needle\n" * 200)
    found = await desk("search", pattern="needle")
    assert len(found) < 200 * 450 and found.count("\n") == 200
    assert found.endswith("[the first 200 matches; name a folder or a narrower pattern for others]")


async def test_a_pattern_that_takes_for_ever_is_stopped_and_holds_nobody(
    desk: WorkspaceSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(searching, "LIMIT_S", 1.0)
    (desk.root / "a").write_text("a" * 5000 + "!\n")
    searched = asyncio.create_task(desk.refusal("search", pattern="(a|a)*$"))
    turns = 0
    while not searched.done():
        await asyncio.sleep(0.01)
        turns += 1
    assert "took longer than 1 s" in await searched
    assert turns > 10  # a loop that is held for that second has two or three
