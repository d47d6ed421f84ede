"""The search as values: words of texts in any script, queries of any text, ranks and snippets."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backchannel.core.full_text.queries import all_places, find_terms, parse_query
from backchannel.core.full_text.ranking import Ranking, search_text, snippet
from backchannel.core.full_text.words import LONGEST_WORD, indexed_text, words_of
from backchannel.core.messages import Message, Role, TextBlock, ThinkingBlock, ToolCallBlock
from backchannel.errors import InvalidRequest

DAY_MS = 24 * 3_600_000


def words(text: str) -> list[str]:
    return [word.text for word in words_of(text)]


def finds(query: str, text: str) -> bool:
    return find_terms(text, parse_query(query)) is not None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Hello, World!", ["hello", "world"]),
        ("foo_bar.baz", ["foo", "bar", "baz"]),
        ("ann@example.org", ["ann", "example", "org"]),
        ("Ærø Straße CAFÉ cafe\u0301", ["ærø", "strasse", "cafe", "cafe"]),
        ("ＡＢＣ ½ ﬁne", ["abc", "1", "2", "fine"]),
        ("İstanbul", ["istanbul"]),
        ("東京都", ["東京", "京都", "都"]),
        ("v2日本", ["v2", "日本", "本"]),
        ("ｶﾞｷﾞ", ["ガギ", "ギ"]),
        ("สวัสดี", ["สว", "วั", "ัส", "สด", "ดี", "ี"]),
        ("한국어 말", ["한국어", "말"]),
        ("हिन्दी भाषा", ["हिन्दी", "भाषा"]),
        ("שָׁלוֹם", ["שלום"]),
        ("ok 👍🏽🎉", ["ok", "👍", "🎉"]),
        ("1,234.5", ["1", "234", "5"]),
        ("x" * 100, ["x" * LONGEST_WORD]),
        ("... --- ...", []),
    ],
)
def test_a_text_has_the_words_that_a_reader_would_search_for(text: str, expected: list[str]) -> None:
    assert words(text) == expected


@given(st.text())
def test_the_places_of_words_are_in_the_text_and_in_order(text: str) -> None:
    found = [*words_of(text)]
    assert all(0 <= word.start < word.end <= len(text) for word in found)
    assert [word.start for word in found] == sorted(word.start for word in found)


@given(st.text())
def test_the_words_of_an_indexed_text_are_those_of_the_text(text: str) -> None:
    """An index that splits at spaces and folds plain letters gets the same words."""
    folded = "".join(char if char.isalnum() or not char.isascii() else " " for char in indexed_text(text)).split()
    assert [word.lower() if word.isascii() else word for word in folded] == words(text)


@pytest.mark.parametrize(
    ("query", "text"),
    [
        ("red shoes", "Shoes that are RED"),
        ('"red shoes"', "the red, shoes"),
        ("“red shoes”", "red shoes"),
        ('"red shoes', "red shoes"),
        ("sho*", "shoes"),
        ("sho*", "sho"),
        ("foo_bar.baz", "call foo_bar.baz()"),
        ("ann@example.org", "mail ann@example.org now"),
        ("cafe", "im Café"),
        ("CAFÉ", "im cafe"),
        ("京都", "東京都"),
        ("京", "東京都"),
        ("都", "東京都"),
        ("日本v2", "日本v2"),
        ("v2日", "v2日本"),
        ("สดี", "สวัสดีครับ"),
        ("👍", "fine 👍🏽"),
        ("1234", "no. 1234"),
        ("a AND OR NOT b", "not or and b a"),
        ("said:x", "said x"),
        ('x" OR "1', "x or 1"),
    ],
)
def test_a_query_finds_a_text(query: str, text: str) -> None:
    assert finds(query, text)


@pytest.mark.parametrize(
    ("query", "text"),
    [
        ("red shoes", "red hats"),
        ('"red shoes"', "shoes red"),
        ("sho", "shoes"),
        ("*oes", "shoes"),
        ("foo.bar", "bar foo"),
        ("都東", "東京都"),
        ("a OR b", "a"),
    ],
)
def test_a_query_does_not_find_what_it_does_not_say(query: str, text: str) -> None:
    assert not finds(query, text)


@pytest.mark.parametrize("query", ["", "   ", "...", '""', "*", "-- ; ' \\", "\u200d"])
def test_a_query_without_a_word_is_refused_and_names_its_parameter(query: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        parse_query(query)
    assert refused.value.details["param"] == "query"


@given(st.text(), st.text())
def test_any_text_can_be_a_query_and_be_searched(query: str, text: str) -> None:
    try:
        parsed = parse_query(query, is_open=True)
    except InvalidRequest:
        return
    found = find_terms(text, parsed)
    shown = snippet(text, parsed)
    assert (found is None) == (shown is None)
    assert 0 <= Ranking(parsed, 0).rank(text, 0) <= 1
    assert all(start < end for start, end in all_places(text, parsed))


@given(st.text(min_size=1))
def test_a_text_finds_itself(text: str) -> None:
    if words(text):
        assert finds(text.replace('"', " "), text)


def test_an_open_query_takes_its_last_word_for_unfinished_unless_it_is_quoted() -> None:
    assert find_terms("red shoes", parse_query("red sho", is_open=True))
    assert not find_terms("red shoes", parse_query('red "sho"', is_open=True))
    assert not find_terms("red shoes", parse_query("re shoes", is_open=True))


def test_more_matches_a_shorter_text_and_a_newer_message_rank_higher() -> None:
    ranking = Ranking(parse_query("red"), 400 * DAY_MS)
    once = ranking.rank("red and " + "other " * 50, 0)
    assert ranking.rank("red red red and " + "other " * 50, 0) > once
    assert ranking.rank("red and other", 0) > once
    assert ranking.rank("red and " + "other " * 50, 400 * DAY_MS) > once
    assert ranking.rank("red red red", 0) > ranking.rank("red and " + "other " * 50, 400 * DAY_MS), "only mildly"
    assert ranking.rank("bored, hundred", 0) == 0, "parts of words do not count"


def test_a_snippet_shows_what_stands_around_the_first_match_on_one_line() -> None:
    text = "y" * 500 + " before the\n\nRed   shoes " + "z " * 300
    shown = snippet(text, parse_query("red shoes"))
    assert shown is not None
    assert shown.startswith("…yyy") and "before the Red shoes z z" in shown and shown.endswith("…") and len(shown) < 220
    assert snippet("Red shoes", parse_query("shoes")) == "Red shoes"
    assert snippet("Red shoes", parse_query("hats")) is None


def test_all_places_of_a_query_are_found_for_a_reader() -> None:
    text = "Red shoes, red hats, shoes"
    assert [text[a:b] for a, b in all_places(text, parse_query("red sho*"))] == ["Red", "shoes", "red", "shoes"]


def test_what_is_searched_of_a_message_is_what_was_said_and_apart_from_it_what_tools_did() -> None:
    call = ToolCallBlock(id="r/0/0", name="fetch", arguments={"what": "shoes"})
    content = (TextBlock(text="I look"), ThinkingBlock(thinking="secretly"), call)
    said = search_text(Message(id="1", role=Role.ASSISTANT, content=content, timestamp=0))
    assert said == ("I look", 'fetch {"what":"shoes"}')
    assert said.text(with_tools=False) == "I look" and "shoes" in said.text(with_tools=True)
    result = Message(id="2", role=Role.TOOL_RESULT, content=(TextBlock(text="none"),), timestamp=0, tool_name="fetch")
    assert search_text(result) == ("", "fetch none")
    silent = Message(id="3", role=Role.ASSISTANT, content=(TextBlock(text="NO_REPLY"),), timestamp=0)
    assert search_text(silent).said == ""
