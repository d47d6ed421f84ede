"""Imports of the tests in several processes: each file is compiled once a run.

Every worker imports all tests. Rewriting their assertions for that takes most of the time, so workers share the result:
each begins with files of its own, and finds those of the others in `__pycache__` afterwards.
"""

from __future__ import annotations

import gc
import importlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest


def keep_compiled() -> None:
    """Keep what is compiled for other processes of the tests, whatever the environment says."""
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False


def import_own_share(config: pytest.Config) -> None:
    """Import this worker's share of the files in the folders whose tests are to be run."""
    worker: dict[str, Any] | None = getattr(config, "workerinput", None)
    if worker is None:
        return
    files = sorted(file for folder in config.args for file in (config.rootpath / folder).rglob("test_*.py"))
    own = int(worker["workerid"].removeprefix("gw"))
    for file in files[own :: worker["workercount"]]:
        # What cannot be imported is tried again, and reported, when it is collected.
        with suppress(Exception, pytest.skip.Exception):
            importlib.import_module(".".join(file.relative_to(config.rootpath).with_suffix("").parts))


@contextmanager
def without_garbage_collection() -> Iterator[None]:
    """Collect no garbage while tests are collected: what is made then stays."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
