"""Fixtures for the tests of programs and sandboxes."""

from __future__ import annotations

import os

import pytest

from backchannel.agents.sandbox.bubblewrap import backend


@pytest.fixture(scope="session")
def real_sandbox() -> None:
    """Have bubblewrap, or skip; where `CI` is set its absence is a failure."""
    problem = backend.why_not()
    if problem is not None and os.environ.get("CI"):
        pytest.fail(problem)
    if problem is not None:
        pytest.skip(problem)
