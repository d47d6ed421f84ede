"""The checks after a soak: one run for each message, every reply, no chat told twice."""

from __future__ import annotations

import json
import sqlite3
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from backchannel.core.commands.control_words import is_silent
from backchannel.core.delivery.delivery import DeliveryState, part_key
from backchannel.core.flows.exchange_values import Exchange, ExchangeOutcome, ExchangeState, read_exchange
from backchannel.core.flows.spawn_values import SpawnOutcome, SpawnState, read_spawn
from backchannel.core.messages import Message, Role, decode_message
from backchannel.core.runs import RunState
from tests.soak import hands
from tests.soak.served import CHANNEL, MODEL_FAILS, NAME, chat, news
from tests.soak.work_checks import Work, check_phones
from tests.support.far_end import FarEnd
from tests.support.kill import check_invariants
from tests.support.telegram import Telegram

_PHONES = f"agent:{hands.PHONE}:"


@dataclass
class Counts:
    """What there was."""

    messages: int = 0
    runs: Counter[str] = field(default_factory=Counter)
    exchanges: Counter[str] = field(default_factory=Counter)
    replies: Counter[str] = field(default_factory=Counter)
    spawns: Counter[str] = field(default_factory=Counter)
    receipts: Counter[str] = field(default_factory=Counter)
    taken: int = 0
    posted: int = 0
    work: Counter[str] = field(default_factory=Counter)
    phones: Counter[str] = field(default_factory=Counter)


