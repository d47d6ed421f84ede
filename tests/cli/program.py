"""The program as people run it: real processes, a real terminal, waits that end."""

from __future__ import annotations

import fcntl
import json
import os
import re
import select
import shlex
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import IO, Any

from tests.support import warm

from .screen import read_screen

PROGRAM = [warm.INSTALLED]
PATIENCE_S = 30.0

_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]|\x1b[=>]")


class Program:
    """The command line on a state folder of its own, with nothing of this machine's environment."""

    def __init__(self, home: Path, executable: str = PROGRAM[0]) -> None:
        self.home = home
        self._executable = executable
        self.state = home / "state"
        self.config = self.state / "backchannel.json5"
        self.env = {
            "HOME": str(home),
            "PATH": os.environ["PATH"],
            "TERM": "xterm",
            "COLUMNS": "200",
            "OLLAMA_HOST": "127.0.0.1:9",  # where nothing answers
        }

    @property
    def option(self) -> str:
        """The option for its state folder, as a command that can be copied has it."""
        return f"--state {shlex.quote(str(self.state))}"

    def command(self, *words: str) -> list[str]:
        return [self._executable, "--state", str(self.state), *words]

    @contextmanager
    def piped(self, *words: str) -> Iterator[subprocess.Popen[str]]:
        """Start a command whose output is piped; what is left of it at the end is killed."""
        started = subprocess.Popen(
            self.command(*words), env=self.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        try:
            yield started
        finally:
            started.kill()
            started.communicate()

    def run(self, *words: str, text: str | None = None, **env: str) -> subprocess.CompletedProcess[str]:
        """Run a command to its end."""
        command, given = self.command(*words), self.env | env
        if warm.can_start(command, given):
            return warm.run(command, given, self.home, text=text or "", timeout=PATIENCE_S)
        return subprocess.run(
            command,
            env=given,
            cwd=self.home,
            capture_output=True,
            text=True,
            input=text if text is not None else "",
            timeout=PATIENCE_S,
            check=False,
        )

    def answer(self, *words: str, **env: str) -> str:
        """Run a command that must succeed, and return what it printed."""
        done = self.run(*words, **env)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def json(self, *words: str) -> Any:
        return json.loads(self.answer(*words, "--json"))

    def call(self, *words: str) -> Any:
        """Run a command whose output is always JSON."""
        return json.loads(self.answer(*words))

    def write_config(self, text: str) -> None:
        self.state.mkdir(exist_ok=True)
        self.config.write_text(text, encoding="utf-8")

    @property
    def token(self) -> str:
        return (self.state / "token").read_text().strip()

    @contextmanager
    def up(self, *words: str, **env: str) -> Iterator[Up]:
        """Start the gateway, on a free port unless told otherwise; it is gone when the context ends."""
        options = words if "--port" in words else ("--port", "0", *words)
        running = Up(self.command("up", *options), self.env | env, self.home)
        try:
            running.wait_ready()
            yield running
        finally:
            running.kill()

    @contextmanager
    def terminal(self, *words: str, **env: str) -> Iterator[Terminal]:
        """Run a command on a terminal."""
        opened = Terminal(self.command(*words), self.env | env, self.home)
        try:
            yield opened
        finally:
            opened.close()


def _start(
    command: list[str],
    env: dict[str, str],
    home: Path,
    files: tuple[int | IO[str], int | IO[str], int | IO[str]],
    *,
    is_terminal: bool = False,
) -> subprocess.Popen[bytes] | warm.WarmProcess:
    if warm.can_start(command, env):
        return warm.WarmProcess(command, env, home, files, is_terminal=is_terminal)
    stdin, stdout, stderr = files
    return subprocess.Popen(
        command,
        env=env,
        cwd=home,
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        start_new_session=is_terminal,
        preexec_fn=partial(fcntl.ioctl, 0, termios.TIOCSCTTY, 0) if is_terminal else None,  # so that Ctrl-C reaches it
    )


class Up:
    """A running gateway, its output kept in files."""

    def __init__(self, command: list[str], env: dict[str, str], home: Path) -> None:
        self._out, self._err = home / "up.out", home / "up.err"
        with self._out.open("w") as out, self._err.open("w") as err:
            self.process = _start(command, env, home, (0, out, err))

    @property
    def said(self) -> str:
        return self._out.read_text()

    @property
    def logged(self) -> str:
        return self._err.read_text()

    @property
    def url(self) -> str:
        return self.said.partition("running at ")[2].split()[0]

    def wait_ready(self) -> None:
        self.wait_until(lambda: "try: " in self.said)

    def wait_logged(self, text: str) -> None:
        self.wait_until(lambda: text in self.logged)

    def wait_until(self, is_there: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not is_there():
            assert self.process.poll() is None, self.logged
            assert time.monotonic() < deadline, f"it did not come: {self.said} {self.logged}"
            select.select([], [], [], 0.02)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Ask it to stop, and return its exit code."""
        self.process.send_signal(number)
        return self.process.wait(PATIENCE_S)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(PATIENCE_S)


class Terminal:
    """A command on a pseudo-terminal, typed at and read from."""

    def __init__(self, command: list[str], env: dict[str, str], home: Path) -> None:
        self._master, slave = os.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 200, 0, 0))
        self.process = _start(command, env, home, (slave, slave, slave), is_terminal=True)
        os.close(slave)
        self.written = ""
        self.shown = ""
        self._seen = 0

    def expect(self, text: str) -> str:
        """Wait until a text is shown after what was expected before, and return what came up to it."""
        deadline = time.monotonic() + PATIENCE_S
        while (found := self.shown.find(text, self._seen)) < 0:
            assert time.monotonic() < deadline, f"{text!r} did not come, but {self.shown[self._seen :]!r}"
            assert self._read(), f"{text!r} did not come before the end, but {self.shown[self._seen :]!r}"
        before = self.shown[self._seen : found]
        self._seen = found + len(text)
        return before

    def resize(self, lines: int, columns: int) -> None:
        """Change the size of the window, as its corner is dragged."""
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    @property
    def screen(self) -> list[str]:
        """The lines that somebody before it sees."""
        return read_screen(self.written)

    def expect_line(self, line: str) -> None:
        """Wait until the cursor's line is this one."""
        deadline = time.monotonic() + PATIENCE_S
        while self.screen[-1] != line:
            assert time.monotonic() < deadline, f"{line!r} did not come, but {self.screen!r}"
            assert self._read(), f"{line!r} did not come before the end, but {self.screen!r}"

    def wait(self) -> int:
        """Read to the end, and return the exit code."""
        while self._read():
            pass
        return self.process.wait(PATIENCE_S)

    def _read(self) -> bool:
        ready, _, _ = select.select([self._master], [], [], PATIENCE_S)
        assert ready, f"nothing came after {self.shown!r}"
        try:
            data = os.read(self._master, 65536)
        except OSError:  # the other side is closed
            return False
        self.written += data.decode(errors="replace")
        self.shown += _ESCAPES.sub("", data.decode(errors="replace")).replace("\r", "")
        return bool(data)

    def close(self) -> None:
        self.process.kill()
        self.process.wait(PATIENCE_S)
        os.close(self._master)
