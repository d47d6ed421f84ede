"""A server of HTTP that answers every request with the same bytes, whatever they are."""

from __future__ import annotations

import asyncio
import gzip

from tests.support.servers import LocalServer


class Answering(LocalServer):
    """The far end of a client that trusts nobody."""

    def __init__(self) -> None:
        super().__init__()
        self.url = ""
        self.status, self.body, self.headers = 200, b"{}", ""
        self._under: dict[str, tuple[bytes, str]] = {}

    def opened(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"

    def answer(self, status: int, body: bytes, content_type: str = "application/json", encoding: str = "") -> None:
        """Say what is answered from now on."""
        encoded = f"content-encoding: {encoding}\r\n" if encoding else ""
        self.status, self.body, self.headers = status, body, f"content-type: {content_type}\r\n{encoded}"

    def answer_under(self, path: str, body: bytes, encoding: str) -> None:
        """Say what is answered under a path."""
        self._under[path] = body, f"content-encoding: {encoding}\r\n"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        if (length := head.partition("content-length: ")[2].split()[:1]) and int(length[0]):
            await reader.readexactly(int(length[0]))
        path = head.split()[1]
        given = (found for under, found in self._under.items() if path.startswith(under))
        body, headers = next(given, (self.body, self.headers))
        start = f"HTTP/1.1 {self.status} -\r\n{headers}content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        writer.write(start.encode() + body)
        await writer.drain()


def bomb(size: int) -> bytes:
    """Make a small body that is so many bytes long when it is unpacked."""
    return gzip.compress(bytes(size), 9)
