"""Processes of the program that need not import it first, which is most of what a short command costs.

One process for all tests has imported everything, does nothing, and is forked for each command. The command is a
process of its own as ever, with the arguments, environment, folder and files that it is given; only what an interpreter
does before the program's first line is left out, and the taking apart of all modules after its last. Modules are
imported in another order than a command would: without cycles, which `test_architecture` forbids, that makes no
difference. `test_start_cost` and `test_install` start the program as it is installed.

    the tests ── a request and its files ──► the warm process ── fork ──► a watcher ── fork ──► the command
        ▲                                                                     │
        └──────────────────────── its process id, and how it ended ───────────┘
"""

from __future__ import annotations

import atexit
import fcntl
import gc
import importlib
import json
import os
import pkgutil
import signal
import socket
import subprocess
import sys
import termios
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import IO, NoReturn

INSTALLED = str(Path(sys.executable).parent / "backchannel")
_MOST_BYTES = 1 << 17
_IMPORTED = (
    "typer._adapters",
    "websockets.sync.client",
    "rich.console",
    "rich.live",
    "rich.table",
    "rich.text",
    "backchannel.gateway.server",
)
"""What commands import when they need it. Each module of `backchannel.cli` is imported besides."""


def can_start(command: Sequence[str], env: Mapping[str, str]) -> bool:
    """Whether a command is the program as it is installed, under nothing that an interpreter reads when it starts."""
    return command[0] == INSTALLED and not any(name.startswith(("PYTHON", "LC_", "LANG", "TZ")) for name in env)


class WarmProcess:
    """A command, with what is asked of a `subprocess.Popen`."""

    def __init__(
        self,
        command: Sequence[str],
        env: Mapping[str, str],
        cwd: Path,
        files: tuple[int | IO[str], int | IO[str], int | IO[str]],
        *,
        is_terminal: bool = False,
    ) -> None:
        self.args = command
        self.returncode: int | None = None
        self._reports, reports = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        asked = {"command": [*command], "env": dict(env), "cwd": str(cwd), "is_terminal": is_terminal}
        numbers = [file if isinstance(file, int) else file.fileno() for file in files]
        with reports:
            socket.send_fds(_server(), [json.dumps(asked).encode()], [reports.fileno(), *numbers])
        self.pid = int(self._reports.recv(32))

    def poll(self) -> int | None:
        return self._ended(0)

    def wait(self, timeout: float | None = None) -> int:
        ended = self._ended(timeout)
        if ended is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        return ended

    def _ended(self, timeout: float | None) -> int | None:
        if self.returncode is None:
            self._reports.settimeout(timeout)
            try:
                self.returncode = int(self._reports.recv(32))
            except (BlockingIOError, TimeoutError):
                return None
            self._reports.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def run(
    command: Sequence[str], env: Mapping[str, str], cwd: Path, *, text: str, timeout: float
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, and return what it printed.

    Raises:
        subprocess.TimeoutExpired: it took too long, and was killed.
    """
    pipes = [os.pipe() for _ in range(3)]
    (given, giving), (out, outs), (err, errs) = pipes
    started = WarmProcess(command, env, cwd, (given, outs, errs))
    for number in (given, outs, errs):
        os.close(number)
    printed: dict[int, str] = {}
    threads = [threading.Thread(target=_write, args=(giving, text))]
    threads += [threading.Thread(target=_read, args=(number, printed)) for number in (out, err)]
    for thread in threads:
        thread.start()
    try:
        started.wait(timeout)
    finally:
        started.kill()
        for thread in threads:
            thread.join(timeout)
    return subprocess.CompletedProcess(command, started.wait(timeout), printed[out], printed[err])


def _write(number: int, text: str) -> None:
    try:
        with open(number, "w", encoding="utf-8") as file:
            file.write(text)
    except BrokenPipeError:
        pass  # it ended without reading everything


def _read(number: int, printed: dict[int, str]) -> None:
    with open(number, encoding="utf-8") as file:
        printed[number] = file.read()


@cache
def _server() -> socket.socket:
    """Start the warm process; it ends with this one."""
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    env = {"HOME": os.environ.get("HOME", "/"), "PATH": os.environ["PATH"], "PYTHONDONTWRITEBYTECODE": "1"}
    with there:
        process = subprocess.Popen(
            [sys.executable, "-P", __file__, str(there.fileno())],  # modules beside this one are in no path
            env=env,
            pass_fds=[there.fileno()],
            stdin=subprocess.DEVNULL,
        )
    atexit.register(_end, here, process)
    return here


def _end(control: socket.socket, process: subprocess.Popen[bytes]) -> None:
    control.close()
    process.wait(10)


# What follows is the warm process.


def _serve(control: socket.socket) -> None:
    """Fork for each request; returns in the process that is to be the command."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the watchers
    while True:
        request, files, _, _ = socket.recv_fds(control, _MOST_BYTES, 4)
        if not request:
            sys.exit()
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            control.close()
            reports = socket.socket(fileno=files[0])
            if (command := os.fork()) == 0:
                reports.close()
                _become(files[1:], **json.loads(request))
                return
            _watch(command, reports, files[1:])
        for number in files:
            os.close(number)


def _watch(command: int, reports: socket.socket, files: list[int]) -> NoReturn:
    for number in (0, 1, 2, *files):
        os.close(number)  # whoever reads what the command prints is to see its end
    try:
        reports.send(str(command).encode())
        _, status = os.waitpid(command, 0)
        reports.send(str(os.waitstatus_to_exitcode(status)).encode())
    except BrokenPipeError:
        pass  # the tests have ended
    os._exit(0)


def _become(files: list[int], command: list[str], env: dict[str, str], cwd: str, is_terminal: bool) -> None:
    """Take over what the command was given."""
    if is_terminal:
        os.setsid()
    for number, file in enumerate(files):
        os.dup2(file, number)
    os.closerange(3, max(files) + 1)
    if is_terminal:
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)  # so that Ctrl-C reaches it
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    sys.argv = command
    sys.path.insert(0, str(Path(command[0]).parent))
    sys.dont_write_bytecode = False
    sys.stdin = open(0, encoding="utf-8", errors="surrogateescape", closefd=False)  # noqa: SIM115  # for good
    sys.stdout = open(1, "w", encoding="utf-8", errors="surrogateescape", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", 1, encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115


def _run() -> NoReturn:
    """Run the command, and end as an interpreter does; a signal that nothing caught is left to the interpreter."""
    from backchannel.cli.main import main

    code = 0
    try:
        main()
    except SystemExit as ended:
        if isinstance(ended.code, str):
            print(ended.code, file=sys.stderr)
        code = ended.code if isinstance(ended.code, int) else 1 if ended.code else 0
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for file in (sys.stdout, sys.stderr):
        with suppress(OSError):  # whoever read it may be gone
            file.flush()
    os._exit(code)


def _import_everything() -> None:
    import backchannel.cli

    for name in (
        *_IMPORTED,
        *(each.name for each in pkgutil.iter_modules(backchannel.cli.__path__, "backchannel.cli.")),
    ):
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # so that no collection in a command touches, and thereby copies, all of it
    assert threading.active_count() == 1, "a process with threads cannot be forked"


if __name__ == "__main__":
    _import_everything()
    _serve(socket.socket(fileno=int(sys.argv[1])))
    _run()
