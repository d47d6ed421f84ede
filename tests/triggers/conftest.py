"""Fixtures for triggers."""

from __future__ import annotations

from tests.agents.conftest import real_sandbox as real_sandbox
