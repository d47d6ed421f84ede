"""The tools `read`, `write`, `edit` and `list`: bounded, and never outside the workspace.

These functions block, and are run in threads. A file is written beside its place and then takes it, so that nobody ever
sees half of it and a crash leaves either the old or the new one.
"""

from __future__ import annotations

import os
import secrets
import stat
import unicodedata
from contextlib import suppress
from itertools import islice

from backchannel.core.text import quoted, storable_text
from backchannel.errors import InvalidRequest
from backchannel.workspace.beneath import Place, check_plain, look, opened_file, opened_folder, words_for

_MOST_SHOWN = 64 * 1024
MOST_LINES = 2000
_LONGEST_LINE = 8 * 1024
MOST_SCANNED = 64 * 1024 * 1024
"""How far into a file lines are looked for."""
MOST_EDITED = 8 * 1024 * 1024
_MOST_ENTRIES = 1000
_DEEPEST = 64
"""How many folders may be around a file that is written."""
_BINARY_BYTES = 8 * 1024
_PERMISSIONS = stat.S_IRWXU | stat.S_IRWXG | stat.S_IRWXO
"""What a new file has of the old one: not the right to run as its owner, who may be another now."""


def read_text(place: Place, path: str, offset: int, limit: int) -> str:
    """Read lines of a file, from the line with the number `offset`, counted from 1."""
    place = place.around(path)
    *folders, name = _file_parts(place, path)
    with words_for(path), opened_folder(place, tuple(folders)) as folder, opened_file(folder, name) as file:
        size = os.fstat(file).st_size
        if b"\0" in os.pread(file, _BINARY_BYTES, 0):
            return f"[a binary file of {size} bytes, not shown]"
        lines = _Lines(file, offset, limit)
        text = lines.collected.decode("utf-8", "replace")
    if not size:
        return "[the file is empty]"
    if not lines.count and not lines.has_more:
        raise InvalidRequest(f"offset: {path} has {lines.seen} lines")
    if not lines.count:
        raise InvalidRequest(f"offset: {path} is too long to be read there; `exec` can, with sed or tail")
    last = offset + lines.count - 1
    return f"{text}\n[lines {offset} to {last}; more follow, from offset {last + 1}]" if lines.has_more else text


def read_whole(place: Place, path: str, limit: int) -> bytes:
    """Read a whole file.

    Raises:
        InvalidRequest: it cannot be read, is empty, or has more bytes than the limit.
    """
    place = place.around(path)
    *folders, name = _file_parts(place, path)
    with words_for(path), opened_folder(place, tuple(folders)) as folder, opened_file(folder, name) as file:
        content = _beginning(file, limit + 1)
    if not content:
        raise InvalidRequest(f"path: {quoted(path)} is empty")
    if len(content) > limit:
        raise InvalidRequest(f"path: {quoted(path)} has more than {limit >> 20} MB")
    return content


def _beginning(file: int, size: int) -> bytes:
    with os.fdopen(os.dup(file), "rb") as stream:
        return stream.read(size)


class _Lines:
    """Lines of an open file, collected within limits."""

    def __init__(self, file: int, offset: int, limit: int) -> None:
        self.collected = bytearray()
        self.count = self.seen = 0
        self.has_more = False
        with os.fdopen(os.dup(file), "rb") as stream:
            scanned = 0
            while line := stream.readline(_LONGEST_LINE):
                scanned += len(line)
                is_long = not line.endswith(b"\n") and len(line) == _LONGEST_LINE
                if is_long:
                    scanned += self._skip_rest(stream)
                self.seen += 1
                if self.seen < offset and scanned < MOST_SCANNED:
                    continue
                if self.seen < offset or self.count == limit or len(self.collected) + len(line) > _MOST_SHOWN:
                    self.has_more = True
                    return
                self.collected += line + (b" [the line goes on]\n" if is_long else b"")
                self.count += 1

    @staticmethod
    def _skip_rest(stream: object) -> int:
        skipped = 0
        while piece := stream.readline(_MOST_SHOWN):  # type: ignore[attr-defined]  # a buffered reader
            skipped += len(piece)
            if piece.endswith(b"\n") or skipped > MOST_SCANNED:
                break
        return skipped


def write_text(place: Place, path: str, content: str) -> str:
    """Write a whole file, making the folders on its way."""
    *folders, name = _new_file_parts(place, path)
    if len(folders) > _DEEPEST:
        raise InvalidRequest(f"path: it leads through {len(folders)} folders, and at most {_DEEPEST} are made")
    data = storable_text(content).encode()
    with words_for(path), opened_folder(place, tuple(folders), create=True) as folder:
        before = look(folder, name)
        replace_file(folder, name, data, before)
    return f"{'wrote' if before is None else 'replaced'} {path}: {len(data)} bytes"


