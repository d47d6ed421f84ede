"""The agents of the soak that have hands: commands, with a sandbox and without, an MCP server, calls that ask; a phone.

What a message makes its agent do follows from the message's name, so that a step that is done again asks for the same.
Every command and every call of the server leaves the name behind: what was carried out can be counted.
"""

from __future__ import annotations

import hashlib
import shutil
import sys
from pathlib import Path
from typing import Any

from backchannel.agents.scripted import Scripted, call
from backchannel.core.contracts import ModelRequest
from backchannel.core.messages import Role, ToolCallBlock

HANDS = ("hand", "box")
PHONE = "phone"
HOOK_TOKEN = "a token of the hooks of the soak"
ASKED = "asked"
"""A command with this word in it waits for a person."""
_SERVER = Path(__file__).parent.parent / "support" / "mcp_server.py"


def drawn(name: str, what: str) -> float:
    """Draw a number from 0 to 1, the same for the same name."""
    # Not a checksum: those of texts with one ending differ by a constant, so that what is asked would never be denied.
    return int.from_bytes(hashlib.sha256(f"{what} {name}".encode()).digest()[:4]) / 2**32


def settings(state: Path, telegram: dict[str, Any]) -> dict[str, Any]:
    """Make what the agents with hands need; the sandbox is left out where there is none."""
    sandbox = {"mode": "all" if shutil.which("bwrap") else "off"}
    model = {"model": "scripted/test"}
    return {
        "agents": [
            {"id": "hand", **model, "tools": {"allow": ["group:exec", "group:mcp:far"]}},
            {"id": "box", **model, "tools": {"allow": ["group:exec"]}, "sandbox": sandbox},
            {"id": PHONE, **model},
        ],
        "approval": [{"tool": "exec", "match": f"*{ASKED}*", "ask": "always"}],
        "mcp": {"servers": {"far": _server(diary(state))}},
        "hooks": {"enabled": True, "token": HOOK_TOKEN},
        "channels": {PHONE: telegram},
        "bindings": [{"match": {"channel": PHONE}, "agentId": PHONE}],
    }


def diary(state: Path) -> Path:
    """The file in which the MCP server writes what it did."""
    return state / "mcp-diary.txt"


def effects(state: Path, agent: str) -> Path:
    """The file in which the commands of an agent write what they did."""
    return state / "agents" / agent / "workspace" / "effects"


def _server(diary: Path) -> dict[str, Any]:
    return {"command": sys.executable, "args": ["-I", "-S", str(_SERVER)], "env": {"MCP_DIARY": str(diary)}}


def is_denied(name: str) -> bool:
    """Whether a person who is asked says no."""
    return drawn(name, "denied") < 0.3


def did(name: str) -> str:
    """What a command says that was carried out."""
    return f"did {name}"


def work(name: str, request: ModelRequest) -> Scripted:
    """What the model of an agent with hands says: first what is to be done, then that it is."""
    if request.messages[-1].role is Role.TOOL_RESULT:
        return f"reply {name}"
    has_server = any(tool.name == "far__post" for tool in request.tools)
    wanted = ("command", "server") if has_server else ("command",)
    kinds = [kind for kind in wanted if drawn(name, kind) < 0.6] or ["command"]
    return [_command(name) if kind == "command" else call("far__post", text=name) for kind in kinds]


def _command(name: str) -> ToolCallBlock:
    word = f" {ASKED}" if drawn(name, ASKED) < 0.4 else ""
    return call("exec", command=f"echo {name} >> effects; echo {did(name)}{word}")
