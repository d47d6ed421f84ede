"""Inbound messages: reading, routing and admission of a channel's event.

`parse_event` reads an event as it came. `route` names the session, the agent and the address that a reply goes to.
`admit` decides, in this order:

- Our own messages and other bots' messages are ignored.
- A stranger is ignored, or in a direct chat gets a code (`core/policy/pairing.py`).
- A command is carried out, by the account that it is for.
- A message that the send policy denies is recorded as a note. So is a group message that does not mention the agent.
- Everything else is answered.

A message that several of the gateway's accounts read is handled once (`once_for_all`). An event is known by its
`identity`. The store handles each event once, in the commit that accepts it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated

import msgspec
from msgspec.structs import replace

from backchannel.core.commands.commands import Command, CommandReply, Rank, may_use, parse
from backchannel.core.delivery.channels import DEFAULT_ACCOUNT, ChannelSettings, InboundEvent, InboundId
from backchannel.core.keys import MAX_KEY_LENGTH, ChatType, KeyScheme, SessionKey, ThreadWord
from backchannel.core.messages import Block, text_content
from backchannel.core.policy.decisions import Decision, quote
from backchannel.core.policy.pairing import SenderKnown, may_begin
from backchannel.core.policy.send_policy import Destination, SendDecision, SendPolicySettings, may_send
from backchannel.core.runs import RunAccepted
from backchannel.core.sessions import Address, Session
from backchannel.core.settings import Settings, setting
from backchannel.core.text import ANY, stored_name
from backchannel.errors import InvalidRequest

MAX_AGE_MS = 300_000
EARLIEST_MS = 100_000_000_000
"""The least time of an event: smaller numbers are seconds, or nonsense."""

_decode = msgspec.json.Decoder(InboundEvent).decode


def parse_event(body: bytes | str) -> InboundEvent:
    """Read an event that was posted to a channel.

    Raises:
        InvalidRequest: it is no event; the message names the field.
    """
    try:
        return _decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        names = ", ".join(InboundEvent.__struct_encode_fields__)
        raise InvalidRequest(f"not an inbound event: {error} (its fields are {names})") from error


def check(event: InboundEvent, *, channel: str, now_ms: int) -> InboundEvent:
    """Check an event of a channel, clean the names in it, and fill in the channel's name.

    Raises:
        InvalidRequest: it names another channel, lacks an id, or is too old.
    """
    for name in ("chat_id", "sender_id", "message_id"):  # a channel's own event has passed no decoder
        if not 0 < len(getattr(event, name)) <= MAX_KEY_LENGTH:
            raise InvalidRequest(f"{name}: expected a text of 1 to {MAX_KEY_LENGTH} characters", param=name)
    if event.channel not in ("", channel):
        message = f"channel: {quote(event.channel)} came over {quote(channel)} (leave it out, or write the same)"
        raise InvalidRequest(message, param="channel")
    if event.ts is not None and event.ts < EARLIEST_MS:
        message = f"ts: {event.ts} is too small (expected milliseconds since 1970, such as {now_ms})"
        raise InvalidRequest(message, param="ts")
    if event.ts is not None and now_ms - event.ts > MAX_AGE_MS:
        age_s = (now_ms - event.ts) // 1000
        message = f"ts: the event is {age_s} s old (at most {MAX_AGE_MS // 1000} s; without ts, the age is not checked)"
        raise InvalidRequest(message, param="ts")
    try:
        chat_type = ChatType(event.chat_type)
    except ValueError as error:
        raise InvalidRequest(f"chat_type: {error} (expected {', '.join(ChatType)})", param="chat_type") from error
    names = {"chat_name": stored_name(event.chat_name), "sender_name": stored_name(event.sender_name)}
    text = event.text if event.button is None else event.button
    return replace(event, channel=channel, chat_type=chat_type, text=text, **names)


class BindingMatchSettings(Settings, frozen=True, kw_only=True):
    """The inbound messages that a binding is for. All given fields must match."""

    channel: Annotated[str, setting("The channel's name.", min_length=1)]
    account_id: Annotated[str | None, setting("The account on that channel.")] = None
    chat_id: Annotated[str | None, setting("The chat.")] = None


class BindingSettings(Settings, frozen=True, kw_only=True):
    """A binding: the agent that answers the messages that match."""

    match: Annotated[BindingMatchSettings, setting("Which inbound messages.")]
    agent_id: Annotated[str, setting("The agent that gets them.", min_length=1)]


@dataclass(frozen=True, slots=True)
class RoutingRules:
    """The settings that decide to which session a message belongs."""

    scheme: KeyScheme
    identity_links: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """A person's name, and the ids it has, as `<channel>:<sender id>`."""
    bindings: Sequence[BindingSettings] = ()


