"""The two protocols under uvicorn: HTTP with limits, WebSocket with fewer writes.

Uvicorn limits neither the number of headers nor the time for them. So a client that sends too many, or does not finish,
is disconnected here. A client's mistakes are logged at debug level.

On WebSocket, the writes of one turn of the event loop are joined. Each write is a system call, which lets the threads
of the database take over for a moment. A run sends some five frames to its client; joined with those of others, they
cost a sixth of the calls.

A text frame in one piece goes straight to the app, and one of the app straight to the client (`TextPort`). Through the
library's parser, uvicorn's queue and two tasks it costs six times as many calls. All other frames take that way.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import structlog
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import apply_mask  # type: ignore[attr-defined]  # the one in C, if it is there
from websockets.protocol import State

from backchannel.gateway.ws.peers import TextPort

if TYPE_CHECKING:
    from backchannel.gateway.http import Web

log = structlog.get_logger(__name__)

HEAD_BYTES = 64 * 1024
"""The most bytes before the body of a request."""
LINE_BYTES = 8 * 1024
"""The longest line of them."""
_LONG_HEAD = f"headers have at most {HEAD_BYTES} bytes, and a line of them {LINE_BYTES}"
_JOINED_BYTES = 64 * 1024
_LINGER_S = 1.0
"""The time a closed connection has to take what was written."""
_CLOSE_S = 2.0
"""The time a WebSocket client has to answer a close frame."""
_INVALID_TEXT = 1007
_TEXT, _LAST, _CONTROL, _MASKED = 0x81, 0x80, 0x08, 0x80
"""The first byte of a text frame in one piece; its bits for the last part of a message, and for a ping or the like; the
bit of the second byte that says that the frame is masked."""
_LONG_SIZES = {126: 2, 127: 8}
"""Sizes that stand for longer ones, in so many further bytes."""
_HELD_BYTES = 64 * 1024
"""The longest text frame that is put together here."""


class _DebugLogger(logging.Logger):
    """Uvicorn's logger with its warnings, which any client can cause, at debug level."""

    def __init__(self) -> None:
        super().__init__("uvicorn.error", logging.WARNING)
        self.parent = logging.getLogger("uvicorn.error")

    def warning(self, msg: object, *args: Any, **more: Any) -> None:
        log.debug("a bad request", reason=str(msg))


_debug_logger = _DebugLogger()


class _Refused(Exception):
    """The head of a request is over a limit; it ends the parsing."""