class Ended:
    """The state that a soak left, at rest."""

    def __init__(self, database: sqlite3.Connection, far_end: FarEnd) -> None:
        self._database = database
        self._far_end = far_end
        self._exchanges = [read_exchange(body) for (body,) in database.execute("SELECT body FROM exchanges")]
        self._messages: list[tuple[str, Message]] = [
            (key, decode_message(body))
            for key, body in database.execute(
                "SELECT s.key, m.body FROM messages m JOIN session_ids s ON s.session_id = m.session_id"
            )
        ]
        self._about: dict[str, list[Message]] = defaultdict(list)
        self._results: dict[str, Message] = {}
        self._reports: dict[str, list[str]] = defaultdict(list)
        """What each session was told of its sub-agents."""
        self._runs_of: dict[str, Counter[str]] = defaultdict(Counter)
        """The kinds of the runs of each exchange; a primary run has a name of its own."""
        for id, kind in database.execute("SELECT id, kind FROM runs"):
            self._runs_of[id if kind == "primary" else id.partition("/")[0]][kind] += 1
        for key, message in self._messages:
            if message.text.startswith("Status: "):
                self._reports[key].append(message.text)
            if message.provenance is not None and message.provenance.exchange_id is not None:
                self._about[message.provenance.exchange_id].append(message)
            if message.role is Role.TOOL_RESULT and message.tool_call_id is not None:
                self._results[message.tool_call_id] = message
        self.counts = Counts()

    def check(
        self, folder: Path, acknowledged: Mapping[str, str], telegram: Telegram, phoned: Mapping[str, int]
    ) -> Counts:
        check_invariants(self._database, folder)
        twice = [id for id, count in Counter(message.id for _, message in self._messages).items() if count > 1]
        assert not twice, f"messages that are there twice: {twice}"
        assert not self._database.execute("SELECT 1 FROM waits").fetchall(), "waits that were left"
        self._check_runs(acknowledged)
        for exchange in self._exchanges:
            self._check_exchange(exchange)
        self._check_spawns(acknowledged)
        self._check_receipts()
        self._check_far_end()
        work = Work(self._database, folder, self._messages)
        work.check()
        self.counts.work = work.told
        self.counts.phones = check_phones(self._database, telegram, phoned, self._messages)
        return self.counts

    def _check_runs(self, acknowledged: Mapping[str, str]) -> None:
        runs = {id: (kind, key) for id, kind, key in self._database.execute("SELECT id, kind, session_key FROM runs")}
        for name, run_id in acknowledged.items():
            assert run_id in runs, f"{name} was acknowledged, and has no run"
        assert len(set(acknowledged.values())) == len(acknowledged), "two messages have one run"
        for first, kind in (("p", "message"), ("h", "hook")):
            asked = {run_id for name, run_id in acknowledged.items() if name.startswith(first)}
            there = {id for id, (its, key) in runs.items() if its == kind and not key.startswith(_PHONES)}
            assert asked == there, "runs that nobody asked for"
        said = Counter(
            message.text.partition(": ")[0]
            for key, message in self._messages
            if message.role is Role.USER and message.provenance and message.provenance.source_tool is None
            if not key.startswith(_PHONES)
        )
        once = Counter(name for name in acknowledged if name[0] in "ph")
        assert said == once, f"missing {once - said}, too many {said - once}"
        wrong = self._database.execute(
            "SELECT id, state, error FROM runs WHERE state <> 'ok' AND error NOT LIKE ?",
            (f"%{MODEL_FAILS}%",),
        ).fetchall()
        assert not wrong, f"runs that failed: {wrong}"
        self.counts.messages = len(acknowledged)
        self.counts.runs = Counter(kind for kind, _ in runs.values())

    def _check_exchange(self, exchange: Exchange) -> None:
        assert exchange.state is ExchangeState.DONE, f"exchange {exchange.id} is left in {exchange.state}"
        runs = self._runs_of[exchange.primary_run] + self._runs_of[exchange.id]
        expected = {"primary": 1, "turn": exchange.turn, "announce": exchange.announces}
        assert runs == Counter(expected), f"exchange {exchange.id} has the runs {runs}"
        assert exchange.announces <= 1, f"exchange {exchange.id} announced {exchange.announces} times"
        self.counts.exchanges[exchange.outcome or "none"] += 1
        self.counts.replies[self._way_of_reply(exchange)] += 1

    def _check_spawns(self, acknowledged: Mapping[str, str]) -> None:
        """Each child was announced once: to the chat of its requester, and in its requester's transcript."""
        rows = self._database.execute(
            "SELECT s.body, d.state, d.target, d.text FROM spawns s JOIN deliveries d ON d.id = s.delivery_id"
        ).fetchall()
        assert len(rows) == sum(name.startswith("s") for name in acknowledged), "not one spawn a call"
        for body, state, target, text in rows:
            spawn = read_spawn(body)
            assert spawn.state is SpawnState.DONE, f"spawn {spawn.id} is left in {spawn.state}"
            (name,) = NAME.findall(spawn.task)
            notes = [text for text in self._reports[str(spawn.requester)] if str(spawn.child) in text]
            self.counts.spawns[f"{spawn.outcome} {spawn.status}"] += 1
            if spawn.outcome is SpawnOutcome.POSTED:
                assert (state, target) == ("sent", chat(int(name.split("-")[1]))), f"{spawn.id}: {state} to {target}"
                assert notes == [text], f"{spawn.id} was told {len(notes)} times"
                wanted = "\n".join(news(name)).strip()
                assert spawn.status is not RunState.OK or f"Result: {wanted}" in text or "Notes:" in text, text
            else:
                assert (state, notes) == ("skipped", []), f"{spawn.id}: {state}, told {len(notes)} times"

    def _way_of_reply(self, exchange: Exchange) -> str:
        """Tell how the requester had the reply; once, and as it was told."""
        if exchange.requester is None or exchange.is_same_session:
            return "to a program" if exchange.requester is None else "to itself"
        about = [message.text for message in self._about[exchange.id] if message.role is not Role.TOOL_RESULT]
        turns = [text for text in about if "reply-back turn 1 of" in text]
        notes = [text for text in about if text.startswith(("[Late reply from", "[No reply from"))]
        result = self._result(exchange)
        has_result = result.get("status") in ("ok", "error")
        way = "as result" if has_result else "in a turn" if turns else "as a note" if notes else "nobody"
        if way == "nobody" and exchange.call_id is None and exchange.reply is None:
            return "to a program"  # which had the failure as its answer, and can ask for the run again
        assert way != "nobody" or is_silent(exchange.reply or "-"), f"exchange {exchange.id}: nobody heard the reply"
        assert len(turns) <= 1 and len(notes) <= 1, f"exchange {exchange.id}: {len(turns)} turns 1, {len(notes)} notes"
        assert not (has_result and notes), f"exchange {exchange.id} gave its reply as result and as note"
        if has_result:
            expected = ("error", None) if exchange.reply is None else ("ok", exchange.reply)
            assert (result["status"], result.get("reply")) == expected, f"exchange {exchange.id}: {result}"
        if turns and exchange.call_id is not None:
            told = "you already have this reply" if has_result else "no longer waiting for"
            assert told in turns[0], f"exchange {exchange.id}: turn 1 does not say {told!r}"
        return way

    def _result(self, exchange: Exchange) -> dict[str, str]:
        message = self._results.get(exchange.call_id or "")
        if message is None:
            return {}
        try:
            decoded = json.loads(message.text)
        except ValueError:
            assert "its message was sent" in message.text, f"exchange {exchange.id} was opened, and: {message.text}"
            return {"status": "broken"}  # the call's run was set aside while it waited
        return decoded if isinstance(decoded, dict) else {}

    def _check_receipts(self) -> None:
        rows = self._database.execute(
            "SELECT id, exchange_id, state, error, text, target FROM deliveries WHERE channel IS NOT ?", (hands.PHONE,)
        ).fetchall()
        by_exchange = Counter(exchange_id for _, exchange_id, *_ in rows if exchange_id is not None)
        assert by_exchange == Counter(exchange.id for exchange in self._exchanges), "not one receipt an exchange"
        exchanges = {exchange.id: exchange for exchange in self._exchanges}
        for id, exchange_id, state, error, text, target in rows:
            at = DeliveryState(state)
            assert not at.is_open, f"delivery {id} is still {state}"
            assert not at.needs_person or error, f"delivery {id} is {state} without a reason"
            self.counts.receipts[state] += 1
            if at is not DeliveryState.SENT:
                continue
            if exchange_id is None and not text.startswith("Status: "):
                (name,) = NAME.findall(text)
                assert (text, target) == (f"reply {name}", chat(int(name.split("-")[1]))), f"{id} went astray"
            elif exchange_id is not None:
                self._check_announced(exchanges[exchange_id], text, target)

    def _check_announced(self, exchange: Exchange, text: str, target: str) -> None:
        (name,) = NAME.findall(exchange.request)
        assert exchange.outcome is ExchangeOutcome.ANNOUNCED
        assert text == "\n".join(news(name)), f"exchange {exchange.id} announced {text!r}"
        assert str(exchange.target.key).endswith(f":{target.lower()}"), f"exchange {exchange.id} told {target}"

    def _check_far_end(self) -> None:
        parts = {
            part_key(id, n): (state, text, target)
            for id, n, state, text, target in self._database.execute(
                "SELECT p.delivery_id, p.n, p.state, p.text, d.target FROM delivery_parts p "
                "JOIN deliveries d ON d.id = p.delivery_id WHERE d.channel = ?",
                (CHANNEL,),
            )
        }
        taken = {message.key: (message.text, message.to) for message in self._far_end.messages}
        twice = [key for key, count in self._far_end.counts.items() if count > 1]
        assert not twice, f"keys that were taken twice: {twice}"
        # The posts of two sub-agents have lines in common, such as their status: what they tell is checked above.
        posts = {id for (id,) in self._database.execute("SELECT delivery_id FROM spawns")}
        texts = [message.text for message in self._far_end.messages if message.key.split("/")[0] not in posts]
        doubled = [text for text, count in Counter(texts).items() if count > 1]
        assert not doubled, f"texts that came under several keys: {doubled}"
        sent = {key: (text, target) for key, (state, text, target) in parts.items() if state == "sent"}
        assert not sent.keys() - taken.keys(), f"called sent and never taken: {sent.keys() - taken.keys()}"
        assert not taken.keys() - sent.keys(), f"taken and not called sent: {taken.keys() - sent.keys()}"
        assert sent == taken, "a part came otherwise than it was written, or elsewhere"
        self.counts.taken = len(taken)
        self.counts.posted = len(self._far_end.posts)
