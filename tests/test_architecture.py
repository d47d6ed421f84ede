"""The shape of the package: imports point one way, and the core stays pure."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "backchannel"
ORDER = ["core", "config", "storage", "agents", "runtime", "tools", "channels", "triggers", "gateway", "cli"]
BESIDE = {frozenset({"channels", "triggers"})}
"""Layers of one height: neither imports the other."""
SLICE = {
    "core": ("__init__", "values", "entries", "lines", "writing"),
    "config": ("settings", "rewriting", "migrating"),
    "storage": ("files",),
    "cli": ("importing", "exporting"),
}
"""`openclaw/` is one feature in one folder and cuts through the layers: at which height each of its files stands."""
FILES = sorted(path for folder in (*ORDER, "openclaw") for path in (SOURCE / folder).rglob("*.py"))


def _imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
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


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_a_layer_imports_only_itself_and_those_below_it(path: Path) -> None:
    own = _layer_of_file(path)
    for module in _imports(path):
        layer = _layer(module)
        if layer is not None and layer != own:
            assert ORDER.index(layer) < ORDER.index(own), f"{own} may not import {module}"
            assert frozenset({layer, own}) not in BESIDE, f"{own} and {layer} stand side by side"


@pytest.mark.parametrize(
    "path", [path for path in FILES if _layer_of_file(path) == "core"], ids=lambda path: str(path.relative_to(SOURCE))
)
def test_the_core_has_no_clock_no_files_and_no_async(path: Path) -> None:
    outside = {
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
    tree = ast.parse(path.read_text())
    found = {module.split(".")[0] for module in _imports(path)} & outside
    assert not found, f"{path.name} imports {found}"
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.AsyncFunctionDef)]
    allowed = path.name == "contracts.py"  # it names what others do, and does none of it
    assert allowed or not functions, f"{path.name} has async functions"


def test_each_transaction_module_can_be_the_first_that_is_imported() -> None:
    """They call each other, so whether an import works must not hang on what was imported before."""
    folder = SOURCE / "storage"
    names = sorted(f"backchannel.storage.{path.stem}" for path in folder.glob("[a-z]*.py"))
    program = (
        "import importlib, sys\n"
        f"for name in {names!r}:\n"
        "    for known in [known for known in sys.modules if known.startswith('backchannel')]:\n"
        "        del sys.modules[known]\n"
        "    importlib.import_module(name)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