@dataclass(frozen=True, slots=True)
class MessageRoute:
    """The session that a message belongs to, and the address of its reply."""

    key: SessionKey
    address: Address
    destination: Destination
    """What the send policy is asked about."""
    display_name: str | None
    """What the session is to be called; None when the channel gave no name, or several people share the session."""
    quotes: str | None = None
    """The message that a reply quotes: in groups and rooms, where others write before the reply is there."""
    person: str | None = None
    """Who writes in a direct chat, by the name that their ids are linked to; a session with two such is shared."""

    @property
    def agent(self) -> str:
        return self.key.agent

    @property
    def chat_type(self) -> ChatType | None:
        return self.destination.chat_type


def route(
    event: InboundEvent, routing: RoutingRules, home: str | None = None, thread_word: ThreadWord = "thread"
) -> MessageRoute:
    """Name the session of a message, and the address that a reply to it goes to.

    `home` is the earlier id of a chat that got a new one: its sessions keep their names. `thread_word` is the channel's
    word for a thread.

    Raises: InvalidSessionKey: the key of these ids would be too long.
    """
    agent, scheme, person = _choose_agent(event, routing, home), routing.scheme, None
    quotes = None if event.chat_type is ChatType.DIRECT else event.message_id
    if event.chat_type is ChatType.DIRECT:
        person = _linked_person(event, routing.identity_links) or _full_id(event)
        peer = _choose_peer(event, routing.identity_links)
        key = scheme.direct(agent, channel=event.channel, account=event.account_id, peer=peer)
        name = None if scheme.is_main(key) else event.chat_name or event.sender_name
    else:
        chat = home or event.chat_id
        key = SessionKey.group(agent, event.channel, event.chat_type, chat, event.thread_id, thread_word)
        name = event.chat_name
    address = Address(channel=event.channel, to=event.chat_id, account_id=event.account_id, thread_id=event.thread_id)
    destination = Destination.of(key, scheme, event.channel, event.chat_type)
    return MessageRoute(key, address, destination, (name or "").strip() or None, quotes, person)


def _choose_agent(event: InboundEvent, routing: RoutingRules, home: str | None) -> str:
    """Take the agent of the first binding that matches, else the default agent."""
    for binding in routing.bindings:
        match = binding.match
        asked = ((match.channel, event.channel), (match.account_id, event.account_id))
        is_here = match.chat_id is None or match.chat_id.lower() in (event.chat_id.lower(), (home or "").lower())
        # Case is ignored, as in keys. Otherwise one session could have two agents.
        if is_here and all(wanted is None or wanted.lower() == came.lower() for wanted, came in asked):
            return binding.agent_id
    return routing.scheme.default_agent


def _choose_peer(event: InboundEvent, links: Mapping[str, Sequence[str]]) -> str:
    """Return the person that the sender's id is linked to, else the id itself."""
    if (linked := _linked_person(event, links)) is not None:
        return linked
    # A sender whose id equals the name of a linked person, by chance or on purpose, is not that person.
    taken = {person.lower() for person in links}
    return _full_id(event) if event.sender_id.lower() in taken else event.sender_id


def _linked_person(event: InboundEvent, links: Mapping[str, Sequence[str]]) -> str | None:
    full_id = _full_id(event).lower()
    return next((person for person, ids in links.items() if full_id in (id.lower() for id in ids)), None)


def _full_id(event: InboundEvent) -> str:
    return f"{event.channel}:{event.sender_id}"


def left_to(event: InboundEvent, routed: MessageRoute, routing: RoutingRules, home: str | None) -> str | None:
    """Return the other account of the gateway that must bring this message to its session; None if this one may.

    That is an account that the message mentions. If this account took the message, it would become a note, and the
    mentioned account would come too late.
    """
    if event.mentioned:
        return None
    for account_id in event.mentioned_accounts:
        if _choose_agent(replace(event, account_id=account_id), routing, home) == routed.agent:
            return account_id
    return None


class Verdict(StrEnum):
    """What is done with an inbound message."""

    IGNORE = "ignore"
    RECORD = "record"
    """It becomes a note: no run, no reply."""
    ANSWER = "answer"
    COMMAND = "command"
    PAIR = "pair"
    """Its sender gets a code. The message is not read."""


@dataclass(frozen=True, slots=True)
class Admission:
    """What is done with an inbound message, and why."""

    verdict: Verdict
    reason: str
    standing: Rank
    rule: str | None = None
    """The setting that decided; None if no setting did."""
    command: Command | CommandReply | None = None
    shadowed: str | None = None
    """Why the send policy would have denied it, when only `shadow` let it through."""


