"""A gateway that was started with many kinds of open descriptors, and does with its tools as it is told.

`python -m tests.support.open_handed <command> …` opens them all, inheritable, as careless launchers do, and becomes the
command. `up --app tests.support.open_handed:make` serves the gateway: a message is a call as JSON, `{tool, arguments}`,
and the reply is the tool's result.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import select
import signal
import socket
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from backchannel.agents.scripted import Scripted, ScriptedModel, call
from backchannel.core.contracts import ModelRequest
from backchannel.core.messages import Role
from backchannel.gateway.app import Gateway

HIGH = 900
"""The number of one descriptor that is far from the others."""
VARIABLES = {"LISTEN_FDS": "2", "LISTEN_PID": "1", "LISTEN_FDNAMES": "web", "MAKEFLAGS": "--jobserver-auth=5,6"}
_CLONE_SYSCALLS = {"timerfd_create": 283, "inotify_init1": 294, "signalfd4": 289, "userfaultfd": 323}
"""Numbers for x86_64 of what Python has no function for; elsewhere these kinds are left out."""


def make() -> Gateway:
    """Make the gateway, configured by its file."""
    gateway = Gateway.open()

    def reply(request: ModelRequest) -> Scripted:
        last = request.messages[-1]
        if last.role is Role.TOOL_RESULT:
            return last.text
        told = json.loads(last.text)
        return [call(told["tool"], **told["arguments"])]

    gateway.add_model(ScriptedModel(replies=reply))
    return gateway


def kinds(folder: Path) -> Iterator[tuple[str, int]]:
    """Open a descriptor of each kind."""
    yield "folder", os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    yield "folder by path alone", os.open("/", os.O_PATH)
    yield "parent of the state folder", os.open(folder.parent, os.O_RDONLY)
    yield "file to read", os.open("/etc/passwd", os.O_RDONLY)
    yield "file to write", os.open(folder / "written", os.O_RDWR | os.O_CREAT)
    yield "temporary file", tempfile.mkstemp(dir=folder)[0]
    locked = os.open(folder / "lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(locked, fcntl.LOCK_EX)
    yield "lock", locked
    yield from zip(("pipe to read", "pipe to write"), os.pipe(), strict=True)
    os.mkfifo(folder / "fifo")
    yield "named pipe", os.open(folder / "fifo", os.O_RDWR)
    yield from zip(("socket of a pair", "the other"), (end.detach() for end in socket.socketpair()), strict=True)
    yield "listening TCP", socket.create_server(("127.0.0.1", 0)).detach()
    unix = socket.socket(socket.AF_UNIX)
    unix.bind(str(folder / "unix"))
    unix.listen()
    yield "listening unix", unix.detach()
    yield "UDP", socket.socket(socket.AF_INET, socket.SOCK_DGRAM).detach()
    yield "eventfd", os.eventfd(0)
    epoll = select.epoll()
    yield "epoll", os.dup(epoll.fileno())
    yield "memory file", os.memfd_create("held")
    yield from zip(("terminal's master", "terminal"), os.openpty(), strict=True)
    yield "process", os.pidfd_open(os.getpid())
    yield "device", os.open("/dev/null", os.O_RDWR)
    yield "processes of the machine", os.open("/proc", os.O_RDONLY)
    yield from _by_number()
    yield "far number", fcntl.fcntl(os.open("/etc", os.O_RDONLY), fcntl.F_DUPFD, HIGH)


def _by_number() -> Iterator[tuple[str, int]]:
    if os.uname().machine != "x86_64":
        return
    syscall = ctypes.CDLL(None, use_errno=True).syscall
    mask = ctypes.c_uint64(1 << (signal.SIGUSR2 - 1))
    arguments = {"timerfd_create": (1, 0), "inotify_init1": (0,), "signalfd4": (-1, ctypes.byref(mask), 8, 0)}
    for name, number in _CLONE_SYSCALLS.items():
        opened = syscall(number, *arguments.get(name, (1,)))  # userfaultfd: for user memory alone
        if opened >= 0:
            yield name, opened


def main(folder: Path, command: list[str]) -> None:
    folder.mkdir()
    held = dict(kinds(folder))
    for number in held.values():
        os.set_inheritable(number, True)
    (folder / "kinds.json").write_text(json.dumps(held))
    os.execvpe(command[0], command, {**os.environ, **VARIABLES})


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
