"""The pages for developers: a map that is current, paths that exist, short sentences."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from docs.build.internals import INTERNALS, SOURCE, first_sentence, head_of, modules, render_map

from .pages import ROOT

PAGES = sorted(INTERNALS.glob("*.md"))
WRITTEN = [
    *(page for page in PAGES if page.name not in ("map.md", "life-of-a-message.md")),
    ROOT / "tests" / "README.md",
]
"""The pages that people write; the others are made by `make reference`."""
MOST_LINES = 120
MOST_WORDS = 30
MOST_WORDS_OF_FIRST_SENTENCE = 15
HOW = "run `make reference`"

_PATH = re.compile(r"`([\w.-]+(?:/[\w.-]+)*(?:/|\.(?:py|js|css|md|sql|toml|json5?)))(?::([\w.]+))?`")
_FILE = re.compile(r"`([\w.-]+(?:/[\w.-]+)*\.(?:py|js|css|md|sql))`")
_QUESTION = re.compile(r"(?:What|Whether|How|Who|Whom|Whose|Which|Where|When|Why)\b")

each_page = pytest.mark.parametrize(
    "page", [page for page in WRITTEN if page.exists()], ids=lambda page: str(page.name)
)


# The generated pages


def test_the_map_is_current() -> None:
    assert (INTERNALS / "map.md").read_text(encoding="utf-8") == render_map(), HOW


def test_every_module_is_in_the_map() -> None:
    shown = (INTERNALS / "map.md").read_text(encoding="utf-8")
    for module in modules():
        name = module.relative_to(SOURCE)
        place = f"## `{name.parent}/`" if name.name == "__init__.py" and name.parent.parts else f"`{name}`"
        assert place in shown or name == Path("__init__.py"), f"{name} is not in the map: {HOW}"


def test_the_life_of_a_message_is_what_a_served_gateway_does() -> None:
    walk = [sys.executable, "-m", "bench.walk", "--page"]
    walked = subprocess.run(walk, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)

    assert walked.returncode == 0, walked.stderr
    assert (INTERNALS / "life-of-a-message.md").read_text(encoding="utf-8") == walked.stdout, HOW


# The first sentence of a module


def test_the_first_sentence_of_a_module_is_short_and_names_a_thing() -> None:
    assert list(_bad_first_sentences()) == []


def _bad_first_sentences() -> Iterator[str]:
    for module in modules():
        sentence = first_sentence(head_of(module))
        words = len(sentence.split())
        if not sentence.endswith(".") or words > MOST_WORDS_OF_FIRST_SENTENCE or _QUESTION.match(sentence):
            yield f"{module.relative_to(SOURCE)}: {sentence!r} ({words} words)"


def test_the_first_sentence_of_a_test_module_names_a_thing() -> None:
    files = [file for folder in ("tests", "bench") for file in (ROOT / folder).rglob("*.py")]
    assert [str(file.relative_to(ROOT)) for file in files if _QUESTION.match(head_of(file))] == []


def test_every_file_that_a_docstring_names_exists() -> None:
    assert list(_missing_files()) == []


def _missing_files() -> Iterator[str]:
    """Find names of files in docstrings that are neither below the package, nor beside, nor in any folder of a kind."""
    names = {module.name for module in modules()}
    for module in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
            for file in _FILE.findall(_docstring(node)):
                is_there = any((root / file).exists() for root in (ROOT, SOURCE, module.parent))
                if not (is_there or file in names or file.startswith("NNNN")):
                    yield f"{module.relative_to(SOURCE)}: {file} is not there"


def _docstring(node: ast.AST) -> str:
    if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        return ast.get_docstring(node) or ""
    return ""


# The written pages


@each_page
def test_a_page_is_no_longer_than_two_screens(page: Path) -> None:
    assert len(page.read_text(encoding="utf-8").splitlines()) <= MOST_LINES


@each_page
def test_every_path_that_a_page_names_exists(page: Path) -> None:
    for path, name in _PATH.findall(page.read_text(encoding="utf-8")):
        found = [root / path for root in (ROOT, SOURCE, page.parent) if (root / path).exists()]
        assert found, f"{page.name}: {path} is not there"
        if name:
            assert name in _names_in(found[0]), f"{page.name}: {path} has no {name}"


def _names_in(module: Path) -> set[str]:
    """Collect the names that a module defines, those of a class as `Class.name`."""
    names = set()
    for node in ast.parse(module.read_text(encoding="utf-8")).body:
        names |= set(_names_of(node))
        if isinstance(node, ast.ClassDef):
            names |= {f"{node.name}.{inner}" for member in node.body for inner in _names_of(member)}
    return names


def _names_of(node: ast.stmt) -> Iterator[str]:
    if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        yield node.name
    elif isinstance(node, ast.Assign):
        yield from (target.id for target in node.targets if isinstance(target, ast.Name))
    elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        yield node.target.id


@pytest.mark.parametrize("page", [*PAGES, *WRITTEN[-1:]], ids=lambda page: str(page.name))
def test_no_sentence_of_a_page_is_long(page: Path) -> None:
    if page.exists():
        long = [sentence for sentence in _sentences(page) if len(sentence.split()) > MOST_WORDS]
        assert long == []


def _sentences(page: Path) -> Iterator[str]:
    """Take a page apart: paragraphs, items of lists and cells of tables, without what stands in fences."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"^\s*(?:[-*]|\d+\.)\s|^#.*$| \| |^\| | \|$", "\n\n", text, flags=re.MULTILINE)
    for passage in re.split(r"\n\s*\n", text):
        plain = re.sub(r"\]\([^)]*\)|`[^`]*`", " x ", " ".join(passage.split()))
        yield from re.split(r"(?<=[.!?])\*{0,2}\s+", plain)


def test_every_page_of_the_folder_is_linked_from_its_first_page() -> None:
    first = (INTERNALS / "README.md").read_text(encoding="utf-8")
    for page in PAGES:
        assert page.name == "README.md" or f"]({page.name})" in first, f"{page.name} is not linked"
