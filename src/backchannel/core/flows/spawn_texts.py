"""Texts about a sub-agent: for itself, for its requester, and for the requester's chat.

The post has one form. Its status comes from the run's outcome, never from a model's words. Its result is the first
text of the child that is not empty. Its statistics come from the rows. Unknown values are `n/a`.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from backchannel.core.commands.control_words import ANNOUNCE_SKIP, NO_REPLY, is_silent
from backchannel.core.flows.spawn_values import Findings, Spawn
from backchannel.core.headers import quote_name
from backchannel.core.runs import RunState
from backchannel.core.secrets.redaction import redact_opening
from backchannel.core.text import fenced, joined

SPAWN_ANNOUNCE_LINE = "[Sub-agent, announce step]"
"""Opens the announce step."""
WAKE_LINE = "[Results of your sub-agents]"
"""Opens the message that wakes a requester."""
POST_LINE = "Status: "
"""Begins a post; how the run ended follows."""

_STATUS = {RunState.OK: "success"}
_NOT_AVAILABLE = "(not available)"
_UNKNOWN = "n/a"
_LONGEST = 4_000
_KEY_LIMIT = 512


# To the child


def announce_prompt(spawn: Spawn) -> str:
    """Ask a child that has done its task what its requester is told."""
    channel = "" if spawn.address is None else f", and posted to its chat on {quote_name(spawn.address.channel)}"
    return joined(
        SPAWN_ANNOUNCE_LINE,
        f"Your task is done. Your reply to this message is reported to the session that started you{channel}.",
        "State the result in full, as someone reads it who has seen nothing of your work. You have no tools in this"
        f" step. To report nothing, reply with exactly {ANNOUNCE_SKIP}.",
        "The task was:",
        fenced(spawn.task),
    )


# To the requester and its chat


def post_text(spawn: Spawn, announced: str | None, findings: Findings, note: str | None = None) -> str:
    """Write the post of a child that has ended."""
    status = spawn.status or RunState.ERROR
    report = _report(announced, findings)
    return joined(
        f"{POST_LINE}{_STATUS.get(status, status.value)}",
        f"Result: {report.result}",
        *_notes(spawn, note, report.notes),
        f"Stats: {stats_line(spawn, findings)}",
    )


def _report(announced: str | None, findings: Findings) -> Report:
    """Give the first result that says anything, and the notes of whatever was looked at on the way."""
    notes: list[str] = []
    for said in (announced, findings.last_text):
        if said is None or is_silent(said):
            continue
        report = read_report(said)
        notes += [report.notes] if report.notes and report.notes not in notes else []
        if not is_silent(report.result):
            return Report(report.result, "\n".join(notes))
    if findings.tool_result is not None and not is_silent(findings.tool_result):
        return Report(_opening(findings.tool_result.strip()), "\n".join(notes))
    return Report(_NOT_AVAILABLE, "\n".join(notes))


def _opening(text: str) -> str:
    """Show as much as a chat can use of what a tool or a library said, without what looks like a credential."""
    more = len(text) - _LONGEST
    return redact_opening(text, _LONGEST)[0] + (f"… ({more} characters more)" if more > 0 else "")


def _notes(spawn: Spawn, note: str | None, of_child: str) -> tuple[str, ...]:
    # Errors are the words of tools and libraries, which say more than a chat should read.
    told = [text.strip() for text in (spawn.error, note) if text]
    known = [_opening(text) for text in told if text and text != spawn.status]  # "aborted" is said above
    ours = ["; ".join(known)] if known else []
    whole = "\n".join([*ours, *([of_child] if of_child else [])])
    return (f"Notes: {whole}",) if whole else ()


def stats_line(spawn: Spawn, findings: Findings) -> str:
    """Write what a child took: time, tokens, money, and where to read on."""
    facts = [
        f"runtime {show_duration(findings.runtime_ms)}",
        f"tokens {show_tokens(findings.tokens_in, findings.tokens_out)}",
        *([] if findings.cost is None else [f"est {show_cost(findings.cost)}"]),
        f"model {findings.model or _UNKNOWN}",
        f"sessionKey {spawn.child}",
        f"sessionId {findings.session_id or _UNKNOWN}",
        f"transcript {findings.archived_transcript or spawn.transcript or _UNKNOWN}",
    ]
    return " • ".join(facts)


def show_duration(ms: int | None) -> str:
    """Show a duration: `12s`, `5m12s`, `1h2m`."""
    if ms is None:
        return _UNKNOWN
    minutes, seconds = divmod(round(ms / 1000), 60)
    hours, minutes_left = divmod(minutes, 60)
    if hours:
        return f"{hours}h{minutes_left}m"
    return f"{minutes}m{seconds}s" if minutes else f"{seconds}s"


def show_tokens(tokens_in: int, tokens_out: int) -> str:
    """Show tokens as `1.6k (in 1.2k / out 0.4k)`: one unit for the three, except where it would show nothing."""
    total = tokens_in + tokens_out
    if not total:
        return _UNKNOWN
    whole, came, went = (_count(count, *_unit(total)) for count in (total, tokens_in, tokens_out))
    return f"{whole} (in {came} / out {went})"


def show_count(count: int) -> str:
    """Show a number of tokens: `400`, `1.2k`, `3.0m`."""
    return _count(count, *_unit(count))


def _unit(count: int) -> tuple[int, str]:
    return (1_000_000, "m") if count >= 999_950 else (1_000, "k") if count >= 1_000 else (1, "")


def _count(count: int, unit: int, letter: str) -> str:
    if unit == 1:
        return str(count)
    shown = f"{count / unit:.1f}"
    return _count(count, *_unit(count)) if shown == "0.0" else f"{shown}{letter}"


def show_cost(dollars: float) -> str:
    """Show a price: cents, and finer where it is less than one."""
    return f"${dollars:.4f}" if 0 < dollars < 0.01 else f"${dollars:.2f}"


def wake_text(posts: tuple[tuple[str, str | None], ...], *, has_chat: bool) -> str:
    """Write the one message that wakes a requester: each child's title and its post, or None if it is known already."""
    where = (
        "They were posted to this session's chat, where people read them, and your reply goes there too. "
        if has_chat
        else ""
    )
    parts = [
        joined(f"{title}:", fenced(text)) if text is not None else f"{title}: its result is above already."
        for title, text in posts
    ]
    return "\n\n".join(
        [
            joined(
                WAKE_LINE,
                f"{where}Carry on with your own work. If there is nothing to add, reply with exactly {NO_REPLY}.",
            ),
            *parts,
        ]
    )


