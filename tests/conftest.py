"""Fixtures for all tests."""

import signal
import threading
from collections.abc import Generator, Iterator

import hypothesis
import pytest

from tests.support import databases, fresh_files, imports

# How long an example takes says nothing of the code where several programs share a core; `bench` measures.
hypothesis.settings.register_profile("untimed", deadline=None)
hypothesis.settings.load_profile("untimed")

CRASH_POINTS = "crash points"


def pytest_configure() -> None:
    imports.keep_compiled()
    fresh_files.copy_schemas()
    _listen_to_ctrl_c()


def _listen_to_ctrl_c() -> None:
    """Let Ctrl-C reach the programs that tests start, also when the tests themselves run in the background.

    A shell starts background jobs with the signal ignored, and what they start inherits that.
    """
    if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    with imports.without_garbage_collection():
        imports.compile_own_share(session.config)
        return (yield)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--database", choices=("sqlite", "postgres"), help="the database of tests that name none")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run tests that are about every database on each, unless one was asked for."""
    if metafunc.definition.get_closest_marker("both_databases") and not metafunc.config.getoption("database"):
        metafunc.parametrize("database_kind", ["sqlite", "postgres"], indirect=True)


@pytest.fixture(autouse=True)
def database_kind(request: pytest.FixtureRequest) -> Iterator[None]:
    """The kind of database that a test works on."""
    kind: databases.Kind = getattr(request, "param", None) or request.config.getoption("database") or "sqlite"
    if kind == "postgres" and request.node.get_closest_marker("sqlite_only"):
        pytest.skip("it is about the file of SQLite")
    with databases.on(kind):
        yield


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say at the end at how many points flows were killed, also when tests run in several processes."""
    reports = [
        report
        for group in terminalreporter.stats.values()
        for report in group
        if getattr(report, "when", None) == "call"
    ]
    counts = [value for report in reports for name, value in report.user_properties if name == CRASH_POINTS]
    if counts:
        terminalreporter.write_line(f"{sum(count for _, count in counts)} crash points:")
        for flow, count in sorted(counts):
            terminalreporter.write_line(f"  {flow}: {count}")
