"""The leash: a small program between the gateway and each program that it starts.

Nothing outlives the gateway or the program.

Run as `python -I -S leash.py <pid of the gateway> [--<option>=<value> …] -- <program> [<argument> …]`. It starts the
program in a new session and passes on its own standard input and outputs. It ends as the program ends: with its exit
code, or by its signal. It is a *child subreaper*: a process that loses its parent becomes a child of the leash, even
after a double fork and `setsid`. So if no child is left, no descendant is left.

The program has descriptors 0, 1 and 2 and no other, except the filter's. The leash closes all descriptors that it
inherited from the gateway. uvloop closes none of them, and an open folder would be a way out of every sandbox.

- The program ends: processes that it left running are killed.
- SIGTERM: all processes are asked to end. They are killed a second later, or at the second SIGTERM.
- The gateway dies in any way: all processes are killed at once.
- All processes are killed if together they exceed `--memory-bytes` or `--processes`. They are also killed if their
  folder exceeds `--folder-bytes` or `--folder-files`, or the disk has less than `--disk-bytes` left. The last line on
  standard error says why (`leash_usage.py`).
- `--group` is a control group. The program gets a group below it with the same limits.
- `--filter` is bubblewrap's filter of system calls, as bytes in hexadecimal. The program reads it from descriptor 3.
- The folder is measured before the program starts, if that is quick. No file can grow beyond the rest of
  `--folder-bytes`. If the folder is full, `--full-bytes-filter` and `--full-files-filter` come before the filter. If a
  program leaves its folder full, a line says so at its end.
- `--after` is a command as JSON. It runs when all processes have ended, and removes what is no child, such as a
  container.

This file imports only the standard library, and little of it, because it starts for every program. Systems other than
Linux have no subreaper. There, the program's process group is killed.
"""

import os
import resource
import select
import signal
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from backchannel.agents.leash_usage import UsageWatch

IS_LINUX = sys.platform == "linux"
GRACE_S = 1.0
"""How long a program may take to end when it is asked to."""
_LOOK_EVERY_S = 1.0
"""How often the leash looks whether the gateway lives, where the system has nothing that tells."""
GIVE_UP_S = 10.0
"""How long the leash tries to kill what is left: what runs as another user, or hangs in the kernel, stays."""
STOP_ROUNDS, REAP_AT_ONCE = 100, 100
"""Bounds of what a program that forks without end could make endless."""
LIMITS = {
    "cpu-seconds": resource.RLIMIT_CPU,
    "memory-bytes": resource.RLIMIT_DATA,
    "file-bytes": resource.RLIMIT_FSIZE,
}
"""What holds for each process by itself."""
WATCHED = ("memory-bytes", "temporary-bytes", "processes", "disk-bytes", "folder-bytes", "folder-files")
"""What holds for all of it together, looked at in `/proc`: for Linux alone."""
GROUP_SPARE = 8
"""Processes of bubblewrap, which are in the control group beside the program's."""
FILTER = 3
"""The descriptor that a program is given beside its input and outputs, where it is to be given one."""
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
NOT_FOUND, NOT_EXECUTABLE = 127, 126
"""Exit codes of a program that could not be started, as shells use them."""


