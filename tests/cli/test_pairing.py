"""`backchannel pairing`: who waits, who was let in, and what a hostile name does to the terminal."""

from __future__ import annotations

import json
import urllib.request
import uuid
from typing import Any

from tests.support.far_end import SECRET, event, signed

from .program import Program, Up

CONFIG = f"""{{
  session: {{ dmScope: "per-peer" }},
  channels: {{ desk: {{
    adapter: "bridge", url: "http://127.0.0.1:9/out", secret: "{SECRET}", owners: ["olga"], pairing: true,
  }} }},
}}"""
EVIL = {"senderId": "e\x1b]0;owned\x07ve", "senderName": "\x1b[2J\x1b[31mOlga\u202e"}


def write_to(up: Up, **changed: Any) -> str:
    """Post a message over the channel; returns the verdict."""
    body, headers = signed(event(messageId=uuid.uuid4().hex, **changed))
    request = urllib.request.Request(f"{up.url}/channels/desk/inbound", body, headers)
    with urllib.request.urlopen(request, timeout=10) as answer:
        return str(json.load(answer)["verdict"])


def test_strangers_are_listed_let_in_denied_and_forgotten(program: Program) -> None:
    program.write_config(CONFIG)
    with program.up() as up:
        assert [write_to(up, **EVIL), write_to(up, senderId="mallory"), write_to(up, senderId="ben")] == ["pair"] * 3
        assert "3 waiting to be let in (backchannel pairing)" in program.answer("status")
        with program.terminal("watch") as watched:
            watched.expect("strangers 3 waiting")
        codes = {each["senderId"]: each["code"] for each in program.json("pairing", "list")["pairings"]}
        heading, *rows = program.answer("pairing", "list").splitlines()
        assert heading.split() == ["CODE", "STATE", "AGE", "VOID", "IN", "CHANNEL", "SENDER", "NAME"]
        (evil,) = [row for row in rows if codes[EVIL["senderId"]] in row]
        assert r"e\u001b]0;owned\u0007ve" in evil and evil.endswith("  Olga")
        assert not {"\x1b", "\x07", "\u202e"} & set("".join(rows))

        said = program.answer("pairing", "approve", codes["ben"].lower())
        assert said == "desk ben may speak now, and is told so.\n"
        assert write_to(up, senderId="ben") == "answer"
        assert program.answer("pairing", "deny", codes["mallory"]) == "desk mallory is ignored from now on.\n"
        states = {each["senderId"]: each["state"] for each in program.json("pairing", "--all")["pairings"]}
        assert states == {EVIL["senderId"]: "pending", "mallory": "denied", "ben": "approved"}

        assert program.answer("pairing", "remove", "desk", "ben") == "desk ben is a stranger again.\n"
        assert write_to(up, senderId="ben") == "pair"
        wrong = program.run("pairing", "approve", "AAAAAAAA")
        assert wrong.returncode == 1 and "nobody waits with this code" in wrong.stderr
        assert codes["mallory"] not in up.logged and "a stranger was sent a code" in up.logged
