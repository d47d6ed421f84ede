"""Fetch what the clients in Node need; `make interop` begins with it, as it leaves nothing out for want of them."""

from __future__ import annotations

import sys

from .conftest import HERE, prepared

WHAT_TO_DO = (
    "Without them nothing is tried. They come from the npm registry, 600 MB for OpenClaw's: see that it can be reached "
    "(npm_config_registry names a mirror, HTTPS_PROXY a proxy), and run `make interop` again."
)


def main() -> int:
    """Fetch the packages of this folder and of OpenClaw's clients; says on failure what can be done."""
    for source in (HERE, HERE / "openclaw"):
        problem = prepared(source)
        if isinstance(problem, str):
            print(f"{problem}\n{WHAT_TO_DO}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
