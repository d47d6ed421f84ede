"""The entry of a summary: a model's text, people's last words, and what is open.

Only the first part is a model's. The others come from rows, so no model can lose or invent them. Text of people stands
behind `> `, so that nothing in it looks like a part of the entry.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from backchannel.core.budget import text_tokens
from backchannel.core.compaction.telling import MOST_FILES_TOLD, is_of_person, person_of, show_time
from backchannel.core.headers import strip_mark
from backchannel.core.messages import CompactionEntry, Message
from backchannel.core.secrets.redaction import redact
from backchannel.core.text import one_line

_WORDS = "People's last words, as they wrote them:"
_OPEN = "Open when this was written, from the gateway's records:"
_RESULTS = "Results of sub-agents (sessions_history with the key reads the rest):"
_FILES = "Files:"
_PARTS = (_WORDS, _OPEN, _RESULTS, _FILES)
_LINE = 200
_CUT = "[the rest of these words is left out]"


class ChildResult(msgspec.Struct, frozen=True):
    """The result of a sub-agent: its key, and the beginning of its post."""

    key: str
    label: str | None
    text: str


class OpenWork(msgspec.Struct, frozen=True, kw_only=True):
    """What is open in a session, and what its sub-agents found, as rows tell it. Each line is one thing."""

    lines: tuple[str, ...] = ()
    results: tuple[ChildResult, ...] = ()
    people: tuple[Message, ...] = ()
    """What people said before the cut, the newest first."""


def entry_text(
    summary: str,
    work: OpenWork,
    files: Mapping[str, str],
    mark: str,
    *,
    words_room: int,
    open_room: int,
) -> str:
    """Write the text of an entry."""
    parts = [
        _without_titles(summary),
        _part(_WORDS, last_words(work.people, words_room)),
        _part(_OPEN, _within([f"- {line}" for line in work.lines], open_room)),
        _part(_RESULTS, _within([_result(result) for result in work.results], open_room)),
        _part(_FILES, [f"- {path} ({how})" for path, how in files.items()]),
    ]
    return redact(strip_mark("\n\n".join(part for part in parts if part), mark))[0]


def _without_titles(summary: str) -> str:
    """Leave out lines of a model's text that would begin one of the other parts."""
    return "\n".join(line for line in summary.splitlines() if _plain(line) not in _TITLES).strip()


def _plain(line: str) -> str:
    """Give the words of a line without case, signs around it and doubled spaces."""
    return " ".join(line.casefold().replace("’", "'").split()).strip(" *#>_:-`")


def _part(title: str, lines: Sequence[str]) -> str:
    return "\n".join([title, *lines]) if lines else ""


def _result(result: ChildResult) -> str:
    label = f" ({one_line(result.label)})" if result.label else ""
    return f"- {result.key}{label}: {one_line(result.text, 2 * _LINE)}"


def _within(lines: Iterable[str], room: int) -> list[str]:
    """Keep the first lines that fit."""
    kept: list[str] = []
    for line in lines:
        room -= text_tokens(line)
        if room < 0:
            return [*kept, "- and more, which does not fit here"]
        kept.append(line)
    return kept


def last_words(people: Sequence[Message], room: int) -> list[str]:
    """Choose people's newest words: each person's newest first, in turns, as long as they fit; oldest shown first."""
    said: dict[str, list[Message]] = {}
    for message in people:
        if is_of_person(message) and message.text.strip():
            said.setdefault(person_of(message), []).append(message)
    chosen: dict[str, list[str]] = {person: [] for person in said}
    for turn in range(max(map(len, said.values()), default=0)):
        for person, messages in said.items():
            if turn >= len(messages):
                continue
            words = _quoted(messages[turn])
            if text_tokens(words) > room and turn == 0:
                words = _shortened(words, room // len(said))
            if (cost := text_tokens(words)) > room:
                return _shown(chosen)
            chosen[person].append(words)
            room -= cost
    return _shown(chosen)


def _quoted(message: Message) -> str:
    quote = "\n".join(f"> {line}" for line in message.text.strip().splitlines())
    return f"{show_time(message.timestamp)}\n{quote}"


def _shortened(words: str, room: int) -> str:
    return f"{words[: max(0, room * 3 - len(_CUT))].rstrip()}\n{_CUT}"


def _shown(chosen: Mapping[str, list[str]]) -> list[str]:
    return [line for person, words in chosen.items() if words for line in (f"{person}:", *reversed(words))]


_TITLES = frozenset(map(_plain, _PARTS))


# --- Reading an entry again ---


def summary_in(text: str) -> str:
    """Find the model's part of an entry."""
    ends = [at for part in _PARTS if (at := text.find(f"\n\n{part}\n")) >= 0]
    return text[: min(ends)] if ends else text


def files_in(text: str) -> dict[str, str]:
    """Find the files that an entry lists."""
    found: dict[str, str] = {}
    _, heading, lines = text.rpartition(f"\n\n{_FILES}\n")
    for line in lines.splitlines()[:MOST_FILES_TOLD] if heading else ():
        path, _, how = line.removeprefix("- ").rpartition(" (")
        if path:
            found[path] = how.removesuffix(")")
    return found


# --- Showing an entry to people ---


def compaction_line(entry: CompactionEntry) -> str:
    """Tell in one line what an entry did: `compacted 214 messages, 96k → 3k tokens`."""
    if entry.undoes is not None:
        return f"took back the summary of {entry.messages:,} messages"
    before, after = show_size(entry.tokens_before), show_size(entry.tokens_after)
    return f"compacted {entry.messages:,} messages, {before} → {after} tokens"


def show_size(tokens: int) -> str:
    """Show a number of tokens: `950`, `9.6k`, `96k`."""
    if tokens < 1_000:
        return str(tokens)
    return f"{tokens / 1000:.1f}".removesuffix(".0") + "k" if tokens < 9_950 else f"{tokens / 1000:.0f}k"
