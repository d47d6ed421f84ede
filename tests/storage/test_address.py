"""A gateway says where it listens in a file that counts only while it holds it."""

from __future__ import annotations

import fcntl
import subprocess
import sys
from pathlib import Path

from backchannel.storage.files.folder import ADDRESS_FILE, AddressFile, load_address

HOLDER = """
import sys
from pathlib import Path
from backchannel.storage.files.folder import AddressFile
address = AddressFile.hold(Path(sys.argv[1]), "http://127.0.0.1:1")
print("held", flush=True)
sys.stdin.read()
"""


def test_an_address_is_there_while_it_is_held(tmp_path: Path) -> None:
    assert load_address(tmp_path) is None
    address = AddressFile.hold(tmp_path, "http://127.0.0.1:18790")
    assert load_address(tmp_path) == "http://127.0.0.1:18790"
    address.release()

    assert load_address(tmp_path) is None
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_process_left_behind_is_no_address(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        assert load_address(tmp_path) == "http://127.0.0.1:1"
        process.kill()
        process.wait(10)

    assert (tmp_path / ADDRESS_FILE).exists()
    assert load_address(tmp_path) is None


def test_whoever_looks_does_not_stop_a_gateway_from_taking_its_place(tmp_path: Path) -> None:
    (tmp_path / ADDRESS_FILE).write_text("http://127.0.0.1:1\n")
    with (tmp_path / ADDRESS_FILE).open() as looking:
        fcntl.flock(looking, fcntl.LOCK_SH)
        address = AddressFile.hold(tmp_path, "http://127.0.0.1:2")

    assert load_address(tmp_path) == "http://127.0.0.1:2"
    address.release()
