"""Programs under a leash: they have what they are given, end as they end, and never outlive the gateway."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from subprocess import DEVNULL, PIPE

import pytest

from backchannel.agents.programs import Program, ProgramLimits, environment, leashed
from backchannel.agents.sandbox.bubblewrap import backend
from backchannel.config.agents import SandboxRules
from tests.support.processes import all_ended, watched_in

pytestmark = pytest.mark.anyio

STUBBORN = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
signal.signal(signal.SIGHUP, signal.SIG_IGN)
def here():
    open(os.path.join(sys.argv[1], str(os.getpid())), "w").close()
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.setsid()
        os.closerange(0, 3)
        here()
        time.sleep(600)
    if sys.argv[2] == "orphan":
        os._exit(0)
    here()
    time.sleep(600)
here()
while len(os.listdir(sys.argv[1])) < (2 if sys.argv[2] == "orphan" else 3):
    time.sleep(0.01)
print("ready", flush=True)
time.sleep(600)
"""
"""Forks twice, each in a session of its own, ignores what asks it to end, and says when all of them are there."""

GATEWAY = """
import subprocess, sys
from backchannel.agents.programs import Program, environment, leashed
program = leashed(Program((sys.executable, "-c", *sys.argv[1:]), None, environment()))
subprocess.Popen(program.argv, env=program.env).wait()
"""


def _program(script: str, *arguments: str, **env: str) -> Program:
    code = textwrap.dedent(script)
    return leashed(Program((sys.executable, "-I", "-c", code, *arguments), None, environment(env)))


def _ran(program: Program, given: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(program.argv, env=program.env, cwd=program.cwd, input=given, capture_output=True, timeout=30)


@pytest.fixture
def pids(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "pids"
    folder.mkdir()
    yield folder
    for path in folder.iterdir():
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(path.name), signal.SIGKILL)


@pytest.mark.parametrize("middle", ["stays", "orphan"])
def test_killing_the_gateway_leaves_no_process(pids: Path, middle: str) -> None:
    with subprocess.Popen([sys.executable, "-c", GATEWAY, STUBBORN, str(pids), middle], stdout=PIPE) as gateway:
        assert gateway.stdout is not None
        assert gateway.stdout.readline() == b"ready\n"
        alive = watched_in(pids)
        gateway.send_signal(signal.SIGKILL)
        assert all_ended(alive)


async def test_ending_the_leash_ends_what_ignores_every_request_to(pids: Path) -> None:
    program = _program(STUBBORN, str(pids), "stays")
    process = await asyncio.create_subprocess_exec(*program.argv, env=program.env, stdout=PIPE)
    assert process.stdout is not None
    async with asyncio.timeout(30):
        assert await process.stdout.readline() == b"ready\n"
        alive = watched_in(pids)
        process.terminate()
        assert await process.wait() == -signal.SIGKILL
    assert all_ended(alive, limit_s=0)


async def test_a_program_that_is_asked_to_end_may_put_its_things_in_order() -> None:
    program = _program(
        """
        import os, signal, time
        def end(*_):
            os.write(1, b"in order\\n")
            os._exit(7)
        signal.signal(signal.SIGTERM, end)
        print("ready", flush=True)
        time.sleep(600)
        """
    )
    process = await asyncio.create_subprocess_exec(*program.argv, env=program.env, stdout=PIPE)
    assert process.stdout is not None
    async with asyncio.timeout(30):
        assert await process.stdout.readline() == b"ready\n"
        process.terminate()
        assert await process.stdout.read() == b"in order\n"
        assert await process.wait() == 7


def test_what_a_program_leaves_running_ends_with_it(pids: Path) -> None:
    ran = _ran(
        _program(
            """
            import os, sys, time
            read, write = os.pipe()
            if os.fork() == 0:
                os.setsid()
                open(os.path.join(sys.argv[1], str(os.getpid())), "w").close()
                os.write(write, b"x")
                time.sleep(600)
            os.read(read, 1)
            sys.exit(3)
            """,
            str(pids),
        )
    )
    assert ran.returncode == 3
    (left,) = pids.iterdir()
    assert not Path("/proc", left.name).exists()


@pytest.mark.parametrize("code", [0, 42])
def test_the_exit_code_is_the_programs(code: int) -> None:
    assert _ran(_program(f"raise SystemExit({code})")).returncode == code


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV])
def test_the_signal_it_dies_of_is_the_programs(number: signal.Signals) -> None:
    script = "import os, signal, sys; signal.signal(int(sys.argv[1]), 0) if sys.argv[1] != '9' else 0"
    ran = _ran(_program(f"{script}; os.kill(os.getpid(), int(sys.argv[1]))", str(int(number))))
    assert ran.returncode == -number


