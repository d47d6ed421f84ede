"""Gateways that programs make, for `up --app module:name` and its `--reload`."""

from __future__ import annotations

import importlib
import os
import shlex
import signal
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from backchannel.cli.options import CommandFailed, Options
from backchannel.cli.output import say, say_dim

if TYPE_CHECKING:
    from backchannel.config import Config
    from backchannel.gateway.app import Gateway

HOW = "write MODULE:NAME, such as shop:gateway for the variable `gateway` in shop.py"
CHANGES = (".py", ".json5", ".json", ".md")
"""A change of these files restarts a program: code, configuration, and instructions of agents."""
RELOADER = "BACKCHANNEL_RELOADER"
"""The process that starts this one again on changes; only it sets this variable."""
PR_SET_PDEATHSIG = 1


def load_app(name: str, options: Options, *, host: str | None, port: int | None) -> Gateway:
    """Import the gateway that a program makes, from the current folder.

    The configuration and state folder that the program sets win over the options, which fill in the rest.

    Raises:
        CommandFailed: there is no such module, or no gateway in it.
        typer.Exit: the program itself failed; its traceback is shown.
    """
    from backchannel.gateway.app import Gateway

    module_name, _, attribute = name.partition(":")
    if not module_name or not attribute:
        raise typer.BadParameter(f"got {name!r}; {HOW}", param_hint="--app")
    sys.path.insert(0, str(Path.cwd()))
    Gateway.complete = lambda config, state: complete(options, config, state, host=host, port=port)
    try:
        module = importlib.import_module(module_name)
        found = getattr(module, attribute, None)
        made = found() if callable(found) and not isinstance(found, Gateway) else found
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise _failed(name) from error
        raise CommandFailed(f"there is no module {module_name!r} in {Path.cwd()} ({HOW})") from error
    except Exception as error:  # the edge of the program: whatever fails there is shown as its own
        raise _failed(name) from error
    finally:
        Gateway.complete = None
    if isinstance(made, Gateway):
        return made
    raise CommandFailed(_what_is_there(module, attribute, Gateway))


def _failed(name: str) -> typer.Exit:
    """Show what went wrong in the program, from the program's own first line on."""
    kind, error, trace = sys.exc_info()
    while trace is not None and Path(trace.tb_frame.f_code.co_filename).is_relative_to(Path(__file__).parent.parent):
        trace = trace.tb_next
    while trace is not None and "importlib" in trace.tb_frame.f_code.co_filename:
        trace = trace.tb_next
    traceback.print_exception(kind, error, trace)
    say(f"The program {name} failed; the traceback above is its own.", err=True)
    return typer.Exit(1)


def _what_is_there(module: Any, attribute: str, kind: type) -> str:
    there = [name for name, value in vars(module).items() if isinstance(value, kind)]
    if not hasattr(module, attribute):
        hint = f"it has {', '.join(there)}" if there else "it makes none: gateway = Gateway.open(…)"
        return f"{module.__name__} has no {attribute!r} ({hint})"
    value = getattr(module, attribute)
    return (
        f"{module.__name__}:{attribute} is of type {type(value).__name__}, not a Gateway, nor a function that gives one"
    )


def complete(
    options: Options, config: Mapping[str, Any] | None, state: Path | None, *, host: str | None, port: int | None
) -> Config:
    """Make the configuration of a program's gateway: its own settings first, then the options."""
    from backchannel.config import config_from

    if config is None and state is None:
        return options.load_config(host=host, port=port)
    whole = dict(config or {})
    place = {name: value for name, value in (("host", host), ("port", port)) if value is not None}
    whole["gateway"] = {**place, **whole.get("gateway", {})}
    return config_from(whole, os.environ, state=state or options.where.state_dir)


def end_with_reloader() -> None:
    """End this process with the `--reload` process that started it, even after `kill -9`; on Linux."""
    reloader = os.environ.pop(RELOADER, None)
    if reloader is None or sys.platform != "linux":
        return
    import ctypes

    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != int(reloader):
        raise typer.Exit(1)


def _is_state(file: Path, here: Path) -> bool:
    folders = file.relative_to(here).parents if file.is_relative_to(here) else ()
    return any((here / folder / "backchannel.db").exists() for folder in folders)


def serve_again_on_change() -> None:
    """Run this command without `--reload` in its own process, and restart it when a file changes."""
    from watchfiles import Change, DefaultFilter, run_process

    here = Path.cwd()

    class Watched(DefaultFilter):
        """Files of the program, without those that agents write into a state folder."""

        def __call__(self, change: Change, path: str) -> bool:
            return path.endswith(CHANGES) and super().__call__(change, path) and not _is_state(Path(path), here)

    os.environ[RELOADER] = str(os.getpid())
    words = [word for word in sys.argv[1:] if word != "--reload"]
    program = [sys.argv[0]] if os.access(sys.argv[0], os.X_OK) else [sys.executable, "-m", "backchannel"]
    command = shlex.join([*program, *words])
    run_process(
        here,
        target=command,
        target_type="command",
        watch_filter=Watched(),
        callback=lambda changes: say_dim(f"Changed: {', '.join(sorted({Path(p).name for _, p in changes}))}", err=True),
        debounce=400,
        sigint_timeout=10,
    )