class HttpProtocol(HttpToolsProtocol):
    """Uvicorn's own protocol, with limits on the size and the time of a request."""

    _deadline: asyncio.TimerHandle | None = None
    _ends = 0
    """The number of finished headers and bodies."""
    _is_in_head = True
    _head_bytes = 0
    """The bytes since the last end."""
    _fields_bytes = 0
    """The bytes of the headers read so far."""
    _is_refused = False

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.logger = _debug_logger
        self._web: Web = self.config.app  # type: ignore[assignment]  # it is ours

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        super().connection_made(transport)
        self._peer = self._web.peers.enter(transport)
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._clear_deadline()
        self._web.peers.leave(self.transport)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._is_refused:
            self._discard(data)
            return
        ends = self._ends
        super().data_received(data)
        is_all_head = self._is_in_head and self._ends == ends
        self._head_bytes = self._head_bytes + len(data) if is_all_head else 0
        if self._head_bytes > HEAD_BYTES and not self._is_refused:
            self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, _LONG_HEAD)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["state"]["peer"] = self._peer
        self._fields_bytes = 0
        self._await_head()

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        if len(self.url) > LINE_BYTES:
            self._refuse(HTTPStatus.REQUEST_URI_TOO_LONG, f"a request line has at most {LINE_BYTES} bytes")
            raise _Refused

    def on_header(self, name: bytes, value: bytes) -> None:
        size = len(name) + len(value) + len(b": \r\n")
        self._fields_bytes += size
        if size > LINE_BYTES or self._fields_bytes > HEAD_BYTES:
            self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, _LONG_HEAD)
            raise _Refused
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._ends, self._is_in_head = self._ends + 1, False
        self._set_deadline(self._web.limits.request_s)
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._ends, self._is_in_head = self._ends + 1, True
        self._clear_deadline()
        super().on_message_complete()

    def handle_websocket_upgrade(self) -> None:
        self._clear_deadline()
        super().handle_websocket_upgrade()

    def send_400_response(self, msg: str) -> None:
        if not self._is_refused:
            self._end(HTTPStatus.BAD_REQUEST, msg)  # uvicorn has logged it

    def _unsupported_upgrade_warning(self) -> None:
        log.debug("a bad request", reason="Upgrade: only to websocket")

    def _refuse(self, status: HTTPStatus, reason: str) -> None:
        log.debug("a bad request", reason=reason)
        self._end(status, reason)

    def _end(self, status: HTTPStatus, reason: str) -> None:
        """Answer a refused request, and close."""
        self._is_refused = True
        if self._ends_with_answer():
            return
        if not self.transport.is_closing():
            self.transport.write(
                f"HTTP/1.1 {status.value} {status.phrase}\r\ncontent-type: text/plain; charset=utf-8\r\n"
                f"content-length: {len(reason) + 1}\r\nconnection: close\r\n\r\n{reason}\n".encode()
            )
            self.transport.write_eof()
            self._set_deadline(_LINGER_S)

    def _ends_with_answer(self) -> bool:
        """Whether an earlier request is still answered; a half-received one is ended."""
        cycle = self.cycle
        if cycle is None or cycle.response_complete:
            return False
        if not cycle.more_body:
            self._clear_deadline()
            cycle.keep_alive = False
            return True
        cycle.disconnected = True
        cycle.message_event.set()
        if cycle.response_started:
            self.transport.abort()
        return cycle.response_started

    def _discard(self, data: bytes) -> None:
        """Read a little more of a refused request, since cutting the connection at once would lose the answer."""
        self._head_bytes += len(data)
        if self._head_bytes > 4 * HEAD_BYTES:
            self.transport.abort()

    def _await_head(self) -> None:
        if self._deadline is None:
            self._set_deadline(min(self._web.limits.handshake_s, self._web.limits.request_s))

    def _set_deadline(self, seconds: float) -> None:
        self._clear_deadline()
        self._deadline = self.loop.call_later(seconds, self.transport.abort)

    def _clear_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


