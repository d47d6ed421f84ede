"""A provider of models on loopback that answers at once: OpenAI's chat completions and Anthropic's messages, streamed.

It reads no request: it keeps the newest body of each path, which a GET of that path gives back. Says where it is in one
line of JSON.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import msgspec
import uvloop

from bench.processes.models import REPLY

_WORDS = REPLY.partition(", ")
_PIECES = [_WORDS[0] + _WORDS[1], _WORDS[2]]


def _data(value: Any) -> bytes:
    return b"data: " + msgspec.json.encode(value) + b"\n\n"


def _chunk(choices: list[Any], **more: Any) -> bytes:
    head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "bench"}
    return _data({**head, "choices": choices, **more})


def _openai() -> bytes:
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}, *({"content": piece} for piece in _PIECES)]
    chunks = [_chunk([{"index": 0, "delta": delta, "finish_reason": None}]) for delta in deltas]
    chunks.append(_chunk([{"index": 0, "delta": {}, "finish_reason": "stop"}]))
    chunks.append(_chunk([], usage={"prompt_tokens": 20, "completion_tokens": 25, "total_tokens": 45}))
    return b"".join([*chunks, b"data: [DONE]\n\n"])


def _event(kind: str, **more: Any) -> bytes:
    return f"event: {kind}\n".encode() + _data({"type": kind, **more})


def _anthropic() -> bytes:
    usage = {"input_tokens": 20, "output_tokens": 1}
    message = {"id": "msg_1", "type": "message", "role": "assistant", "model": "bench", "content": []}
    pieces = [_event("content_block_delta", index=0, delta={"type": "text_delta", "text": piece}) for piece in _PIECES]
    return b"".join(
        [
            _event("message_start", message={**message, "stop_reason": None, "stop_sequence": None, "usage": usage}),
            _event("content_block_start", index=0, content_block={"type": "text", "text": ""}),
            *pieces,
            _event("content_block_stop", index=0),
            _event("message_delta", delta={"stop_reason": "end_turn"}, usage={"output_tokens": 25}),
            _event("message_stop"),
        ]
    )


def _response(body: bytes, kind: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\ncontent-type: %s\r\ncontent-length: %d\r\n\r\n%s" % (kind, len(body), body)


STREAM = b"text/event-stream"
ANSWERS = {
    b"/v1/chat/completions": _response(_openai(), STREAM),
    b"/v1/messages": _response(_anthropic(), STREAM),
}


class Provider:
    """Answers what is known to its paths."""

    def __init__(self) -> None:
        self._newest: dict[bytes, bytes] = {}

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of one connection, until it is closed."""
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                method, target, _ = head.split(b" ", 2)
                writer.write(await self._answer(method, target.partition(b"?")[0], head, reader))
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _answer(self, method: bytes, path: bytes, head: bytes, reader: asyncio.StreamReader) -> bytes:
        if method == b"GET":
            return _response(self._newest.get(path, b""), b"application/json")
        fields = dict(line.split(b": ", 1) for line in head.lower().split(b"\r\n")[1:] if line)
        self._newest[path] = await reader.readexactly(int(fields[b"content-length"]))
        return ANSWERS[path]


async def serve() -> None:
    server = await asyncio.start_server(Provider().serve, "127.0.0.1", 0, limit=1 << 20)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    print(msgspec.json.encode({"url": url, "token": ""}).decode(), flush=True)
    await server.serve_forever()


def main() -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve())


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(0)
