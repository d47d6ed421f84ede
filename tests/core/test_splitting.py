"""Splitting: nothing visible is lost, nothing is too long, and cuts are where a reader would make them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from backchannel.core.delivery.splitting import opening_of, split

FAMILY = "👩\u200d👩\u200d👧"
TEXTS = st.text(alphabet=st.sampled_from("abc  \n\n\r\té\u0301\u200d👍🏽🇩🇪\ud83d\ude00"), max_size=80) | st.text(
    max_size=80
)
LIMITS = st.integers(min_value=1, max_value=20)


@pytest.mark.parametrize(
    ("text", "limit", "parts"),
    [
        ("short", 10, ["short"]),
        ("exactly ten", 11, ["exactly ten"]),
        (" kept as it is \n", 20, [" kept as it is \n"]),
        ("one\ntwo\nthree", 8, ["one\ntwo", "three"]),
        ("one\ntwo", 3, ["one", "two"]),
        ("one\n\n\ntwo", 4, ["one", "two"]),
        ("one\r\ntwo", 4, ["one", "two"]),
        ("def f():\n    return 1", 12, ["def f():", "    return 1"]),
        ("aaaa bbbb", 4, ["aaaa", "bbbb"]),
        ("aaa   bbbb", 4, ["aaa", "bbbb"]),
        ("a line that is long", 10, ["a line", "that is", "long"]),
        ("x\nhttps://example.com", 8, ["x", "https://", "example.", "com"]),
        ("ok\na longer line", 8, ["ok", "a longer", "line"]),
        ("    indented", 8, ["    inde", "nted"]),
        ("        word", 4, ["word"]),
        ("", 5, []),
        (" \n\t\n ", 2, []),
        (" \n\t\n ", 50, []),
    ],
)
def test_a_text_is_cut_between_lines_else_at_a_space_else_where_it_must(
    text: str, limit: int, parts: list[str]
) -> None:
    assert split(text, limit) == parts


@pytest.mark.parametrize(
    ("text", "limit", "parts"),
    [
        ("aae\u0301b", 3, ["aa", "e\u0301b"]),
        ("ab👍🏽", 3, ["ab", "👍🏽"]),
        (f"ab{FAMILY}", 6, ["ab", FAMILY]),
        ("a🇩🇪🇫🇷", 4, ["a🇩🇪", "🇫🇷"]),
        ("🇩🇪🇫🇷🇮🇹", 3, ["🇩🇪", "🇫🇷", "🇮🇹"]),
        ("a\ud83d\ude00b", 2, ["a", "\ud83d\ude00", "b"]),
        ("❤\ufe0f❤\ufe0f", 3, ["❤\ufe0f", "❤\ufe0f"]),
    ],
)
def test_what_is_seen_as_one_character_stays_whole(text: str, limit: int, parts: list[str]) -> None:
    assert split(text, limit) == parts


def test_a_character_longer_than_the_limit_is_cut_all_the_same() -> None:
    assert split(FAMILY, 2) == [FAMILY[:2], FAMILY[2:4], FAMILY[4:]]


@given(TEXTS, LIMITS)
@example("a\n \nb", 1)
def test_parts_hold_all_but_white_space_in_order_and_keep_the_limit(text: str, limit: int) -> None:
    at = 0
    for part in split(text, limit):
        assert 0 < len(part) <= limit
        assert part.strip()
        found = text.index(part, at)
        assert not text[at:found].strip()
        at = found + len(part)
    assert not text[at:].strip()


@given(st.text(alphabet=st.sampled_from("ab\n"), max_size=60), LIMITS)
def test_a_text_without_spaces_loses_only_line_breaks(text: str, limit: int) -> None:
    assert "".join(split(text, limit)).replace("\n", "") == text.replace("\n", "")


@given(st.lists(st.sampled_from(["a", "b", "e\u0301", "👍🏽", " ", "\n"]), max_size=60).map("".join))
def test_no_part_begins_in_the_middle_of_a_character(text: str) -> None:
    assert not any(part[0] in "\u0301🏽" for part in split(text, 4))


def test_a_limit_without_room_is_refused() -> None:
    with pytest.raises(ValueError, match="expected 1 or more"):
        split("text", 0)


def test_long_texts_are_split_in_time_that_grows_with_their_length() -> None:
    for text in ("🇩" * 200_000, "\u0301" * 200_000, " " * 200_000 + "x", "\n" * 200_000):
        assert len(split(text, 1)) <= len(text)
        assert len(split(text, 4000)) <= len(text) / 4000 + 1


# Blocks of code, and platforms that count in their own way


def utf16(text: str) -> int:
    """Count as some platforms do: what is outside the basic plane counts two."""
    return len(text.encode("utf-16-le", "surrogatepass")) // 2


PYTHON = "```python\na = 1\nb = 2\n```"


@pytest.mark.parametrize(
    ("text", "limit", "parts"),
    [
        (f"{PYTHON}\nafter", 60, [f"{PYTHON}\nafter"]),
        (f"before it\n{PYTHON}\nafter", 30, ["before it\n```python\na = 1\n```", "```python\nb = 2\n```\nafter"]),
        (f"before it is\n{PYTHON}\nafter", 28, ["before it is", PYTHON, "after"]),
        (f"{PYTHON[:-4]}\nc = 3\n```", 28, [PYTHON, "```python\nc = 3\n```"]),
        ("~~~\n" + "x" * 30 + "\n~~~", 20, [f"~~~\n{'x' * 12}\n~~~", f"~~~\n{'x' * 12}\n~~~", "~~~\nxxxxxx\n~~~"]),
        ("  ```sh more\n  " + "ls " * 12 + "\n  ```", 40, None),
        ("say ```sh``` or " + "word " * 9, 40, None),
        ("one two three four five six seven ```", 36, ["one two three four five six", "seven ```"]),
        (f"```{'x' * 30}\ncode\n```", 20, ["```" + "x" * 17, "x" * 13 + "\ncode", "```"]),
    ],
)
def test_a_block_of_code_that_is_cut_is_closed_and_opened_again(text: str, limit: int, parts: list[str] | None) -> None:
    made = split(text, limit)
    assert parts is None or made == parts
    assert all(len(part) <= limit for part in made)


@pytest.mark.parametrize(
    ("text", "limit", "parts"),
    [
        (
            "> see:\n> ```py\n> a = 1\n> b = 2\n> ```\nafter",
            34,
            ["> see:\n> ```py\n> a = 1\n> ```", "> ```py\n> b = 2\n> ```\nafter"],
        ),
        (">> ~~~\n>> " + "x" * 40, 40, [f">> ~~~\n>> {'x' * 23}\n>> ~~~", f">> ~~~\n>> {'x' * 17}"]),
        (
            "> ```\n> " + "word " * 7 + "\nno code any more, and " + "more " * 4,
            40,
            [
                "> ```\n> word word word word word\n> ```",
                "> ```\n> word word\n> ```",
                "no code any more, and more more more",
                "more ",
            ],
        ),
        (
            "```\n> ```\n> quoted in code\n> more of it\n```",
            32,
            ["```\n> ```\n> quoted in code\n```", "```\n> more of it\n```"],
        ),
    ],
)
def test_a_block_of_code_in_a_quote_is_closed_and_opened_again_in_it(text: str, limit: int, parts: list[str]) -> None:
    assert split(text, limit) == parts


QUOTED = st.tuples(
    st.sampled_from(["> ", ">", "> > "]),
    st.sampled_from(["```", "~~~"]),
    st.sampled_from(["", "py"]),
    st.lists(st.text(alphabet="ab🙂é.=", min_size=1, max_size=70), min_size=1, max_size=6),
    st.booleans(),
)


def _quoted(quote: str, mark: str, language: str, lines: list[str], is_closed: bool) -> str:
    return "\n".join(f"{quote}{line}" for line in [mark + language, *lines, *([mark] if is_closed else [])])


def _shown_code(parts: list[str]) -> list[tuple[int, str, str]]:
    """Read parts with a real parser: each character of code, with its language and how deep in quotes it stands."""
    shown: list[tuple[int, str, str]] = []
    for part in parts:
        depth = 0
        for token in MarkdownIt("commonmark").parse(part):
            depth += token.nesting * token.type.startswith("blockquote")
            if token.type == "fence":
                shown += [(depth, token.info, mark) for mark in token.content if not mark.isspace()]
    return shown


@given(
    st.lists(QUOTED.map(lambda made: _quoted(*made)) | st.text(alphabet="ab .", min_size=1, max_size=70), max_size=6),
    st.integers(min_value=60, max_value=140),
    st.sampled_from([len, utf16]),
)
def test_code_in_quotes_is_code_in_quotes_in_every_part(
    blocks: list[str], limit: int, measure: Callable[[str], int]
) -> None:
    text = "\n\n".join(blocks)
    parts = split(text, limit, measure)
    assert all(0 < measure(part) <= limit for part in parts)
    assert _shown_code(parts) == _shown_code([text])


def test_a_block_that_ends_at_a_cut_leaves_no_empty_one_behind() -> None:
    code = "\n".join(f"line {n}" for n in range(4))
    for limit in range(24, 60):
        for part in split(f"words before it\n```js\n{code}\n```\nwords after it", limit):
            assert "```js\n```" not in part and not part.startswith("```\n"), (limit, part)


def _code_lines(parts: list[str]) -> list[tuple[str | None, str]]:
    """Read parts as a platform shows each on its own: every line with the language of its block, None outside."""
    lines: list[tuple[str | None, str]] = []
    for part in parts:
        mark, language = "", None
        for line in part.split("\n"):
            bare = line.strip()
            if not mark and bare[:3] in ("```", "~~~"):
                mark = bare[: len(bare) - len(bare.lstrip(bare[0]))]
                language = bare[len(mark) :].split(" ")[0]
            elif mark and bare.startswith(mark) and not bare.strip(mark[0]):
                mark, language = "", None
            else:
                lines.append((language, line))
        assert not mark, f"a block that is not closed: {part!r}"
    return lines


LINES = st.text(alphabet=st.sampled_from("ab🙂é\u0301 .`~"), max_size=70).filter(
    lambda line: not line.strip().startswith(("```", "~~~")) and " ```" not in line and " ~~~" not in line
)
CODE = st.tuples(
    st.sampled_from(["```", "````", "~~~"]), st.sampled_from(["", "py", "sh x=1"]), st.lists(LINES, max_size=8)
)
DOCUMENTS = st.lists(LINES | CODE, min_size=1, max_size=8)


def _document(blocks: list[str | tuple[str, str, list[str]]]) -> str:
    return "\n".join(
        block if isinstance(block, str) else "\n".join([block[0] + block[1], *block[2], block[0]]) for block in blocks
    )


@given(DOCUMENTS, st.integers(min_value=40, max_value=120), st.sampled_from([len, utf16]))
def test_every_part_of_a_document_stands_on_its_own(
    blocks: list[str | tuple[str, str, list[str]]], limit: int, measure: Callable[[str], int]
) -> None:
    text = _document(blocks)
    parts = split(text, limit, measure)
    assert all(0 < measure(part) <= limit for part in parts)

    def visible(lines: list[tuple[str | None, str]]) -> list[tuple[str | None, str]]:
        return [(language, mark) for language, line in lines for mark in line if not mark.isspace()]

    assert visible(_code_lines(parts)) == visible(_code_lines([text]))


@given(TEXTS, st.integers(min_value=4, max_value=20))
def test_a_limit_is_kept_in_the_units_of_the_platform(text: str, limit: int) -> None:
    parts = split(text, limit, utf16)
    assert all(0 < utf16(part) <= limit for part in parts)
    assert "".join("".join(parts).split()) == "".join(text.split())


@given(DOCUMENTS, st.integers(min_value=40, max_value=120))
def test_the_opening_of_a_text_fits_into_one_message_and_shows_that_it_is_cut(
    blocks: list[str | tuple[str, str, list[str]]], limit: int
) -> None:
    text = _document(blocks)
    shown = opening_of(text, limit, utf16)
    assert utf16(shown) <= limit
    if utf16(text) <= limit:
        assert shown == text
    elif shown:
        assert shown.endswith("…")
        _code_lines([shown])


def test_a_long_document_is_split_in_little_time() -> None:
    block = "```py\n" + "x = '🙂'\n" * 500 + "```\n" + "some words of a paragraph " * 100 + "\n"
    parts = split(block * 100, 4096, utf16)
    assert all(utf16(part) <= 4096 for part in parts) and len(parts) < 300
