"""The errors of wrong parameters: the parameter, the given value, and a value that works."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from backchannel.errors import InvalidRequest
from backchannel.gateway.table import METHODS
from backchannel.tools.listing import SessionsList
from backchannel.tools.send import SessionsSend
from backchannel.wire.shapes import describe

LIST_REFUSALS = [
    ({"limit": "ten"}, "limit", "got text, expected a whole number, at least 1"),
    ({"limit": 1.5}, "limit", "got a fractional number, expected a whole number, at least 1"),
    ({"limit": 0}, "limit", "expected a whole number, at least 1"),
    ({"limit": None}, "limit", "got null, expected a whole number, at least 1"),
    ({"kinds": "cron"}, "kinds", "got text, expected a list of any of "),
    ({"kinds": ["corn"]}, "kinds[0]", 'got \'corn\', expected one of "cron", "group", "hook", "main", "node", "other"'),
    ({"kinds": ["cron", 7]}, "kinds[1]", 'got a whole number, expected one of "cron"'),
    ({"search": {"text": "x"}}, "search", "got an object, expected text"),
    ({"serach": "x"}, "serach", "unknown parameter 'serach' (did you mean search?)"),
]
JOB = {"id": "nightly", "schedule": "every 1h", "message": "look"}
JOB_REFUSALS: list[tuple[dict[str, Any], str, str]] = [
    ({"enabled": 1}, "enabled", "got a whole number, expected true or false"),
    ({"timeoutSeconds": 0}, "timeoutSeconds", "expected a number above 0, at most 604800"),
    ({"timeoutSeconds": 10**400}, "timeoutSeconds", "Number out of range, expected a number above 0, at most 604800"),
    ({"deliver": "telegram"}, "deliver", "got text, expected `{channel, to, accountId?}`"),
    ({"deliver": {"channel": "telegram"}}, "deliver.to", "the parameter deliver.to is missing"),
    ({"deliver": {"channel": 1, "to": "2"}}, "deliver.channel", "got a whole number, expected text"),
    (
        {"deliver": {"channel": "telegram", "to": "2", "acountId": "x"}},
        "deliver.acountId",
        "unknown parameter 'deliver.acountId' (did you mean accountId?)",
    ),
]


@pytest.mark.parametrize(("arguments", "param", "told"), LIST_REFUSALS)
def test_a_tools_argument_that_does_not_fit_is_named_with_what_would_work(
    arguments: dict[str, Any], param: str, told: str
) -> None:
    with pytest.raises(InvalidRequest) as refused:
        SessionsList.read(arguments)
    assert refused.value.message.startswith("sessions_list: ") and told in refused.value.message
    assert refused.value.details == {"param": param}


@pytest.mark.parametrize(("params", "param", "told"), JOB_REFUSALS)
def test_a_parameter_inside_an_object_is_named_by_its_path(params: dict[str, Any], param: str, told: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        METHODS["cron.add"].read_params(_json(JOB | params))
    assert refused.value.message.startswith("cron.add: ") and told in refused.value.message
    assert refused.value.details == {"param": param}


def test_a_text_that_must_stand_on_one_line_is_said_to() -> None:
    with pytest.raises(InvalidRequest, match="label: expected text of 1 to 64 characters, on one line and not blank"):
        METHODS["sessions.patch"].read_params(_json({"key": "main", "label": "a\nb"}))
    with pytest.raises(InvalidRequest, match="idempotencyKey: expected text of 1 to 256 characters, on one line"):
        METHODS["agent"].read_params(_json({"message": "hi", "idempotencyKey": "a\nb"}))


def test_parameters_that_are_no_object_are_told_which_there_are() -> None:
    with pytest.raises(InvalidRequest, match=r"runs.get: params: got a list, expected `\{runId\}`"):
        METHODS["runs.get"].read_params(_json([]))


def test_a_word_that_looks_like_a_place_leads_nowhere() -> None:
    with pytest.raises(InvalidRequest, match=r"got 'x - at `\$.limit`', expected"):
        SessionsList.read({"kinds": ["x - at `$.limit`"]})
    with pytest.raises(InvalidRequest, match="unknown parameter"):
        SessionsSend.read({"message": "hi", "a ` - at ` b": 1})


def test_null_is_told_only_where_it_is_not_the_same_as_leaving_the_parameter_out() -> None:
    patched = {field.name: field for field in describe(METHODS["sessions.patch"].params)}
    assert patched["`label`"].kind.endswith(" | null") and patched["`label`"].default == "–"
    assert patched["`agentId`"].kind == "text"


def _json(value: Any) -> msgspec.Raw:
    return msgspec.Raw(json.dumps(value).encode())
