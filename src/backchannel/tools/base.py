"""What a session tool is: a name, a description and parameters that a model reads, and one function.

A tool is added with one file and one line of `tools/registry.py`. Every door reaches it through `SessionTools`:
agents, WebSocket, HTTP, MCP, the command line and Python programs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import msgspec

from backchannel.errors import InvalidRequest
from backchannel.tools.inputs import Answer, Params
from backchannel.tools.kinds import bad_params
from backchannel.tools.parts import Caller, Parts


class SessionTool(ABC):
    """One tool; a subclass is one line of the registry."""

    name: ClassVar[str]
    description: ClassVar[str]
    params: ClassVar[type[Params]]
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
        """Describe the parameters as JSON Schema, in one piece."""
        _, components = msgspec.json.schema_components([cls.params], ref_template="#/$defs/{name}")
        schema = components.pop(cls.params.__name__)
        for extra in ("title", "description"):
            schema.pop(extra, None)
        schema["additionalProperties"] = False
        return {**schema, "$defs": components} if components else schema
