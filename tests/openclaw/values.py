"""Messages and sessions of every sort, for properties of what is exported and imported."""

from __future__ import annotations

import msgspec
from hypothesis import strategies as st

from backchannel.core.contracts import THINKING_LEVELS
from backchannel.core.keys import ChatType, KeyScheme, SessionKey
from backchannel.core.messages import (
    ImageBlock,
    Message,
    Provenance,
    ProvenanceKind,
    Role,
    TextBlock,
    ThinkingBlock,
    ToolCallBlock,
    Usage,
)
from backchannel.core.sessions import Address, Session, write_address
from backchannel.core.text import stored_name

SCHEME = KeyScheme()
LATEST = 1_750_000_000_000
"""A time that has been: a gateway that finds sessions of the future takes its clock for set back, and mends them."""

texts = st.text(max_size=40)
words = st.text(
    st.characters(min_codepoint=33, max_codepoint=0x2FFF, exclude_categories=["C", "Z"]), min_size=1, max_size=20
)
ids = st.text("abcdef0123456789-/", min_size=1, max_size=32)
times = st.integers(0, LATEST)
counts = st.integers(0, 2**50)
costs = st.floats(0, 1e6, allow_nan=False)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
pictures = st.from_regex(r"[0-9a-f]{64}\.(png|jpg|gif|webp)", fullmatch=True)
models = st.builds(lambda provider, model: f"{provider}/{model}", words.filter(lambda word: "/" not in word), words)

blocks = st.one_of(
    st.builds(TextBlock, text=texts),
    st.builds(ThinkingBlock, thinking=texts, signature=st.none() | ids),
    st.builds(ToolCallBlock, id=ids, name=words, arguments=json_values),
    st.builds(ImageBlock, mime_type=words, data=st.none() | texts, url=st.none() | texts, file=st.none() | pictures),
)
provenances = st.builds(
    Provenance,
    kind=st.sampled_from(ProvenanceKind),
    source_session_key=st.none() | words,
    source_channel=st.none() | words,
    source_tool=st.none() | words,
    exchange_id=st.none() | ids,
)
usages = st.builds(Usage, input=counts, output=counts, cache_read=counts, cache_write=counts, cost=st.none() | costs)
messages = st.builds(
    Message,
    id=ids,
    role=st.sampled_from(Role),
    content=st.lists(blocks, max_size=3).map(tuple),
    timestamp=times,
    run_id=st.none() | ids,
    provenance=st.none() | provenances,
    label=st.none() | texts,
    model=st.none() | models | words,
    usage=st.none() | usages,
    stop_reason=st.none() | words,
    tool_call_id=st.none() | ids,
    tool_name=st.none() | words,
    is_error=st.none() | st.booleans(),
)

agents = st.sampled_from(["main", "research-bot", "a", "a-b"])
keys = st.one_of(
    st.builds(SessionKey.of, agents, st.just("main")),
    st.builds(SessionKey.cron, agents, words),
    st.builds(SessionKey.hook, agents, words),
    st.builds(SessionKey.node, agents, words),
    st.builds(SessionKey.subagent, agents, words),
    st.builds(
        SessionKey.group,
        agents,
        st.sampled_from(["telegram", "discord"]),
        st.sampled_from([ChatType.GROUP, ChatType.CHANNEL]),
        words,
        st.none() | words,
    ),
    st.builds(SessionKey.of, agents, st.just("telegram"), st.just("direct"), words),
    st.builds(SessionKey.of, agents, words, words),
).filter(lambda key: not key.is_reserved)
addresses = st.builds(
    Address,
    channel=st.sampled_from(["telegram", "webchat", "desk"]),
    to=st.none() | words,
    account_id=st.none() | words,
    thread_id=st.none() | words,
)


@st.composite
def sessions(draw: st.DrawFn, key: SessionKey, session_id: str) -> Session:
    """A session of this key as a gateway may have made it, idle."""
    created_at = draw(times)
    archived_at = None if SCHEME.is_main(key) else draw(st.none() | times)
    return Session(
        key=str(key),
        agent_id=key.agent,
        kind=SCHEME.kind(key).value,
        session_id=session_id,
        label=draw(st.none() | words.map(lambda word: word[:64])),
        display_name=stored_name(draw(st.none() | texts)),
        created_at=created_at,
        updated_at=draw(st.integers(created_at, LATEST)),
        archived_at=archived_at,
        deleting=False,
        spawned_by=draw(st.none() | keys.map(str)),
        channel=key.channel,
        delivery_context=write_address(draw(st.none() | addresses)),
        model=draw(st.none() | models),
        thinking_level=draw(st.none() | st.sampled_from(THINKING_LEVELS)),
        verbose_level=draw(st.sampled_from([None, "on", "off"])),
        send_policy=draw(st.sampled_from([None, "allow", "deny"])),
        system_sent=draw(st.booleans()),
        aborted_last_run=draw(st.booleans()),
        total_tokens=draw(st.none() | counts),
        context_tokens=draw(st.none() | counts),
        tokens_in=draw(counts),
        tokens_out=draw(counts),
        cost=draw(st.none() | costs),
        running_run=None,
        queued=0,
    )


@st.composite
def conversations(draw: st.DrawFn) -> list[tuple[Session, list[Message]]]:
    """Some sessions with their transcripts; labels and the ids of messages are as unique as the store wants them."""
    chosen = draw(st.lists(keys, max_size=4, unique=True))
    found: list[tuple[Session, list[Message]]] = []
    for number, key in enumerate(chosen):
        session = draw(sessions(key, f"00000000-0000-4000-8000-{number:012x}"))
        label = session.label and f"{number}{session.label}"[:64]
        said = [
            msgspec.structs.replace(message, id=f"{number}/{place}/{message.id}")
            for place, message in enumerate(draw(st.lists(messages, max_size=4)))
        ]
        found.append((msgspec.structs.replace(session, label=label), said))
    return found
