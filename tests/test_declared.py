"""The declared dependencies: every import is among them, so that a plain install lacks nothing."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FOR_DEVELOPMENT = "dev"
_NAME = re.compile(r"[A-Za-z0-9._-]+")


def _declared() -> set[str]:
    """The distributions that an install brings, or that one of its extras does."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    wanted = [*project["dependencies"], *(each for name in extras if name != FOR_DEVELOPMENT for each in extras[name])]
    return {_normal(_NAME.match(each).group()) for each in wanted}  # type: ignore[union-attr]  # each has a name


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _imported(folder: Path) -> dict[str, set[str]]:
    """Each package from elsewhere that is imported at any place, with the files that do."""
    found: dict[str, set[str]] = {}
    for file in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            for name in {module.partition(".")[0] for module in _modules(node)}:
                is_script = not file.with_name("__init__.py").exists()
                if not (is_script and file.with_name(f"{name}.py").exists()):  # what lies beside it is its own
                    found.setdefault(name, set()).add(str(file.relative_to(ROOT)))
    return {name: files for name, files in found.items() if name not in {*sys.stdlib_module_names, "backchannel"}}


def _modules(node: ast.AST) -> list[str]:
    match node:
        case ast.Import():
            return [alias.name for alias in node.names]
        case ast.ImportFrom(level=0, module=str(module)):
            return [module]
    return []


@pytest.mark.parametrize("folder", ["src", "examples"])
def test_everything_imported_is_declared(folder: str) -> None:
    declared, brought_by = _declared(), packages_distributions()
    imported = _imported(ROOT / folder)

    assert imported
    undeclared = {
        name: sorted(files)
        for name, files in imported.items()
        if not declared & {_normal(distribution) for distribution in brought_by.get(name, [name])}
    }
    assert undeclared == {}


def test_every_declared_dependency_has_its_version_in_the_constraints() -> None:
    pinned = {_normal(line.partition("==")[0]) for line in (ROOT / "constraints.txt").read_text().splitlines()}

    assert _declared() <= pinned
