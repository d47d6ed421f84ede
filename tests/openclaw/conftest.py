"""The fixtures of configurations and of the command line: what is tested here is seen through both."""

from __future__ import annotations

from tests.cli.conftest import program, provider
from tests.config.conftest import write

__all__ = ["program", "provider", "write"]
