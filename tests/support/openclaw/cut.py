"""Cut what the tests look at from the schemas that OpenClaw publishes."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from backchannel.gateway.table import METHODS

from .shapes import ANSWERS, params_of, wanted

CUT = Path(__file__).parent / "protocol.json"


def cut(published: dict[str, Any]) -> dict[str, Any]:
    """Keep the names of all methods, and the definitions that are looked at."""
    definitions, methods = published["definitions"], sorted(published["methods"])
    params = {params_of(method) for method in methods if method in METHODS or method in ANSWERS}
    kept = sorted((wanted() | params) & definitions.keys())
    return {"methods": methods, "definitions": {name: _without_surrogates(definitions[name]) for name in kept}}


def _without_surrogates(value: Any) -> Any:
    """Leave out patterns that want pairs of surrogates to be whole: texts have none here, and no validator reads it."""
    if isinstance(value, list):
        return [_without_surrogates(each) for each in value]
    if not isinstance(value, dict):
        return value
    kept = {name: each for name, each in value.items() if name != "pattern" or "\\uD800" not in str(each)}
    return {name: _without_surrogates(each) for name, each in kept.items()}


def written(cut: dict[str, Any]) -> str:
    """Write one definition a line, so that a change of one is a change of one line."""
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(each)}" for name, each in cut["definitions"].items())
    return f'{{"methods": {json.dumps(cut["methods"])},\n"definitions": {{\n{lines}\n}}}}\n'


if __name__ == "__main__":
    CUT.write_text(written(cut(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))), encoding="utf-8")
