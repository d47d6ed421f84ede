"""Everything that a program can name has its place in the documents."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from collections.abc import Iterator
from typing import Any

import pytest
from typer.core import TyperGroup
from typer.main import get_command

import backchannel
from backchannel.agents.models import SERVICES
from backchannel.cli.main import app
from backchannel.config.schema import ConfigFile
from backchannel.config.validation import setting_paths
from backchannel.errors import GatewayError
from backchannel.gateway.table import EVENTS, METHODS

from .pages import ROOT

REFERENCE = ROOT / "docs" / "reference"


def _page(name: str) -> str:
    return (ROOT / "docs" / name).read_text(encoding="utf-8")


def _rows(page: str) -> list[list[str]]:
    """The rows of all tables of a page, without the marks around code."""
    lines = [line for line in page.splitlines() if line.startswith("| ")]
    return [[cell.strip().strip("`") for cell in line.strip("|").split(" | ")] for line in lines]


# Errors


def _errors(kind: type[GatewayError]) -> Iterator[type[GatewayError]]:
    yield kind
    for inner in kind.__subclasses__():
        yield from _errors(inner)


def _all_errors() -> list[type[GatewayError]]:
    """All errors with a code of their own; the others carry that of an error which came over the wire."""
    for module in pkgutil.walk_packages(backchannel.__path__, "backchannel."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    found = [error for error in _errors(GatewayError) if error.__module__.startswith("backchannel.")]
    return [error for error in found if "code" in vars(error)]


def test_every_error_has_its_row_with_the_facts() -> None:
    rows = {row[1]: row for row in _rows(_page("reference/errors.md")) if len(row) == 6}
    for error in _all_errors():
        again = "yes" if error.retryable else "no"
        facts = [error.code, error.__name__, error.wire_code, str(error.http_status), again]
        assert error.__name__ in rows, f"docs/reference/errors.md: add a row for {facts}"
        assert rows[error.__name__][:5] == facts, f"docs/reference/errors.md: the facts are {facts}"
        assert len(rows[error.__name__][5]) > 20, f"{error.__name__}: say what it means and what to do"


def test_no_row_is_of_an_error_that_is_gone() -> None:
    rows = {row[1] for row in _rows(_page("reference/errors.md")) if len(row) == 6} - {"exception"}

    assert rows == {error.__name__ for error in _all_errors()}


def test_the_tree_that_opens_the_errors_names_each() -> None:
    for name, kind in vars(backchannel.errors).items():
        if isinstance(kind, type) and issubclass(kind, Exception):
            assert re.search(rf"\b{name}\b", backchannel.errors.__doc__ or ""), f"errors.py: add {name} to the tree"


def test_the_codes_of_failed_runs_are_on_the_page() -> None:
    sources = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "src").rglob("*.py"))
    codes = set(re.findall(r'error_code="(\w+)"', sources))

    assert codes
    for code in codes:
        assert f"| `{code}` |" in _page("reference/errors.md"), f"docs/reference/errors.md: {code} ends runs"


# Python


def _signature(name: str, function: Any) -> str:
    signature = inspect.signature(function)
    kept = [param for param in signature.parameters.values() if param.name not in ("self", "cls")]
    text = str(signature.replace(parameters=kept))
    # Annotations are texts and are shown quoted; defaults that are texts stay so.
    quoted = {part for part in _annotations(signature) if part}
    for part in sorted(quoted, key=len, reverse=True):
        text = text.replace(f"'{part}'", part)
    return f"{name}{text}".replace(" -> None)", ")")


def _annotations(signature: inspect.Signature) -> Iterator[str]:
    yield from (param.annotation for param in signature.parameters.values() if isinstance(param.annotation, str))
    if isinstance(signature.return_annotation, str):
        yield signature.return_annotation


def _documented_methods() -> Iterator[str]:
    for kind in (backchannel.Gateway, backchannel.FunctionContext, backchannel.ScriptedModel, backchannel.Channel):
        for name, member in vars(kind).items():
            function = member.__func__ if isinstance(member, classmethod) else member
            if not name.startswith("_") and inspect.isfunction(function):
                yield _signature(f"{kind.__name__}.{name}", function)
    yield _signature("ScriptedModel", backchannel.ScriptedModel.__init__).removesuffix(" -> None")


def test_every_public_name_is_on_the_page() -> None:
    page = _page("reference/python.md")

    for name in backchannel.__all__:
        assert getattr(backchannel, name)
        assert f"\n## `{name}`\n" in page, f"docs/reference/python.md: describe {name}"


@pytest.mark.parametrize("signature", list(_documented_methods()), ids=lambda text: text.partition("(")[0])
def test_every_public_method_is_on_the_page_with_its_signature(signature: str) -> None:
    assert f"\n### `{signature}`\n" in _page("reference/python.md"), f"write a section: ### `{signature}`"


def test_no_name_is_on_the_page_that_is_gone() -> None:
    page = _page("reference/python.md")
    known = set(_documented_methods())

    assert set(re.findall(r"^## `(\w+)`$", page, re.MULTILINE)) == set(backchannel.__all__)
    assert set(re.findall(r"^### `(.+)`$", page, re.MULTILINE)) == known


# The wire, the settings, the command line


def test_every_method_and_event_has_its_place() -> None:
    page = _page("reference/methods.md")

    for method in METHODS:
        assert f"### `{method}`" in page
    for event in EVENTS:
        assert f"| `{event}` |" in page


def test_every_setting_has_its_place() -> None:
    page = _page("reference/configuration.md")

    for path in setting_paths(ConfigFile):
        assert f"| `{path}` |" in page or f"### `{path}`" in page


def test_every_command_has_its_place() -> None:
    page = _page("reference/cli.md")

    for command in _commands(get_command(app), []):
        assert f"### `{command}`" in page


def _commands(command: Any, path: list[str]) -> Iterator[str]:
    if isinstance(command, TyperGroup):
        for name, inner in command.commands.items():
            yield from _commands(inner, [*path, name])
    else:
        yield " ".join(["backchannel", *path])


def test_every_provider_is_in_the_table_of_models() -> None:
    table = {row[0]: row for row in _rows(_page("how-to/models.md"))}

    for name, service in SERVICES.items():
        if service.keys:
            assert all(f"`{key}`" in f"`{table[name][1]}`" for key in service.keys), f"{name}: {service.keys}"
        if service.package:
            assert f"pydantic-ai-slim[{name}]" in table[name][2]


def test_every_page_is_in_the_index_or_in_that_of_its_folder() -> None:
    for page in sorted((ROOT / "docs").rglob("*.md")):
        indexes = {ROOT / "docs" / "README.md", page.parent / "README.md"} - {page}
        listed = any(
            f"({page.relative_to(index.parent).as_posix()}" in index.read_text(encoding="utf-8")
            for index in indexes
            if index.exists()
        )
        assert page == ROOT / "docs" / "README.md" or listed, f"docs/README.md: add {page.relative_to(ROOT)}"
