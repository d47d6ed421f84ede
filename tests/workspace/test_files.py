"""Files of the workspace: read, written, edited and listed, and never one outside of it."""

from __future__ import annotations

import asyncio
import os
import socket
import stat
import subprocess
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backchannel.errors import InvalidRequest
from backchannel.workspace.beneath import Place
from tests.workspace.desk import WorkspaceSession, opened

pytestmark = pytest.mark.anyio


async def every(desk: WorkspaceSession, path: str) -> list[str]:
    """Try a path with every tool that takes one; returns what they say, which must all be refusals."""
    return [
        await desk.refusal("read", path=path),
        await desk.refusal("write", path=path, content="x"),
        await desk.refusal("edit", path=path, oldText="a", newText="b"),
        await desk.refusal("list", path=path),
        await desk.refusal("search", pattern=".", path=path),
    ]


async def test_the_workspace_is_made_when_it_is_first_used(tmp_path: Path) -> None:
    async with opened(tmp_path) as desk:
        assert not desk.root.exists()
        assert await desk("write", path="notes/today.md", content="Grüße\n") == "wrote notes/today.md: 8 bytes"
        assert desk.root == tmp_path / "agents/main/workspace"
        assert (desk.root / "notes/today.md").read_text(encoding="utf-8") == "Grüße\n"
        assert stat.S_IMODE(desk.root.stat().st_mode) == 0o700


async def test_what_was_written_is_read_edited_and_listed(desk: WorkspaceSession) -> None:
    await desk("write", path="a.txt", content="one\ntwo\nthree\n")
    assert await desk("edit", path="a.txt", oldText="two\n", newText="2\n") == "edited a.txt at line 2"
    assert await desk("read", path="a.txt") == "one\n2\nthree\n"
    assert await desk("read", path=f"{desk.root}/a.txt", offset=2, limit=1) == (
        "2\n\n[lines 2 to 2; more follow, from offset 3]"
    )
    (desk.root / "sub").mkdir()
    (desk.root / "bell\a").touch()
    (desk.root / "link").symlink_to("a.txt")
    os.mkfifo(desk.root / "pipe")
    assert (await desk("list")).split("\n") == [
        "'bell\\x07'  0 bytes",
        "a.txt  12 bytes",
        "link (a link, not followed)",
        "pipe (no ordinary file)",
        "sub/",
    ]
    assert await desk("list", path="sub") == "[the folder is empty]"


@pytest.mark.parametrize(
    "path",
    ["../x", "a/../../x", "/etc/passwd", "~/x", "~root", "/", "sub/../a", "..", "a\0b", "x/" * 3000, "/proc/self"],
)
async def test_no_written_path_leads_out(desk: WorkspaceSession, path: str) -> None:
    (desk.root / "sub").mkdir()
    for said in await every(desk, path):
        assert "leads out of the workspace" in said or "cannot be the path of a file" in said


@given(st.text(st.characters() | st.sampled_from("/.~\0\\")))
def test_whatever_is_written_as_a_path_is_refused_or_lies_beneath(path: str) -> None:
    with suppress(InvalidRequest):
        names = Place(Path("/srv/work"), "/workspace").parts(path)
        assert all(name not in ("", ".", "..") and "/" not in name and "\0" not in name for name in names)
        assert Path("/srv/work", *names).is_relative_to("/srv/work")


@pytest.mark.parametrize("text", ["\ud800", "a\udfffb"])
async def test_half_a_character_is_no_name_and_is_replaced_in_a_text(desk: WorkspaceSession, text: str) -> None:
    assert all("cannot be the path of a file" in said for said in await every(desk, "x\ud800"))
    await desk("write", path="a", content=text + "!")
    await desk("edit", path="a", oldText="!", newText=text)
    assert (desk.root / "a").read_text() == text.encode("utf-16", "surrogatepass").decode("utf-16", "replace") * 2
    assert "\N{REPLACEMENT CHARACTER}" in await desk("search", pattern=text)
    assert "\N{REPLACEMENT CHARACTER}" in await desk("exec", command=f"echo '{text}'")
    await desk("exec", command=f"echo '{text}'", background=True)


