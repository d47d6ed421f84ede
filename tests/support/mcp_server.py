"""An MCP server that behaves as its argument says, well or badly: `python -I -S mcp_server.py '{"start": "hang"}'`.

It is written without an SDK, so that it can say what no SDK would. What it was told beside requests, and what it did,
is in the file that `MCP_DIARY` names, a line each.
"""

import base64
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

SETTINGS = json.loads(sys.argv[1]) if len(sys.argv) > 1 else {}
PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n" + b"0" * 20).decode()
OBJECT = {"type": "object", "properties": {"text": {"type": "string"}}}


def note(text: str) -> None:
    if "MCP_DIARY" in os.environ:
        with Path(os.environ["MCP_DIARY"]).open("a") as diary:
            diary.write(text + "\n")


def send(message: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def send_bad(id: int, name: str) -> None:
    """Send an answer that no SDK would."""
    values = {
        "crowd_id_last": "[]," * 200_000 + "1",
        "crowd_lists": "[]," * 5_000_000 + "1",
        "crowd_digits": "9" * 10**7,
    }
    text = b"a\\ud800 b\\ud83d\\ud83d\\ude00 c\xff \\\\ud800"
    result = b'{"content":[{"type":"text","text":"%b"}]}' % text
    if name in values:
        result = b'{"content":[],"structuredContent":{"a":[%b]}}' % values[name].encode()
    if name == "crowd_id_last":
        line = b'{"result":%b,"jsonrpc":"2.0","id":%d}\n' % (result, id)
    else:
        line = b'{"jsonrpc":"2.0","id":%d,"result":%b}\n' % (id, result)
    sys.stdout.buffer.write(line)
    sys.stdout.buffer.flush()


def tool(name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "description": f"Does {name}.", "inputSchema": OBJECT, **more}


BAD = ["crowd_id_last", "crowd_lists", "crowd_digits", "halves"]
NAMES = ["echo", "post", "crash", "hang", "garbage", "big", "many", "fork", "fail", "blocks", "structured", "progress"]
NAMES += ["rename", "endless", "secret", "refuse", "look", "crowd", "flood", "lines", "descriptors", "raw"]
TOOLS = [tool(name) for name in [*NAMES, *BAD]]
TOOLS[0]["annotations"] = {"readOnlyHint": True}
TOOLS = SETTINGS.get("tools", TOOLS)
BLOCKS = [
    {"type": "text", "text": "some text"},
    {"type": "image", "mimeType": "image/png", "data": PNG},
    {"type": "image", "mimeType": "image/png", "data": base64.b64encode(b"<svg/>").decode()},
    {"type": "audio", "mimeType": "audio/wav", "data": PNG},
    {"type": "resource_link", "uri": "file:///a.txt", "name": "a.txt", "description": "a file"},
    {"type": "resource", "resource": {"uri": "file:///b.txt", "text": "what is in b"}},
    {"type": "resource", "resource": {"uri": "file:///c.bin", "mimeType": "application/x-c", "blob": PNG}},
    {"type": "hologram", "data": "x"},
    7,
]


def call(id: int, name: str, arguments: dict[str, Any]) -> None:
    note(f"call {name} {json.dumps(arguments)}")
    content = [{"type": "text", "text": f"{name}: {arguments.get('text', '')}"}]
    result: dict[str, Any] = {"content": content}
    if name == "crash":
        sys.stderr.write(f"{arguments.get('text', 'it hurts')}\n")
        sys.stderr.flush()
        os._exit(3)
    elif name == "hang":
        return
    elif name == "garbage":
        sys.stdout.buffer.write(b'Listening on \xff\xfe port\n{"half": \n[1, 2]\n\n' + b"x" * 100_000 + b"\n")
    elif name == "big":
        content[0]["text"] = "a" * 5_000_000 + "MIDDLE" + "b" * 5_000_000
    elif name == "many":
        result["content"] = [{"type": "text", "text": "x"}] * 20_000
    elif name == "crowd":
        result["content"] = [{"type": "text", "text": "x"}] * 120_000
    elif name == "raw":
        body = arguments["start"] + arguments["unit"] * arguments["count"] + arguments["end"]
        sys.stdout.write(f'{{"jsonrpc":"2.0","id":{id},"{arguments.get("field", "result")}":{body}}}\n')
        sys.stdout.flush()
        return
    elif name in BAD:
        send_bad(id, name)
        return
    elif name == "flood":
        sys.stderr.write("blah\n" * 100_000)
    elif name == "lines":
        getattr(sys, arguments["stream"]).write(f"{arguments['line']}\n" * arguments["count"])
    elif name == "fork":
        words = [sys.executable, "-I", "-S", "-c", "import time; time.sleep(600)"]
        content[0]["text"] = str(subprocess.Popen(words, start_new_session=True).pid)
    elif name == "fail":
        result["isError"] = True
    elif name == "blocks":
        result["content"] = BLOCKS
    elif name == "structured":
        result = {"structuredContent": {"degrees": 21}, "content": []}
    elif name == "progress":
        send({"method": "notifications/progress", "params": {"progressToken": id, "progress": 1, "message": "half"}})
    elif name == "rename":
        TOOLS[:] = [tool("after")]
        send({"method": "notifications/tools/list_changed"})
    elif name == "endless":
        while True:
            sys.stdout.write("x" * 65536)
    elif name == "secret":
        sys.stderr.write(f"the key is {os.environ.get('API_KEY')} \x1b[31mred\x1b[0m\n")
        sys.stderr.flush()
        content[0]["text"] = json.dumps(sorted(os.environ))
    elif name == "look":
        content[0]["text"] = "there" if Path(arguments["path"]).exists() else "not there"
    elif name == "descriptors":
        links = list(Path("/proc/self/fd").iterdir())
        content[0]["text"] = "\n".join(str(link.readlink()) for link in links if link.exists())
    elif name == "refuse":
        send({"id": id, "error": {"code": -32602, "message": "no such thing"}})
        return
    send({"id": id, "result": result})


def page(id: int, params: dict[str, Any]) -> None:
    size = SETTINGS.get("page", len(TOOLS) or 1)
    at = int((params or {}).get("cursor") or 0)
    result: dict[str, Any] = {"tools": TOOLS[at : at + size]}
    if at + size < len(TOOLS):
        result["nextCursor"] = str(at + size)
    send({"id": id, "result": result})


def main() -> None:
    note(f"started {os.getpid()}")
    match SETTINGS.get("start"):
        case "hang":
            time.sleep(600)
        case "fail":
            sys.exit("there is no key")
        case "garbage":
            sys.stdout.write("Welcome to the server!\nnode:123 warning\n")
    for line in sys.stdin:
        message = json.loads(line)
        id, method, params = message.get("id"), message["method"], message.get("params") or {}
        if method == "initialize":
            info = {"serverInfo": {"name": "test", "version": "1"}, "capabilities": {"tools": {"listChanged": True}}}
            send({"id": id, "result": {"protocolVersion": params["protocolVersion"], **info}})
        elif method == "tools/list":
            page(id, params)
        elif method == "tools/call":
            call(id, params["name"], params.get("arguments") or {})
        elif method == "notifications/cancelled":
            note("cancelled")
        elif id is not None:
            send({"id": id, "error": {"code": -32601, "message": "Method not found"}})
    note("input closed")


main()
