"""The list of tables is that of the database, and says of each whose its rows are and what ends them."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import backchannel
from backchannel.storage import tables
from backchannel.storage.tables import TABLES, Table
from tests.storage.support import Host
from tests.support.databases import is_postgres

NAMED = {name: value for name, value in vars(tables).items() if isinstance(value, Table)}
BY_NAME = {table.name: table for table in TABLES}


def columns_of(host: Host) -> dict[str, set[str]]:
    """Read which tables a database has, and their columns."""
    if is_postgres():
        found = host.rows(
            "SELECT table_name, column_name FROM information_schema.columns JOIN information_schema.tables "
            "USING (table_schema, table_name) WHERE table_schema = current_schema() AND table_type = 'BASE TABLE'"
        )
    else:
        found = host.rows(
            "SELECT m.name, c.name FROM sqlite_master m JOIN pragma_table_info(m.name) c "
            "WHERE m.type = 'table' AND m.name NOT LIKE 'sqlite\\_%' ESCAPE '\\' AND m.name NOT GLOB 'message_words*'"
        )
    return {name: {column for table, column in found if table == name} for name, _ in found}


@pytest.mark.both_databases
@pytest.mark.anyio
async def test_the_tables_of_a_new_database_are_those_of_the_list_with_the_same_columns(host: Host) -> None:
    kind = "postgres" if is_postgres() else "sqlite"
    listed = {
        table.name: {
            *table.columns,
            *([table.numbered] if table.numbered and is_postgres() else []),
            *table.derived.get(kind, "").split(),
        }
        for table in TABLES
        if table.only in (None, kind)
    }
    assert columns_of(host) == listed


@pytest.mark.both_databases
@pytest.mark.anyio
async def test_the_keys_of_the_list_are_the_primary_keys_of_the_database(host: Host) -> None:
    if is_postgres():
        found = host.rows(
            "SELECT c.relname, a.attname FROM pg_index i JOIN pg_class c ON c.oid = i.indrelid "
            "JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = ANY(i.indkey) "
            "WHERE i.indisprimary AND c.relnamespace = current_schema()::regnamespace "
            "ORDER BY c.relname, array_position(i.indkey::int2[], a.attnum)"
        )
    else:
        found = host.rows(
            "SELECT m.name, c.name FROM sqlite_master m JOIN pragma_table_info(m.name) c "
            "WHERE c.pk > 0 AND m.name NOT GLOB 'message_words*' ORDER BY m.name, c.pk"
        )
    keys = {name: tuple(column for table, column in found if table == name) for name, _ in found}
    assert keys == {table.name: table.key for table in TABLES if table.name in columns_of(host) and table.key}


def test_no_table_is_without_an_end() -> None:
    for table in TABLES:
        keep = table.keep
        assert keep.parent or keep.after or keep.why, f"what ends a row of {table.name}?"
        assert keep.after is None or keep.after in table.columns, table.name
        assert keep.when is None or keep.after is not None, f"{table.name}: a condition of what?"


def test_a_row_ends_with_one_that_is_listed_before_it() -> None:
    for place, table in enumerate(TABLES):
        if table.keep.parent is not None:
            column, (parent, key) = table.keep.parent[0], table.keep.parent[1].split(".")
            assert column in table.columns, table.name
            assert key in BY_NAME[parent].columns, table.name
            assert TABLES.index(BY_NAME[parent]) < place, f"{table.name} is listed before {parent}"


def test_keys_are_columns() -> None:
    for table in TABLES:
        named = {*table.key, *filter(None, (table.counts,))}
        assert named <= {*table.columns}, table.name


def test_every_row_is_inserted_with_columns_that_its_table_has() -> None:
    found = 0
    for path in Path(backchannel.__file__).parent.glob("storage/**/*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Call(
                    func=ast.Attribute(attr="insert" | "insert_one" | "insert_numbered"), args=[ast.Name(id=name), *_]
                ):
                    given = {keyword.arg for keyword in node.keywords if keyword.arg is not None}
                    assert given <= {*NAMED[name].columns}, f"{path.name}: {name}"
                    found += 1
    assert found > 30


def test_views_only_read() -> None:
    for path in Path(backchannel.__file__).parent.glob("storage/views/*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "tx":
                assert node.attr not in (
                    "run",
                    "run_long",
                    "insert",
                    "insert_one",
                    "insert_numbered",
                    "tell",
                    "happened",
                ), f"{path.name} writes"
