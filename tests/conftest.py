"""What all tests share."""

import signal
import threading

import hypothesis
import pytest

# How long an example takes says nothing of the code where several programs share a core; `bench` measures.
hypothesis.settings.register_profile("untimed", deadline=None)
hypothesis.settings.load_profile("untimed")

CRASH_POINTS = "crash points"


def pytest_configure() -> None:
    """Let Ctrl-C reach the programs that tests start, also when the tests themselves run in the background.

    A shell starts background jobs with the signal ignored, and what they start inherits that.
    """
    if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


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
