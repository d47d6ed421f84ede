"""What all tests share."""

import pytest

CRASH_POINTS = "crash points"


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
