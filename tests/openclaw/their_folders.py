"""State folders as each generation of the other program wrote them, made by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

MAIN_ID = "11111111-1111-4111-8111-111111111111"
GROUP_ID = "22222222-2222-4222-8222-222222222222"
CRON_ID = "33333333-3333-4333-8333-333333333333"
OTHER_ID = "44444444-4444-4444-8444-444444444444"
AT = 1_759_312_800_000
ISO = "2025-10-01T10:00:00.000Z"


def lines(*entries: Any) -> str:
    return "".join(json.dumps(entry, ensure_ascii=False) + "\n" for entry in entries)


def header(session_id: str) -> dict[str, Any]:
    return {"type": "session", "version": 3, "id": session_id, "timestamp": ISO, "cwd": "/home/them"}


def said(id: str, role: str, text: str, **more: Any) -> dict[str, Any]:
    """A line of today."""
    message = {"role": role, "content": [{"type": "text", "text": text}], "timestamp": AT, **more}
    return {"type": "message", "id": id, "parentId": None, "timestamp": ISO, "message": message}


def write(folder: Path, entries: dict[str, Any], **transcripts: str) -> None:
    """Write a folder with a `sessions.json`; transcripts are named by their first digit."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "sessions.json").write_text(json.dumps(entries, indent=2))
    names = {"t1": MAIN_ID, "t2": GROUP_ID, "t3": CRON_ID, "t4": OTHER_ID}
    for name, text in transcripts.items():
        (folder / f"{names[name]}.jsonl").write_text(text)


def openclaw(root: Path) -> Path:
    """Today's: a folder for each agent, full keys, lines with ids; what they had of most sorts."""
    write(
        root / "agents" / "main" / "sessions",
        {
            "agent:main:main": {
                "sessionId": MAIN_ID,
                "updatedAt": AT + 60_000,
                "sessionFile": f"/home/them/.openclaw/agents/main/sessions/{MAIN_ID}.jsonl",
                "chatType": "direct",
                "deliveryContext": {"channel": "telegram", "to": "telegram:7", "accountId": "default"},
                "lastChannel": "telegram",
                "lastTo": "telegram:7",
                "model": "claude-opus",
                "modelProvider": "anthropic",
                "thinkingLevel": "high",
                "inputTokens": 10,
                "outputTokens": 20,
                "totalTokens": 30,
                "contextTokens": 200_000,
                "skillsSnapshot": {"prompt": "long", "skills": [{"name": "x"}]},
            },
            "agent:main:telegram:group:-100:topic:7": {
                "sessionId": GROUP_ID,
                "updatedAt": AT,
                "label": "ops",
                "displayName": "telegram:g-ops",
                "channel": "telegram",
                "groupId": "-100",
            },
        },
        t1=lines(
            header(MAIN_ID),
            {"type": "model_change", "id": "a0", "parentId": None, "timestamp": ISO, "provider": "x", "modelId": "y"},
            {"type": "custom", "id": "a1", "parentId": "a0", "timestamp": ISO, "customType": "state", "data": {}},
            said("a2", "user", "what is in the folder?"),
            {
                "type": "message",
                "id": "a3",
                "parentId": "a2",
                "timestamp": ISO,
                "message": {
                    "role": "assistant",
                    "content": [
                        {"type": "thinking", "thinking": "I look", "thinkingSignature": "s"},
                        {"type": "toolCall", "id": "toolu_1", "name": "bash", "arguments": {"command": "ls"}},
                    ],
                    "provider": "anthropic",
                    "model": "claude-opus",
                    "usage": {"input": 5, "output": 6, "cacheRead": 1, "cacheWrite": 2, "cost": {"total": 0.25}},
                    "stopReason": "toolUse",
                    "timestamp": AT,
                },
            },
            said("a4", "toolResult", "a.txt", toolCallId="toolu_1", toolName="bash", isError=False),
            said("a5", "assistant", "a.txt", provider="anthropic", model="claude-opus", stopReason="stop"),
            {"type": "compaction", "id": "a6", "parentId": "a5", "timestamp": ISO, "summary": "there is a.txt"},
            said("a7", "user", "thanks", provenance={"kind": "inter_session", "sourceTool": "sessions_send"}),
            {"type": "telepathy", "id": "a8"},
        ),
        t2=lines(header(GROUP_ID), said("a2", "user", "hello all")),
    )
    write(
        root / "agents" / "Research Bot" / "sessions",
        {"agent:research-bot:cron:nightly": {"sessionId": CRON_ID, "updatedAt": AT, "spawnedBy": "agent:main:main"}},
        t3=lines(header(CRON_ID), said("c1", "user", "look at the news")),
    )
    return root


def clawdbot(root: Path) -> Path:
    """Before that: one folder at the top, bare keys, `provider`, lines without ids."""
    write(
        root / "sessions",
        {
            "main": {"sessionId": MAIN_ID, "updatedAt": AT, "lastProvider": "whatsapp", "lastTo": "+4912345"},
            "discord:group:99": {"sessionId": GROUP_ID, "updatedAt": AT, "provider": "discord", "room": "general"},
            "cron:nightly": {"sessionId": CRON_ID, "updatedAt": AT},
            "unknown": {"sessionId": OTHER_ID, "updatedAt": AT},
        },
        t1=lines(
            {"type": "session", "id": MAIN_ID, "timestamp": ISO, "cwd": "/"},
            {"type": "message", "timestamp": ISO, "message": {"role": "user", "content": "hi", "timestamp": AT}},
            {"type": "message", "timestamp": ISO, "message": {"role": "assistant", "content": [], "timestamp": AT}},
        ),
        t2=lines({"type": "message", "timestamp": ISO, "message": {"role": "user", "content": "hello"}}),
        t3=lines({"type": "message", "timestamp": ISO, "message": {"role": "user", "content": "news"}}),
        t4=lines({"type": "message", "timestamp": ISO, "message": {"role": "user", "content": "who?"}}),
    )
    return root


def clawdis(root: Path) -> Path:
    """The oldest: `surface`, phone numbers as keys, lines that are the bare message."""
    write(
        root,
        {
            "+4912345": {"sessionId": MAIN_ID, "updatedAt": AT + 5, "lastChannel": "whatsapp", "lastTo": "+4912345"},
            "+4967890": {"sessionId": OTHER_ID, "updatedAt": AT},
            "group:123@g.us": {"sessionId": GROUP_ID, "updatedAt": AT, "surface": "whatsapp", "subject": "Family"},
            "surface:group:5": {"sessionId": CRON_ID, "updatedAt": AT, "surface": "signal"},
        },
        t1=lines({"role": "user", "content": "hi", "timestamp": AT}, {"role": "assistant", "content": "hello"}),
        t2=lines({"role": "user", "content": [{"type": "text", "text": "hello all"}], "timestamp": AT}),
        t3=lines({"role": "user", "content": "secret", "timestamp": AT}),
        t4=lines({"role": "user", "content": "it is me", "timestamp": AT}),
    )
    return root


GENERATIONS = {"openclaw": openclaw, "clawdbot": clawdbot, "clawdis": clawdis}
