"""The generated pages of docs/internals: the map of all modules, and the life of a message.

`make reference` writes them, and the tests check that they are current.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from bench.walk import render_life

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "backchannel"
INTERNALS = ROOT / "docs" / "internals"

_MAP_INTRO = """# The map

Made by `make reference` from the first sentence of each module. Paths are below `src/backchannel/`. Folders stand in
the order of the layers: a layer imports only layers above it. Folders of one layer stand in the order of the alphabet.
`openclaw/` cuts through the layers, and `web/` is JavaScript.
"""

LAYERS = (
    "core",
    "wire",
    "config",
    "storage",
    "agents",
    "workspace",
    "runtime",
    "tools",
    "channels",
    "triggers",
    "gateway",
    "cli",
    "openclaw",
    "web",
)
"""The folders in the order of the map. `openclaw/` cuts through the layers, and `web/` is JavaScript."""

_HEAD = re.compile(r"\A/\*\*\s*(.*?)\s*\*/", re.DOTALL)


def modules() -> list[Path]:
    """List all modules that the map shows: Python, and the page's own JavaScript."""
    return sorted([*SOURCE.rglob("*.py"), *(SOURCE / "web").glob("*.js"), *(SOURCE / "web" / "views").glob("*.js")])


@cache
def head_of(module: Path) -> str:
    """Read the docstring of a Python module, or the first comment of a JavaScript module."""
    text = module.read_text(encoding="utf-8")
    if module.suffix == ".js":
        found = _HEAD.match(text)
        return re.sub(r"^ *\* ?", "", found[1], flags=re.MULTILINE) if found else ""
    return ast.get_docstring(ast.parse(text)) or ""


def first_sentence(text: str) -> str:
    """Take the first sentence of a docstring."""
    paragraph = " ".join(text.split("\n\n")[0].split())
    return re.split(r"(?<=[.!?])\s+", paragraph)[0]


def render_map() -> str:
    """Render the page that lists every folder and module with its first sentence."""
    folders: dict[Path, list[Path]] = {}
    for module in modules():
        folders.setdefault(module.parent, []).append(module)
    sections = (_section(folder, folders[folder]) for folder in sorted(folders, key=_place))
    return "\n".join([_MAP_INTRO, *sections])


def _place(folder: Path) -> tuple[int, str]:
    layer, *_ = (*folder.relative_to(SOURCE).parts, "")
    return (LAYERS.index(layer) if layer else -1, str(folder))


def _section(folder: Path, files: list[Path]) -> str:
    name = folder.relative_to(SOURCE)
    return "\n".join([f"## {f'`{name}/`' if name.parts else 'The package'}", "", *_lines(files), ""])


def _lines(files: list[Path]) -> Iterator[str]:
    for file in files:
        sentence = first_sentence(head_of(file))
        if file.name == "__init__.py":
            yield from (sentence, "")
        else:
            yield f"- `{file.relative_to(SOURCE)}`: {sentence}"


def render_all() -> dict[Path, str]:
    """Render both pages; the second one serves a gateway and follows one request through it."""
    return {INTERNALS / "map.md": render_map(), INTERNALS / "life-of-a-message.md": render_life()}


if __name__ == "__main__":
    for path, text in render_all().items():
        path.write_text(text, encoding="utf-8")
