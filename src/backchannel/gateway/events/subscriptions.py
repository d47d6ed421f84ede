"""Subscriptions: events for the connections that want them.

The runtime's hub publishes committed facts and live progress. `Subscriptions` turns them into wire events. Their
audiences:

- `chat` and `agent`: clients that started the run, got it from `agent.wait` before its end, watch its session, or
  subscribed to all sessions.
- `chat` alone: a node, for its own sessions (`run_streams.py` has the texts).
- `sessions.changed`: clients that subscribed to all sessions.
- `session.message`: clients that subscribed to the messages of that session, or to all sessions. The latter get no
  tool results here: they have them in `agent` events.
- `delivery`, `approval` (also in OpenClaw's words): clients that watch the session, or subscribed to all sessions.

Runs of a flow send `agent` events marked as internal, and only a last `chat` event without a message, which closes
their life cycle. The text of such a flow is a delivery. A delivery to webchat is the last `chat` event of its run,
which waits for it (`held.py`).

Events are hints: each connection numbers its own, and a client that sees a gap reads the rows again. An event without
subscribers costs a few dictionary look-ups, and an event for many is encoded once.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Set
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

from msgspec import Raw

from backchannel.core.contracts import Clock
from backchannel.core.delivery.delivery import Delivery, DeliveryState
from backchannel.core.excerpts import TEXT_LIMIT
from backchannel.core.facts import ApprovalChanged, DeliveryChanged, MessageAppended, RunChanged, SessionChanged
from backchannel.core.flows.steps import line_with_step
from backchannel.core.keys import SessionKey
from backchannel.core.messages import Role, text_content, text_of
from backchannel.core.policy.approvals import Approval
from backchannel.core.runs import Run, RunState
from backchannel.core.sessions import WEBCHAT
from backchannel.core.text import cut
from backchannel.gateway.events.audiences import Audiences, Subscriber
from backchannel.gateway.events.held import HeldEnd, HeldEnds, UnansweredRequests
from backchannel.gateway.events.run_streams import ChatPiece, RunStream, shown
from backchannel.gateway.events.session_news import LookUp, SessionNews, unknown_session
from backchannel.gateway.openclaw.approval_shapes import asked, resolved
from backchannel.gateway.openclaw.lines import line_for_people, placed
from backchannel.runtime.events import (
    CompactionMoved,
    Event,
    Hub,
    ListenerWants,
    ModelRetried,
    ReplyGrew,
    ThinkingGrew,
    ToolEnded,
    ToolStarted,
)
from backchannel.tools.rows import show_approval, show_delivery
from backchannel.wire.events import AgentEvent, ChatEvent, SessionMessage, ShownMessage
from backchannel.wire.frames import show_event_head


class Subscriptions:
    """Sends events to their subscribers."""

    def __init__(
        self,
        clock: Clock,
        show_key: Callable[[str], str] = str,
        look_up: LookUp = unknown_session,
        approval_lives_ms: int = 0,
    ) -> None:
        self._show_key = show_key
        """Shows a stored key as operators write it."""
        self._approval_lives_ms = approval_lives_ms
        self._news = SessionNews(clock, show_key, look_up, self._send_news)
        self._clock = clock
        self._everything: dict[Subscriber, None] = {}
        self._by_session = Audiences()
        self._by_chat = Audiences()
        self._by_run = Audiences()
        self._by_transcript = Audiences()
        self._streams: dict[str, RunStream] = {}
        self._held_ends = HeldEnds(self._send_of)
        self._unanswered = UnansweredRequests()
        self._ends: dict[str, list[set[str]]] = {}
        """The requests that collect the runs that end, by session."""
        self._wants_more: Callable[[str | None], None] = lambda run_id: None

    def listen_to(self, hub: Hub) -> Callable[[], None]:
        """Start sending the hub's events; the returned function stops it."""
        self._wants_more = hub.want
        return hub.listen(self.publish, elsewhere=True, wants=self._wanted)

    def subscribe(self, subscriber: Subscriber) -> None:
        """Send it the events of all sessions."""
        self._everything[subscriber] = None
        self._wants_more(None)

    def unsubscribe(self, subscriber: Subscriber) -> None:
        self._everything.pop(subscriber, None)

    def watch(self, subscriber: Subscriber, key: str) -> None:
        """Send it the `chat` and `agent` events of a session."""
        self._by_session.add(key, subscriber)
        self._wants_more(None)

    def watch_chat(self, subscriber: Subscriber, key: str) -> None:
        """Send it only the `chat` events of a session, as a node gets them."""
        self._by_chat.add(key, subscriber)
        self._wants_more(None)

    def watch_messages(self, subscriber: Subscriber, key: str) -> None:
        """Send it the new messages of a session, and its `chat` and `agent` events."""
        self._by_transcript.add(key, subscriber)
        self.watch(subscriber, key)

    def unwatch_messages(self, subscriber: Subscriber, key: str) -> None:
        self._by_transcript.remove(key, subscriber)

    def answering(self, subscriber: Subscriber, key: str) -> AbstractContextManager[None]:
        """Hold the `chat` and `agent` events of a session for it until its present request is answered."""
        return self._unanswered.keep(subscriber, key)

    def follow(self, subscriber: Subscriber, run: Run) -> None:
        """Send it the events of a run that it has just started."""
        if run.is_finished or subscriber in self._audience(run):
            return
        self._by_run.add(run.id, subscriber)
        if run.state is RunState.RUNNING:  # its start was sent before its id was known here
            stream = self._stream(run)
            stream.is_started = True
            self._send_of(run, {subscriber}, self._lifecycle(run, stream))
        self._wants_more(run.id)

    async def follow_unless_ended(self, subscriber: Subscriber, run_id: str, look: Callable[[], Awaitable[Run]]) -> Run:
        """Send it the events of a run from now on, then read the run, so that it misses no end.

        A run that had ended sends nothing more, except to a client that followed it before.
        """
        is_new = subscriber not in self._by_run.of(run_id)
        self._by_run.add(run_id, subscriber)
        self._wants_more(run_id)
        run = await look()
        if run.is_finished and is_new:
            self._by_run.remove(run_id, subscriber)
        return run

    def tell_end(self, subscriber: Subscriber, run: Run) -> None:
        """Send it the last `chat` event of an ended run, which it may have missed."""
        stream = RunStream()
        _, reply = stream.last_said(run)
        subscriber.send_event(self._chat_end(run, stream, stream.next(), reply), droppable=False)

    @contextmanager
    def hearing_ends(self, key: str) -> Iterator[Set[str]]:
        """Record runs that end while a snapshot is read, so that the client does not wait for a missed end."""
        ended: set[str] = set()
        hearing = self._ends.setdefault(key, [])
        hearing.append(ended)
        try:
            yield ended
        finally:
            hearing[:] = [other for other in hearing if other is not ended]
            if not hearing:
                self._ends.pop(key, None)

    def saying_now(self, run_id: str) -> str:
        """Give the unfinished text of a run, if anybody has listened; the transcript has the rest."""
        stream = self._streams.get(run_id)
        return "" if stream is None else stream.growing

    def answer(self, subscriber: Subscriber, id: str, key: str, text: str) -> None:
        """Send it the answer to a chat command."""
        head = self._said(id, key, shown(text, self._clock.now_ms()))
        self._unanswered.send(subscriber, key, head, droppable=False)

    def leave(self, subscriber: Subscriber) -> None:
        """Forget a connection."""
        self.unsubscribe(subscriber)
        for index in (self._by_session, self._by_chat, self._by_run, self._by_transcript):
            index.forget(subscriber)
        self._held_ends.forget(subscriber)
        self._unanswered.forget(subscriber)

    def publish(self, event: Event) -> None:
        """Send an event to its subscribers."""
        match event:
            case RunChanged():
                self._send_run(event.run)
            case MessageAppended():
                self._send_message(event)
            case SessionChanged():
                self._send_session(event)
            case DeliveryChanged():
                self._send_delivery(event.delivery)
            case ApprovalChanged():
                self._send_approval(event.approval)
            case ReplyGrew():
                self._send_reply(event)
            case ThinkingGrew(run, delta):
                self._send_agent(run, "thinking", {"delta": delta}, droppable=True)
            case ModelRetried(run, error, attempt, retry_at, attempts):
                data = {"attempt": attempt, "attempts": attempts, "error": error, "retryAt": retry_at}
                self._send_agent(run, "retry", data)
            case ToolStarted(run, call_id, name, arguments):
                data = {"phase": "start", "toolCallId": call_id, "name": name, "args": arguments}
                self._send_agent(run, "tool", data)
            case CompactionMoved(run, is_end, is_done):
                ended = {"willRetry": False, "completed": is_done} if is_end else {}
                self._send_agent(run, "compaction", {"phase": "end" if is_end else "start", **ended})
            case ToolEnded(run, call_id, name):
                data = {"phase": "result", "toolCallId": call_id, "name": name, **_result_of(event)}
                self._send_agent(run, "tool", data)

    def _wanted(self) -> ListenerWants:
        by_key = (self._by_session.names, self._by_chat.names, self._by_transcript.names)
        return ListenerWants(bool(self._everything), by_key, self._by_run.names)

    def _audience(self, run: Run) -> Set[Subscriber]:
        watching = self._by_session.of(run.session_key)
        following = self._by_run.of(run.id)
        if not self._everything and not following:
            return watching
        return self._everything.keys() | following | watching

    def _chat_audience(self, run: Run, audience: Set[Subscriber]) -> Set[Subscriber]:
        """Add the subscribers of `chat` events alone; internal runs have none."""
        chatting = self._by_chat.of(run.session_key)
        if not chatting:
            return audience
        return audience if run.kind.is_internal else audience | chatting

    def _stream(self, run: Run) -> RunStream:
        stream = self._streams.get(run.id)
        if stream is None:
            stream = self._streams[run.id] = RunStream()
        return stream

    def _send_run(self, run: Run) -> None:
        audience = self._audience(run)
        chatting = self._chat_audience(run, audience)
        if chatting and run.state is not RunState.QUEUED:
            stream = self._stream(run)
            if run.is_finished:
                self._send_of(run, audience, self._lifecycle(run, stream))
                self._send_end(run, stream, chatting)
            elif not stream.is_started:
                stream.is_started = True
                self._send_of(run, audience, self._lifecycle(run, stream))
        if run.is_finished:
            for ended in self._ends.get(run.session_key, ()):
                ended.add(run.id)
            self._streams.pop(run.id, None)
            self._by_run.drop(run.id)

    def _send_end(self, run: Run, stream: RunStream, audience: Set[Subscriber]) -> None:
        if run.kind.is_internal and run.state is RunState.OK:
            self._held_ends.hold(HeldEnd(run, set(audience), partial(self._final, run, stream, stream.next())))
        else:
            seq, readers = stream.next(), self._readers(run, audience)
            all_parts, reply = stream.last_said(run)
            if others := audience - readers:
                self._send_of(run, others, self._chat_end(run, stream, seq, all_parts))
            if readers:
                self._send_of(run, readers, self._chat_end(run, stream, seq, reply))

    def _send_reply(self, event: ReplyGrew) -> None:
        run = event.run
        audience = self._audience(run)
        chatting = self._chat_audience(run, audience)
        if not chatting:
            return
        stream = self._stream(run)
        all_parts, present = stream.pieces(event.text, event.delta)
        head = self._agent(run, stream, "assistant", {"text": event.text, "delta": event.delta})
        self._send_of(run, audience, head, droppable=True)
        if not run.kind.is_internal:
            seq, readers = stream.next(), self._readers(run, chatting)
            self._send_delta(run, seq, all_parts, chatting - readers)
            self._send_delta(run, seq, present, readers)

    def _readers(self, run: Run, audience: Set[Subscriber]) -> Set[Subscriber]:
        """Find the subscribers that get each part of a run from the transcript."""
        return audience & self._by_transcript.of(run.session_key)

    def _send_delta(self, run: Run, seq: int, piece: ChatPiece, audience: Set[Subscriber]) -> None:
        if audience:
            message = shown(piece.text, self._clock.now_ms())
            replace = piece.replaces or None
            head = self._chat(run, seq, state="delta", delta_text=piece.new, replace=replace, message=message)
            self._send_of(run, audience, head, droppable=True)

    def _send_agent(self, run: Run, stream: str, data: dict[str, Any], *, droppable: bool = False) -> None:
        if audience := self._audience(run):
            self._send_of(run, audience, self._agent(run, self._stream(run), stream, data), droppable=droppable)

    def _send_message(self, event: MessageAppended) -> None:
        message = event.message
        if message.stop_reason is not None and (stream := self._streams.get(message.run_id or "")):
            stream.end_message(message)
        audience: Set[Subscriber] = self._by_transcript.of(event.key)
        if message.role is not Role.TOOL_RESULT:
            audience = audience | self._everything.keys()
        people = {subscriber for subscriber in audience if subscriber.is_for_people}
        is_of_tool = message.provenance is not None and message.provenance.source_tool is not None
        line = line_with_step(event.line) if is_of_tool else event.line
        self._send_line(audience - people, event, line)
        if people and (shown := line_for_people(event.line)) is not None:
            self._send_line(people, event, shown)

    def _send_line(self, audience: Set[Subscriber], event: MessageAppended, line: bytes) -> None:
        if not audience:
            return
        payload = SessionMessage(
            session_key=self._show_key(event.key),
            agent_id=_agent_of(event.key),
            session_id=event.session_id,
            message_id=event.message.id,
            message_seq=event.seq + 1,
            message=Raw(placed(event.line, line, event.seq)),
        )
        self._send_to(audience, show_event_head("session.message", payload))

    def _send_delivery(self, delivery: Delivery) -> None:
        audience = self._everything.keys() | self._by_session.of(delivery.session_key)
        if audience:
            self._send_to(audience, show_event_head("delivery", show_delivery(delivery, self._show_key)))
        if delivery.channel == WEBCHAT.channel:
            self._send_post(delivery, audience | self._by_chat.of(delivery.session_key))

    def _send_post(self, delivery: Delivery, audience: Set[Subscriber]) -> None:
        """Send a text that was delivered to webchat, as the end of the run that wrote it."""
        run_id = delivery.run_id or delivery.id
        if delivery.state.is_open:
            self._held_ends.wait_for_delivery(run_id)
        elif delivery.state is not DeliveryState.SENT:
            self._held_ends.send_empty(run_id)
        elif (end := self._held_ends.take(run_id)) is None:
            message = shown(delivery.text or "", delivery.updated_at)
            readers = self._readers_of(delivery)
            self._send_to(audience - readers, self._said(run_id, delivery.session_key, message))
            self._send_to(readers, self._said(run_id, delivery.session_key, None))
        else:
            message = shown(delivery.text or "", delivery.updated_at)
            self._send_of(end.run, audience | end.audience, end.show(message))

    def _readers_of(self, delivery: Delivery) -> Set[Subscriber]:
        """Find the subscribers that have a sub-agent's report from the transcript.

        OpenClaw's clients recognise a text by its run alone, and would show it twice.
        """
        if delivery.run_id is None or delivery.exchange_id is not None:
            return frozenset()
        reading = self._by_transcript.of(delivery.session_key) | self._everything.keys()
        return {subscriber for subscriber in reading if subscriber.is_for_people}

    def _send_approval(self, approval: Approval) -> None:
        audience = self._everything.keys() | self._by_session.of(approval.session_key)
        if not audience:
            return
        self._send_to(audience, show_event_head("approval", show_approval(approval, self._show_key)))
        if approval.is_pending:
            told = asked(approval, self._show_key, self._clock.now_ms(), self._approval_lives_ms)
            self._send_to(audience, show_event_head("plugin.approval.requested", told))
        else:
            self._send_to(audience, show_event_head("plugin.approval.resolved", resolved(approval, self._show_key)))

    def _said(self, id: str, key: str, message: ShownMessage | None) -> str:
        payload = ChatEvent(
            run_id=id,
            session_key=self._show_key(key),
            agent_id=_agent_of(key),
            seq=1,
            state="final",
            message=message,
        )
        return show_event_head("chat", payload)

    def _send_session(self, event: SessionChanged) -> None:
        if self._everything:
            self._news.tell(event)

    def _send_news(self, head: str) -> None:
        self._send_to(self._everything.keys(), head)

    def _lifecycle(self, run: Run, stream: RunStream) -> str:
        return self._agent(run, stream, "lifecycle", lifecycle_of(run))

    def _agent(self, run: Run, stream: RunStream, name: str, data: dict[str, Any]) -> str:
        payload = AgentEvent(
            run_id=run.id,
            session_key=self._show_key(run.session_key),
            seq=stream.next(),
            stream=name,
            ts=self._clock.now_ms(),
            data={**data, "backchannel": {"internal": True}} if run.kind.is_internal else data,
        )
        return show_event_head("agent", payload)

    def _chat(self, run: Run, seq: int, **more: Any) -> str:
        payload = ChatEvent(
            run_id=run.id,
            session_key=self._show_key(run.session_key),
            agent_id=_agent_of(run.session_key),
            seq=seq,
            **more,
        )
        return show_event_head("chat", payload)

    def _chat_end(self, run: Run, stream: RunStream, seq: int, message: ShownMessage | None) -> str:
        match run.state:
            case RunState.OK:
                return self._final(run, stream, seq, message)
            case RunState.ABORTED:
                return self._chat(run, seq, state="aborted", message=message, stop_reason="aborted")
        return self._chat(run, seq, state="error", message=message, error_message=error_of(run))

    def _final(self, run: Run, stream: RunStream, seq: int, message: ShownMessage | None) -> str:
        return self._chat(run, seq, state="final", message=message, stop_reason=stream.stop_reason)

    def _send_of(self, run: Run, audience: Set[Subscriber], head: str, *, droppable: bool = False) -> None:
        """Send an event of a run; to the client that just started one there, after its answer."""
        for subscriber in list(audience):
            self._unanswered.send(subscriber, run.session_key, head, droppable=droppable)

    def _send_to(self, audience: Set[Subscriber], head: str) -> None:
        for subscriber in list(audience):  # a slow one may be closed, and leave, in between
            subscriber.send_event(head, droppable=False)


def _agent_of(key: str) -> str:
    return SessionKey.stored(key).agent


def _result_of(event: ToolEnded) -> dict[str, Any]:
    """Show the cut result of a tool; nothing if another gateway works on the run."""
    shown: dict[str, Any] = {"isError": event.is_error}
    if event.content is not None:
        shown["result"] = {"content": text_content(cut(text_of(event.content), TEXT_LIMIT))}
    return shown


def lifecycle_of(run: Run) -> dict[str, Any]:
    """Describe the phase of a run."""
    if not run.is_finished:
        return {"phase": "start", "startedAt": run.started_at}
    ended: dict[str, Any] = {"status": run.state.value, "startedAt": run.started_at, "endedAt": run.ended_at}
    match run.state:
        case RunState.OK:
            return {"phase": "end", **ended}
        case RunState.ABORTED:
            return {"phase": "end", "aborted": True, **ended}
    return {"phase": "error", "error": error_of(run), **ended}


def error_of(run: Run) -> str:
    """Say why a run did not end well."""
    return run.error or f"the run ended as {run.state.value}"