def main(arguments: list[str]) -> int:
    """Start the program and wait for its end; returns its status from `waitpid`."""
    _close_inherited()
    parent = int(arguments[0])
    split = arguments.index("--")
    options = dict(option.removeprefix("--").split("=", 1) for option in arguments[1:split])
    after, given = options.pop("after", None), bytes.fromhex(options.pop("filter", ""))
    filters = {name: bytes.fromhex(options.pop(f"full-{name}-filter", "")) for name in ("bytes", "files")}
    base = options.pop("group", "")
    limits = {name: int(value) for name, value in options.items()}
    if os.getpid() != os.getsid(0) and os.getpid() != os.getpgrp():
        os.setsid()  # not in the terminal's foreground: Ctrl-C there is for the gateway alone
    wake = _wake_up_on(signal.SIGTERM, signal.SIGCHLD, signal.SIGUSR1, signal.SIGHUP)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    _prctl(PR_SET_PDEATHSIG, signal.SIGUSR1)
    gone = _parent_handle(parent)
    if os.getppid() != parent:
        return 0  # the gateway died before the watch began: nothing has been started
    watched = {name: limits[name] for name in WATCHED if name in limits and IS_LINUX}
    told = os.dup(2) if watched else -1
    watch = _watch(watched) if watched else None
    if watch is not None:
        given = b"".join(filters[name] for name in filters if watch.is_full(f"folder-{name}")) + given
        if "file-bytes" in limits:
            limits["file-bytes"] = watch.most_of_file(limits["file-bytes"])
    group = _make_group(base, limits) if base else ""
    child = _start(arguments[split + 1 :], limits, given, group)
    status = _Leash(parent, child, wake, gone, watch, told).hold()
    if group:
        _end_group(group, limits, told)
    if after is not None:
        _run_after(after)
    if watch is not None:
        remarks = watch.remarks(limits.get("file-bytes"), is_cut=_is_cut(status))
        if remarks:
            _tell(told, "\n".join(remarks))
    return status


def _is_cut(status: int) -> bool:
    """True if the program ended because a file reached its limit. Shells and bubblewrap add 128 to the signal."""
    code = os.waitstatus_to_exitcode(status)
    return code in (-signal.SIGXFSZ, 128 + signal.SIGXFSZ)


def _close_inherited() -> None:
    """Close all descriptors but 0, 1 and 2. Those that Python opens later are not inherited."""
    try:
        numbers = [int(name) for name in os.listdir("/proc/self/fd" if IS_LINUX else "/dev/fd")]  # noqa: PTH208
    except (OSError, ValueError):
        numbers = list(range(os.sysconf("SC_OPEN_MAX")))
    for number in numbers:
        if number > 2:
            try:  # noqa: SIM105 - as below
                os.close(number)
            except OSError:
                pass  # the descriptor that listed the folder


def _wake_up_on(*signals: int) -> int:
    """Turn signals into bytes in a pipe, so that none is lost between a check and the wait."""
    readable, writable = os.pipe()
    os.set_blocking(readable, False)
    os.set_blocking(writable, False)
    for number in signals:
        signal.signal(number, lambda *_: None)
    signal.set_wakeup_fd(writable, warn_on_full_buffer=False)
    return readable


def _watch(limits: dict[str, int]) -> "UsageWatch":
    """Begin to watch the limits. The module is imported only for a program with limits."""
    _come_first()
    sys.path.append(os.path.dirname(__file__))  # noqa: PTH120 - nor pathlib; behind the standard library
    # An isolated Python does not find this package. So the module is imported from the folder of this file.
    watch: UsageWatch = __import__("leash_usage").UsageWatch(limits, ".")
    return watch


def _come_first() -> None:
    """Get a higher priority than the watched processes. Only root can, and only root needs it."""
    try:  # noqa: SIM105 - as below
        os.sched_setscheduler(0, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, os.sched_param(1))
    except OSError:
        pass


def _prctl(option: int, value: int) -> None:
    if IS_LINUX:
        import ctypes

        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _parent_handle(parent: int) -> int | None:
    """Return a descriptor that becomes readable when the parent dies; None if the system has none."""
    try:
        return os.pidfd_open(parent)
    except (AttributeError, OSError):
        return None


def _start(argv: list[str], limits: dict[str, int], given: bytes, group: str) -> int:
    leash = os.getpid()
    child = os.fork()
    if child == 0:
        try:
            if group:
                _write(f"{group}/cgroup.procs", "0")
            _become(leash, argv, limits, given)
        except OSError as error:
            os.write(2, f"cannot start {argv[0]}: {error.strerror}\n".encode(errors="replace"))
            os._exit(NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_EXECUTABLE)
        finally:
            os._exit(NOT_EXECUTABLE)
    nothing = os.open(os.devnull, os.O_RDWR)  # the leash must not keep a pipe open that the program closes
    for number in (0, 1, 2):
        os.dup2(nothing, number)
    return child


