"""The shape of the package: imports point one way, and the core stays pure."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import TypeGuard

import pytest

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "backchannel"
ORDER = [
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
]
BESIDE = {frozenset({"channels", "triggers"})}
"""Layers of one height: neither imports the other."""
SLICE = {
    "core": ("__init__", "values", "words", "entries", "lines", "writing"),
    "wire": ("jobs", "rows"),
    "config": ("settings", "rewriting", "migrating"),
    "storage": ("files",),
    "cli": ("importing", "exporting", "staging"),
}
"""`openclaw/` is one feature in one folder and cuts through the layers: at which height each of its files stands."""
FILES = sorted(path for folder in (*ORDER, "openclaw") for path in (SOURCE / folder).rglob("*.py"))


@cache
def _read(path: Path) -> ast.Module:
    """Read a file once for all tests."""
    return ast.parse(path.read_text())


@cache
def _parse(path: Path) -> list[ast.AST]:
    """Give all nodes of a file, the whole of it first."""
    return list(ast.walk(_read(path)))


def _imports(path: Path) -> Iterator[str]:
    for node in _parse(path):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""


def _layer(module: str) -> str | None:
    package, _, rest = module.partition(".")
    folder, _, name = rest.partition(".")
    if package != "backchannel":
        return None
    if folder == "openclaw":
        return next(layer for layer, names in SLICE.items() if (name or "__init__") in names)
    return folder if folder in ORDER else None


def _layer_of_file(path: Path) -> str:
    module = ".".join(("backchannel", *path.relative_to(SOURCE).with_suffix("").parts))
    layer = _layer(module)
    assert layer is not None
    return layer


def test_a_layer_imports_only_itself_and_those_below_it() -> None:
    for path in FILES:
        own = _layer_of_file(path)
        for module in _imports(path):
            layer = _layer(module)
            if layer is not None and layer != own:
                assert ORDER.index(layer) < ORDER.index(own), f"{own} may not import {module}: {path}"
                assert frozenset({layer, own}) not in BESIDE, f"{own} and {layer} stand side by side: {path}"


OUTSIDE = {
    "asyncio",
    "time",
    "datetime",
    "os",
    "pathlib",
    "socket",
    "sqlite3",
    "random",
    "secrets",
    "threading",
    "uuid",
}
"""Modules of the standard library that read a clock, a file, chance or the network, or that wait."""


def test_the_core_has_no_clock_no_files_and_no_async() -> None:
    for path in FILES:
        if _layer_of_file(path) == "core":
            found = {module.split(".")[0] for module in _imports(path)} & OUTSIDE
            assert not found, f"{path} imports {found}"
            names_only = path.name == "contracts.py"  # it names what others do, and does none of it
            waits = any(isinstance(node, ast.AsyncFunctionDef) for node in _parse(path))
            assert names_only or not waits, f"{path} has async functions"


def test_no_modules_import_each_other_in_a_circle() -> None:
    """Lazy imports and those that only types need count too: what hangs together in a circle is read as one module."""
    names = {_name(path): path for path in SOURCE.rglob("*.py")}
    imports = {name: set(_modules(path, set(names))) - {name} for name, path in names.items()}
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


def test_no_part_is_given_to_another_after_its_construction() -> None:
    """Parts get each other in constructors; who only wants to hear of something listens."""
    found = [
        f"{path.relative_to(SOURCE)}: {ast.unparse(node)}"
        for path in FILES
        for node in _parse(path)
        if _leaves_a_gap(node)
        or (_layer_of_file(path) in WIRED_LAYERS and (_reaches_into_a_part(node) or _is_bound_late(node)))
    ]
    assert not found, "pass it to the constructor"


WIRED_LAYERS = ("runtime", "tools", "channels", "triggers", "gateway")


def _leaves_a_gap(node: ast.AST) -> bool:
    """Whether a part has a public attribute for a function that others set: `self.on_x: Callable[…] = lambda: …`."""
    if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Attribute):
        return False
    return isinstance(node.value, ast.Lambda) and not node.target.attr.startswith("_")


def _reaches_into_a_part(node: ast.AST) -> bool:
    """Whether an attribute of somebody else's part is set: `self._lanes.is_awaited = …`."""
    targets = node.targets if isinstance(node, ast.Assign) else []
    flat = [one for target in targets for one in (target.elts if isinstance(target, ast.Tuple) else [target])]
    return any(isinstance(each, ast.Attribute) and isinstance(each.value, ast.Attribute) for each in flat)