def edit_text(place: Place, path: str, old: str, new: str) -> str:
    """Replace the one place in a file where a text stands."""
    *folders, name = _new_file_parts(place, path)
    if not old or old == new:
        raise InvalidRequest("oldText: " + ("it is empty; `write` makes a file" if not old else "newText is the same"))
    with words_for(path), opened_folder(place, tuple(folders)) as folder:
        with opened_file(folder, name) as file:
            before = os.fstat(file)
            text = _whole_text(file, before.st_size, path)
        _check_once(text, old, path)
        after = text.replace(old, new)
        replace_file(folder, name, storable_text(after).encode(), before)
    at = text.count("\n", 0, text.index(old)) + 1
    return f"edited {path} at line {at}"


def _whole_text(file: int, size: int, path: str) -> str:
    if size > MOST_EDITED:
        raise InvalidRequest(f"{quoted(path)} has {size} bytes, and files over {MOST_EDITED >> 20} MiB are not edited")
    with os.fdopen(os.dup(file), "rb") as stream:
        data = stream.read(MOST_EDITED)
    try:
        if b"\0" in data:
            raise ValueError
        return data.decode("utf-8")
    except ValueError:
        raise InvalidRequest(f"{quoted(path)} is no UTF-8 text: an edit would spoil it") from None


def _check_once(text: str, old: str, path: str) -> None:
    count = text.count(old)
    if count == 1:
        return
    if count > 1:
        raise InvalidRequest(f"oldText: it stands {count} times in {path}; add what is around the one you mean")
    hint = ""
    if old.replace("\n", "\r\n") in text and "\n" in old:
        hint = r" (its lines end with \r\n)"
    raise InvalidRequest(f"oldText: it does not stand in {path}{hint}; read the file, and copy the text exactly")


def replace_file(folder: int, name: str, data: bytes, before: os.stat_result | None) -> None:
    """Put a new file in the place of the old one, with its permissions, or where there is none.

    Raises:
        InvalidRequest: what is there is no ordinary file, or another than was read.
    """
    if before is not None:
        check_plain(name, before)
        if not os.access(name, os.W_OK, dir_fd=folder):
            raise InvalidRequest(f"{quoted(name)} is not writable")
    beside = f".{secrets.token_hex(8)}.tmp"
    file = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666, dir_fd=folder)
    try:
        with os.fdopen(file, "wb") as stream:
            stream.write(data)
            stream.flush()
            if before is not None:
                os.fchmod(file, before.st_mode & _PERMISSIONS)
            os.fsync(file)
        _check_unchanged(name, before, look(folder, name))
        os.rename(beside, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:  # however it fails: no half-written file stays beside the whole one
        with suppress(OSError):
            os.unlink(beside, dir_fd=folder)
        raise


def _check_unchanged(name: str, before: os.stat_result | None, now: os.stat_result | None) -> None:
    """Refuse to overwrite what somebody else has written since it was looked at."""
    if before is None and now is None:
        return
    if before is None or now is None or (before.st_ino, before.st_mtime_ns) != (now.st_ino, now.st_mtime_ns):
        raise InvalidRequest(f"{quoted(name)} was changed by something else meanwhile; nothing was written")


def list_folder(place: Place, path: str) -> str:
    """List a folder, one entry a line."""
    place = place.around(path)
    names = place.parts(path)
    with words_for(path), opened_folder(place, names) as folder, os.scandir(folder) as entries:
        found = list(islice(entries, _MOST_ENTRIES + 1))
        lines = sorted(_entry(entry) for entry in found[:_MOST_ENTRIES])
    if len(found) > _MOST_ENTRIES:
        lines.append(f"[{_MOST_ENTRIES} of more entries]")
    return "\n".join(lines) or "[the folder is empty]"


def _entry(entry: os.DirEntry[str]) -> str:
    shown = entry.name if entry.name.isprintable() else repr(entry.name)
    if entry.is_symlink():
        return f"{shown} (a link, not followed)"
    if entry.is_dir(follow_symlinks=False):
        return f"{shown}/"
    if not entry.is_file(follow_symlinks=False):
        return f"{shown} (no ordinary file)"
    try:
        return f"{shown}  {entry.stat(follow_symlinks=False).st_size} bytes"
    except FileNotFoundError:
        return f"{shown} (gone meanwhile)"


def _file_parts(place: Place, path: str) -> tuple[str, ...]:
    names = place.parts(path)
    if not names:
        raise InvalidRequest("path: it is the workspace itself; name a file in it")
    return names


def _new_file_parts(place: Place, path: str) -> tuple[str, ...]:
    names = _file_parts(place, path)
    if not place.is_writable:
        raise InvalidRequest("the sandbox of this session may only read the workspace (sandbox.workspaceAccess: ro)")
    if any(unicodedata.category(character) in ("Cc", "Cs") for name in names for character in name):
        raise InvalidRequest(f"path: {quoted(path)} has control characters; choose a name without them")
    return names
