"""The routes under `/v1`, for clients of OpenAI's API.

`model` names the agent. The header `x-backchannel-session`, `user` or the continued response names the session.
Otherwise the session is new, and archived when it was not used for a while. A client that disconnects does not stop its
run. A repeated request is answered by the run of the first: see `_join`.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from string import printable
from typing import Any, Literal, Protocol
from urllib.parse import quote

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from backchannel.config.schema_doors import parse_duration
from backchannel.core.keys import SessionKey, normalise_agent_id
from backchannel.core.messages import Provenance, ProvenanceKind, decode_message
from backchannel.core.runs import Join, Run, RunRequest, RunState
from backchannel.core.text import quoted
from backchannel.errors import Forbidden, InvalidRequest, RunNotFound, ScopeMissing, ShuttingDown
from backchannel.gateway.addressing import address_for_message
from backchannel.gateway.auth import Access, TokenHolder
from backchannel.gateway.errors import show_error
from backchannel.gateway.fields import read_idempotency_key
from backchannel.gateway.openai import chat, input_items, reading, responses
from backchannel.gateway.openai.following import Pause, describe_failure, follow, show_failure, wait_ended
from backchannel.gateway.openai.reading import Utterance, build_question
from backchannel.gateway.parts import GatewayParts
from backchannel.gateway.ws.connections import OpenWaits
from backchannel.tools.base import hash_request
from backchannel.wire.frames import TokenScope

SESSION_HEADER = "x-backchannel-session"
REPEATED_WITHIN_MS = 60_000
"""The time after its end in which a run answers a declared retry."""

# Without them a proxy may hold a stream back until it ends.
_STREAM_HEADERS = {"cache-control": "no-cache", "x-accel-buffering": "no"}
_THINKING = {"none": "off"}


class ShownModel(msgspec.Struct):
    """An agent as a model."""

    id: str
    object: Literal["model"] = "model"
    created: int = 0
    owned_by: str = "backchannel"


class ModelList(msgspec.Struct, kw_only=True):
    object: Literal["list"] = "list"
    data: list[ShownModel]


class Form(Protocol):
    """A streamed answer, in one of the two APIs."""

    def begin(self, run: Run) -> bytes: ...
    def piece(self, run: Run, text: str) -> bytes: ...
    def end(self, run: Run) -> bytes: ...
    def fail(self, run: Run, error: dict[str, Any]) -> bytes: ...


class AgentQuestion(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a request that both APIs have: session and run."""

    agent_id: str
    key: SessionKey
    is_fresh: bool
    """Whether the session is new."""
    lines: Sequence[Utterance]
    effort: str | None
    lives_ms: int
    """The life of a new session."""
    session_id: str | None = None
    """The session id that the client expects; it may be replaced at any moment."""


