"""Migration of a configuration file to today's names: planned, shown, stored beside a backup.

Nothing is planned on trust: the new text is read again, and must say under today's names what the old one said.
A crash at any moment leaves the old file or the new one, whole, and never a partial backup.
"""

from __future__ import annotations

import difflib
import itertools
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyjson5

from backchannel.config.findings import ConfigFinding, config_error, show_path
from backchannel.config.source import ConfigSource, load_text, may_be_secret, parse_source, scan, without_secrets
from backchannel.openclaw.rewriting import Group, LostComment, parse_layout, rewrite
from backchannel.openclaw.settings import Move, modernise

_COVERED = '"<hidden>"'


@dataclass(frozen=True, slots=True)
class Migration:
    """What a file says, and what it is to say. Without moves there is nothing to do."""

    file: Path
    source: ConfigSource
    before: str
    after: str
    moves: tuple[Move, ...] = ()
    lost: tuple[LostComment, ...] = ()

    @property
    def diff(self) -> list[str]:
        """The lines that change, with those around them; what may be a secret is covered."""
        before, after = (_covered(text).splitlines() for text in (self.before, self.after))
        return list(difflib.unified_diff(before, after, str(self.file), str(self.file), lineterm=""))


def plan_migration(file: Path) -> Migration:
    """Work out how a file, or the one that a link leads to, is to be rewritten; nothing is changed yet.

    Raises:
        ConfigError: the file cannot be read, or what stands under an older name cannot be placed.
    """
    file = Path(os.path.realpath(file))
    text = load_text(file)
    source = parse_source(text, file)
    modern = modernise(source.raw)
    if modern.errors:
        problems = [(issue, source.line(issue.path)) for issue in modern.errors]
        raise config_error([ConfigFinding(i.level, show_path(i.path), i.message, line) for i, line in problems], file)
    if not modern.moves:
        return Migration(file, source, text, text)
    after, lost = _rewritten(text, modern.moves)
    if after is None or pyjson5.decode(after) != modern.raw:
        what = "this file cannot be rewritten; `backchannel config check` lists its older names"
        raise config_error([ConfigFinding("error", "", what)], file)
    return Migration(file, source, text, after, tuple(modern.moves), tuple(lost))


def store_migration(migration: Migration) -> Path:
    """Replace the file, after a copy of it was stored; return where the copy is.

    Raises:
        ConfigError: the file is not what it was when this was planned.
        OSError: it cannot be written; it is as it was.
    """
    file = migration.file
    with _draft(file, migration.before) as copy, _draft(file, migration.after) as draft:
        backup = _store_backup(file, copy)
        if load_text(file) != migration.before:
            what = f"the file has been changed in the meantime, and stays as it is (a copy from before is {backup})"
            raise config_error([ConfigFinding("error", "", what)], file)
        draft.replace(file)
        _sync_folder(file.parent)
    return backup


def _rewritten(text: str, moves: list[Move]) -> tuple[str | None, list[LostComment]]:
    layout = parse_layout(scan(text))
    try:
        lost = rewrite(layout, moves)
    except LookupError:  # a name with escapes that the scan reads otherwise than the parser
        return None, []
    return str(layout), lost


def _store_backup(file: Path, copy: Path) -> Path:
    """Give a copy the first free name; a backup that is there is never replaced."""
    names = itertools.chain([f"{file.name}.bak"], (f"{file.name}.bak.{number}" for number in itertools.count(1)))
    for name in names:
        backup = file.with_name(name)
        try:
            os.link(copy, backup)
        except FileExistsError:
            continue
        _sync_folder(file.parent)
        return backup
    raise AssertionError("there is no end to the names")


@contextmanager
def _draft(file: Path, text: str) -> Iterator[Path]:
    """Write a text beside a file, with its owner and mode, for the time of the context."""
    like = file.stat()
    number, name = tempfile.mkstemp(prefix=f".{file.name}.", dir=file.parent)
    draft = Path(name)
    try:
        with os.fdopen(number, "wb") as opened:
            os.fchown(number, like.st_uid, like.st_gid)
            os.fchmod(number, stat.S_IMODE(like.st_mode))
            opened.write(text.encode("utf-8"))
            opened.flush()
            os.fsync(number)
        yield draft
    finally:
        draft.unlink(missing_ok=True)


def _sync_folder(folder: Path) -> None:
    number = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def _covered(text: str) -> str:
    layout = parse_layout(scan(text))
    layout.lead, layout.end = without_secrets(layout.lead), without_secrets(layout.end)
    _cover(layout.root)
    return str(layout)


def _cover(group: Group) -> None:
    group.end = without_secrets(group.end)
    for member in group.members:
        member.lead, member.tail, member.rest = map(without_secrets, (member.lead, member.tail, member.rest))
        if may_be_secret(member.name):
            member.colon, member.value = ": ", _COVERED
        elif isinstance(member.value, Group):
            _cover(member.value)
        else:
            member.value = without_secrets(member.value)
