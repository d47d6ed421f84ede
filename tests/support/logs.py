"""Captured log lines, for tests with and without a gateway."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import structlog
from structlog.testing import capture_logs


@contextmanager
def captured_logs() -> Iterator[list[Any]]:
    """Capture lines, and leave structlog as it was: a gateway of a later test configures it only if nobody has."""
    was_configured = structlog.is_configured()
    try:
        with capture_logs() as logs:
            yield logs
    finally:
        if not was_configured:
            structlog.reset_defaults()