def child_title(spawn: Spawn) -> str:
    """Name a child in a text for models."""
    label = "" if spawn.label is None else f"{quote_name(spawn.label)}, "
    return f"Sub-agent {label}session {quote_name(str(spawn.child), limit=_KEY_LIMIT)}, task {quote_name(spawn.task)}"


def stopped_text(spawns: tuple[Spawn, ...]) -> str:
    """Write the note of a requester whose children were stopped with it."""
    count = len(spawns)
    head = f"[{count} sub-agent{'' if count == 1 else 's'} stopped]"
    return joined(
        head, "They were stopped together with this session; their results will not come.", *map(child_title, spawns)
    )


# What a sub-agent says of its work, read by the labels that it brings.
#
# A child that knows the form of a post writes one itself: `Status:`, `Result:`, `Notes:`, each at the start of a line,
# in any case, perhaps in bold. Its Result and its Notes are what it has to say; its Status and its Stats are not its to
# tell, since those are how the run ended and what it took. A text that only contains such a word, in a sentence or in a
# block of code, is an ordinary text.

_LABEL = re.compile(r"(?:#{1,6} )?(\*\*|__)?(status|result|notes|stats)(\1)?:(\1)?(?!\S)[ \t]*", re.IGNORECASE)
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")
_OUTCOMES = frozenset(
    {"success", "successful", "succeeded", "ok", "okay", "done", "complete", "completed", "finished"}
    | {"error", "failed", "failure", "timeout", "timed out", "aborted"}
)
"""What a Status says that only repeats, or contradicts, how the run ended."""


class Report(NamedTuple):
    """What a child reports: its result, and notes where it has any."""

    result: str
    notes: str


def read_report(text: str) -> Report:
    """Read a child's words by their labels; without any, all of it is the result."""
    parts = _parts(text)
    has_result = any(label == "result" for label, _ in parts)
    result: list[str] = []
    notes: list[str] = []
    for label, said in parts:
        if label == "status":
            status, _, rest = said.partition("\n")
            said = rest if has_result or _is_outcome(status) else said
        if label != "stats":  # they are counted, not claimed
            (notes if label == "notes" else result).append(said.strip())
    return Report(_joined(result), _joined(notes))


def _parts(text: str) -> list[tuple[str, str]]:
    """Cut a text where a label stands; what comes before the first has none, and of two Results the second is text."""
    parts: list[tuple[str, list[str]]] = [("", [])]
    fence = ""
    for line in text.strip("\n").split("\n"):
        fence = _fence_after(line, fence)
        label = None if fence else _LABEL.match(line)
        name = label[2].lower() if label else ""
        if label is None or (name == "result" and any(known == "result" for known, _ in parts)):
            parts[-1][1].append(line)
        else:
            parts.append((name, [line[label.end() :]]))
    return [(name, "\n".join(lines)) for name, lines in parts]


def _fence_after(line: str, fence: str) -> str:
    """Tell which block of code is open after a line; empty is none."""
    found = _FENCE.match(line)
    if found is None:
        return fence
    if not fence:
        return found[1]
    closes = found[1].startswith(fence) and not line[found.end() :].strip()
    return "" if closes else fence


def _is_outcome(status: str) -> bool:
    return status.strip(" \t*_.!").casefold() in _OUTCOMES


def _joined(parts: list[str]) -> str:
    return "\n".join(part for part in parts if part)
