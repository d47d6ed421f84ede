"""The base of a session tool: name, description, parameters, and one function.

A tool is added with one file and one line of `tools/registry.py`. Every door reaches it through `SessionTools`:
agents, WebSocket, HTTP, MCP, the command line and Python programs. Below the base stands what tools share: the caller,
the parts of the gateway that tools use, the ids of what a call starts, and the cursors of lists.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol, TypeVar

import msgspec

from backchannel.agents.models import Models
from backchannel.agents.registry import Agents
from backchannel.config.schema import Config
from backchannel.core.contracts import Clock
from backchannel.core.keys import KeyScheme, SessionKey
from backchannel.core.policy.visibility import OPERATOR, Viewer
from backchannel.core.runs import FlowCall
from backchannel.errors import InvalidRequest
from backchannel.runtime.events import Retries
from backchannel.runtime.guard import SendGuard
from backchannel.runtime.waits import Exchanges
from backchannel.storage.ids import new_id
from backchannel.storage.store import Store
from backchannel.wire.shapes import Answer, Params, bad_params, params_schema

T = TypeVar("T")

LONG_TEXT = 64 * 1024
"""Below so many characters, handing work to a thread costs more than the work."""


class SessionTool(ABC):
    """One tool; a subclass is one line of the registry."""

    name: ClassVar[str]
    description: ClassVar[str]
    params: ClassVar[type[Params]]
    rules: ClassVar[Mapping[str, Any]] = {}
    """What a schema can say of its arguments beyond their types. No model is told: providers refuse it at the top."""
    scope: ClassVar[Literal["read", "write"]]
    """What an operator's token needs to call it."""
    outcomes: ClassVar[tuple[tuple[str, str], ...]] = ()
    """When it answers what: for the reference page."""
    examples: ClassVar[tuple[tuple[str, Mapping[str, Any]], ...]] = ()
    """What can be asked for, and the arguments that do: for the reference page."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    @abstractmethod
    async def run(self, caller: Caller, params: Any) -> Answer:
        """Do it; an outcome that the caller should handle is an answer with a `status`, not an error."""

    async def invoke(self, caller: Caller, arguments: Any) -> Answer:
        """Check the arguments, then do it.

        Raises:
            InvalidRequest: they do not fit; the message names the parameter.
        """
        return await self.run(caller, self.read(arguments))

    @classmethod
    def read(cls, arguments: Any) -> Params:
        if not isinstance(arguments, dict):
            raise InvalidRequest(f"{cls.name}: the arguments must be an object, such as {{}}")
        try:
            # By way of JSON, so that a Python program can pass nothing that no other door would let in.
            return msgspec.json.decode(msgspec.json.encode(arguments), type=cls.params)
        except msgspec.ValidationError as error:
            raise bad_params(cls.name, error, cls.params) from None
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise InvalidRequest(f"{cls.name}: the arguments are not JSON: {error}") from None

    @classmethod
    def schema(cls) -> dict[str, Any]:
        return params_schema(cls.params)


class Until(Protocol):
    """Awaits something that may be broken off."""

    async def __call__(self, awaitable: Awaitable[T]) -> T: ...


@dataclass(frozen=True, slots=True)
class Caller:
    """On whose behalf a tool is called: a session, or the operator, who has no key."""

    key: SessionKey | None = None
    call_id: str | None = None
    """What makes a repeated call the same call."""
    run_id: str | None = None
    """The run in which the session calls; None for a call from outside a run."""
    token_id: str | None = None
    """Whose token it came by, from outside."""
    until: Until | None = field(default=None, compare=False)
    """Ends a wait when the gateway stops, as `ShuttingDown`; what else the call does is left to come to its end."""


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of a gateway that tools and doors work with, put together in `gateway/app.py`."""

    config: Config
    store: Store
    agents: Agents
    models: Models
    scheme: KeyScheme
    clock: Clock
    exchanges: Exchanges
    guard: SendGuard
    retries: Retries

    def viewer(self, caller: Caller) -> Viewer:
        """Join a caller with the settings that decide what it sees."""
        if caller.key is None:
            return OPERATOR
        settings = self.agents.get(caller.key.agent)
        return Viewer.of(caller.key, self.scheme, settings, self.config.tools.agent_to_agent)


def name_flow(caller: Caller, tool: str, first_run: str, *asked: object) -> FlowCall:
    """Name what a call of a tool starts, and its first run: after the call, so that its repetition finds the same.

    From outside, the call's idempotency key is the id of that run, and stands for all that was `asked`.
    """
    key = caller.call_id or new_id()
    in_run = caller.run_id is not None
    # A program chooses its keys, and the id of a call can be guessed: the one must never stand for the other.
    place = "run" if in_run else "key"
    flow_id = hashlib.sha256(f"{tool} {caller.key} {place} {key}".encode()).hexdigest()[:32]
    has_key = caller.call_id is not None and not in_run
    return FlowCall(
        flow_id=flow_id,
        run_id=key if has_key else f"{flow_id}/{first_run}",
        call_id=caller.call_id if in_run else None,
        calling_run=caller.run_id,
        digest=hash_request(caller.token_id, tool, str(caller.key), *asked) if has_key else None,
    )


def hash_request(token_id: str | None, method: str, *parts: object) -> str:
    """Hash a request, to distinguish its repetition from another request under the same key."""
    return hashlib.sha256(msgspec.json.encode([token_id, method, *parts])).hexdigest()


async def off_loop(size: int, work: Callable[[], T]) -> T:
    """Run work whose time grows with the size of a text: in a thread, unless the text is short."""
    return work() if size < LONG_TEXT else await asyncio.to_thread(work)


def write_cursor(query: object, place: object) -> str:
    """Make the cursor of a place in a query's list: opaque to clients, and bound to the query."""
    body = msgspec.json.encode([_mark(query), place])
    return base64.urlsafe_b64encode(body).decode().rstrip("=")


def read_cursor(cursor: str, query: object, kind: type[T]) -> T:
    """Read the place back.

    Raises:
        InvalidRequest: it is no cursor, or one of another query.
    """
    try:
        body = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
        mark, place = msgspec.json.decode(body, type=tuple[str, msgspec.Raw])
        found = msgspec.json.decode(place, type=kind)
    except (ValueError, RecursionError):
        raise InvalidRequest("cursor: expected the nextCursor of a list", param="cursor") from None
    if mark != _mark(query):
        raise InvalidRequest(
            "cursor: it belongs to a list with other filters (repeat them, or leave the cursor out)", param="cursor"
        )
    return found


def _mark(query: object) -> str:
    return hashlib.sha256(msgspec.json.encode(query)).hexdigest()[:16]
