"""The checks of agents with workspace tools, and of phones, after a soak."""

from __future__ import annotations

import json
import re
import sqlite3
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

from backchannel.core.messages import Message, Role
from backchannel.core.policy.approvals import ApprovalState
from tests.soak import hands
from tests.soak.served import NAME
from tests.support.telegram import Telegram

_POSTED = re.compile(r'^call post \{"text": "([^"]+)"\}$', re.MULTILINE)


class Work:
    """What was carried out, and what agents were told of it."""

    def __init__(self, database: sqlite3.Connection, state: Path, messages: Iterable[tuple[str, Message]]) -> None:
        self._database = database
        self._said = list(messages)
        diary = hands.diary(state)
        self._posted = Counter(_POSTED.findall(diary.read_text()) if diary.exists() else [])
        self._ran: Counter[str] = Counter()
        for agent in hands.HANDS:
            if (file := hands.effects(state, agent)).exists():
                self._ran.update(file.read_text().split())
        self.told: Counter[str] = Counter()

    def check(self) -> None:
        twice = [name for ran in (self._ran, self._posted) for name, count in ran.items() if count > 1]
        assert not twice, f"carried out twice: {twice}"
        for _, message in self._said:
            if message.role is Role.TOOL_RESULT and message.tool_name in ("exec", "far__post"):
                self._check_result(message)
        self._check_approvals()

    def _check_result(self, message: Message) -> None:
        """A result that says "done" has its effect; every other says what is known."""
        done = NAME.findall(message.text) if not message.is_error else []
        if message.tool_name == "exec" and done:
            assert self._ran[done[0]] == 1, f"told as done, and was not: {message.text}"
        if message.tool_name == "far__post" and done:
            assert self._posted[done[0]] == 1, f"told as done, and was not: {message.text}"
        outcomes = {"denied": "denied", "not known": "interrupted", "there is no tool": "not there"}
        told = "done" if done else next((word for text, word in outcomes.items() if text in message.text), "failed")
        self.told[f"{message.tool_name} {told}"] += 1

    def _check_approvals(self) -> None:
        asked = self._database.execute("SELECT call_id, arguments, state FROM approvals").fetchall()
        assert len({call_id for call_id, *_ in asked}) == len(asked), "a call was asked for twice"
        for _, arguments, state in asked:
            name = NAME.findall(json.loads(arguments)["command"])[0]
            # A question expires with its call, when the call's run was killed three times in that step and set aside.
            assert state != ApprovalState.PENDING, f"{name} is still {state}"
            assert state == ApprovalState.APPROVED or not self._ran[name], f"{name} is {state}, and ran"
            self.told[f"approval {state}"] += 1


def check_phones(
    database: sqlite3.Connection,
    telegram: Telegram,
    written: Mapping[str, int],
    messages: Iterable[tuple[str, Message]],
) -> Counter[str]:
    """Each message was taken once, and answered once in its own chat; where Telegram gave no answer, that is told."""
    taken = Counter(
        NAME.findall(message.text)[-1]
        for key, message in messages
        if key.startswith(f"agent:{hands.PHONE}:") and message.role is Role.USER
    )
    assert taken == Counter(written.keys()), f"missing or twice: {taken - Counter(written.keys())}"
    posts = Counter((post.text, post.chat_id) for post in telegram.posts if not post.is_deleted)
    rows = database.execute("SELECT text, target, state FROM deliveries WHERE channel = ?", (hands.PHONE,)).fetchall()
    assert sorted(text for text, *_ in rows) == sorted(f"reply {name}" for name in written), "not one reply each"
    states: Counter[str] = Counter()
    for text, target, state in rows:
        chat, seen = written[NAME.findall(text)[0]], posts[text, int(target)]
        assert int(target) == chat, f"{text} went to {target}"
        assert seen == 1 if state == "sent" else (state == "uncertain" and seen <= 1), f"{text}: {state}, seen {seen}"
        states[state] += 1
    assert not [text for (text, _), count in posts.items() if count > 1], "posted twice"
    return states
