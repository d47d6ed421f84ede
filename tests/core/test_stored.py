"""Stored values: a later version may have added to each of them, and nothing of that is lost."""

from __future__ import annotations

import ast
import importlib
import pkgutil
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import inspect

import backchannel
from backchannel.config.load import config_from
from backchannel.config.schema_doors import CronDeliver, CronJob
from backchannel.core.messages import Message
from backchannel.core.sessions import Address
from backchannel.core.stored import FORMS, StoredForm, object_shape
from backchannel.errors import ConfigError
from tests.support.grown import FIELD, VALUE, grow_text

SOURCE = Path(backchannel.__file__).parent
STORES = ("core", "storage", "agents", "workspace", "runtime", "triggers")
"""The folders whose JSON is what was stored, but for the files below."""
READS_DOORS = {
    "agents/wires/anthropic_decoder.py",
    "agents/wires/chat_decoder.py",
    "agents/wires/responses_decoder.py",
    "core/policy/inbound.py",
    "core/stored.py",
}

for found in pkgutil.walk_packages([str(SOURCE)], "backchannel."):
    if found.name.split(".")[1] in STORES:
        importlib.import_module(found.name)
# Sorted: forms are in the order of imports, which is not the same in all processes that collect tests.
KINDS = sorted((form for form in FORMS if form.kind.__module__ != __name__), key=lambda form: str(form.kind))


def sample(shape: inspect.Type) -> Any:
    """Make a decoded value that has everything a type can have."""
    match shape:
        case inspect.Metadata(type=inner):
            return sample(inner)
        case inspect.UnionType(types=types):
            return sample(next(each for each in reversed(types) if not isinstance(each, inspect.NoneType)))
        case inspect.StructType(array_like=True, fields=fields):
            return [sample(field.type) for field in fields]
        case inspect.StructType(fields=fields, tag_field=tag_field, tag=tag):
            tagged = {} if tag_field is None else {tag_field: tag}
            return tagged | {field.encode_name: sample(field.type) for field in fields}
        case inspect.DataclassType(fields=fields):
            return {field.encode_name: sample(field.type) for field in fields}
        case inspect.ListType(item_type=inspect.UnionType(types=types)):
            return [sample(each) for each in types]
        case inspect.VarTupleType(item_type=inspect.UnionType(types=types)):
            return [sample(each) for each in types]
        case inspect.ListType(item_type=item) | inspect.VarTupleType(item_type=item):
            return [sample(item)]
        case inspect.TupleType(item_types=items):
            return [sample(item) for item in items]
        case inspect.DictType(value_type=item):
            return {"name": sample(item)}
        case inspect.EnumType(cls=cls):
            return next(iter(cls)).value
        case inspect.LiteralType(values=values):
            return values[0]
    plain = {inspect.StrType: "text", inspect.IntType: 7, inspect.FloatType: 1.5, inspect.BoolType: True}
    return plain.get(type(shape), {"any": "thing"})


@pytest.mark.parametrize("form", KINDS, ids=lambda form: getattr(form.kind, "__name__", str(form.kind)))
def test_a_value_of_the_next_version_is_read_and_what_is_new_in_it_is_kept(form: StoredForm[Any]) -> None:
    body = msgspec.json.encode(sample(form.shape))
    value, later = form.read(body), grow_text(form, body).decode()
    assert form.read(later) == value
    assert form.read(form.write(value, later)) == value
    written = msgspec.json.decode(form.write(value, later))
    if object_shape(form.shape, written) is not None:
        assert (written[-1] if isinstance(written, list) else written[FIELD]) == VALUE
    assert form.write(value, form.write(value)) == form.write(value)


def test_what_is_stored_has_been_found() -> None:
    assert {Message, Address, CronJob} < {form.kind for form in KINDS}


def test_what_is_new_inside_a_value_is_kept_when_another_field_is_written() -> None:
    form = next(form for form in KINDS if form.kind is CronJob)
    job = CronJob(id="j", schedule="every 1m", message="go", deliver=CronDeliver(channel="wall", to="x"))
    later = grow_text(form, form.encode(job)).decode()
    changed = msgspec.json.decode(form.write(msgspec.structs.replace(job, message="come"), later))
    assert (changed["message"], changed[FIELD], changed["deliver"][FIELD]) == ("come", VALUE, VALUE)


def test_the_configuration_stays_strict(tmp_path: Path) -> None:
    job = {"id": "j", "schedule": "every 1m", "message": "go", FIELD: VALUE}
    with pytest.raises(ConfigError, match=FIELD):
        config_from({"cron": {"jobs": [job]}}, {}, state=tmp_path)


def test_stored_values_are_read_in_one_way_only() -> None:
    for folder in STORES:
        for path in (SOURCE / folder).rglob("*.py"):
            if str(path.relative_to(SOURCE)) not in READS_DOORS:
                for node in ast.walk(ast.parse(path.read_text())):
                    assert not _reads_typed(node), f"{path}:{getattr(node, 'lineno', 0)}: use a StoredForm"


def _reads_typed(node: ast.AST) -> bool:
    """Whether this decodes JSON as a type of its own; what has no type can have no unknown field."""
    if not isinstance(node, ast.Call):
        return False
    called = ast.unparse(node.func)
    is_typed = any(keyword.arg == "type" for keyword in node.keywords)
    return called == "msgspec.json.Decoder" or (called == "msgspec.json.decode" and is_typed)
