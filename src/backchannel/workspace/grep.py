r"""A search program for machines without ripgrep.

Run as `python -I -m backchannel.workspace.grep <root> <path> <pattern>`. It is a program of its own, because a pattern
can take for ever and would hold the whole process. Each match is `<path>\0<line>:<text>`, as
`rg --null --line-number` writes it.
"""

from __future__ import annotations

import os
import re
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

from backchannel.errors import InvalidRequest
from backchannel.workspace.beneath import Place, look, opened_file, opened_folder

MOST_IN_FILE = 100
LARGEST_FILE = 4 * 1024 * 1024
_DEEPEST = 200
SKIPPED = ("node_modules", "__pycache__")
BAD_PATTERN = 2


def main(root: str, path: str, written: str) -> int:
    try:
        pattern = re.compile(os.fsencode(written))
    except re.error as error:
        sys.stderr.write(f"the pattern is no regular expression: {error}\n")
        return BAD_PATTERN
    place = Place(Path(root), root)
    for names in _files(place, place.parts(path)):
        shown = "/".join(names).encode("utf-8", "surrogateescape")
        for number, line in _matches(place, names, pattern):
            sys.stdout.buffer.write(b"%s\0%d:%s\n" % (shown, number, line))
    return 0


def _files(place: Place, names: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Name the files below a path in order, without those that are hidden."""
    if names:
        with opened_folder(place, names[:-1]) as folder:
            found = look(folder, names[-1])
        if found is None or not stat.S_ISDIR(found.st_mode):
            yield names
            return
    if len(names) > _DEEPEST:
        return
    try:
        with opened_folder(place, names) as folder, os.scandir(folder) as entries:
            inner = sorted((entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries)
    except (OSError, InvalidRequest):
        return
    for name, is_folder in inner:
        if name.startswith(".") or name in SKIPPED or "\n" in name:  # a match is one line, and begins with its path
            continue
        if is_folder:
            yield from _files(place, (*names, name))
        else:
            yield (*names, name)


def _matches(place: Place, names: tuple[str, ...], pattern: re.Pattern[bytes]) -> Iterator[tuple[int, bytes]]:
    try:
        with opened_folder(place, names[:-1]) as folder, opened_file(folder, names[-1]) as file:
            if os.fstat(file).st_size > LARGEST_FILE:
                return
            data = os.pread(file, LARGEST_FILE, 0)
    except (OSError, InvalidRequest):
        return
    if b"\0" in data:
        return
    count = 0
    for number, line in enumerate(data.removesuffix(b"\n").split(b"\n"), 1):
        if pattern.search(line):
            yield number, line.rstrip(b"\r")
            count += 1
            if count == MOST_IN_FILE:
                return


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:4]))
