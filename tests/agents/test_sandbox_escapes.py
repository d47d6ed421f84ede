"""Escapes from a sandbox, tried against the real bubblewrap."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from backchannel.agents.registry import Agents
from backchannel.agents.sandbox.bubblewrap.backend import SYSTEM_LINKS
from backchannel.agents.sandbox.sandboxes import Sandbox, Sandboxes
from backchannel.config import config_from
from backchannel.config.agents import SandboxRules
from tests.agents.inside import MAIN, inside
from tests.support.processes import Watched, all_ended

pytestmark = pytest.mark.usefixtures("real_sandbox")
SIDE = "agent:main:cron:x"


def test_a_program_has_the_workspace_and_can_write_there(tmp_path: Path) -> None:
    box = inside(tmp_path)
    assert box.says("pwd; cat own.txt; echo new > new.txt; echo $HOME; whoami") == "/workspace\nmine/workspace\nagent\n"
    assert (box.sandbox.workspace / "new.txt").read_text() == "new\n"


def test_nothing_of_the_state_folder_or_of_homes_or_of_other_agents_is_there(tmp_path: Path) -> None:
    box = inside(tmp_path)
    names = ("", "backchannel.db", "token", "agents", "agents/other/workspace/theirs.txt")
    paths = [str(box.state / name) for name in names]
    paths += ["/etc/shadow", "/workspace/../state/token", "/proc/1/root/etc/shadow", "/proc/1/cwd/token"]
    said = box.says('for path in "$@"; do cat "$path"; ls "$path"; done', *paths, str(Path.home()), "/home", "/run")
    assert said.count("cannot access") == len(paths) + 3
    assert set(box.says("ls /").split()) <= {
        *SYSTEM_LINKS,
        "dev",
        "etc",
        "outputs",
        "proc",
        "tmp",
        "usr",
        "var",
        "workspace",
    }


def test_links_in_the_workspace_lead_nowhere_outside(tmp_path: Path) -> None:
    box = inside(tmp_path)
    (box.sandbox.workspace / "link").symlink_to(box.state / "token")
    (box.sandbox.workspace / "up").symlink_to("../../..")
    said = box.says("cat link up/token; ln own.txt /tmp/hard; ln /etc/passwd hard; ls")
    assert "the operator's" not in said
    assert said.count("Invalid cross-device link") == 2
    assert not (box.sandbox.workspace / "hard").exists()


def test_the_system_cannot_be_changed(tmp_path: Path) -> None:
    box = inside(tmp_path)
    before = Path("/proc/sys/kernel/core_pattern").read_text()
    targets = "/ /usr /etc /dev /proc /bin /etc/passwd /proc/sys/kernel/core_pattern /proc/sys/vm/swappiness"
    said = box.says(
        f"for t in {targets}; do (echo '|/workspace/evil' > $t/x || echo '|/workspace/evil' > $t) 2>/dev/null "
        "&& echo WROTE $t; done; mount -o remount,rw /; mount --bind /tmp /usr; unshare -Ur true; mknod d c 1 3; "
        "echo end"
    )
    assert "WROTE" not in said and "end\n" in said
    assert Path("/proc/sys/kernel/core_pattern").read_text() == before
    assert not list(box.sandbox.workspace.glob("d"))


def test_other_processes_are_not_seen_signalled_or_traced(tmp_path: Path) -> None:
    box = inside(tmp_path)
    script = (
        "import ctypes, os, sys\n"
        "print(sorted(int(name) for name in os.listdir('/proc') if name.isdigit()) <= [1, 2, 3, 4, 5, 6])\n"
        "for pid in map(int, sys.argv[1:]):\n"
        "    for attempt in (lambda: os.kill(pid, 9), lambda: open(f'/proc/{pid}/environ').read(),\n"
        "                    lambda: open(f'/proc/{pid}/mem', 'rb')):\n"
        "        try: attempt(); print('REACHED', pid)\n"
        "        except OSError: pass\n"
        "    print('TRACED' if ctypes.CDLL(None).ptrace(16, pid, 0, 0) == 0 else 'refused')\n"
    )
    said = box.says('/usr/bin/python3 -c "$@"', script, str(os.getpid()), str(os.getppid()))
    assert "True\n" in said and "REACHED" not in said and "TRACED" not in said and said.count("refused") == 2


def test_no_network_and_no_socket_of_the_host_is_reached(tmp_path: Path) -> None:
    box = inside(tmp_path)
    script = (
        "import socket, sys\n"
        "inet, unix = socket.AF_INET, socket.AF_UNIX\n"
        "for family, where in ((inet, ('127.0.0.1', int(sys.argv[1]))), (unix, '\\0' + sys.argv[2]),\n"
        "                      (unix, sys.argv[3]), (inet, ('1.1.1.1', 53))):\n"
        "    try: socket.socket(family).connect(where); print('CONNECTED', where)\n"
        "    except OSError: print('refused')\n"
    )
    with socket.create_server(("127.0.0.1", 0)) as tcp, socket.socket(socket.AF_UNIX) as abstract:
        abstract.bind(f"\0backchannel-test-{os.getpid()}")
        abstract.listen()
        with socket.socket(socket.AF_UNIX) as named:
            named.bind(str(tmp_path / "sock"))
            named.listen()
            names = (str(tcp.getsockname()[1]), f"backchannel-test-{os.getpid()}", str(tmp_path / "sock"))
            assert box.says('/usr/bin/python3 -c "$@"', script, *names) == "refused\n" * 4


def test_with_network_it_reaches_what_this_machine_reaches(tmp_path: Path) -> None:
    box = inside(tmp_path, network=True)
    with socket.create_server(("127.0.0.1", 0)) as tcp:
        said = box.says(f"echo hi > /dev/tcp/127.0.0.1/{tcp.getsockname()[1]} && echo through")
    assert said == "through\n"


def test_the_environment_has_nothing_of_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("BACKCHANNEL_TOKEN", "ANTHROPIC_API_KEY", "OPENAI_API_KEY", "SSH_AUTH_SOCK"):
        monkeypatch.setenv(name, "secret")
    said = inside(tmp_path).says("env; cat /proc/*/environ | tr '\\0' '\\n'")
    assert "secret" not in said
    assert "HOME=/workspace" in said and str(Path.home()) not in said.replace("/root/.", "")


@pytest.mark.parametrize("access", ["rw", "ro", "none"])
def test_the_workspace_is_there_as_the_settings_say(tmp_path: Path, access: str) -> None:
    box = inside(tmp_path, workspaceAccess=access)
    said = box.says("cat /workspace/own.txt; touch /workspace/new && echo wrote")
    assert ("mine" in said) is (access != "none")
    assert ("wrote" in said) is (access == "rw") is (box.sandbox.workspace / "new").exists()


def test_a_fork_bomb_ends_within_its_limit_and_leaves_nothing(tmp_path: Path) -> None:
    box = inside(tmp_path, limits={"processes": 32})
    ran = box.run("b() { b | b & }; b; sleep 600")
    assert ran.returncode != 0
    assert "more than 32 processes" in ran.stderr or "Resource temporarily unavailable" in ran.stderr
    assert not _processes_with(str(box.sandbox.workspace))


def test_memory_of_one_and_of_many_processes_ends_at_the_limit(tmp_path: Path) -> None:
    box = inside(tmp_path, limits={"memoryMb": 128})
    assert "MemoryError" in box.says("/usr/bin/python3 -c 'x = bytearray(1 << 28)'")
    many = "import os, time; [os.fork() for _ in range(2)]; hold = os.urandom(1 << 20) * 60; time.sleep(600)"
    assert "stopped: more than 128 MiB of memory" in box.says(f"/usr/bin/python3 -c '{many}'")


@pytest.mark.parametrize("where", ["/tmp/fill", "/dev/shm/fill"])
def test_what_is_written_outside_the_workspace_is_little(tmp_path: Path, where: str) -> None:
    box = inside(tmp_path, limits={"memoryMb": 64})
    assert "No space left on device" in box.says(f"head -c 100000000 /dev/zero > {where}")


def test_no_file_in_the_workspace_grows_without_end(tmp_path: Path) -> None:
    box = inside(tmp_path)
    assert "File size limit exceeded" in box.says(
        "truncate -s 2G big || true; dd if=/dev/zero of=big seek=2G bs=1 count=1"
    )
    assert box.run("ulimit -f").stdout.strip() == str((1 << 30) // 1024)


def test_a_program_that_swaps_links_while_it_is_started_gets_nothing(tmp_path: Path) -> None:
    """The workspace is bound by its own path: what lies in it cannot change what is bound."""
    box = inside(tmp_path)
    stop = threading.Event()

    def swap() -> None:
        link = box.sandbox.workspace / "swap"
        while not stop.is_set():
            link.unlink(missing_ok=True)
            link.symlink_to(box.state)
            link.unlink()
            link.mkdir()
            link.rmdir()

    swapper = threading.Thread(target=swap)
    swapper.start()
    try:
        said = box.says("for i in $(seq 100); do cat swap/token 2>/dev/null; done")
    finally:
        stop.set()
        swapper.join()
    assert said == ""


def test_killing_the_gateway_ends_what_runs_in_a_sandbox(tmp_path: Path) -> None:
    box = inside(tmp_path)
    gateway = (
        "import subprocess, sys\n"
        "from pathlib import Path\n"
        "from backchannel.agents.programs import Program, environment, leashed\n"
        "from backchannel.agents.sandbox.sandboxes import Sandbox\n"
        "from backchannel.config.agents import SandboxRules\n"
        "script = 'trap \"\" TERM; (setsid sleep 601 &) ; echo ready; sleep 602'\n"
        "program = Program(('/bin/bash', '-c', script), None, environment())\n"
        "started = leashed(Sandbox(SandboxRules(), Path(sys.argv[1]), Path(sys.argv[1]) / 'o').wrap(program))\n"
        "subprocess.Popen(started.argv, env=started.env, cwd=started.cwd).wait()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", gateway, str(box.sandbox.workspace)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        alive = [Watched(pid) for pid in _processes_with(str(box.sandbox.workspace))]
        assert len(alive) > 2
        process.send_signal(signal.SIGKILL)
        assert process.stdout.read() == ""  # all who could write have ended
        assert all_ended(alive)


def _processes_with(words: str) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if words in line and int(path.parent.name) != os.getpid():
            found.append(int(path.parent.name))
    return found


def test_a_session_that_is_not_sandboxed_has_none(tmp_path: Path) -> None:
    config = config_from({"agents": {"defaults": {"sandbox": {"mode": "non-main"}}}}, {}, state=tmp_path)
    sandboxes = Sandboxes(Agents(config), config.key_scheme, tmp_path)
    assert sandboxes.of("main", MAIN) is None
    found = sandboxes.of("main", SIDE)
    assert found == Sandbox(SandboxRules(), tmp_path / "agents/main/workspace", sandboxes.outputs("main", SIDE))
