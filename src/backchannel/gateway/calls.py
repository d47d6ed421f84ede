"""Methods of the protocol, and calls of them.

To add a method, write its parameters and its handler in a file of `methods/` and put `@method(...)` on the handler.
Then run `make reference`. The page shows the handler's docstring and the type that it returns.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Generic, TypeVar, get_type_hints

import msgspec
from msgspec import Raw

from backchannel.core.incoming_json import TooMuchJson, check_parts
from backchannel.errors import Forbidden, InvalidRequest, ScopeMissing
from backchannel.gateway.auth import TokenHolder
from backchannel.gateway.events.audiences import Subscriber
from backchannel.gateway.events.subscriptions import Subscriptions
from backchannel.gateway.parts import GatewayParts
from backchannel.gateway.ws.connections import Connections, OpenWaits
from backchannel.wire.frames import TokenScope
from backchannel.wire.shapes import Params, SharedParams, bad_params

P = TypeVar("P", bound=Params)
A = TypeVar("A")


@dataclass(frozen=True, slots=True)
class Call:
    """One request, as its handler sees it."""

    parts: GatewayParts
    connections: Connections
    holder: TokenHolder
    subscriber: Subscriber
    waits: OpenWaits
    answer_first: Callable[[object], None]
    """Sends an answer before the last one, with the same id."""

    @property
    def subscriptions(self) -> Subscriptions:
        return self.connections.subscriptions


class Method(Generic[P, A]):
    """A method of the protocol. It can be called like its handler."""

    def __init__(
        self,
        name: str,
        scope: TokenScope,
        handler: Callable[[Call, P], Awaitable[A]],
        *,
        first: type[Any] | None = None,
        for_agents: bool = False,
        for_nodes: bool = False,
        is_open: bool = False,
        part: str | None = None,
    ) -> None:
        self.name = name
        self.scope = scope
        self.handler = handler
        self.params: type[P] = get_type_hints(handler)["params"]
        self.first = first
        """The type of an answer that comes before the last one."""
        self.for_agents = for_agents
        """Whether an agent's token may call it. The handler allows only the token's own session."""
        self.for_nodes = for_nodes
        """Whether only nodes may call it. The handler allows only the node's own sessions."""
        self.is_open = is_open
        """Whether an operator needs no scope for it. Such an answer is the same for everyone."""
        self.part = part
        """The part of the scope admin that is enough. OpenClaw's clients then ask for no other scope."""
        self._decode = msgspec.json.Decoder(self.params).decode

    def __call__(self, call: Call, params: P) -> Awaitable[A]:
        return self.handler(call, params)

    @property
    def answer(self) -> Any:
        """The type of its last answer."""
        return get_type_hints(self.handler)["return"]

    @property
    def is_shared(self) -> bool:
        """Whether OpenClaw's gateway has it too. Unknown parameters are then ignored."""
        return issubclass(self.params, SharedParams)

    @property
    def doc(self) -> str:
        """Its handler's docstring: what it does, and what a client has to know."""
        return (self.handler.__doc__ or "").strip()

    def read_params(self, raw: Raw) -> P:
        """Read a request's parameters.

        Raises:
            InvalidRequest: one is missing, of the wrong type, or unknown. The message names it.
        """
        body = bytes(raw) if raw else b"{}"
        try:
            check_parts(body)
            params: P = self._decode(b"{}" if body == b"null" else body)
        except TooMuchJson as error:
            raise InvalidRequest(f"{self.name}: {error}") from None
        except msgspec.ValidationError as error:
            raise bad_params(self.name, error, self.params) from None
        return params


def method(name: str, scope: TokenScope, **options: Any) -> Callable[[Callable[[Call, P], Awaitable[A]]], Method[P, A]]:
    """Make a method of a handler; the options are those of `Method`."""
    return lambda handler: Method(name, scope, handler, **options)


def methods_of(module: ModuleType) -> Iterator[Method[Any, Any]]:
    """List the methods that a module defines, in their order."""
    for each in vars(module).values():
        if isinstance(each, Method) and sys.modules[each.handler.__module__] is module:
            yield each


def check_allowed(holder: TokenHolder, method: Method[Any, Any], methods: Mapping[str, Method[Any, Any]]) -> None:
    """Refuse a method that the token does not permit.

    Raises:
        Forbidden: an agent's token or a node may not call it, or only a node may.
        ScopeMissing: the method needs a scope that was not granted.
    """
    if holder.node is not None:
        if not method.for_nodes:
            open_to_it = ", ".join(sorted(name for name, each in methods.items() if each.for_nodes))
            raise Forbidden(f"a node may not call {method.name} (it may call {open_to_it})")
    elif method.for_nodes:
        raise Forbidden(f"{method.name} is for nodes (connect with the role node and a nodeId)")
    elif holder.is_agent:
        if not method.for_agents:
            raise Forbidden(f"an agent's token may not call {method.name}")
    elif not (method.scope in holder.scopes or method.is_open or method.part in holder.parts):
        raise ScopeMissing(
            f"{method.name} needs the scope {method.scope.value} (granted: {', '.join(holder.shown_scopes) or 'none'})",
            scope=method.scope.value,
        )