def _become(leash: int, argv: list[str], limits: dict[str, int], given: bytes) -> None:
    """Turn this process into the program."""
    os.setsid()
    signal.set_wakeup_fd(-1)
    for number in (
        signal.SIGTERM,
        signal.SIGCHLD,
        signal.SIGUSR1,
        signal.SIGHUP,
        signal.SIGINT,
        signal.SIGPIPE,
        signal.SIGXFSZ,
    ):
        signal.signal(number, signal.SIG_DFL)
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != leash:
        os._exit(NOT_EXECUTABLE)
    for name, kind in LIMITS.items():
        if name in limits:
            _, most = resource.getrlimit(kind)
            value = limits[name] if most == resource.RLIM_INFINITY else min(limits[name], most)
            resource.setrlimit(kind, (value, value))
    if given:
        readable, writable = os.pipe()  # the pipe holds much more than a filter needs
        os.write(writable, given)
        os.close(writable)
        os.dup2(readable, FILTER)
        os.set_inheritable(FILTER, True)  # also if the pipe has this number already
    os.execvp(argv[0], argv)


class _Leash:
    def __init__(
        self, parent: int, child: int, wake: int, gone: int | None, watch: "UsageWatch | None", told: int
    ) -> None:
        self._watch = watch
        self._told = told
        self._parent = parent
        self._child = child
        self._status: int | None = None
        self._wake = wake
        self._gone = gone
        self._poll = select.poll()
        self._poll.register(wake, select.POLLIN)
        if gone is not None:
            self._poll.register(gone, select.POLLIN)

    def hold(self) -> int:
        """Wait for the end of the program, of the gateway or of the leash. Then end all processes."""
        asked_at: float | None = None
        while self._reap():
            if self._status is not None or self._is_orphan() or self._is_too_much():
                break
            left_s = None if asked_at is None else asked_at + GRACE_S - time.monotonic()
            if left_s is not None and left_s <= 0:
                break
            if signal.SIGTERM in self._wait(left_s):
                if asked_at is not None:
                    break
                asked_at = time.monotonic()
                self._signal_all(signal.SIGTERM)
                self._signal_all(signal.SIGCONT)
        self._kill_all()
        return self._status or 0

    def _wait(self, limit_s: float | None) -> bytes:
        """Sleep until a signal, the gateway's death or the next check; returns the signals."""
        pauses = [] if limit_s is None else [max(limit_s, 0)]
        if self._gone is None:
            pauses.append(_LOOK_EVERY_S)
        if self._watch is not None:
            pauses.append(self._watch.pause_s)
        events = self._poll.poll(min(pauses) * 1000 if pauses else None)
        return os.read(self._wake, 1024) if any(number == self._wake for number, _ in events) else b""

    def _is_too_much(self) -> bool:
        """True if all processes together exceed a limit; also says so on standard error."""
        if self._watch is None:
            return False
        reason = self._watch.why_too_much([(found.pid, found.threads) for found in _descendants(os.getpid())])
        if reason is None:
            return False
        self._stop_all()
        _tell(self._told, f"stopped: {reason}")
        return True

    def _is_orphan(self) -> bool:
        return os.getppid() != self._parent

    def _reap(self) -> bool:
        """Collect ended children; returns whether any is left."""
        for _ in range(REAP_AT_ONCE):
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                break
            if pid == self._child:
                self._status = status
        return True

    def _kill_all(self) -> None:
        """Kill until no child is left."""
        until = time.monotonic() + GIVE_UP_S
        if self._gone is not None:
            self._poll.unregister(self._gone)
        while self._reap() and time.monotonic() < until:
            self._stop_all()
            self._signal_all(signal.SIGKILL)
            self._wait(0.02)

    def _stop_all(self) -> None:
        """Stop all processes, so that none forks while they are killed one by one."""
        stopped: set[int] = set()
        for _ in range(STOP_ROUNDS):
            new = self._targets() - stopped
            if not new:
                return
            for target in new:
                _kill(target, signal.SIGSTOP)
            stopped |= new

    def _signal_all(self, number: int) -> None:
        for target in self._targets():
            _kill(target, number)

    def _targets(self) -> set[int]:
        """List the process groups to signal, as negative numbers. A signal reaches a whole group, even new forks."""
        if not IS_LINUX:
            return {-self._child}
        own = os.getpgrp()
        return {process.pid if process.group == own else -process.group for process in _descendants(os.getpid())}


