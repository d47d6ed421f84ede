"""Inbound events: each becomes a run, a note, a command, or nothing, in one unit.

The rules are in `core/policy/inbound.py`, the unit is in the store. This module connects them with the settings of the
channel and the parts of the gateway. The channel itself checks who may post to it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence

import msgspec
import structlog

from backchannel.channels.files import ReceivedFiles, lines_for
from backchannel.config.adapters import thread_word_of
from backchannel.core.caller_keys import CallerKeys
from backchannel.core.commands.commands import Command, CommandReply
from backchannel.core.delivery.channel_list import Channels
from backchannel.core.delivery.channels import (
    Channel,
    InboundAnswer,
    InboundEvent,
    InboundTaker,
    IncomingFile,
    no_channel,
)
from backchannel.core.delivery.outgoing import PartProof
from backchannel.core.keys import MAX_KEY_LENGTH, SessionKey
from backchannel.core.messages import Block
from backchannel.core.policy.inbound import (
    AdmissionRules,
    Arrival,
    InboundTaken,
    RoutingRules,
    Verdict,
    check,
    command_in,
    left_to,
    route,
)
from backchannel.errors import ChatMovedMeanwhile, InvalidRequest, NotFound, OwnPostUnderway, PartUnderway
from backchannel.runtime.runtime import Runtime
from backchannel.tools.base import Parts
from backchannel.tools.commands import ChatCommands

log = structlog.get_logger(__name__)

_LOOK_AGAIN_S = 0.1
"""The delay before a retry while one of our own sends is in flight. Sends always finish."""
_REACTION_LIMIT_S = 5.0
_PROOF_TRIES = 300
"""How often a proof is tried that names an unknown message, while something is being sent: for half a minute."""


class Inbound:
    """Handles the events that channels hand in."""

    def __init__(
        self, parts: Parts, runtime: Runtime, channels: Channels, commands: ChatCommands, files: ReceivedFiles
    ) -> None:
        self._parts = parts
        self._runtime = runtime
        self._channels = channels
        self._commands = commands
        self.files = files
        session = parts.config.session
        self._routing = RoutingRules(parts.scheme, session.identity_links, parts.config.bindings)

    async def post(self, channel: str, body: bytes, headers: Mapping[str, str]) -> object:
        """Pass a post to a channel; returns the channel's answer.

        Raises: NotFound: there is no such channel, or it takes no posts. BadSignature: it does not come from the
            channel's platform. InvalidRequest: it is no event, is for another channel, or is too old. Unavailable:
            nothing was stored, and it may be posted again.
        """
        return await self._find(channel).post(body, headers, self.taker(channel))

    def taker(self, channel: str, taken: Callable[[], None] = lambda: None) -> InboundTaker:
        """Return the object that a channel hands its events to. `taken` is called after each: the channel is up."""
        return _Taker(self, self._parts, channel, taken)

    async def receive(self, channel: str, event: InboundEvent, files: Sequence[IncomingFile] = ()) -> InboundAnswer:
        """Handle an event that came over a channel, with its files, once for each message id.

        Raises: InvalidRequest: it names another channel, is too old, or lacks an id. Unavailable: nothing was stored,
            and it may be handed in again.
        """
        return await self.taker(channel)(event, files)

    async def take(self, event: InboundEvent, files: Sequence[IncomingFile] = ()) -> InboundTaken:
        """Handle an event that was checked."""
        while True:
            home = await self._parts.store.home_chat(event.channel, event.account_id, event.chat_id)
            try:
                return await self._take(event, files, home)
            except ChatMovedMeanwhile:
                continue
            except OwnPostUnderway:
                await self._parts.clock.sleep(_LOOK_AGAIN_S)

    async def acknowledge(self, event: InboundEvent) -> None:
        """Show that a message was received, if its channel is set so. What fails there is nobody's business."""
        channel = self._find(event.channel)
        if (emoji := channel.settings.ack_reaction) is None:
            return
        try:
            shown = channel.react(event.chat_id, event.account_id, event.message_id, emoji)
            if shown is not None:
                async with asyncio.timeout(_REACTION_LIMIT_S):
                    await shown
        except Exception as error:  # noqa: BLE001  # the edge of a channel: it is only a sign
            log.debug("no sign of receipt was shown", channel=channel.name, error=type(error).__name__)

    async def _take(self, event: InboundEvent, files: Sequence[IncomingFile], home: str | None) -> InboundTaken:
        channel = self._find(event.channel)
        routed = route(event, self._routing, home, thread_word_of(channel.name) or channel.thread_word)
        own_names = tuple(channel.own_names)
        rules = AdmissionRules(
            settings=channel.settings,
            policy=self._parts.config.session.send_policy,
            destination=routed.destination,
            own_names=own_names,
            command=self._command(event, own_names, channel.names_of(event.account_id), routed.agent),
            has_files=bool(files),
        )
        arrival = Arrival(
            event=event,
            routed=routed,
            home=home,
            rules=rules,
            agent_model=self._commands.agent_model(routed.agent),
            twins=tuple(channel.twins(event.identity)),
            left_to=left_to(event, routed, self._routing, home),
            owner_chats=_owner_chats(channel) if channel.settings.pairing else (),
        )
        if files:
            arrival = msgspec.structs.replace(arrival, attached=await self._attached(arrival, channel, files))
        return await self._runtime.take(arrival)

    def _command(
        self, event: InboundEvent, own_names: Collection[str], names: Collection[str], agent: str
    ) -> Command | CommandReply | None:
        """Read a message as a command, and check the model that it names."""
        command = command_in(event, own_names, names)
        return self._commands.with_model(command, agent) if isinstance(command, Command) else command

    async def _attached(self, arrival: Arrival, channel: Channel, files: Sequence[IncomingFile]) -> tuple[Block, ...]:
        """Fetch the files of a message, if it is new and will be in a transcript."""
        expected = await self._parts.store.judge_inbound(arrival)
        if expected is None or expected.verdict not in (Verdict.ANSWER, Verdict.RECORD):
            return lines_for(files)
        return await self.files.take(arrival.event, arrival.routed.key, files, channel.settings.media_max_mb)

    def _find(self, name: str) -> Channel:
        if (channel := self._channels.get(name)) is None:
            raise NotFound(no_channel(name))
        return channel