def test_input_and_outputs_are_the_programs_own() -> None:
    ran = _ran(
        _program("import sys, shutil; shutil.copyfileobj(sys.stdin.buffer, sys.stdout.buffer); sys.stderr.write('e')"),
        bytes(range(256)) * 4096,
    )
    assert ran.stdout == bytes(range(256)) * 4096
    assert ran.stderr == b"e"


async def test_an_output_that_the_program_closes_is_closed_while_it_goes_on() -> None:
    program = _program("import os, time; os.close(1); time.sleep(600)")
    process = await asyncio.create_subprocess_exec(*program.argv, env=program.env, stdout=PIPE)
    assert process.stdout is not None
    async with asyncio.timeout(30):
        assert await process.stdout.read() == b""
        assert process.returncode is None
        process.terminate()
        await process.wait()


def test_a_program_knows_the_certificates_of_this_machine_and_no_proxy_whose_address_may_have_a_password() -> None:
    certificates = {
        "SSL_CERT_FILE": "/home/me/ca.pem",
        "SSL_CERT_DIR": "/etc/own-certs",
        "REQUESTS_CA_BUNDLE": "/home/me/ca.pem",
        "NODE_EXTRA_CA_CERTS": "/home/me/ca.pem",
    }
    env = environment(of={"PATH": "/usr/bin", **certificates, "HTTPS_PROXY": "http://me:secret@proxy"})
    assert env == {"PATH": "/usr/bin", **certificates}


def test_a_sandbox_is_told_of_no_certificates_that_it_does_not_see(tmp_path: Path) -> None:
    ours = {"SSL_CERT_FILE": str(tmp_path / "ca.pem"), "SSL_CERT_DIR": "/etc/ssl/certs", "REQUESTS_CA_BUNDLE": "/usr/a"}
    made = backend.wrapped(Program(("true",), None, environment(of=ours)), SandboxRules(), tmp_path)
    assert "SSL_CERT_FILE" not in made.env
    assert (made.env["SSL_CERT_DIR"], made.env["REQUESTS_CA_BUNDLE"]) == ("/etc/ssl/certs", "/usr/a")


def test_a_program_has_no_secret_of_ours_and_no_open_file() -> None:
    ours = {
        "PATH": "/usr/bin",
        "HOME": "/home/somebody",
        "LC_ALL": "C.UTF-8",
        "BACKCHANNEL_TOKEN": "secret",
        "ANTHROPIC_API_KEY": "secret",
        "OPENAI_API_KEY": "secret",
        "LD_PRELOAD": "/tmp/evil.so",
        "PYTHONPATH": "/tmp/evil",
    }
    env = environment({"OWN": "1"}, of=ours)
    assert env == {"PATH": "/usr/bin", "HOME": "/home/somebody", "LC_ALL": "C.UTF-8", "OWN": "1"}
    script = "import os; print(sorted(os.environ), sorted(os.listdir('/proc/self/fd')))"
    ran = _ran(leashed(Program((sys.executable, "-I", "-c", script), None, env)))
    assert ran.stdout.decode().strip() == "['HOME', 'LC_ALL', 'OWN', 'PATH'] ['0', '1', '2', '3']"  # 3 is the listing


def test_a_program_that_is_not_there_says_so() -> None:
    ran = _ran(leashed(Program(("no-such-program", "x"), None, environment())))
    assert ran.returncode == 127
    assert ran.stderr == b"cannot start no-such-program: No such file or directory\n"


def test_a_program_that_may_not_be_run_says_so(tmp_path: Path) -> None:
    (tmp_path / "plain").write_text("no program")
    ran = _ran(leashed(Program((str(tmp_path / "plain"),), None, environment())))
    assert ran.returncode == 126
    assert ran.stderr.endswith(b"Permission denied\n")