def _tell(told: int, line: str) -> None:
    """Write a line to the program's standard error, such as why it was stopped."""
    os.set_blocking(told, False)
    try:  # noqa: SIM105 - as below
        os.write(told, f"\n{line}\n".encode())
    except OSError:
        pass  # nobody reads


def _make_group(base: str, limits: dict[str, int]) -> str:
    """Make a control group for the program. If that fails, the program is only watched."""
    group = f"{base}/sandbox-{os.getpid()}"
    try:
        os.mkdir(group)  # noqa: PTH102 - nor pathlib
        _write(f"{group}/memory.max", limits["memory-bytes"])
        _write(f"{group}/memory.oom.group", 1)
        _write(f"{group}/pids.max", limits["processes"] + GROUP_SPARE)
    except OSError:
        return ""
    try:  # noqa: SIM105 - as below
        _write(f"{group}/memory.swap.max", 0)
    except OSError:
        pass  # a kernel without swap
    return group


def _end_group(group: str, limits: dict[str, int], told: int) -> None:
    """Remove the group; also says if the kernel has killed the program for its limits."""
    try:
        with open(f"{group}/memory.events", "rb") as file:  # noqa: PTH123
            if any(line.startswith(b"oom_kill ") and line != b"oom_kill 0\n" for line in file):
                _tell(told, f"stopped: more than {limits['memory-bytes'] >> 20} MiB of memory")
    except OSError:
        pass
    until = time.monotonic() + GRACE_S
    while time.monotonic() < until:
        try:
            os.rmdir(group)  # noqa: PTH106 - nor pathlib
        except OSError:
            time.sleep(0.02)  # the last process has just ended
        else:
            return


def _write(path: str, value: object) -> None:
    with open(path, "w") as file:  # noqa: PTH123
        file.write(str(value))


def _kill(pid: int, number: int) -> None:
    try:  # noqa: SIM105 - contextlib would take longer to import than all that is done here
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        pass


class _Process:
    """A process, as in `/proc/<pid>/stat`."""

    def __init__(self, pid: int, stat: bytes) -> None:
        # pid (name) state parent group …; the name may have spaces and brackets of its own
        fields = stat.rpartition(b")")[2].split()
        self.pid = pid
        self.parent, self.group = int(fields[1]), int(fields[2])
        self.threads = int(fields[17])


def _descendants(root: int) -> list[_Process]:
    """Find all processes below one."""
    children: dict[int, list[_Process]] = {}
    for name in os.listdir("/proc"):  # noqa: PTH208 - nor pathlib
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:  # noqa: PTH123
                    process = _Process(int(name), file.read())
            except (OSError, ValueError, IndexError):
                continue  # it has ended
            children.setdefault(process.parent, []).append(process)
    found = list(children.get(root, ()))
    for process in found:
        found.extend(children.get(process.pid, ()))
    return found


def _run_after(command: str) -> None:
    import json

    argv = json.loads(command)
    try:
        after = os.posix_spawnp(argv[0], argv, os.environ)
    except OSError:
        return
    until = time.monotonic() + GIVE_UP_S
    while os.waitpid(after, os.WNOHANG) == (0, 0) and time.monotonic() < until:
        time.sleep(0.02)


def _end_as(status: int) -> None:
    """End with the program's exit code, or by its signal."""
    if os.WIFSIGNALED(status):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        number = os.WTERMSIG(status)
        if number != signal.SIGKILL:
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    os._exit(os.waitstatus_to_exitcode(status) & 0xFF)


if __name__ == "__main__":
    _end_as(main(sys.argv[1:]))
