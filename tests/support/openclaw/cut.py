"""Cut what the tests look at from the schemas that OpenClaw publishes."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from backchannel.gateway.methods import METHODS

from .shapes import ANSWERS, params_of, wanted

CUT = Path(__file__).parent / "protocol.json"


def cut(published: dict[str, Any]) -> dict[str, Any]:
    """Keep the names of all methods, and the definitions that are looked at."""
    definitions, methods = published["definitions"], sorted(published["methods"])
    params = {params_of(method) for method in methods if method in METHODS or method in ANSWERS}
    kept = sorted((wanted() | params) & definitions.keys())
    return {"methods": methods, "definitions": {name: definitions[name] for name in kept}}


def written(cut: dict[str, Any]) -> str:
    """Write one definition a line, so that a change of one is a change of one line."""
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(each)}" for name, each in cut["definitions"].items())
    return f'{{"methods": {json.dumps(cut["methods"])},\n"definitions": {{\n{lines}\n}}}}\n'


if __name__ == "__main__":
    CUT.write_text(written(cut(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))), encoding="utf-8")