def _is_bound_late(node: ast.AST) -> bool:
    """Whether a constructor passes on a function that needs a part made below: `Part(lambda: self._other.x())`."""
    if not isinstance(node, ast.FunctionDef) or node.name != "__init__":
        return False
    made = {_own_attribute(each): each.lineno for each in ast.walk(node) if _is_set(each)}
    passed = [part for call in ast.walk(node) if isinstance(call, ast.Call) for part in _arguments(call)]
    return any(
        made.get(_own_attribute(used), 0) > used.lineno
        for part in passed
        if isinstance(part, ast.Lambda)
        for used in ast.walk(part)
        if isinstance(used, ast.Attribute)
    )


def _own_attribute(node: ast.AST) -> str:
    match node:
        case ast.Attribute(value=ast.Name(id="self"), attr=name):
            return name
    return ""


def _is_set(node: ast.AST) -> TypeGuard[ast.Attribute]:
    return isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)


def _arguments(call: ast.Call) -> list[ast.expr]:
    return [*call.args, *(keyword.value for keyword in call.keywords)]


def test_a_part_that_is_bound_late_is_seen() -> None:
    late = "def __init__(self):\n    self.a = A(lambda key: self.b.c(key))\n    self.b = B(self.a)"
    soon = "def __init__(self):\n    self.b = B()\n    self.a = A(lambda key: self.b.c(key))"
    assert [_is_bound_late(ast.parse(text).body[0]) for text in (late, soon)] == [True, False]


def test_only_a_driver_changes_what_its_units_are_given() -> None:
    """A driver notes its new number there. Channels, policy and transcripts come with `Store.open`."""
    for path in SOURCE.rglob("*.py"):
        for node in _parse(path):
            if _is_set(node) and node.attr == "context":
                assert _own_attribute(node), f"{path}: {ast.unparse(node)} is given after its construction"


def _name(path: Path) -> str:
    return ".".join(("backchannel", *path.relative_to(SOURCE).with_suffix("").parts)).removesuffix(".__init__")


def _modules(path: Path, known: set[str]) -> Iterator[str]:
    """Name the modules of the package that a file imports, also as `from package import module`."""
    for node in _parse(path):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom) and node.module in known:
            yield from (
                full if (full := f"{node.module}.{alias.name}") in known else node.module for alias in node.names
            )


DIALECTS = ("sqlite", "postgres")
"""Kinds of databases: only the folders `storage/<kind>/` and the schema files `*.<kind>.sql` know what is theirs."""
SQLITE_ONLY = re.compile(
    r"\b(PRAGMA|rowid|INSERT OR|REPLACE INTO|AUTOINCREMENT|sqlite_\w+|json_\w+|IFNULL|GLOB|IIF|julianday|strftime|"
    r"group_concat|last_insert_rowid|total|unixepoch)\b|\b(max|min)\([^()]*,",
    re.IGNORECASE,
)


def _is_of_a_dialect(path: Path) -> bool:
    return path.parent.name in DIALECTS and path.parent.parent.name == "storage"


def test_only_its_own_modules_know_a_kind_of_database() -> None:
    for path in SOURCE.rglob("*.py"):
        modules = set(_imports(path))
        known = {_name(other) for other in SOURCE.glob("storage/*/*.py") if _is_of_a_dialect(other)}
        if not _is_of_a_dialect(path):
            assert "sqlite3" not in modules, f"{path.name} opens a database itself"
            assert path.name == "moves.py" or not known & modules, f"{path.name} names a driver: adapters do"


