"""Tables of the database: the columns, owner and end of each.

`schema/*.sql` creates the tables; a test compares the two. The columns of an INSERT and of a SELECT follow from
this list. So do the tables that `migrate` copies, their order, and the tables that a unit may write under the lock of
one session. A new table goes here, with its owner and its end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Generic, Literal, TypeVar, get_args, get_type_hints

import msgspec

from backchannel.core.delivery.delivery import Delivery, Part
from backchannel.core.delivery.drafts import ShownDraft
from backchannel.core.money.budgets import LedgerRow
from backchannel.core.policy.approvals import Approval
from backchannel.core.policy.pairing import PairingRecord
from backchannel.core.records import McpCall, TokenRow
from backchannel.core.runs import Run, ToolCall
from backchannel.core.secrets.devices import DeviceToken
from backchannel.core.sessions import Session
from backchannel.storage.jobs import StoredJob
from backchannel.wire.timeline import RunEvent

S = TypeVar("S", bound=msgspec.Struct)

TableOwner = Literal["session", "key", "all"]
"""Whose rows they are, and so which lock a unit needs to write them.

- `session`: one session's. The lock of that session is enough.
- `key`: given out once by their key, or nothing is decided by them, or locked by the unit itself. Any unit may write
  them.
- `all`: several sessions', or the gateway's. A unit that writes them locks everything.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Keep:
    """The end of a row: what may remove it, and when. At least one field is set."""

    parent: tuple[str, str] | None = None
    """A column, and the `table.column` whose row it names. The row goes with that one."""
    after: str | None = None
    """A column with a time. The row may go some time after it; NULL means not yet."""
    when: str | None = None
    """A condition, as SQL: `after` counts only for rows that fulfil it."""
    why: str | None = None
    """The reason that the row stays, or the unit that removes it."""


class NoStruct(msgspec.Struct):
    """Stands for the struct of a table that no struct describes."""


class Table(Generic[S]):
    """One table: its columns, and what the rest of the storage has to know of it."""

    def __init__(
        self,
        name: str,
        struct: type[S],
        columns: str = "",
        *,
        key: str,
        of: TableOwner,
        keep: Keep,
        computed: str = "",
        derived: Mapping[str, str] | None = None,
        counts: str | None = None,
        numbered: str | None = None,
        only: str | None = None,
    ) -> None:
        """Describe a table.

        `columns` are those besides the fields of the struct. `computed` is a field of the struct that is no column.
        `derived` are columns of one kind of database that are made from the others, and so not copied to another
        database. `counts` is a column that the database counts up.
        `numbered` is the same in PostgreSQL, but is no column in SQLite, which numbers each row itself. `only` is the
        kind of database that has the table.
        """
        own = [field for field in struct.__struct_fields__ if field != computed]
        self.name = name
        self.columns = (*own, *columns.split())
        self.fields = ", ".join(own)
        """The columns of the struct, for a SELECT."""
        self.read: Callable[[tuple[Any, ...]], S] = partial(msgspec.convert, type=struct, strict=False)
        """Makes the struct from a row of `fields`."""
        self.select = f"SELECT {self.fields} FROM {name}"
        self.returning = f"RETURNING {self.fields}"
        self.struct = struct
        self.key = tuple(key.split())
        rest = [column for column in self.columns if column not in self.key]
        self.or_skip = f"ON CONFLICT ({', '.join(self.key)}) DO NOTHING"
        """Ends an INSERT that leaves a row as it is if its key is there already."""
        self.or_replace = f"ON CONFLICT ({', '.join(self.key)}) DO UPDATE SET {excluded(rest)}"
        """Ends an INSERT that replaces the row of the same key."""
        self.of = of
        self.keep = keep
        self.derived = derived or {}
        self.counts = counts
        self.numbered = numbered
        self.only = only
        self.inserts = _Inserts(name)

    @cached_property
    def _blank(self) -> dict[str, Any]:
        return {field: _blank(kind) for field, kind in get_type_hints(self.struct).items() if field in self.columns}

    def fresh(self, **values: Any) -> S:
        """Make the struct of a row that was inserted with these values: the other columns have the schema's defaults.

        To read it back with RETURNING takes SQLite longer than the INSERT. The values are those of the struct.
        """
        return self.struct(**{**self._blank, **values})

    def fields_of(self, alias: str) -> str:
        """List the columns of the struct for a SELECT over several tables."""
        return ", ".join(f"{alias}.{field}" for field in self.fields.split(", "))