class JoinedWrites:
    """A transport that joins the writes of a turn, and closes in bounded time."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._loop = asyncio.get_running_loop()
        self._waiting: list[bytes] = []
        self._size = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        if not self._waiting:
            self._loop.call_soon(self._flush)
        self._waiting.append(data)
        self._size += len(data)
        if self._size > _JOINED_BYTES:  # so that a client that does not read is noticed at once
            self._flush()

    def close(self) -> None:
        self._flush()
        if not self._transport.is_closing() and self._transport.get_write_buffer_size():
            # A transport closes after what was written, and a client that does not read would never have taken it.
            self._loop.call_later(_LINGER_S, self._transport.abort)
        self._transport.close()

    def _flush(self) -> None:
        if self._waiting:
            data = b"".join(self._waiting)
            self._waiting.clear()
            self._size = 0
            if self._transport.is_closing():  # uvloop raises where asyncio drops what comes too late
                log.debug("a connection was closed before all was written", size=len(data))
            else:
                self._transport.write(data)


class WebSocketProtocol(WebSocketsSansIOProtocol):
    """Uvicorn's own protocol on such a transport."""

    _begun = b""
    """The beginning of a text frame that has not all come."""
    _rest = 0
    """How many bytes of a frame that the library reads are still to come."""
    _is_parted = False
    """Whether it has read a part of a message, but not the last."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        web: Web = self.config.app  # type: ignore[assignment]  # it is ours
        self._peers = web.peers
        self._peer = web.peers.of(transport)
        self._texts = TextPort(self._write_text)
        self.close_timeout = _CLOSE_S
        super().connection_made(JoinedWrites(self._peer.transport))  # type: ignore[arg-type]  # one by its methods

    def connection_lost(self, exc: Exception | None) -> None:
        self._peers.leave(self._peer.transport)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.handshake_complete:
            self._read_frames(data)
            return
        super().data_received(data)
        if self.conn.handshake_exc is not None and not self.handshake_initiated:
            self._refuse_handshake()

    def _read_frames(self, data: bytes) -> None:
        """Hand text frames to the app, and all else to the library, in order."""
        if self._begun:
            data, self._begun = self._begun + data, b""
        at, size = 0, len(data)
        while at < size:
            if self._rest == 0:
                head, length = _frame_size(data, at)
                is_short_text = head > 0 and length <= _HELD_BYTES and data[at] == _TEXT and data[at + 1] >= _MASKED
                if head == 0 or (is_short_text and length > size - at):
                    self._begun = data[at:]
                    return
                if is_short_text and self._take_text(data, at + head, at + length):
                    at += length
                    continue
                self._rest = length
                if data[at] & _CONTROL == 0:
                    self._is_parted = data[at] & _LAST == 0
            end = min(size, at + self._rest)
            self._rest -= end - at
            super().data_received(data[at:end])
            at = end

    def _take_text(self, data: bytes, at: int, end: int) -> bool:
        """Give the text between these places to the app, if it takes texts and has taken all before this one."""
        if self._is_parted or not self.queue.empty() or self.conn.state is not State.OPEN:
            return False
        try:
            text = apply_mask(data[at:end], data[at - 4 : at]).decode()
        except UnicodeDecodeError:
            return False
        return self._texts.hear(text)

    def handle_connect(self, event: Any) -> None:
        super().handle_connect(event)
        if hasattr(self, "scope"):
            self.scope["state"] |= {"peer": self._peer, "texts": self._texts}

    def send_receive_event_to_app(self) -> None:
        if self.curr_msg_data_type == "text" and not _is_utf8(self.frames):
            log.debug("a bad frame", reason="its text is not UTF-8")
            self.frames = []
            self.conn.send_close(_INVALID_TEXT)
            self.handle_parser_exception()
            return
        super().send_receive_event_to_app()

    def send(self, message: Any) -> Coroutine[Any, Any, None]:
        kind = message["type"]
        if kind == "websocket.send" and self._write_text(message["text"]):
            return _sent()
        if kind == "websocket.http.response.body":
            return self._send_refusal(message)
        return super().send(message)

    def _write_text(self, text: str) -> bool:
        """Write a frame at once, if that is possible; else uvicorn waits for the client, or raises."""
        if self.disconnected or not self.writable.is_set() or self.conn.state is not State.OPEN:
            return False
        # Frames are many. The server's are not masked, and without extensions not compressed.
        self.transport.write(text_frame(text.encode()))
        return True

    async def _send_refusal(self, message: Any) -> None:
        await super().send(message)
        if not message.get("more_body", False):
            self.handshake_complete = True  # uvicorn would take the refusal for an answer that never came

    def keepalive_timeout(self) -> None:
        super().keepalive_timeout()
        self.transport.abort()  # it does not even read: what was written will never be taken

    def _refuse_handshake(self) -> None:
        """Answer an unreadable handshake; uvicorn would wait for another."""
        log.debug("a bad request", reason=str(self.conn.handshake_exc))
        answer = b"".join(self.conn.data_to_send())
        self.transport.write(answer or b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
        self.transport.close()


async def _sent() -> None:
    """Do nothing more."""


def _frame_size(data: bytes, at: int) -> tuple[int, int]:
    """Read the sizes of the head, and of the whole frame that begins here; zeros if its head has not all come."""
    have = len(data) - at
    if have < 2:
        return 0, 0
    size = data[at + 1] & ~_MASKED
    head = 2 + _LONG_SIZES.get(size, 0)
    if have < head:
        return 0, 0
    if head > 2:
        size = int.from_bytes(data[at + 2 : at + head], "big")
    head += 4 if data[at + 1] & _MASKED else 0
    return head, head + size


def text_frame(data: bytes) -> bytes:
    """Write a whole text frame of a server."""
    size = len(data)
    if size < 126:
        return b"\x81%c%b" % (size, data)
    if size < 65536:
        return b"\x81\x7e%b%b" % (size.to_bytes(2, "big"), data)
    return b"\x81\x7f%b%b" % (size.to_bytes(8, "big"), data)


def _is_utf8(parts: list[bytes]) -> bool:
    try:
        b"".join(parts).decode()
    except UnicodeDecodeError:
        return False
    return True
