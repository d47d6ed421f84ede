"""What is common to everything that is asked and answered: strict parameters, and answers without blanks."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct

ONE_LINE = r"^[^\x00-\x1f\x7f]+$(?!\n)"
"""A pattern: text without control characters; `$` alone would let a line break pass at the end."""
NAME = r"^(?=.*\S)" + ONE_LINE[1:]
"""A pattern: such a text that is not blank."""
CLIENTS_KEY = r"^(?!hook/|agent:[^:/]+:node-[^/]*/)" + ONE_LINE[1:]
"""A pattern: such a text that is not the id of a run which a hook or a node has named: see `scoped_run_id`."""
NAME_LIMIT = 64
"""How long a label may be, wherever one is given."""


class Params(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """The base of all parameters: what is not known is refused."""


class Answer(Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """The base of every answer and event payload: what is not known is absent."""


def plain(answer: Answer) -> dict[str, Any]:
    """Turn an answer into plain values, the same that every door writes as JSON."""
    values: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(answer))
    return values


def told(description: str) -> msgspec.Meta:
    """Say what a field means, for the reference page."""
    return msgspec.Meta(description=description)
