"""The state folder is held by one process, for exactly as long as it lives."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from backchannel.errors import StartupError, StateFolderInUse
from backchannel.gateway.app import Gateway
from backchannel.storage.files.folder import StateFolder, holder_of

HOLDER = """
import sys
from pathlib import Path
from backchannel.gateway.app import Gateway
from backchannel.storage.files.folder import StateFolder
folder = StateFolder.hold(Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


@contextmanager
def another_process(path: Path) -> Iterator[subprocess.Popen[str]]:
    """Let another process hold the folder."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "held\n"
            yield process
        finally:
            process.kill()


def test_a_second_process_is_refused_and_told_who_holds_the_folder(tmp_path: Path) -> None:
    with another_process(tmp_path) as holder:
        with pytest.raises(StateFolderInUse) as refused:
            StateFolder.hold(tmp_path)
        assert str(holder.pid) in refused.value.message
        assert str(tmp_path) in refused.value.message


def test_a_refused_process_does_not_spoil_the_holders_mark(tmp_path: Path) -> None:
    with another_process(tmp_path) as holder:
        for _ in range(3):
            with pytest.raises(StateFolderInUse, match=str(holder.pid)):
                StateFolder.hold(tmp_path)


def test_a_folder_whose_lock_was_deleted_is_still_held(tmp_path: Path) -> None:
    with another_process(tmp_path) as holder:
        (tmp_path / "lock").unlink()
        for _ in range(2):
            with pytest.raises(StateFolderInUse, match=rf"another program \(process {holder.pid}, \S+\) has locked"):
                StateFolder.hold(tmp_path)
        assert not (tmp_path / "lock").exists()
        assert (holder_of(tmp_path) or "").startswith(f"{holder.pid}, ")
        holder.kill()
        holder.wait(5)
        StateFolder.hold(tmp_path).release()


def test_a_killed_process_frees_the_folder(tmp_path: Path) -> None:
    with another_process(tmp_path) as holder:
        holder.kill()
        holder.wait(5)
        folder = StateFolder.hold(tmp_path)
        assert (tmp_path / "lock").read_text() == str(os.getpid())
        folder.release()


def test_a_released_folder_can_be_held_again(tmp_path: Path) -> None:
    StateFolder.hold(tmp_path).release()
    StateFolder.hold(tmp_path).release()


def test_the_same_process_cannot_hold_a_folder_twice(tmp_path: Path) -> None:
    folder = StateFolder.hold(tmp_path)
    with pytest.raises(StateFolderInUse, match=str(os.getpid())):
        StateFolder.hold(tmp_path)
    folder.release()


def test_the_folder_is_made_for_its_owner_only(tmp_path: Path) -> None:
    folder = StateFolder.hold(tmp_path / "new" / "state")
    assert folder.path.stat().st_mode & 0o777 == 0o700
    assert (folder.path / "lock").stat().st_mode & 0o777 == 0o600
    folder.release()


@pytest.mark.parametrize("place", ["file", "file/below", "/proc/backchannel"])
def test_a_folder_that_cannot_be_made_is_a_clear_error(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StartupError, match="cannot be written") as refused:
        StateFolder.hold(tmp_path / place)
    assert "--state" in refused.value.message


def test_a_lock_that_cannot_be_opened_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "lock").mkdir()
    with pytest.raises(StartupError, match="cannot be written"):
        StateFolder.hold(tmp_path)


def test_what_stands_in_an_old_lock_does_not_matter(tmp_path: Path) -> None:
    (tmp_path / "lock").write_bytes(b"\xff" * 100)
    folder = StateFolder.hold(tmp_path)
    assert (tmp_path / "lock").read_text() == str(os.getpid())
    folder.release()


def test_a_database_outside_the_folders_of_two_gateways_is_held_by_one_of_them(tmp_path: Path) -> None:
    database = tmp_path / "shared.db"
    (tmp_path / "other.db").symlink_to(database)
    first, second = StateFolder.hold(tmp_path / "a"), StateFolder.hold(tmp_path / "b")
    first.hold_database(database)
    for name in ("shared.db", "other.db"):
        with pytest.raises(StateFolderInUse, match=f"process {os.getpid()}.*the database {database}"):
            second.hold_database(tmp_path / name)
    first.release()
    second.hold_database(database)
    second.release()


def test_the_database_of_a_folder_is_held_with_it(tmp_path: Path) -> None:
    folder = StateFolder.hold(tmp_path)
    folder.hold_database(folder.database)
    folder.release()
    assert sorted(file.name for file in tmp_path.iterdir()) == [".gitignore", "lock"]


def test_the_database_of_another_gateways_folder_is_held_by_one_of_them(tmp_path: Path) -> None:
    theirs = StateFolder.hold(tmp_path / "theirs")
    mine = StateFolder.hold(tmp_path / "mine")
    with pytest.raises(StateFolderInUse, match="uses the database"):
        mine.hold_database(theirs.database)
    theirs.release()
    mine.hold_database(theirs.database)
    with pytest.raises(StateFolderInUse, match="uses the state folder"):
        StateFolder.hold(tmp_path / "theirs")
    mine.release()


def test_a_database_in_a_place_that_is_not_there_says_so(tmp_path: Path) -> None:
    folder = StateFolder.hold(tmp_path)
    with pytest.raises(StartupError, match=r"x\.db cannot be written"):
        folder.hold_database(tmp_path / "nowhere" / "x.db")
    folder.release()


@pytest.mark.anyio
async def test_two_gateways_do_not_work_on_one_database(tmp_path: Path) -> None:
    config = {"database": {"url": f"sqlite:///{tmp_path / 'shared.db'}"}}
    async with Gateway.open(config, state=tmp_path / "a"):
        with pytest.raises(StateFolderInUse):
            async with Gateway.open(config, state=tmp_path / "b"):
                pass
    async with Gateway.open(config, state=tmp_path / "b"):
        pass


def test_git_passes_over_a_new_folder_wherever_it_lies(tmp_path: Path) -> None:
    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=tmp_path, capture_output=True, text=True, check=True).stdout

    git("init", "-q")
    StateFolder.hold(tmp_path / ".second").release()
    (tmp_path / ".second" / "token").write_text("secret")
    git("add", ".")

    assert git("ls-files", "--cached") == ""


def test_a_folder_that_somebody_wants_in_git_is_not_taken_out_again(tmp_path: Path) -> None:
    StateFolder.hold(tmp_path).release()
    (tmp_path / ".gitignore").unlink()
    StateFolder.hold(tmp_path).release()

    assert not (tmp_path / ".gitignore").exists()


def test_who_holds_a_folder_can_be_looked_up_without_a_start_being_refused(tmp_path: Path) -> None:
    assert holder_of(tmp_path) is None
    with another_process(tmp_path) as holder:
        assert holder_of(tmp_path) == str(holder.pid)
    assert holder_of(tmp_path) is None

    with (tmp_path / "lock").open() as looking:
        fcntl.flock(looking, fcntl.LOCK_SH)
        threading.Timer(0.03, fcntl.flock, (looking, fcntl.LOCK_UN)).start()
        StateFolder.hold(tmp_path).release()


def test_a_lock_that_is_no_gateways_is_not_called_one(tmp_path: Path) -> None:
    StateFolder.hold(tmp_path).release()  # the file `lock` still has the number of a process
    with subprocess.Popen(["flock", str(tmp_path), "sh", "-c", "echo locked; read end"], stdin=-1, stdout=-1) as other:
        assert other.stdout is not None and other.stdin is not None
        assert other.stdout.readline() == b"locked\n"
        with pytest.raises(StateFolderInUse) as refused:
            StateFolder.hold(tmp_path)
        assert f"another program (process {other.pid}, flock) has locked" in str(refused.value)
        assert holder_of(tmp_path) == f"{other.pid}, flock"
        other.stdin.close()