def _owner_chats(channel: Channel) -> tuple[tuple[str, str], ...]:
    named = ((owner, channel.direct_chat(owner)) for owner in channel.settings.owners)
    return tuple((owner, chat) for owner, chat in named if chat is not None)


class _Taker:
    """Handles the events of one channel."""

    def __init__(self, inbound: Inbound, parts: Parts, channel: str, taken: Callable[[], None]) -> None:
        self._inbound = inbound
        self._parts = parts
        self._channel = channel
        self._taken = taken

    async def __call__(self, event: InboundEvent, files: Sequence[IncomingFile] = ()) -> InboundAnswer:
        checked = check(event, channel=self._channel, now_ms=self._parts.clock.now_ms())
        taken = await self._inbound.take(checked, files)
        self._taken()
        if taken.accepted is not None and not taken.is_repeat:
            await self._inbound.acknowledge(checked)
        outcome = taken.outcome
        did_nothing = outcome.run_id is None and outcome.command is None
        return InboundAnswer(
            ok=True,
            verdict=outcome.verdict.value,
            session_key=CallerKeys(self._parts.scheme, None).show(SessionKey.stored(outcome.session_key)),
            run_id=outcome.run_id,
            command=outcome.command,
            reason=outcome.reason if did_nothing else None,
            reply=outcome.reply,
            repeat=taken.is_repeat,
        )

    async def moved(self, account_id: str, chat_id: str, to: str) -> None:
        """Move everything of a chat to its new id. The same call again changes nothing."""
        if not chat_id or not 0 < len(to) <= MAX_KEY_LENGTH:
            raise InvalidRequest(f"to: expected the id of a chat, 1 to {MAX_KEY_LENGTH} characters", param="to")
        await self._parts.store.move_chat(self._channel, account_id, chat_id, to)
        self._taken()

    async def proved(self, proof: PartProof) -> bool:
        """Settle a part of ours by what the platform says of it. The same proof again changes nothing."""
        if proof.key is None and proof.message_id is None:
            raise InvalidRequest("a proof names a part: by its key, or by the id of its message", param="key")
        for _ in range(_PROOF_TRIES):
            try:
                return await self._parts.store.prove_part(self._channel, proof)
            except PartUnderway:  # the answer with the id of the message may be on its way
                await self._parts.clock.sleep(_LOOK_AGAIN_S)
        return False