def standing_of(sender_id: str, settings: ChannelSettings, known: SenderKnown | None = None) -> Rank:
    """Return the rank of a sender on a channel. Ids are compared with their case: it may tell two people apart.

    A sender whom an owner admitted by a code is authorised while the channel has pairing on.
    """
    if sender_id in settings.owners:
        return Rank.OWNER
    if sender_id in settings.allow_from or ANY in settings.allow_from:
        return Rank.AUTHORISED
    return Rank.AUTHORISED if settings.pairing and known and known.is_approved else Rank.STRANGER


def is_pairing_asked(sender_id: str, settings: ChannelSettings) -> bool:
    """True if the rank of a sender depends on the stored pairings."""
    return settings.pairing and standing_of(sender_id, settings) is Rank.STRANGER


@dataclass(frozen=True, slots=True)
class AdmissionRules:
    """The settings and names that decide what is done with a message. Rows of the store decide the rest."""

    settings: ChannelSettings
    policy: SendPolicySettings
    destination: Destination
    """What the send policy is asked about."""
    own_names: tuple[str, ...] = ()
    """The ids and names of our own accounts, where the channel knows them."""
    command: Command | CommandReply | None = None
    """The command that the message is, for the account that got it; its model is checked."""
    has_files: bool = False
    """Whether files came with it; such a message needs no text."""

    def ask_policy(self, session: Session | None) -> SendDecision:
        """Ask the send policy about the session of the message, as it is now."""
        return may_send(self.policy, self.destination, session.send_policy if session else None)


def command_in(
    event: InboundEvent, own_names: Collection[str] = (), called: Collection[str] | None = None
) -> Command | CommandReply | None:
    """Read a message as a command; None if it is no command, or a command for another bot.

    `called` are the names of the account that got the message; None means all of `own_names`.
    """
    return None if event.sender_is_bot else parse(event.text, _names(event, own_names if called is None else called))


def admit(
    event: InboundEvent, rules: AdmissionRules, session: Session | None = None, known: SenderKnown | None = None
) -> Admission:
    """Decide what is done with a message.

    `session` is its session as it is now, if there is one. `known` is the pairing of the sender.
    """
    policy = rules.ask_policy(session)
    admission = _admit(event, rules, policy, known)
    if policy.would_deny and admission.verdict in (Verdict.ANSWER, Verdict.RECORD):
        return dataclasses.replace(admission, shadowed=policy.reason)  # the policy does not apply to the other verdicts
    return admission


def _admit(event: InboundEvent, rules: AdmissionRules, policy: Decision, known: SenderKnown | None) -> Admission:
    settings, setting = rules.settings, f"channels.{event.channel}"
    standing = standing_of(event.sender_id, settings, known)

    def decide(verdict: Verdict, reason: str, rule: str | None = None) -> Admission:
        return Admission(verdict, reason, standing, rule)

    if _is_own(event, rules.own_names):
        return decide(Verdict.IGNORE, f"sender {quote(event.sender_id)} is our own account")
    if event.sender_is_bot and not settings.allow_bots:
        rule = f"{setting}.allowBots"
        return decide(Verdict.IGNORE, f"the sender is a bot, and {rule} is false (true would let it speak)", rule)
    if event.button is not None and (standing is Rank.STRANGER or rules.command is None):
        why = "the sender is a stranger" if standing is Rank.STRANGER else "it stands for no command"
        return decide(Verdict.IGNORE, f"a button was pressed, and {why}")
    if standing is Rank.STRANGER:
        return _meet(event, settings, policy, known)
    if not event.text.strip() and not rules.has_files:
        return decide(Verdict.IGNORE, "there is neither a text nor a file in it")
    if rules.command is not None:
        return _admit_command(rules.command, standing)
    if not event.sender_is_bot and parse(event.text, rules.own_names):
        return decide(Verdict.IGNORE, "it is a command for another account of ours")
    if not policy.allowed:
        return decide(Verdict.RECORD, policy.reason, policy.rule)
    if event.chat_type is not ChatType.DIRECT and settings.require_mention and not event.mentioned:
        rule = f"{setting}.requireMention"
        reason = f"it does not mention the agent, and {rule} is true (false would answer all)"
        return decide(Verdict.RECORD, reason, rule)
    return decide(Verdict.ANSWER, f"the sender is {'an owner' if standing is Rank.OWNER else 'authorised'}")


