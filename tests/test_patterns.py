"""Patterns: none takes more than linear time, whatever text it is run over.

Every compiled pattern of the package is found, and run as its module runs it over texts that were made to be slow: long
runs of one character, openings that never close, and near-misses made of the pattern's own characters.
"""

from __future__ import annotations

import ast
import importlib
import pkgutil
import random
import re
import re._constants as ops  # type: ignore[import-not-found]  # what patterns are parsed into; typeshed leaves it out
import re._parser as parser  # type: ignore[import-not-found]
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import backchannel
from backchannel.agents.demo_talk import header_pattern
from backchannel.core.full_text.ranking import word_pattern
from backchannel.core.secrets import credentials
from backchannel.core.secrets.known import secrets_pattern
from tests.support.timing import grows_linearly

SMALL = 6_000

SEARCHES = frozenset({"search", "sub", "subn", "finditer", "findall", "split"})
MATCHES = frozenset({"match", "fullmatch"})
_SHAPES = (*credentials._KEYS, *credentials._SHAPES, *credentials._FOLDED_SHAPES)
MADE_WHEN_ASKED = {
    "agents/demo_talk.py": (header_pattern("mark"),),
    "core/full_text/ranking.py": (word_pattern("red", goes_on=False), word_pattern("red", goes_on=True)),
    "core/secrets/credentials.py": (*(each.pattern for each in _SHAPES), *map(credentials._pair, credentials._WORDS)),
    "core/secrets/known.py": (secrets_pattern(["secret-one", "secret-two"]),),
}
"""Patterns that are compiled while the program runs: samples of each."""
FILLERS = [
    "a",
    "A",
    "0",
    " ",
    "\n",
    '"',
    "'",
    "`",
    "*",
    "-",
    ".",
    "/",
    "\\",
    "%",
    "=",
    ":",
    "a=",
    "a,",
    "a.",
    "a ",
    "é",
]
UNITS = [
    *FILLERS,
    "-----BEGIN ",
    "-----BEGIN PRIVATE KEY-----\n",
    "token=",
    "password: ",
    "://a:",
    "${",
    "/*",
    "//",
    "\\u",
]

SOURCE = Path(backchannel.__file__).parent


def _modules() -> Iterator[ModuleType]:
    for found in pkgutil.walk_packages([str(SOURCE)], "backchannel."):
        if not found.name.endswith("__main__"):
            yield importlib.import_module(found.name)


def _patterns_in(value: Any, depth: int = 3) -> Iterator[re.Pattern[Any]]:
    """Find the patterns in a value, in its items and in the fields of its objects."""
    if isinstance(value, re.Pattern):
        yield value
        return
    if depth == 0 or isinstance(value, str | bytes | type | ModuleType):
        return
    items: Iterable[Any] = ()
    if isinstance(value, dict):
        items = value.values()
    elif isinstance(value, list | tuple | set | frozenset):
        items = value
    elif type(value).__module__.startswith("backchannel"):
        items = (getattr(value, name, None) for name in (*getattr(value, "__slots__", ()), *vars_of(value)))
    for item in items:
        yield from _patterns_in(item, depth - 1)


def vars_of(value: Any) -> Iterable[str]:
    return getattr(value, "__dict__", ()) or getattr(value, "__struct_fields__", ())


def _used_as(tree: ast.Module, name: str) -> frozenset[str]:
    """Tell by which methods a module uses the pattern of this name; of one in a table, by which it uses any."""
    calls = [
        (node.func.value, node.func.attr)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in SEARCHES | MATCHES
    ]
    by_name = {method for owner, method in calls if isinstance(owner, ast.Name) and owner.id == name}
    of_any = {method for owner, method in calls if not isinstance(owner, ast.Name)} - {"split"}
    return frozenset(by_name or of_any or {"search"})


def _of_fields(tree: ast.Module, module: ModuleType) -> Iterator[str]:
    """Find what is given as `pattern=` to the types of parameters and settings, which msgspec searches for."""
    for node in ast.walk(tree):
        if isinstance(node, ast.keyword) and node.arg == "pattern":
            text = eval(compile(ast.Expression(node.value), "<pattern>", "eval"), vars(module))  # our own
            if isinstance(text, str):
                yield text


def _collect() -> dict[str, tuple[re.Pattern[Any], frozenset[str]]]:
    """Find all patterns: each by its place, with the methods by which it is used."""
    found: dict[str, tuple[re.Pattern[Any], frozenset[str]]] = {}
    for module in _modules():
        file = Path(module.__file__ or "")
        tree = ast.parse(file.read_text())
        for name, value in vars(module).items():
            for pattern in _patterns_in(value):
                place = f"{file.relative_to(SOURCE)} {name} {pattern.pattern[:60]!r}"
                found[place] = pattern, _used_as(tree, name)
        for text in _of_fields(tree, module):
            found[f"{file.relative_to(SOURCE)} pattern={text!r}"] = re.compile(text), frozenset({"search"})
    for place, samples in MADE_WHEN_ASKED.items():
        found |= {f"{place} {pattern.pattern[:60]!r}": (pattern, SEARCHES) for pattern in samples}
    return found


