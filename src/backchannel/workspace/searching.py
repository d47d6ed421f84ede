"""The tool `search`: ripgrep in a sandbox of its own, or a search of ours.

ripgrep follows the paths it finds, and a command of a sandboxed session could put a link there in the same instant.
Inside a sandbox that sees the workspace alone there is nothing that a link could lead to. Without a sandbox, our
own search opens every file as the other tools do. Both are programs, because a pattern may take for ever.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sys

from backchannel.agents.programs import Program, environment
from backchannel.agents.sandbox.backends import backend_named
from backchannel.config.adapters import SANDBOXES
from backchannel.config.agents import SandboxRules
from backchannel.core.text import cut, storable_text
from backchannel.errors import InvalidRequest
from backchannel.workspace.beneath import Place, look, opened_folder, words_for
from backchannel.workspace.commands import RunningProgram
from backchannel.workspace.grep import BAD_PATTERN, LARGEST_FILE, MOST_IN_FILE, SKIPPED

MOST_MATCHES = 200
MOST_OUTPUT = 1024 * 1024
LONGEST_MATCH = 400
LIMIT_S = 30.0
_RULES = SandboxRules(workspace_access="ro", memory_mb=1024, cpu_seconds=60, processes=64)


async def search(place: Place, pattern: str, path: str) -> str:
    """Find lines by a regular expression, as `path:line:text`.

    Raises:
        InvalidRequest: the pattern is none, the path leads elsewhere, or it took too long.
    """
    place = place.around(path)
    program = await asyncio.to_thread(_program, place, pattern, path)
    found = bytearray()

    async def take(piece: bytes) -> None:
        if len(found) < MOST_OUTPUT:
            found.extend(piece)
        elif not enough.done():
            enough.set_result(None)

    enough = asyncio.get_running_loop().create_future()
    running = await RunningProgram.start(program, take)
    try:
        async with asyncio.timeout(LIMIT_S):
            ended = asyncio.ensure_future(running.ended())
            await asyncio.wait({ended, enough}, return_when=asyncio.FIRST_COMPLETED)
            code = ended.result() if ended.done() else 0
    except TimeoutError:
        raise InvalidRequest(
            f"the search took longer than {LIMIT_S:g} s: name a folder, or a simpler pattern"
        ) from None
    finally:
        if not running.has_ended:
            await asyncio.shield(running.stop())
    # ripgrep also ends so when it may not read something; of that it says nothing, so what it wrote are matches.
    is_incomplete = code == BAD_PATTERN and (b"\0" in found or not found)
    if code not in (0, 1) and not is_incomplete:
        said = found[:2000].decode("utf-8", "replace").strip()
        what = "pattern: " if code == BAD_PATTERN else "the search failed: "
        raise InvalidRequest(f"{what}{said or code}")
    shown = await asyncio.to_thread(_shown, place, bytes(found))
    return f"{shown}\n[something could not be read, and was left out]" if is_incomplete else shown


def _program(place: Place, pattern: str, path: str) -> Program:
    names = place.parts(path)
    if "\0" in pattern or "\n" in pattern:
        raise InvalidRequest("pattern: it is one line; a match is too")
    if names:
        with words_for(path), opened_folder(place, names[:-1]) as folder:
            if look(folder, names[-1]) is None:
                raise InvalidRequest(f"{path}: there is no such file or folder")
    else:
        with words_for(path), opened_folder(place, ()):
            pass
    written = storable_text(pattern)
    backend = backend_named(SANDBOXES.default)  # it shows the programs of this machine
    if shutil.which("rg", path="/usr/local/bin:/usr/bin") and backend.why_not() is None:
        return backend.wrapped(Program(_ripgrep(written, names), None, environment()), _RULES, place.root, None)
    words = (sys.executable, "-I", "-m", "backchannel.workspace.grep", str(place.root), "/".join(names) or ".", written)
    return Program(words, place.root, environment())


def _ripgrep(pattern: str, names: tuple[str, ...]) -> tuple[str, ...]:
    return (
        *("rg", "--no-config", "--null", "--with-filename", "--line-number", "--no-heading", "--color", "never"),
        *("--no-ignore", "--no-messages", "--sort", "path", "--max-count", str(MOST_IN_FILE)),
        *("--max-filesize", str(LARGEST_FILE)),
        *(word for name in (*SKIPPED, "*\n*") for word in ("--glob", f"!{name}")),  # a match begins with its path
        *("--regexp", pattern, "--", "/".join((".", *names))),
    )


def _shown(place: Place, found: bytes) -> str:
    """Show matches, but for those in files with a second hard link, which may lie outside."""
    lines: list[str] = []
    plain: dict[bytes, bool] = {}
    for line in found.split(b"\n"):
        written, is_match, rest = line.partition(b"\0")
        path, (number, _, text) = written.removeprefix(b"./"), rest.partition(b":")
        if not is_match:
            continue
        if path not in plain:
            plain[path] = _has_one_name(place, path)
        if plain[path]:
            if len(lines) == MOST_MATCHES:
                lines.append(f"[the first {MOST_MATCHES} matches; name a folder or a narrower pattern for others]")
                break
            shown = cut(_text(text.rstrip(b"\r")), LONGEST_MATCH)
            lines.append(f"{_text(path)}:{_text(number)}:{shown}")
    return "\n".join(lines) or "[nothing was found]"


def _text(written: bytes) -> str:
    return written.decode("utf-8", "replace")


def _has_one_name(place: Place, path: bytes) -> bool:
    *folders, name = os.fsdecode(path).split("/")
    try:
        with opened_folder(place, tuple(folders)) as folder:
            seen = look(folder, name)
    except (OSError, InvalidRequest):
        return False
    return seen is not None and seen.st_nlink == 1