STORAGE_DOORS = {
    "store",
    "driver",
    "databases",
    "moves",
    "ids",
    "files.folder",
    "files.media",
    "jobs",
    "units.imports",
    "units.recovery",
}
"""What other layers may import of `storage/`: values are in `core/`, and the other modules are SQL by theme.

Cron jobs and batches of an import are made of values that `core/` does not know; `recovery` tells the command line
which agents are functions while no gateway runs; `media` is files beside the database.
"""


KNOWN = {_name(path) for path in SOURCE.rglob("*.py")}


def test_other_layers_know_the_store_and_not_the_modules_behind_it() -> None:
    for path in FILES:
        if _layer_of_file(path) != "storage":
            stored = {module for module in _modules(path, KNOWN) if module.startswith("backchannel.storage.")}
            assert stored <= {f"backchannel.storage.{name}" for name in STORAGE_DOORS}, f"{path.name} reaches behind it"


def _statements() -> Iterator[tuple[str, str]]:
    """Find everything that is SQL, or part of it, in the modules and schema files for all databases."""
    for path in SOURCE.glob("storage/**/*.py"):
        if not _is_of_a_dialect(path):
            for node in _parse(path):
                if isinstance(node, ast.Constant) and isinstance(node.value, str) and "\n" not in node.value:
                    yield path.name, node.value
    for path in SOURCE.glob("storage/schema/*.sql"):
        if path.name.count(".") == 1:
            yield path.name, re.sub(r"--.*", "", path.read_text())


def test_statements_for_all_databases_are_in_no_dialect() -> None:
    found = [(name, text) for name, text in _statements() if SQLITE_ONLY.search(text)]
    assert not found, "what only one kind of database understands belongs into its own module or schema file"


@pytest.mark.parametrize("text", ["SELECT max(a, 1) FROM b", "INSERT OR IGNORE INTO b", "PRAGMA x", "WHERE rowid > ?"])
def test_words_of_one_dialect_are_known_as_such(text: str) -> None:
    assert SQLITE_ONLY.search(text)


def _public_names() -> Iterator[tuple[str, Path]]:
    """Find the classes and constants that a module defines for others."""
    for path in sorted(SOURCE.rglob("*.py")):
        for node in _read(path).body:
            match node:
                case ast.ClassDef(name=name):
                    yield name, path
                case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)) if (
                    name.isupper()
                ):
                    yield name, path


ONE_IN_EACH = {"METHODS", "ADAPTER", "KIND"}
"""Names that each module of a kind has, so that a table can be made of them."""


def test_a_public_name_means_one_thing() -> None:
    homes: dict[str, list[str]] = {}
    for name, path in _public_names():
        is_type_variable = len(name) == 1
        if not name.startswith("_") and name not in ONE_IN_EACH and not is_type_variable:
            homes.setdefault(name, []).append(str(path.relative_to(SOURCE)))
    twice = {name: places for name, places in homes.items() if len(places) > 1}
    assert not twice, f"call one of them something else, or make it private: {twice}"


def _functions_of_several_modules() -> dict[tuple[str, str], set[str]]:
    """Find the public functions whose name stands in several modules of one folder: by folder and name, the modules."""
    homes: dict[tuple[str, str], set[str]] = {}
    for path in SOURCE.rglob("*.py"):
        for node in _read(path).body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not node.name.startswith("_"):
                homes.setdefault((str(path.parent), node.name), set()).add(_name(path))
    return {place: modules for place, modules in homes.items() if len(modules) > 1}


def test_a_function_that_two_neighbours_have_is_called_through_its_module() -> None:
    """`runs.find` and `sessions.find` are clear. A bare `find` does not say which one it is."""
    shared = {(module, name) for (_, name), modules in _functions_of_several_modules().items() for module in modules}
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}: {alias.name} of {node.module}"
        for folder in ("src", "tests", "bench", "docs", "examples")
        for path in (ROOT / folder).rglob("*.py")
        for node in ast.walk(_read(path) if folder == "src" else ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if (node.module, alias.name) in shared
    ]
    assert not found, "import the module, or call the function something else"


def test_no_folder_has_more_modules_than_a_page_can_list() -> None:
    for folder in {path.parent for path in SOURCE.rglob("*.py")}:
        assert len(list(folder.glob("*.py"))) <= 30, f"{folder} has too many modules: which ones belong together?"


