"""Files with secrets in them: only their owner can read them, and they are there all at once or not at all."""

from __future__ import annotations

import os
import secrets
from pathlib import Path


def store_private(file: Path, text: str, *, replaces: bool = False) -> bool:
    """Write a file, and its folder if it is missing; False means that one is there and was left alone.

    Raises:
        OSError: it cannot be written; what was there is as it was.
    """
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    draft = file.with_name(f".{file.name}.{secrets.token_hex(4)}")
    number = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(number, "w", encoding="utf-8") as out:
            out.write(text)
            out.flush()
            os.fsync(out.fileno())
        if replaces:
            draft.replace(file)
        else:
            os.link(draft, file)  # never replaces a file, not even one made a moment ago
    except FileExistsError:
        return False
    finally:
        draft.unlink(missing_ok=True)
    return True