def _blank(kind: Any) -> Any:
    """Return the schema's default for a column: NULL where a field may be None, else 0 in the field's own type."""
    if type(None) in get_args(kind):
        return None
    return kind() if kind in (int, float, bool) else msgspec.UNSET


def excluded(names: Iterable[str]) -> str:
    """List assignments for ON CONFLICT: each column gets what was to be inserted."""
    return ", ".join(f"{name} = excluded.{name}" for name in names)


class _Inserts(dict[tuple[str, ...], str]):
    """The INSERT statements of a table, by what follows the values and by the columns; each is built once."""

    def __init__(self, table: str) -> None:
        self._table = table

    def __missing__(self, key: tuple[str, ...]) -> str:
        then, *names = key
        places = ", ".join("?" for _ in names)
        self[key] = sql = f"INSERT INTO {self._table} ({', '.join(names)}) VALUES ({places}) {then}".rstrip()
        return sql


# fmt: off
_SESSION = ("session_key", "sessions.key")
_RUN = ("run_id", "runs.id")
_IS_DONE = "state = 'done'"

# Sessions and their transcripts
SESSIONS = Table(
    "sessions", Session, "first_person used_at full_told", key="key",
    of="session", keep=Keep(after="archived_at"))
SESSION_IDS = Table(
    "session_ids", NoStruct, "session_id key mark next_seq created_at ended_at end_reason cut shape follows carries",
    key="session_id", of="session", keep=Keep(parent=("key", "sessions.key"), after="ended_at"))
MESSAGES = Table(
    "messages", NoStruct, "session_id seq id role body", key="session_id seq", numbered="position",
    derived={"postgres": "words"}, of="session", keep=Keep(parent=("session_id", "session_ids.session_id")))
UNINDEXED = Table(
    "unindexed", NoStruct, "position", key="position", only="sqlite",
    of="session", keep=Keep(why="a row goes when its message is indexed or removed"))
INBOX = Table(
    "inbox", NoStruct, "position id session_key body", key="position", counts="position",
    of="session", keep=Keep(parent=_SESSION, why="a note goes when it enters the transcript"))

# Runs
RUNS = Table(
    "runs", Run, "join_digest", key="position", counts="position",
    of="session", keep=Keep(parent=_SESSION, after="ended_at"))
TOOL_CALLS = Table("tool_calls", ToolCall, computed="is_asked", key="id", of="session", keep=Keep(parent=_RUN))
ATTACHMENTS = Table(
    "attachments", NoStruct, "call_id run_id number body", key="call_id", of="session", keep=Keep(parent=_RUN))
RUN_EVENTS = Table(
    "run_events", RunEvent, "number", key="number", counts="number",
    of="session", keep=Keep(parent=_RUN))
APPROVALS = Table(
    "approvals", Approval, "fence", key="number", counts="number",
    of="all", keep=Keep(parent=_RUN, after="answered_at"))
APPROVAL_GRANTS = Table(
    "approval_grants", NoStruct, "session_key tool granted_at", key="session_key tool",
    of="all", keep=Keep(parent=_SESSION))
IDEMPOTENCY = Table(
    "idempotency", NoStruct, "key digest run_id result created_at", key="key",
    of="key", keep=Keep(after="created_at"))
MCP_CALLS = Table("mcp_calls", McpCall, key="id", of="all", keep=Keep(after="created_at"))
TIMERS = Table(
    "timers", NoStruct, "kind ref due_at set_at", key="kind ref",
    of="key", keep=Keep(why="a timer goes when it fires, or when nothing needs it any more"))

# Budgets
BUDGET_WINDOWS = Table("budget_windows", LedgerRow, key="id", of="key", keep=Keep(after="touched_at"))
BUDGET_HOLDS = Table(
    "budget_holds", NoStruct, "id process body", key="id",
    of="key", keep=Keep(why="a hold goes when its call is over, or its process"))

# Flows between sessions
EXCHANGES = Table(
    "exchanges", NoStruct, "id requester_key target_key state turn body call_id delivery_id created_at updated_at",
    key="id", of="all", keep=Keep(parent=("target_key", "sessions.key"), after="updated_at", when=_IS_DONE))
SPAWNS = Table(
    "spawns", NoStruct,
    "id requester_key requester_run child_key state body delivery_id call_id created_at updated_at",
    key="id", of="all", keep=Keep(parent=("requester_key", "sessions.key"), after="updated_at", when=_IS_DONE))
BARRIERS = Table(
    "barriers", NoStruct, "id session_key state body created_at", key="id",
    of="all", keep=Keep(parent=_SESSION, after="created_at", when=_IS_DONE))
