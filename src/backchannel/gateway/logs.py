"""Logs: structured lines to one stream, readable on a terminal and JSON elsewhere.

Our own lines and those of the libraries take the same way. Secrets are masked in the finished line, also those in an
exception's text, a traceback or a library's line.
"""

from __future__ import annotations

import logging
import os
import re
import sys
from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import suppress
from io import StringIO
from threading import Lock
from typing import NamedTuple, TextIO, cast

import structlog
from structlog.typing import EventDict, ExcInfo, Processor, WrappedLogger

from backchannel.agents.models import SERVICES
from backchannel.core.secrets.credentials import MASK
from backchannel.core.secrets.known import KnownSecrets, secrets_in
from backchannel.core.secrets.redaction import redact_opening
from backchannel.core.settings import Settings
from backchannel.core.text import without_controls
from backchannel.gateway.auth import TOKEN_PREFIX

_MADE_TOKEN = re.compile(rf"\b{TOKEN_PREFIX}[A-Za-z0-9_-]{{20,}}")
_LOUD = ("httpx2", "httpcore2", "openai", "anthropic", "asyncio", "websockets", "uvicorn", "mcp.client", "client")
_KEPT_LINES, _LONGEST_LINE = 1000, 4000


class LogStream:
    """A stream that ignores writes once its reader is gone.

    The other end may be closed: a pipe to a program that has ended, a terminal that is gone. That must not keep the
    gateway from working, nor from stopping.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with suppress(OSError):
            return self._stream.write(text)
        return 0

    def flush(self) -> None:
        with suppress(OSError):
            self._stream.flush()

    def isatty(self) -> bool:
        return self._stream.isatty()


def configure_logs(level: str, stream: TextIO, *, as_json: bool, secrets: Iterable[str] = ()) -> None:
    """Send all logs of this process, from a level on, to a stream without secrets."""
    number = logging.getLevelNamesMapping()[level.upper()]
    stream = cast(TextIO, LogStream(stream))
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso" if as_json else "%H:%M:%S", utc=as_json),
        _clean,
    ]
    rendered = [*_renderers(as_json, stream), SecretMasking(secrets).mask_and_keep]
    structlog.configure(
        processors=[*shared, *rendered],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.WriteLoggerFactory(stream),
        cache_logger_on_first_use=True,
    )
    _configure_libraries(number, stream, shared, rendered)


def mask_default_logs(secrets: Iterable[str]) -> None:
    """Keep secrets out of the logs of a program that has not configured structlog.

    By default structlog shows the variables of every traceback, with the secrets in them.
    """
    _default_masking.add(secrets)
    if structlog.is_configured():
        return
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="%H:%M:%S", utc=False),
            _clean,
            structlog.dev.ConsoleRenderer(colors=False, exception_formatter=_show_traceback),
            _default_masking.mask_and_keep,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=lambda *_: structlog.PrintLogger(sys.stderr),  # asked each time: a program may replace it
    )


def _clean(logger: WrappedLogger, name: str, event: EventDict) -> EventDict:
    """Remove terminal control characters: much in a log was written by others."""
    return {word: without_controls(value) if isinstance(value, str) else value for word, value in event.items()}


def _show_traceback(stream: TextIO, error: ExcInfo) -> None:
    written = StringIO()
    structlog.dev.plain_traceback(written, error)
    stream.write(without_controls(written.getvalue()))


def _renderers(as_json: bool, stream: TextIO) -> list[Processor]:
    if not as_json:
        return [structlog.dev.ConsoleRenderer(colors=stream.isatty(), exception_formatter=_show_traceback)]
    return [
        structlog.processors.format_exc_info,
        _clean,
        structlog.processors.EventRenamer("message"),
        structlog.processors.JSONRenderer(ensure_ascii=False, default=str),
    ]


def _configure_libraries(number: int, stream: TextIO, shared: list[Processor], rendered: list[Processor]) -> None:
    remove_meta = structlog.stdlib.ProcessorFormatter.remove_processors_meta
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[structlog.stdlib.add_logger_name, *shared], processors=[remove_meta, *rendered]
        )
    )
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(number)
    for name in _LOUD:  # at their own info level they log every request
        logging.getLogger(name).setLevel(max(number, logging.WARNING))


class Tail(NamedTuple):
    """Lines of a log; `end` counts all lines up to there."""

    lines: list[str]
    end: int
    left_out: bool


class RecentLines:
    """The last lines that this process logged. Threads log too, so readers get a copy.

    Readers are not only the terminal's owner. So texts that look like a credential are hidden too, such as one in an
    MCP server's line or a provider's error.
    """

    def __init__(self) -> None:
        self._lines: deque[str] = deque(maxlen=_KEPT_LINES)
        self._count = 0
        self._lock = Lock()

    def add(self, line: str) -> None:
        shown, _ = redact_opening(line, _LONGEST_LINE)
        with self._lock:
            self._lines.append(shown)
            self._count += 1

    def after(self, cursor: int | None, limit: int, max_bytes: int) -> Tail:
        """Read the newest lines, or the newest after a cursor of this process."""
        with self._lock:
            lines, end = list(self._lines), self._count
        is_known = cursor is not None and cursor <= end
        fresh = lines[max(0, len(lines) - (end - cursor)) :] if is_known and cursor is not None else lines
        chosen: list[str] = []
        for line in reversed(fresh[-limit:]):
            max_bytes -= len(line.encode()) + 1
            if max_bytes < 0:
                break
            chosen.append(line)
        return Tail(chosen[::-1], end, left_out=len(chosen) < (end - (cursor or 0) if is_known else end))


RECENT = RecentLines()


class SecretMasking:
    """The last step of a log line: it masks secrets."""

    def __init__(self, secrets: Iterable[str]) -> None:
        self._known = KnownSecrets(secrets)

    def add(self, secrets: Iterable[str]) -> None:
        """Add further secrets."""
        self._known.add(secrets)

    def mask_and_keep(self, logger: WrappedLogger, method: str, line: EventDict | str) -> str:
        """Mask the secrets of a line, and keep it with the recent ones."""
        masked = self._known.mask(_MADE_TOKEN.sub(MASK, str(line)))
        RECENT.add(masked)
        return masked


_default_masking = SecretMasking(())
"""The secrets of all gateways in a process that has not configured its logs."""


def secrets_of(settings: Settings, env: Mapping[str, str] | None = None) -> list[str]:
    """Collect the secrets of a configuration and the providers' keys in the environment."""
    env = os.environ if env is None else env
    keys = (env.get(name) for service in SERVICES.values() for name in service.keys)
    return [*secrets_in(settings), *filter(None, keys)]