def _meet(event: InboundEvent, settings: ChannelSettings, policy: Decision, known: SenderKnown | None) -> Admission:
    """Decide on a stranger's message: ignore it, or send a code in a direct chat if pairing is on."""
    setting = f"channels.{event.channel}"
    if known is None or event.chat_type is not ChatType.DIRECT or event.sender_is_bot:
        rule = f"{setting}.allowFrom"
        reason = f"sender {quote(event.sender_id)} is neither in {rule} nor in {setting}.owners"
        reason += "" if known is None else ", and was not let in by a code"
        return Admission(Verdict.IGNORE, f'{reason} (add the id, or "*" for everybody)', Rank.STRANGER, rule)
    decision = may_begin(known, setting)
    if decision.allowed and not policy.allowed:
        decision = policy  # nothing may be said in this chat, not even a code
    verdict = Verdict.PAIR if decision.allowed else Verdict.IGNORE
    return Admission(verdict, decision.reason, Rank.STRANGER, decision.rule)


def _is_own(event: InboundEvent, own_names: Collection[str]) -> bool:
    own = {name.lower() for name in own_names}
    if event.account_id != DEFAULT_ACCOUNT:
        own.add(event.account_id.lower())
    return event.sender_id.lower() in own


def _names(event: InboundEvent, called: Collection[str]) -> Collection[str] | None:
    """List the names that a command may be addressed to; None means any.

    A channel may not know its own names. Then `/stop@somebody` in a group may be meant for another bot. It is for this
    one if the event says that it is mentioned.
    """
    if called:
        return called
    return None if event.chat_type is ChatType.DIRECT or event.mentioned else ()


def _admit_command(command: Command | CommandReply, standing: Rank) -> Admission:
    """Accept a command. A command that the sender may not use is answered with the reason."""
    allowed = may_use(command.spec, standing)
    if not allowed.allowed:
        command = CommandReply(command.name, allowed.reason)
    return Admission(Verdict.COMMAND, allowed.reason, standing, allowed.rule, command)


class Arrival(msgspec.Struct, frozen=True, kw_only=True):
    """A message that came in, with everything that decides what is done with it. It is plain data."""

    event: InboundEvent
    routed: MessageRoute
    home: str | None = None
    """The id that the sessions of its chat are named by, as far as was known when it was routed."""
    rules: AdmissionRules
    agent_model: str | None = None
    """The model of the session's agent, for `/status` and `/model`."""
    twins: tuple[InboundId, ...] = ()
    """By what else it is known, where other accounts of ours read it too."""
    left_to: str | None = None
    """The account of ours that is to take it, because it mentions that one and not the one that brings it."""
    owner_chats: tuple[tuple[str, str], ...] = ()
    """The owners of the channel with their direct chats, where the platform names these by the person."""
    attached: tuple[Block, ...] = ()
    """What stands in the transcript for the files that came with it."""

    @property
    def may_be_own(self) -> bool:
        """True if its sender is the chat itself. Then another account of the gateway may have written it."""
        return bool(self.twins) and self.event.sender_id == self.event.chat_id

    @property
    def content(self) -> tuple[Block, ...]:
        """The text of the message, and its attachments."""
        return (*text_content(self.event.text), *self.attached)


def ignore_own(event: InboundEvent) -> Admission:
    """Ignore a post that another account of the gateway wrote in the name of the chat."""
    reason = f"message {quote(event.message_id)} was sent by another account of this gateway"
    return Admission(Verdict.IGNORE, reason, Rank.STRANGER)


_TAKEN = (Verdict.RECORD, Verdict.ANSWER, Verdict.COMMAND)


def once_for_all(admission: Admission, arrival: Arrival, brought: Iterable[InboundOutcome | None]) -> Admission:
    """Ignore a message that another account of the gateway has brought, or must bring; else keep the admission.

    `brought` are the outcomes of the same message from other accounts. They are read only if they matter.
    """
    if not arrival.twins or admission.verdict not in _TAKEN:
        return admission
    if arrival.left_to is not None and admission.verdict is not Verdict.COMMAND:
        reason = f"it is for the account {quote(arrival.left_to)}, which brings it to this session"
        return Admission(Verdict.IGNORE, reason, admission.standing)
    key = str(arrival.routed.key)
    for twin in brought:
        if twin is not None and twin.verdict in _TAKEN and twin.session_key == key:
            reason = "another account of this gateway has brought it to this session already"
            return Admission(Verdict.IGNORE, reason, admission.standing)
    return admission


class InboundOutcome(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The outcome of an inbound message, as its row stores it."""

    verdict: Verdict
    reason: str
    session_key: str
    run_id: str | None = None
    command: str | None = None
    reply: str | None = None
    """What is said to whoever pressed a button."""


class InboundTaken(msgspec.Struct, frozen=True):
    """An inbound message that was handled, now or when it came first. `accepted` is its run, if it has one."""

    outcome: InboundOutcome
    accepted: RunAccepted | None = None
    is_repeat: bool = False