async def test_a_link_is_not_followed_at_the_end_or_in_the_middle(desk: WorkspaceSession, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_text("secret")
    (desk.root / "end").symlink_to(outside / "secret")
    (desk.root / "middle").symlink_to(outside)
    (desk.root / "within").symlink_to(".")
    for path in ("end", "middle/secret", "middle/new", "within/end"):
        assert "links are not followed" in await desk.refusal("read", path=path)
        assert "links are not followed" in await desk.refusal("write", path=path, content="x")
        assert "links are not followed" in await desk.refusal("edit", path=path, oldText="s", newText="x")
    assert "links are not followed" in await desk.refusal("list", path="middle")
    assert await desk("search", pattern="secret") == "[nothing was found]"
    assert [path.name for path in outside.iterdir()] == ["secret"]
    assert (outside / "secret").read_text() == "secret"


async def test_a_link_that_is_swapped_in_meanwhile_gives_nothing(desk: WorkspaceSession, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_text("secret")
    inside, stop = desk.root / "d", threading.Event()
    (desk.root / "real").mkdir()
    (desk.root / "real" / "file").write_text("mine")

    def swap() -> None:
        while not stop.is_set():
            inside.symlink_to(outside)
            inside.unlink()
            (desk.root / "real").rename(inside)
            inside.rename(desk.root / "real")

    swapper = threading.Thread(target=swap)
    swapper.start()
    said: set[str] = set()
    try:
        for _ in range(300):
            with suppress(InvalidRequest):
                said.add(await desk("read", path="d/file"))
            await desk.refusal("edit", path="d/file", oldText="secret", newText="changed")
    finally:
        stop.set()
        swapper.join()
    assert said <= {"mine"}
    assert (outside / "file").read_text() == "secret"


async def test_a_file_with_a_second_name_is_not_read_and_is_replaced_without_touching_the_other(
    desk: WorkspaceSession, tmp_path: Path
) -> None:
    (tmp_path / "outside").write_text("secret")
    (desk.root / "hard").hardlink_to(tmp_path / "outside")
    assert "2 hard links" in await desk.refusal("read", path="hard")
    assert "2 hard links" in await desk.refusal("edit", path="hard", oldText="s", newText="x")
    assert await desk("search", pattern="secret") == "[nothing was found]"
    await desk("write", path="hard", content="mine")
    assert (tmp_path / "outside").read_text() == "secret"
    assert await desk("read", path="hard") == "mine"


async def test_devices_pipes_and_sockets_are_not_opened(desk: WorkspaceSession) -> None:
    os.mkfifo(desk.root / "pipe")
    folder = os.open(desk.root, os.O_PATH)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(f"/proc/self/fd/{folder}/socket")  # the name of a socket may not be long
        os.close(folder)
        for name in ("pipe", "socket"):
            assert "no ordinary file" in await desk.refusal("read", path=name)
            assert "no ordinary file" in await desk.refusal("write", path=name, content="x")
            assert "no ordinary file" in await desk.refusal("edit", path=name, oldText="a", newText="b")
        assert await desk("search", pattern="x") == "[nothing was found]"
    (desk.root / "sub").mkdir()
    assert "'sub' is a folder" in await desk.refusal("write", path="sub", content="x")


async def test_an_edit_refuses_what_is_not_there_or_not_only_once(desk: WorkspaceSession) -> None:
    (desk.root / "a").write_text("x = 1\nx = 1\n")
    (desk.root / "dos").write_bytes(b"one\r\ntwo\r\n")
    assert "it stands 2 times in a" in await desk.refusal("edit", path="a", oldText="x = 1", newText="x = 2")
    assert "it does not stand in a;" in await desk.refusal("edit", path="a", oldText="x = 3", newText="x = 2")
    assert r"its lines end with \r\n" in await desk.refusal("edit", path="dos", oldText="one\ntwo", newText="x")
    assert "it is empty" in await desk.refusal("edit", path="a", oldText="", newText="x")
    assert "newText is the same" in await desk.refusal("edit", path="a", oldText="x", newText="x")
    assert (desk.root / "a").read_text() == "x = 1\nx = 1\n"


async def test_the_sessions_and_sub_agents_of_an_agent_share_its_workspace_and_other_agents_have_their_own(
    desk: WorkspaceSession,
) -> None:
    await desk("write", path="a", content="shared")
    for key in ("agent:main:other", "agent:main:subagent:0e7b7f0a-0f5c-4b8e-9e6c-1b1f5b0f1a11"):
        assert await desk.of(key)("read", path="a") == "shared"
    assert "no such file" in await desk.of("agent:other:main").refusal("read", path="a")


async def test_edits_at_the_same_time_do_not_lose_one_another(desk: WorkspaceSession) -> None:
    (desk.root / "a").write_text("".join(f"<{n}>\n" for n in range(20)))
    await asyncio.gather(*(desk("edit", path="a", oldText=f"<{n}>", newText=f"[{n}]") for n in range(20)))
    assert (desk.root / "a").read_text() == "".join(f"[{n}]\n" for n in range(20))


async def test_a_binary_or_a_huge_file_is_told_and_not_spoiled(desk: WorkspaceSession) -> None:
    (desk.root / "binary").write_bytes(b"\x7fELF\0\0\xff" * 100)
    (desk.root / "latin").write_bytes("Grüße".encode("latin-1"))
    with (desk.root / "huge").open("wb") as huge:
        huge.write(b"line\n" * 10_000)
        huge.truncate(100 * 1024 * 1024)
    assert await desk("read", path="binary") == "[a binary file of 700 bytes, not shown]"
    assert await desk("read", path="latin") == "Gr��e"
    assert (await desk("read", path="huge", limit=1)).startswith("line\n\n[lines 1 to 1;")
    for name in ("binary", "latin"):
        assert "no UTF-8 text" in await desk.refusal("edit", path=name, oldText="G", newText="g")
    assert "files over 8 MiB are not edited" in await desk.refusal("edit", path="huge", oldText="line", newText="x")


async def test_what_is_read_is_bounded_however_long_lines_and_files_are(desk: WorkspaceSession) -> None:
    (desk.root / "wide").write_text("x" * 10_000_000 + "\nend\n")
    (desk.root / "long").write_text("0123456789\n" * 100_000)
    wide = await desk("read", path="wide")
    assert len(wide) < 9_000 and wide.endswith(" [the line goes on]\nend\n")
    long = await desk("read", path="long")
    assert len(long) < 70_000 and long.endswith("[lines 1 to 2000; more follow, from offset 2001]")
    assert (await desk("read", path="long", offset=99_999)) == "0123456789\n0123456789\n"
    assert "has 100000 lines" in await desk.refusal("read", path="long", offset=100_001)


async def test_a_folder_of_very_many_files_is_listed_in_part(desk: WorkspaceSession) -> None:
    for number in range(1_010):
        (desk.root / str(number)).touch()
    assert (await desk("list")).count("\n") == 1_000


async def test_a_write_keeps_the_mode_and_leaves_nothing_half_done(desk: WorkspaceSession) -> None:
    (desk.root / "run.sh").write_text("old")
    (desk.root / "run.sh").chmod(0o750)
    assert await desk("write", path="run.sh", content="new") == "replaced run.sh: 3 bytes"
    assert stat.S_IMODE((desk.root / "run.sh").stat().st_mode) == 0o750
    assert [path.name for path in desk.root.iterdir()] == ["run.sh"]
    (desk.root / "run.sh").chmod(0o4750)
    await desk("edit", path="run.sh", oldText="new", newText="newer")
    assert stat.S_IMODE((desk.root / "run.sh").stat().st_mode) == 0o750  # it may be another's now


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Have a file system of 64 KiB."""
    folder = tmp_path / "small"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(folder)], capture_output=True)
    if mounted.returncode != 0:
        pytest.skip("only root can make a small disk")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


async def test_a_full_disk_is_told_and_the_old_file_stays(tmp_path: Path, small_disk: Path) -> None:
    async with opened(tmp_path / "state", workspace=str(small_disk)) as desk:
        await desk("write", path="a", content="old")
        said = await desk.refusal("write", path="a", content="x" * 200_000)
        assert said == "'a': the disk is full"
        assert await desk("read", path="a") == "old"
        assert await desk("list") == "a  3 bytes"


async def test_a_workspace_that_cannot_be_made_or_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    async with opened(tmp_path / "state", workspace=str(tmp_path / "file" / "sub")) as desk:
        assert "a part of the path is no folder" in await desk.refusal("write", path="a", content="x")
        assert "cannot be made" in await desk.refusal("exec", command="true")
    async with opened(tmp_path / "state", workspace="/proc/1") as desk:
        assert (await desk.refusal("write", path="a", content="x")).startswith("'a': ")


@pytest.mark.parametrize("name", ["a\nb", "tab\t", "\x1b[31m", "\x7f"])
async def test_a_name_with_control_characters_is_not_made(desk: WorkspaceSession, name: str) -> None:
    assert "control characters" in await desk.refusal("write", path=name, content="x")
    assert not list(desk.root.iterdir())


async def test_arguments_that_do_not_fit_are_named(desk: WorkspaceSession) -> None:
    assert "offset" in await desk.refusal("read", path="a", offset=0)
    assert "path" in await desk.refusal("read")
    assert "mode" in await desk.refusal("write", path="a", content="x", mode="w")


async def test_a_sandboxed_session_sees_of_the_files_what_its_sandbox_sees(tmp_path: Path) -> None:
    for access in ("rw", "ro", "none"):
        async with opened(tmp_path / access, sandbox={"mode": "all", "workspaceAccess": access}) as desk:
            desk.root.mkdir(parents=True)
            (desk.root / "a").write_text("here")
            if access == "none":
                assert all("has no workspace" in said for said in await every(desk, "a"))
                continue
            assert await desk("read", path="/workspace/a") == "here"
            assert "leads out" in await desk.refusal("read", path=str(desk.root / "a"))
            if access == "ro":
                assert "may only read" in await desk.refusal("write", path="a", content="x")
                assert "may only read" in await desk.refusal("edit", path="a", oldText="here", newText="x")
            else:
                await desk("write", path="a", content="x")


async def test_a_write_makes_no_more_folders_than_a_path_sensibly_has(desk: WorkspaceSession) -> None:
    deep = "/".join("d" * 2000)
    assert "at most 64 are made" in await desk.refusal("write", path=f"{deep}/x", content="x")
    assert not list(desk.root.iterdir())
    assert (await desk("write", path=f"{deep[:128]}x", content="x")).startswith("wrote")


async def test_a_full_workspace_of_a_sandbox_takes_no_more_from_the_tools(tmp_path: Path) -> None:
    sandbox = {"mode": "all", "limits": {"diskMb": 2, "files": 50}}
    async with opened(tmp_path, sandbox=sandbox) as desk:
        assert (await desk("write", path="a", content="x")).startswith("wrote")
        (desk.root / "big").write_bytes(bytes(3 << 20))
    async with opened(tmp_path, sandbox=sandbox) as desk:  # a count is good for a second
        refused = await desk.refusal("write", path="b", content="x")
        assert refused.startswith("the workspace holds 3 MiB, and may hold 2 (") and "sandbox.limits.diskMb" in refused
        (desk.root / "big").unlink()
        for number in range(60):
            (desk.root / str(number)).touch()
    async with opened(tmp_path, sandbox=sandbox) as desk:
        refused = await desk.refusal("edit", path="a", oldText="x", newText="y")
        assert refused.startswith("the workspace holds 61 files and folders, and may hold 50 (sandbox.limits.files)")
    async with opened(tmp_path) as desk:
        assert (await desk("write", path="b", content="x")).startswith("wrote")
