"""Whatever is placed under older and newer names, in whatever style: a migrated file means what the old one meant."""

from __future__ import annotations

import random
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from backchannel.config import Config, load_config
from backchannel.config.source import scan
from backchannel.errors import ConfigError
from backchannel.openclaw.migrating import plan_migration, store_migration
from backchannel.openclaw.rewriting import comments_in, comments_of, parse_layout
from tests.config.json5_texts import Writer

from .generations import plain

ENV = {"WHO": "somebody", "MODEL": "p/m"}


def some(**settings: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Any of these settings, in any order."""
    return st.fixed_dictionaries({}, optional=settings).flatmap(
        lambda chosen: st.permutations(list(chosen)).map(lambda names: {name: chosen[name] for name in names})
    )


names = st.lists(st.sampled_from(["a", "group:sessions", "${WHO}"]), max_size=2)
channels = st.sampled_from(["discord", "signal", "${WHO}"])
subagents = some(allowAgents=st.just(["*"]), model=st.sampled_from(["p/m", "${MODEL}"]))
sandbox = some(mode=st.just("off"), sessionToolsVisibility=st.sampled_from(["spawned", "all"]))
tool_names = some(allow=names, deny=names)
agent = some(
    name=st.sampled_from(["A", "${WHO}"]),
    model=st.just("p/m"),
    default=st.just(False),
    subagents=subagents,
    sandbox=sandbox,
    tools=some(allow=names, sessions=some(visibility=st.just("all"))),
)
defaults = {
    "model": st.just("p/m"),
    "thinking": st.sampled_from(["low", "high"]),
    "timeoutSeconds": st.integers(1, 9),
    "sandbox": sandbox,
}
default_subagents = {"archiveAfterMinutes": st.integers(0, 9), "maxChildren": st.integers(0, 9)}
agent_to_agent = some(enabled=st.booleans(), allow=names)
bindings = st.lists(
    st.fixed_dictionaries(
        {"match": some(channel=channels, provider=channels, surface=channels), "agentId": st.just("a")}
    ),
    max_size=2,
)
rules = st.lists(
    st.fixed_dictionaries(
        {"action": st.sampled_from(["allow", "deny"])},
        optional={"match": some(channel=channels, provider=channels, surface=channels, keyPrefix=st.just("cron:"))},
    ),
    max_size=3,
)
listed = st.lists(
    st.tuples(st.sampled_from(["a", "Research Bot", "b"]), agent), max_size=2, unique_by=lambda pair: pair[0]
).map(lambda pairs: [{"id": id, **fields} for id, fields in pairs])
placements = some(
    agent=some(**defaults, subagents=some(**default_subagents, tools=tool_names)),
    agents=some(defaults=some(**defaults, subagents=some(**default_subagents)), list=listed),
    routing=some(
        agents=st.dictionaries(st.sampled_from(["A", "research-bot", "c", "$d", "e.f"]), agent, max_size=3),
        agentToAgent=agent_to_agent,
        bindings=bindings,
    ),
    tools=some(agentToAgent=agent_to_agent, subagents=some(tools=tool_names), deny=names),
    bindings=bindings,
    session=some(sendPolicy=some(rules=rules, default=st.just("deny")), mainKey=st.just("home")),
    gateway=some(port=st.integers(1, 9)),
)


def loaded(file: Path) -> Config | int:
    """The configuration, without what is told about it, or the number of its errors."""
    try:
        return plain(load_config(file, ENV, state=file.parent))
    except ConfigError as error:
        return len([problem for problem in error.details["problems"] if problem["level"] == "error"])


@settings(max_examples=150, deadline=None)
@given(placements, st.randoms(use_true_random=False), st.sampled_from(["\n", "\r\n"]))
def test_a_migrated_file_means_what_it_meant_and_no_comment_is_lost_in_silence(
    raw: dict[str, Any], style: random.Random, newline: str
) -> None:
    writer = Writer(style, newline)
    text = writer.document(raw)
    with TemporaryDirectory() as folder:
        file = Path(folder, "c.json5")
        file.write_bytes(text.encode())
        meant = loaded(file)

        migration = plan_migration(file)
        if migration.moves:
            store_migration(migration)

        after = file.read_bytes().decode()
        assert loaded(file) == meant
        kept_or_told = comments(after) + [lost.text for lost in migration.lost]
        assert sorted(map(on_one_line, kept_or_told)) == sorted(map(on_one_line, writer.comments))
        assert after.count("${") == text.count("${") - dropped(migration.moves, raw)
        again = plan_migration(file)
        assert (again.moves, again.after) == ((), after)
        assert not any(word in after for word in ("surface", "provider", "routing"))


def comments(text: str) -> list[str]:
    layout = parse_layout(scan(text))
    return [*comments_in(layout.lead, layout.end), *comments_of(layout.root)]


def on_one_line(comment: str) -> str:
    return " ".join(comment.split())  # a moved comment may be indented otherwise


def dropped(moves: Any, raw: dict[str, Any]) -> int:
    """How often a variable is named in settings that are ignored."""
    count = 0
    for move in moves:
        if move.fate == "ignored":
            value: Any = raw
            for step in move.old:
                value = value[step]
            count += str(value).count("${")
    return count