# Hostile texts


def _example(parsed: Any) -> str:
    """Write a text that a parsed pattern matches, more or less: enough to go far into it."""
    return "".join(_example_of(op, arg) for op, arg in parsed)


def _example_of(op: Any, arg: Any) -> str:
    match op:
        case ops.LITERAL:
            return chr(arg)
        case ops.ANY | ops.NOT_LITERAL | ops.CATEGORY:
            return "a"
        case ops.IN:
            return _example_of_set(arg)
        case ops.BRANCH:
            return max((_example(branch) for branch in arg[1]), key=len)
        case ops.SUBPATTERN:
            return _example(arg[-1])
        case ops.ATOMIC_GROUP:
            return _example(arg)
        case ops.MAX_REPEAT | ops.MIN_REPEAT | ops.POSSESSIVE_REPEAT:
            least, most, repeated = arg
            return _example(repeated) * min(int(most), max(int(least), 2))
    return ""  # places, assertions and groups that are named again add nothing


def _example_of_set(entries: list[Any]) -> str:
    match entries:
        case [(ops.NEGATE, _), *rest]:
            taken = {arg for op, arg in rest if op is ops.LITERAL}
            return next(char for char in "a~b7" if ord(char) not in taken)
        case [(ops.RANGE, (first, _)), *_]:
            return chr(first)
        case [(ops.LITERAL, char), *_]:
            return chr(char)
    return "0" if (ops.CATEGORY, ops.CATEGORY_DIGIT) in entries else "a"


def _hostile(pattern: re.Pattern[Any]) -> Iterator[tuple[str, str]]:
    """Give openings, and what is repeated after them for as long as the text shall be."""
    example = _example(parser.parse(pattern.pattern, pattern.flags & ~re.DEBUG))[:400]
    whole = [example[:length] for length in range(len(example) + 1)]
    chance = random.Random(pattern.pattern)  # the same openings each time
    openings = whole if len(whole) <= 10 else [whole[-1], whole[-2], *chance.sample(whole[1:-2], 8)]
    yield from (("", unit) for unit in UNITS)
    yield from (("", opening) for opening in openings if opening)
    yield from (("", opening + "\n") for opening in openings if opening)
    yield from ((opening, filler) for opening in openings for filler in chance.sample(FILLERS, 6))


def _use(pattern: re.Pattern[Any], hostile: str, uses: frozenset[str]) -> None:
    text: Any = hostile.encode() if isinstance(pattern.pattern, bytes) else hostile
    if uses & SEARCHES:
        for _ in pattern.finditer(text):
            pass
    if "match" in uses:
        pattern.match(text)
    if "fullmatch" in uses:
        pattern.fullmatch(text)


def _is_linear(pattern: re.Pattern[Any], opening: str, unit: str, uses: frozenset[str]) -> bool:
    return grows_linearly(lambda size: _use(pattern, opening + unit * (size // len(unit)), uses), SMALL)


@pytest.mark.timeout(300)
def test_a_text_four_times_as_long_takes_about_four_times_as_long() -> None:
    slow = [
        (place, opening[:40], unit[:40])
        for place, (pattern, uses) in _collect().items()
        for opening, unit in _hostile(pattern)
        if not _is_linear(pattern, opening, unit, uses)
    ]
    assert not slow, "worse than linear for these openings and repeated pieces"


@pytest.mark.parametrize(("worse", "unit"), [(r"<[^>]*>", "<aa"), (r"\$\{[^}]*\}", "${")])
def test_a_pattern_that_is_worse_is_noticed(worse: str, unit: str) -> None:
    # A busy machine may make the shorter text look slow once, and then the longer one looks right.
    assert not all(_is_linear(re.compile(worse), "", unit, frozenset({"search"})) for _ in range(5))


# That none is missed


def _compiling_functions(path: Path) -> list[str]:
    tree = ast.parse(path.read_text())
    called_at_import = {
        node.func.id
        for statement in tree.body
        if not isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        for node in ast.walk(statement)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }
    return [
        function.name
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef) and function.name not in called_at_import
        for node in ast.walk(function)
        if _names_re(node) == "compile"
    ]


def _names_re(node: ast.AST) -> str | None:
    """Tell which function of `re` a call names, if it is one."""
    match node:
        case ast.Call(func=ast.Attribute(value=ast.Name(id="re"), attr=name)):
            return name
    return None


def test_every_pattern_is_compiled_where_it_can_be_found() -> None:
    for path in sorted(SOURCE.rglob("*.py")):
        nodes = ast.walk(ast.parse(path.read_text()))
        inline = [name for node in nodes if (name := _names_re(node)) in SEARCHES | MATCHES]
        assert not inline, f"{path}: name the pattern with re.compile, so that it is found and tried above"
        if _compiling_functions(path):
            place = str(path.relative_to(SOURCE))
            assert place in MADE_WHEN_ASKED, f"{path}: add a sample of what it compiles to MADE_WHEN_ASKED"