def test_a_program_runs_where_it_is_told_to(tmp_path: Path) -> None:
    ran = _ran(leashed(Program((sys.executable, "-c", "import os; print(os.getcwd())"), tmp_path, environment())))
    assert ran.stdout.decode().strip() == str(tmp_path)


def test_limits_hold_for_each_process() -> None:
    limits = ProgramLimits(cpu_seconds=7, memory_bytes=1 << 30, file_bytes=4096)
    script = """
    import resource as r
    print(*(r.getrlimit(w)[0] for w in (r.RLIMIT_CPU, r.RLIMIT_DATA, r.RLIMIT_FSIZE)))"""
    program = Program((sys.executable, "-c", textwrap.dedent(script)), None, environment(), limits)
    assert _ran(leashed(program)).stdout == b"7 1073741824 4096\n"


THREADS = "import threading; [threading.Thread(target=threading.Event().wait).start() for _ in range(20)]"
CHILDREN = "import os, time; [os.fork() or time.sleep(600) for _ in range(20)]; time.sleep(600)"
GREEDY = (
    "import os, time; [os.fork() for _ in range(2)]; hold = os.urandom(1 << 20) * 40; time.sleep(600)"  # 4 times 40 MiB
)


@pytest.mark.parametrize(
    ("script", "limits", "reason"),
    [
        (THREADS, ProgramLimits(processes=10), "more than 10 processes and threads"),
        (CHILDREN, ProgramLimits(processes=10), "more than 10 processes and threads"),
        (GREEDY, ProgramLimits(memory_bytes=100 << 20), "more than 100 MiB of memory"),
        ("import time; time.sleep(600)", ProgramLimits(disk_bytes=1 << 60), "MiB are left on the disk"),
    ],
)
def test_a_program_that_uses_too_much_with_all_it_started_is_stopped_and_told_why(
    script: str, limits: ProgramLimits, reason: str
) -> None:
    ran = _ran(leashed(Program((sys.executable, "-c", script), None, environment(), limits)))
    assert ran.returncode == -signal.SIGKILL
    (said,) = ran.stderr.decode().split("\n")[1:-1]
    assert said.startswith("stopped: ") and reason in said


def test_a_program_that_is_watched_is_scheduled_as_any_other() -> None:
    script = "import os; print(os.sched_getscheduler(0) == os.SCHED_OTHER)"
    program = Program((sys.executable, "-c", script), None, environment(), ProgramLimits(processes=10))
    assert _ran(leashed(program)).stdout == b"True\n"


def test_what_is_to_be_done_after_a_program_is_done_when_all_of_it_has_ended(tmp_path: Path) -> None:
    script = f"import time, pathlib; time.sleep(0.1); pathlib.Path({str(tmp_path / 'left')!r}).touch()"
    after = ("mv", str(tmp_path / "left"), str(tmp_path / "removed"))
    program = Program((sys.executable, "-c", script), None, environment(), after=after)
    assert _ran(leashed(program)).returncode == 0
    assert [path.name for path in tmp_path.iterdir()] == ["removed"]


def test_a_leash_whose_gateway_is_gone_starts_nothing(tmp_path: Path) -> None:
    program = leashed(Program(("touch", str(tmp_path / "started")), None, environment()))
    pid = program.argv.index(str(os.getpid()))
    ended = subprocess.Popen(["true"], stdin=DEVNULL)
    ended.wait()
    argv = (*program.argv[:pid], str(ended.pid), *program.argv[pid + 1 :])
    assert subprocess.run(argv, env=program.env, timeout=30).returncode == 0
    assert not (tmp_path / "started").exists()


def test_a_fork_bomb_does_not_outrun_its_end(pids: Path) -> None:
    script = """
    import os, sys, time
    end = time.monotonic() + 20  # whatever happens to the test
    for _ in range(8):
        if os.fork() == 0:
            open(os.path.join(sys.argv[1], str(os.getpid())), "w").close()
            while time.monotonic() < end:
                if os.fork():  # the parent ends, its child goes on: a number that never stays
                    os._exit(0)
            os._exit(0)
    while len(os.listdir(sys.argv[1])) < 8:
        time.sleep(0.01)
    """
    ran = _ran(_program(script, str(pids)))
    assert ran.returncode == 0
    assert not subprocess.run(["pgrep", "-f", str(pids)], capture_output=True).stdout
