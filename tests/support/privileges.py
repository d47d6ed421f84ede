"""A user who may not do everything, also where the tests are run by root."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

NOBODY = 65534


@contextmanager
def folder_of_somebody() -> Iterator[Path]:
    """Give a folder of one's own, and do what the context does as a user whom permissions bind."""
    folder = Path(tempfile.mkdtemp(prefix="backchannel-"))  # root's folders of tests are closed to others
    is_root = os.geteuid() == 0
    try:
        if is_root:
            os.chown(folder, NOBODY, NOBODY)
            os.setegid(NOBODY)
            os.seteuid(NOBODY)
        try:
            yield folder
        finally:
            if is_root:
                os.seteuid(0)
                os.setegid(0)
    finally:
        shutil.rmtree(folder)
