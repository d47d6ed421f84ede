"""The documents of the project, and the snippets in them.

A snippet is a fenced block. What its language means here:

- `python`: a whole program, run in a folder with the state folder `.state` of a running gateway; one that
  serves for ever has a test of its own.
- `console`: lines `$ command`, each followed by what it prints; `…` stands for anything.
- `json5`: a whole configuration.
- `sh`, `text`, `ini`, `json`, `yaml`, `toml`: shown only.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
SHOWN_ONLY = ("sh", "text", "ini", "json", "yaml", "toml")

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class Snippet:
    """One fenced block of a page."""

    page: Path
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


@dataclass(frozen=True, slots=True)
class Command:
    """One command of a console snippet, and what it prints."""

    where: str
    text: str
    output: str

    @property
    def program(self) -> str:
        return self.text.split()[0]


def pages() -> list[Path]:
    """All documents, those at the top first."""
    return [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]


def snippets(*languages: str, of: Path | None = None) -> list[Snippet]:
    """The snippets of all pages, or of one, in these languages, or in any."""
    found = (snippet for page in ([of] if of else pages()) for snippet in _snippets_of(page))
    return [snippet for snippet in found if not languages or snippet.language in languages]


def _snippets_of(page: Path) -> Iterator[Snippet]:
    text = page.read_text(encoding="utf-8")
    for match in _FENCE.finditer(text):
        yield Snippet(page, text.count("\n", 0, match.start()) + 1, match[1], match[2])


def commands(snippet: Snippet) -> list[Command]:
    """The commands of a console snippet; a line that ends with a backslash goes on in the next."""
    found = []
    for part in re.split(r"^\$ ", snippet.text, flags=re.MULTILINE)[1:]:
        command, _, output = part.replace("\\\n", " ").partition("\n")
        found.append(Command(str(snippet), command, output))
    return found


def complaints(logged: str) -> list[str]:
    """The lines that a program logged, but for what only says that the machine is busy."""
    return [line for line in logged.splitlines() if "the event loop was held" not in line]


def fits(expected: str, printed: str) -> bool:
    """Whether a text is as expected, where `…` stands for anything and white space at the ends does not count."""
    pattern = ".*".join(re.escape(part) for part in expected.strip().split("…"))
    return re.fullmatch(pattern, printed.strip(), re.DOTALL) is not None
