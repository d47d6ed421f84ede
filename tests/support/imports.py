"""Imports of the tests in several processes: each file is compiled once a run.

Every worker imports all tests. Rewriting their assertions for that takes most of the time, so workers share the result:
each begins with files of its own, and finds those of the others in `__pycache__` afterwards.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from _pytest.assertion import rewrite


def keep_compiled() -> None:
    """Keep what is compiled for other processes of the tests, whatever the environment says."""
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False


def compile_own_share(config: pytest.Config) -> None:
    """Compile this worker's share of the files in the folders whose tests are to be run.

    They are not imported yet: the order of imports is the same in all workers, and so is that of the tests.
    """
    worker: dict[str, Any] | None = getattr(config, "workerinput", None)
    if worker is None:
        return
    files = sorted(file for folder in config.args for file in (config.rootpath / folder).rglob("test_*.py"))
    own = int(worker["workerid"].removeprefix("gw"))
    for file in files[own :: worker["workercount"]]:
        with suppress(OSError, SyntaxError):  # it is told when the file is collected
            _compile(file, config)


def _compile(file: Path, config: pytest.Config) -> None:
    """Do what pytest does when it imports a file of tests, but for the import."""
    folder = rewrite.get_cache_dir(file)
    compiled = folder / (file.stem + rewrite.PYC_TAIL)
    if rewrite._read_pyc(file, compiled) is None and rewrite.try_makedirs(folder):
        stat, code = rewrite._rewrite_test(file, config)
        rewrite._write_pyc(config.stash[rewrite.assertstate_key], code, stat, compiled)


@contextmanager
def without_garbage_collection() -> Iterator[None]:
    """Collect no garbage while tests are collected: what is made then stays."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
