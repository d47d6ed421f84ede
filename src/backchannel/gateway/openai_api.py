"""The OpenAI-style door: `POST /v1/chat/completions` and `GET /v1/models`, for clients that speak nothing else.

`model` names the agent. The session is named by the header `x-backchannel-session` or by `user`, else it is a fresh
one. A named session has its own transcript, so only what came after the client's last assistant message is new; a
fresh one is told the client's whole history. A client that goes away does not stop its run.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from string import printable
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import quote

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from backchannel.core.facts import RunChanged
from backchannel.core.keys import SessionKey, normalise_agent_id
from backchannel.core.messages import Provenance, ProvenanceKind, text_content
from backchannel.core.runs import Run, RunRequest, RunState
from backchannel.errors import Forbidden, GatewayError, InvalidRequest, ScopeMissing, UnknownAgent
from backchannel.gateway.addressing import address_for_message
from backchannel.gateway.auth import Access, Caller
from backchannel.gateway.events import error_of
from backchannel.gateway.messages import read_idempotency_key
from backchannel.gateway.protocol import Scope
from backchannel.runtime.events import Event, ReplyGrew
from backchannel.tools.flows import hash_request

if TYPE_CHECKING:
    from backchannel.gateway.app import Gateway

SESSION_HEADER = "x-backchannel-session"
_DONE = b"data: [DONE]\n\n"


class TextPart(msgspec.Struct, tag_field="type", tag="text"):
    text: str


class ChatMessage(msgspec.Struct):
    """One message of the client's history."""

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | list[TextPart] | None = None

    @property
    def text(self) -> str:
        if isinstance(self.content, list):
            return "\n".join(part.text for part in self.content)
        return self.content or ""


class ChatRequest(msgspec.Struct):
    """What a client asks; settings of the model belong to the agent, and are passed over."""

    model: str
    messages: list[ChatMessage]
    stream: bool = False
    user: str | None = None


class OpenAiDoor:
    """Serves the two routes."""

    def __init__(self, gateway: Gateway, access: Access) -> None:
        self._gateway = gateway
        self._access = access

    def routes(self) -> list[Route]:
        return [
            Route("/v1/chat/completions", self._guarded(self._complete), methods=["POST"]),
            Route("/v1/models", self._guarded(self._models), methods=["GET"]),
        ]

    def _guarded(self, handle: Any) -> Any:
        """Show errors in the form that these clients read."""

        async def guarded(request: Request) -> Response:
            try:
                response: Response = await handle(request)
                return response
            except GatewayError as error:
                return JSONResponse({"error": _error(error)}, status_code=error.http_status)

        return guarded

    async def _login(self, request: Request, needed: Scope) -> Caller:
        caller = await self._access.admit(request)
        if caller.is_agent:
            raise Forbidden("an agent's token is for the session tools; use an operator token here")
        if needed not in caller.scopes:
            raise ScopeMissing(f"this needs the scope {needed.value}", scope=needed.value)
        return caller

    async def _models(self, request: Request) -> Response:
        await self._login(request, Scope.READ)
        agents = [
            {"id": agent_id, "object": "model", "created": 0, "owned_by": "backchannel"}
            for agent_id in self._gateway.agents.ids()
        ]
        return JSONResponse({"object": "list", "data": agents})

    async def _complete(self, request: Request) -> Response:
        caller = await self._login(request, Scope.WRITE)
        asked = _read(await request.body())
        agent_id = self._agent(asked.model)
        name = request.headers.get(SESSION_HEADER) or asked.user
        key = await self._key(agent_id, name)
        run_id = read_idempotency_key(request.headers.get("idempotency-key"), "Idempotency-Key")
        run = await self._submit(caller, key, asked, run_id, is_new=name is None)
        if asked.stream:
            return StreamingResponse(self._stream(run, agent_id), media_type="text/event-stream")
        return self._whole(await self._ended(run), agent_id)

    def _agent(self, model: str) -> str:
        agent_id = normalise_agent_id(model.removeprefix("backchannel/").removeprefix("agent:"))
        if agent_id == "backchannel":
            return self._gateway.agents.default_id
        self._gateway.agents.get(agent_id)
        return agent_id

    async def _key(self, agent_id: str, name: str | None) -> SessionKey:
        if name is None:
            return SessionKey.openai(agent_id, str(uuid.uuid4()))
        if name.startswith("agent:"):
            return await address_for_message(self._gateway, name, agent_id)
        return SessionKey.openai(agent_id, name)

    async def _submit(
        self, caller: Caller, key: SessionKey, asked: ChatRequest, run_id: str | None, *, is_new: bool
    ) -> Run:
        text = _whole_history(asked.messages) if is_new else _new_part(asked.messages)
        if not text.strip():
            raise InvalidRequest("the last message must be the user's, and not be empty", param="messages")
        place = asked.model if is_new else str(key)  # a fresh session's key is new each time; what is asked is the same
        request = RunRequest(
            key=key,
            content=text_content(text),
            provenance=Provenance(kind=ProvenanceKind.EXTERNAL_USER),
            id=run_id,
            digest=hash_request(caller.token_id, "openai", place, text) if run_id else None,
        )
        return (await self._gateway.runtime.submit(request)).run

    async def _ended(self, run: Run) -> Run:
        while not run.is_finished:
            run = await self._gateway.runtime.wait(run.id, 3600.0)
        return run

    def _whole(self, run: Run, agent_id: str) -> Response:
        if run.state is not RunState.OK:
            error = {"message": error_of(run), "type": "run_failed", "param": None, "code": run.error_code}
            return JSONResponse({"error": error}, status_code=500 if run.state is RunState.ERROR else 504)
        message = {"role": "assistant", "content": run.reply or ""}
        body = {
            **_frame(run, agent_id, "chat.completion"),
            "choices": [{"index": 0, "message": message, "finish_reason": "stop", "logprobs": None}],
            "usage": _usage(run),
        }
        return JSONResponse(body, headers={SESSION_HEADER: quote(run.session_key, safe=printable)})

    async def _stream(self, run: Run, agent_id: str) -> AsyncIterator[bytes]:
        """Send the reply as it grows, then what is committed; the row is the truth, events are hints."""
        yield _chunk(run, agent_id, {"role": "assistant", "content": ""})
        sent = ""
        async for event in self._events(run):
            if isinstance(event, ReplyGrew) and event.text.startswith(sent):
                yield _chunk(run, agent_id, {"content": event.text[len(sent) :]})
                sent = event.text
        ended = await self._ended(run)
        if ended.state is not RunState.OK:
            error = {"message": error_of(ended), "type": "run_failed", "param": None, "code": ended.error_code}
            yield b"data: " + msgspec.json.encode({"error": error}) + b"\n\n" + _DONE
            return
        reply = ended.reply or ""
        rest = reply[len(sent) :] if reply.startswith(sent) else f"\n\n{reply}"
        if rest:
            yield _chunk(run, agent_id, {"content": rest})
        yield _chunk(run, agent_id, {}, finish="stop")
        yield _DONE

    async def _events(self, run: Run) -> AsyncIterator[Event]:
        """Follow one run until it has ended; a slow client misses events, never the reply."""
        queue: asyncio.Queue[Event] = asyncio.Queue(maxsize=1000)

        def hear(event: Event) -> None:
            if isinstance(event, ReplyGrew | RunChanged) and event.run.id == run.id and not queue.full():
                queue.put_nowait(event)

        unlisten = self._gateway.runtime.hub.listen(hear)
        try:
            ended = asyncio.create_task(self._ended(run))
            while not (ended.done() and queue.empty()):
                getting = asyncio.create_task(queue.get())
                await asyncio.wait({getting, ended}, return_when=asyncio.FIRST_COMPLETED)
                if getting.done():
                    yield getting.result()
                else:
                    getting.cancel()
        finally:
            unlisten()
            ended.cancel()