class OpenAiDoor:
    """Serves the routes."""

    def __init__(self, parts: GatewayParts, access: Access, waits: OpenWaits) -> None:
        self._parts = parts
        self._access = access
        self._waits = waits
        self._lives_ms = parse_duration(parts.config.gateway.http.session_ttl)

    def routes(self) -> list[Route]:
        return [
            Route("/v1/chat/completions", self._complete, methods=["POST"]),
            Route("/v1/responses", self._respond, methods=["POST"]),
            Route("/v1/responses/{id:path}/input_items", self._input_items, methods=["GET"]),
            Route("/v1/responses/{id:path}", self._response, methods=["GET"]),
            Route("/v1/responses/{id:path}", self._keep_response, methods=["DELETE"]),
            Route("/v1/models", self._models, methods=["GET"]),
            Route("/v1/models/{id:path}", self._model, methods=["GET"]),
        ]

    async def _login(self, request: Request, needed: TokenScope) -> TokenHolder:
        caller = await self._access.admit(request)
        if caller.is_agent:
            raise Forbidden("an agent's token is for the session tools; use an operator token here")
        if needed not in caller.scopes:
            raise ScopeMissing(f"this needs the scope {needed.value}", scope=needed.value)
        return caller

    # --- Models ---

    async def _models(self, request: Request) -> Response:
        await self._login(request, TokenScope.READ)
        return _json(ModelList(data=[ShownModel(id=id_) for id_ in self._parts.agents.ids()]), {})

    async def _model(self, request: Request) -> Response:
        await self._login(request, TokenScope.READ)
        return _json(ShownModel(id=self._agent(request.path_params["id"])), {})

    def _agent(self, model: str) -> str:
        agent_id = normalise_agent_id(model.removeprefix("backchannel/").removeprefix("agent:"))
        if agent_id == "backchannel":
            return self._parts.agents.default_id
        self._parts.agents.get(agent_id)
        return agent_id

    # --- Chat completions and responses ---

    async def _complete(self, request: Request) -> Response:
        caller = await self._login(request, TokenScope.WRITE)
        given, ignored = reading.read_request(await request.body(), chat.ChatRequest, reading.CHAT)
        agent_id = self._agent(given.model)
        key, is_fresh = await self._key(agent_id, request.headers.get(SESSION_HEADER) or given.user)
        asked = AgentQuestion(
            agent_id=agent_id,
            key=key,
            is_fresh=is_fresh,
            lines=chat.read_lines(given.messages),
            effort=given.reasoning_effort,
            lives_ms=self._lives_ms,
        )
        run = await self._submit(request, caller, asked)
        headers = _headers(run, ignored)
        if given.stream:
            with_usage = given.stream_options is not None and given.stream_options.include_usage is True
            return self._streaming(run, chat.Chunks(agent_id, with_usage=with_usage), headers)
        ended = await wait_ended(self._parts.runtime, run, self._waits)
        if ended.state is not RunState.OK:
            return show_failure(ended)
        return _json(chat.show_completion(ended, agent_id), headers)

    async def _respond(self, request: Request) -> Response:
        caller = await self._login(request, TokenScope.WRITE)
        given, ignored = reading.read_request(await request.body(), responses.ResponsesRequest, reading.RESPONSES)
        agent_id = self._agent(given.model)
        previous, session_id = given.previous_response_id, None
        if previous is None:
            key, is_fresh = await self._key(agent_id, request.headers.get(SESSION_HEADER) or given.user)
        else:
            (key, session_id), is_fresh = await self._continued(agent_id, previous), False
        asked = AgentQuestion(
            agent_id=agent_id,
            key=key,
            is_fresh=is_fresh,
            lines=responses.read_lines(given),
            effort=None if given.reasoning is None else given.reasoning.effort,
            lives_ms=self._lives_ms if given.store else 0,
            session_id=session_id,
        )
        run = await self._submit(request, caller, asked)
        headers = _headers(run, ignored)
        if given.stream:
            return self._streaming(run, responses.ResponseEvents(agent_id, previous), headers)
        ended = await wait_ended(self._parts.runtime, run, self._waits)
        if ended.state is not RunState.OK:
            return show_failure(ended)
        return _json(responses.show_response(ended, agent_id, previous), headers)

    async def _response(self, request: Request) -> Response:
        await self._login(request, TokenScope.READ)
        run = await self._run_of(request.path_params["id"])
        return _json(responses.show_response(run, SessionKey.stored(run.session_key).agent), {})

    async def _input_items(self, request: Request) -> Response:
        await self._login(request, TokenScope.READ)
        run = await self._run_of(request.path_params["id"])
        asked = input_items.read_page(request.query_params)
        # While the run waits, it has its message itself.
        message = decode_message(run.message) if run.message else await self._parts.store.message(run.message_id)
        if message is None:
            raise RunNotFound(f"the input of {quoted(responses.response_id(run))} is gone")
        return _json(input_items.show_items(message, asked), {})

    async def _keep_response(self, request: Request) -> Response:
        await self._login(request, TokenScope.READ)
        await self._run_of(request.path_params["id"])
        error = InvalidRequest(
            "a response is not deleted: it is a run of a session, whose transcript is kept. A session that was made "
            "for a request is archived after gateway.http.sessionTtl, and at once with store: false"
        )
        return show_error(error, request.url.path, 405, {"Allow": "GET"})

    async def _run_of(self, response_id: str, param: str | None = None) -> Run:
        run = await self._parts.store.run(response_id.removeprefix(responses.ID_PREFIX))
        if run is None or not response_id.startswith(responses.ID_PREFIX):
            raise RunNotFound(f"there is no response {quoted(response_id)}", param=param)
        return run

    async def _continued(self, agent_id: str, previous: str) -> tuple[SessionKey, str]:
        """Name the session of an earlier response, and its transcript.

        Raises:
            RunNotFound: there is no such response, or its session is gone.
            InvalidRequest: it is another agent's.
        """
        run = await self._run_of(previous, "previous_response_id")
        session = await self._parts.store.session(run.session_key)
        if session is None or session.archived_at is not None or run.session_id not in (None, session.session_id):
            raise RunNotFound(
                f"the session of {quoted(previous)} is gone (gateway.http.sessionTtl says how long one is kept): "
                "send the whole conversation instead",
                param="previous_response_id",
            )
        if session.agent_id != agent_id:
            raise InvalidRequest(f"{quoted(previous)} is a response of {session.agent_id!r}", param="model")
        return SessionKey.stored(run.session_key), session.session_id

    async def _key(self, agent_id: str, name: str | None) -> tuple[SessionKey, bool]:
        """Name the session; also returns whether it is new."""
        if not name:
            return SessionKey.openai(agent_id, str(uuid.uuid4())), True
        if name.startswith("agent:"):
            return (await address_for_message(self._parts, name, agent_id)).key, False
        return SessionKey.openai(agent_id, name), False

    async def _submit(self, request: Request, caller: TokenHolder, asked: AgentQuestion) -> Run:
        question = build_question(asked.lines, remembers=not asked.is_fresh)
        run_id = read_idempotency_key(request.headers.get("idempotency-key"), "Idempotency-Key")
        # A fresh session's key is new each time; what is asked is the same.
        place = (request.url.path, asked.agent_id if asked.is_fresh else str(asked.key))
        wanted = RunRequest(
            key=asked.key,
            content=question.content,
            provenance=Provenance(kind=ProvenanceKind.EXTERNAL_USER),
            instructions=question.instructions,
            thinking=asked.effort and _THINKING.get(asked.effort, asked.effort),
            session_lives_ms=asked.lives_ms if asked.is_fresh else None,
            expected_session_id=asked.session_id,
            id=run_id,
            digest=hash_request(caller.token_id, *place, question) if run_id else None,
            join=None if run_id else self._join(request, hash_request(caller.token_id, *place, await request.body())),
        )
        return (await self._parts.runtime.submit(wanted)).run

    def _join(self, request: Request, digest: str) -> Join:
        """Find the run that may answer a request without a key: an unfinished one with the same request.

        Clients repeat a request by themselves when no answer comes. For a declared retry a run that has just ended
        counts too: its answer may have been lost or late.
        """
        repeats = request.headers.get("x-stainless-retry-count", "0")
        is_repeat = repeats.isdecimal() and int(repeats[:9]) > 0
        return Join(
            digest=digest,
            ended_since=self._parts.clock.now_ms() - REPEATED_WITHIN_MS if is_repeat else None,
        )

    def _streaming(self, run: Run, form: Form, headers: Mapping[str, str]) -> Response:
        return StreamingResponse(
            self._stream(run, form), media_type="text/event-stream", headers={**headers, **_STREAM_HEADERS}
        )

    async def _stream(self, run: Run, form: Form) -> AsyncIterator[bytes]:
        yield form.begin(run)
        try:
            async with aclosing(follow(self._parts.runtime, run, self._waits)) as happenings:
                async for happening in happenings:
                    match happening:
                        case Pause():
                            yield happening.value.encode()
                        case str():
                            yield form.piece(run, happening)
                        case Run(state=RunState.OK):
                            yield form.end(happening)
                        case Run():
                            yield form.fail(happening, describe_failure(happening))
        except ShuttingDown as stopping:
            error = {"message": stopping.message, "type": "server_error", "param": None, "code": stopping.code}
            yield form.fail(run, error)


def _headers(run: Run, ignored: Sequence[str]) -> dict[str, str]:
    headers = {SESSION_HEADER: quote(run.session_key, safe=printable)}
    if ignored:
        headers[reading.IGNORED_HEADER] = ", ".join(quote(name[:64], safe="") for name in ignored[:50])
    return headers


def _json(body: msgspec.Struct, headers: Mapping[str, str]) -> Response:
    return Response(msgspec.json.encode(body), media_type="application/json", headers=dict(headers))