WAITS = Table(
    "waits", NoStruct, "call_id waiter_key target_key run_id until_at fence", key="call_id",
    of="all", keep=Keep(parent=("waiter_key", "sessions.key"), why="a wait goes when its call ends"))

# Chats: what leaves for them, and what comes from them
DELIVERIES = Table(
    "deliveries", Delivery, "sender", key="number", counts="number",
    of="all", keep=Keep(parent=_SESSION, after="updated_at", when="state NOT IN ('pending', 'sending')"))
DELIVERY_PARTS = Table(
    "delivery_parts", Part, key="delivery_id n", of="all", keep=Keep(parent=("delivery_id", "deliveries.id")))
DELIVERY_LINES = Table(
    "delivery_lines", NoStruct, "channel account_id target thread_id last", key="channel account_id target thread_id",
    of="all", keep=Keep(why="the line of a chat gives out no place twice"))
DRAFTS = Table(
    "drafts", ShownDraft, key="run_id",
    of="all", keep=Keep(parent=_RUN, why="a draft goes when the reply has taken its place"))
INBOUND_IDS = Table(
    "inbound_ids", NoStruct, "channel account_id chat_id message_id outcome at",
    key="channel account_id chat_id message_id", of="all", keep=Keep(after="at"))
CHAT_MOVES = Table(
    "chat_moves", NoStruct, "channel account_id chat_id moved_to home", key="channel account_id chat_id",
    of="all", keep=Keep(why="the first id of a moved chat names its sessions"))
ACCOUNT_HOLDS = Table(
    "account_holds", NoStruct, "channel account_id set_at until_at", key="channel account_id",
    of="all", keep=Keep(after="until_at"))
PAIRINGS = Table(
    "pairings", PairingRecord, key="number", counts="number", of="all",
    keep=Keep(after="created_at", when="state = 'pending'", why="an answer counts until an owner takes it back"))
OWNER_CHATS = Table(
    "owner_chats", NoStruct, "channel account_id owner_id chat_id", key="channel account_id owner_id",
    of="all", keep=Keep(why="an owner is asked in the chat where they wrote last"))

# Settings that programs and people have stored
CRON_JOBS = Table("cron_jobs", StoredJob, key="id", of="all", keep=Keep(why="whoever added a job removes it"))
TOKENS = Table("tokens", TokenRow, key="id", of="all", keep=Keep(after="revoked_at"))
DEVICE_TOKENS = Table("device_tokens", DeviceToken, key="id", of="all", keep=Keep(after="used_at"))
FUNCTION_AGENTS = Table(
    "function_agents", NoStruct, "id since", key="id",
    of="all", keep=Keep(why="only its function answers for such an agent, until a person removes it"))

# Processes
PROCESSES = Table(
    "processes", NoStruct,
    "number started_at ended_at alive_at default_model lease_until place name version config agents jobs",
    key="number", counts="number", of="all", keep=Keep(after="ended_at"))
DUTIES = Table(
    "duties", NoStruct, "name process", key="name", of="all", keep=Keep(why="the next process takes the row over"))
PROBE = Table("probe", NoStruct, "id body", key="id", of="all", keep=Keep(why="there is one row"))

# Databases that several gateways share
GROWING = Table(
    "growing", NoStruct, "run_id wanted_until fence body", key="run_id", only="postgres",
    of="key", keep=Keep(parent=_RUN, after="wanted_until"))
MEDIA = Table(
    "media", NoStruct, "name part parts content", key="name part", only="postgres",
    of="key", keep=Keep(why="a picture stays as long as a message may name it"))
WAKEUPS = Table(
    "wakeups", NoStruct, "id sent_at body", key="id", counts="id", only="postgres",
    of="all", keep=Keep(after="sent_at"))
COMMIT_MARKS = Table(
    "commit_marks", NoStruct, "writer number marked_at", key="writer", only="postgres",
    of="all", keep=Keep(after="marked_at"))
WRITE_LOCKS = Table(
    "write_locks", NoStruct, "number", key="number", only="postgres",
    of="all", keep=Keep(why="each row is a lock"))
SCHEMA_VERSION = Table(
    "backchannel_schema", NoStruct, "version oldest", key="", only="postgres",
    of="all", keep=Keep(why="the one row is the version of the schema"))
# fmt: on

TABLES: tuple[Table[Any], ...] = tuple(value for value in list(globals().values()) if isinstance(value, Table))
"""All tables of this page; a table comes after those that its rows end with."""