def _read(body: bytes) -> ChatRequest:
    try:
        return msgspec.json.decode(body, type=ChatRequest)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"the body is not a chat completion request: {error}") from error


def _new_part(messages: list[ChatMessage]) -> str:
    """Take what the client said since the last reply it knows of; the session remembers the rest."""
    new: list[str] = []
    for message in reversed(messages):
        if message.role == "assistant":
            break
        if message.role == "user":
            new.append(message.text)
    return "\n\n".join(reversed(new))


def _whole_history(messages: list[ChatMessage]) -> str:
    """Tell a fresh session all that the client knows, its last message as it is."""
    new = _new_part(messages)
    last = max((index for index, message in enumerate(messages) if message.role == "assistant"), default=-1)
    earlier = [
        f"{message.role}: {message.text}"
        for index, message in enumerate(messages)
        if (index <= last or message.role in ("system", "developer")) and message.text
    ]
    if not earlier or not new:
        return new
    return "Earlier in this conversation:\n\n" + "\n\n".join(earlier) + "\n\nNow:\n\n" + new


def _frame(run: Run, agent_id: str, kind: str) -> dict[str, Any]:
    return {"id": f"chatcmpl-{run.id}", "object": kind, "created": run.accepted_at // 1000, "model": agent_id}


def _chunk(run: Run, agent_id: str, delta: dict[str, str], finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish, "logprobs": None}
    body = {**_frame(run, agent_id, "chat.completion.chunk"), "choices": [choice]}
    return b"data: " + msgspec.json.encode(body) + b"\n\n"


def _usage(run: Run) -> dict[str, int]:
    usage = run.usage
    return {"prompt_tokens": usage.input, "completion_tokens": usage.output, "total_tokens": usage.total}


def _error(error: GatewayError) -> dict[str, Any]:
    kind = "invalid_request_error" if error.http_status < 500 else "server_error"
    code = "model_not_found" if isinstance(error, UnknownAgent) else error.code
    return {"message": error.message, "type": kind, "param": error.details.get("param"), "code": code}
