"""State folders with much in them, written directly by SQL in one transaction, in the real schema."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from backchannel.core.messages import Message, Provenance, ProvenanceKind, Role, TextBlock, Usage, encode_message
from backchannel.storage.sqlite.driver import connect
from backchannel.storage.sqlite.file import SqliteDatabase
from bench.processes.models import FREE, QUESTION, REPLY

EPOCH_MS = 1_700_000_000_000

_SESSION = (
    "INSERT INTO sessions (key, agent_id, kind, session_id, created_at, updated_at, display_name, channel, "
    "delivery_context, system_sent, total_tokens, context_tokens, tokens_in, tokens_out) "
    "VALUES (?, 'main', 'group', ?, ?, ?, ?, 'telegram', ?, 1, 2100, 200000, 1900, 200)"
)
_SESSION_ID = "INSERT INTO session_ids (session_id, key, mark, next_seq, created_at) VALUES (?, ?, 'k7', ?, ?)"
_MESSAGE = "INSERT INTO messages (session_id, seq, id, role, body) VALUES (?, ?, ?, ?, ?)"


@dataclass(frozen=True, slots=True)
class State:
    """A state folder, and its sessions with many messages: key and session id by number of messages."""

    path: Path
    long: dict[int, tuple[str, str]] = field(default_factory=dict)

    @property
    def first(self) -> str:
        """The key of its first session."""
        return self.key(0)

    def key(self, n: int) -> str:
        """The key of one of its sessions, the oldest first."""
        return str(_session(n)[0])

    @property
    def database(self) -> Path:
        return self.path / "backchannel.db"


def make_state(path: Path, *, sessions: int = 0, said: int = 0, messages: tuple[int, ...] = ()) -> State:
    """Fill a new state folder: so many sessions with `said` messages each, and one for each number of `messages`."""
    state = State(path)
    SqliteDatabase(state.database).prepare()
    connection = connect(state.database)
    connection.execute("BEGIN")
    rows = [_session(n) for n in range(sessions)]
    for row in rows:
        connection.executemany(_MESSAGE, _messages(row[1], said))
    for n, count in enumerate(messages, start=sessions):
        row = _session(n)
        rows.append(row)
        state.long[count] = (row[0], row[1])
        connection.executemany(_MESSAGE, _messages(row[1], count))
    counts = {session_id: count for count, (_, session_id) in state.long.items()}
    connection.executemany(_SESSION, rows)
    connection.executemany(_SESSION_ID, ((row[1], row[0], counts.get(row[1], said), row[2]) for row in rows))
    connection.execute("COMMIT")
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    return state


def _session(n: int) -> tuple[Any, ...]:
    chat = f"-100{n:09}"
    address = f'{{"channel":"telegram","to":"{chat}","accountId":"default"}}'
    at = EPOCH_MS + n * 1000
    return f"agent:main:telegram:group:{chat}", str(uuid.uuid4()), at, at, f"Harbour office {n}", address


def _messages(session_id: str, count: int) -> Iterator[tuple[Any, ...]]:
    for seq in range(count):
        message = _message(seq)
        yield session_id, seq, message.id, message.role.value, encode_message(message).decode()


def _message(seq: int) -> Message:
    is_question = seq % 2 == 0
    return Message(
        id=uuid.uuid4().hex,
        role=Role.USER if is_question else Role.ASSISTANT,
        content=(TextBlock(text=QUESTION if is_question else REPLY),),
        timestamp=EPOCH_MS + seq * 1000,
        run_id=f"run-{seq // 2}",
        provenance=Provenance(kind=ProvenanceKind.EXTERNAL_USER) if is_question else None,
        model=None if is_question else FREE.ref,
        usage=None if is_question else Usage(input=20, output=25),
        stop_reason=None if is_question else "stop",
    )