PLATFORM_WORDS = re.compile(
    r"telegram|aiogram|botfather|postgres|psycopg|sqlite|bubblewrap|bwrap|docker|podman|\Abridge\Z", re.IGNORECASE
)
"""Words of platforms. `bridge` is a word of English too, so it counts only where it is all there is."""
NAMES_A_PLATFORM = {
    "storage/moves.py": "it moves a state from one kind of database into the other",
    "cli/commands/migrate.py": "the command line of those moves",
    "storage/tables.py": "a table says which kind of database has it",
    "cli/commands/import_.py": "OpenClaw's own files end so",
    "openclaw/entries.py": "OpenClaw's own keys begin so",
}
"""Files outside a platform's folder that name it, each with the reason."""


def _words_of_code(path: Path) -> Iterator[str]:
    """Give names, imports and texts without a space. Prose may name a platform: docstrings, comments and hints."""
    documents = {id(node.value) for node in _parse(path) if isinstance(node, ast.Expr)}
    for node in _parse(path):
        match node:
            case ast.Name(id=word) | ast.Attribute(attr=word) | ast.arg(arg=word) | ast.ImportFrom(module=str(word)):
                yield word
            case ast.FunctionDef(name=word) | ast.AsyncFunctionDef(name=word) | ast.ClassDef(name=word):
                yield word
            case ast.keyword(arg=str(word)) | ast.alias(name=word):
                yield word
            case ast.Constant(value=str(word)) if id(node) not in documents and " " not in word.strip():
                yield word


def test_no_platform_is_named_outside_its_folder() -> None:
    homes = {file.parent for file in SOURCE.rglob("adapter.py")}
    found: dict[str, set[str]] = {}
    for path in SOURCE.rglob("*.py"):
        if not homes & set(path.parents):
            words = {word for word in _words_of_code(path) if PLATFORM_WORDS.search(word)}
            found |= {str(path.relative_to(SOURCE)): words} if words else {}
    assert {name: words for name, words in found.items() if name not in NAMES_A_PLATFORM} == {}
    assert set(found) == set(NAMES_A_PLATFORM), "an exception that is no longer one goes"


def test_nobody_imports_from_the_folder_of_a_platform() -> None:
    homes = {file.parent for file in SOURCE.rglob("adapter.py")}
    assert len(homes) >= 6
    inside = tuple(f"{_name(home / '__init__.py')}." for home in homes)
    for path in SOURCE.rglob("*.py"):
        if not homes & set(path.parents) and str(path.relative_to(SOURCE)) not in NAMES_A_PLATFORM:
            assert not [name for name in _imports(path) if f"{name}.".startswith(inside)], f"{path} knows a platform"


OPENCLAW_WORDS = re.compile(
    r"openclaw|\A(operator\.(pairing|approvals)|killed|isolated|agentTurn|dashboard:|allow-(once|always))\Z",
    re.IGNORECASE,
)
"""Its name, and words that only its clients know."""
NAMES_OPENCLAW = {
    "cli/answers.py": "the command line reads its shapes",
    "cli/commands/import_.py": "its database is recognised by name",
    "gateway/table.py": "the table of methods names its groups",
    "gateway/ws/websocket.py": "a client of its is recognised by name",
}
"""Files outside its folders that name it, each with the reason."""


def test_openclaws_words_are_in_its_folders() -> None:
    """Others import its shapes and translations, and write none of its words themselves."""
    homes = {SOURCE / "openclaw", SOURCE / "gateway" / "openclaw"}
    found: dict[str, set[str]] = {}
    for path in SOURCE.rglob("*.py"):
        if not homes & set(path.parents):
            words = {word for word in _words_of_code(path) if OPENCLAW_WORDS.search(word)} - {*_imports(path)}
            found |= {str(path.relative_to(SOURCE)): words} if words else {}
    assert {name: words for name, words in found.items() if name not in NAMES_OPENCLAW} == {}
    assert set(found) == set(NAMES_OPENCLAW), "an exception that is no longer one goes"
