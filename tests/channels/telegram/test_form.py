"""An agent's Markdown as Telegram shows it: always markup that Telegram takes, and nothing that is read gets lost."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from backchannel.channels.telegram.form import plain_text, to_html
from backchannel.channels.telegram.length import text_units
from tests.support.logs import captured_logs
from tests.support.telegram_html import BadMarkup, read_html


@pytest.mark.parametrize(
    ("markdown", "html"),
    [
        ("plain", "plain"),
        ("a **b** _c_ ~~d~~ `e`", "a <b>b</b> <i>c</i> <s>d</s> <code>e</code>"),
        ("***both***", "<i><b>both</b></i>"),
        ("**bold `code` bold**", "<b>bold </b><code>code</code><b> bold</b>"),
        ("# Title\ntext", "<b>Title</b>\n\ntext"),
        ("- a\n- b\n  - c", "• a\n• b\n   • c"),
        ("3. a\n4. b", "3. a\n4. b"),
        ("> said\n> so", "<blockquote>said\nso</blockquote>"),
        ("> a\n> > b", "<blockquote>a\n\nb</blockquote>"),
        ("```py\nif a < b:\n```", '<pre><code class="language-py">if a &lt; b:</code></pre>'),
        ("```\nx\n```", "<pre>x</pre>"),
        ('```"><b>\nx\n```', '"&gt;&lt;b&gt;\n<pre>x</pre>'),
        ("```py title\nx\n```", 'title\n<pre><code class="language-py">x</code></pre>'),
        ("```py\n```", "py"),
        ("[a](https://x.y/?a=1&b=2)", '<a href="https://x.y/?a=1&amp;b=2">a</a>'),
        ("[**a** `b`](https://x.y)", '<a href="https://x.y"><b>a</b> b</a>'),
        ("[a](notes.md)", "a (notes.md)"),
        ("![cat](https://x.y/c.png)", '<a href="https://x.y/c.png">cat</a>'),
        ("[x](javascript:alert(1))", "[x](javascript:alert(1))"),
        ("| a | b |\n|---|---|\n| 1 | two |", "<pre>a | b\n--+----\n1 | two</pre>"),
        ("a\n\n---\n\nb", "a\n\n———\n\nb"),
        ("<b>x</b> & <script>", "&lt;b&gt;x&lt;/b&gt; &amp; &lt;script&gt;"),
        ("[a]: https://x.y", "[a]: https://x.y"),
        ("2 * 3 * 4 and snake_case_name", "2 * 3 * 4 and snake_case_name"),
        ("one\ntwo", "one\ntwo"),
    ],
)
def test_markdown_becomes_what_telegram_has_for_it(markdown: str, html: str) -> None:
    assert to_html(markdown) == html
    read_html(html)


@pytest.mark.parametrize("markdown", ["```\n```", "# ", "> ", "  "])
def test_what_would_show_nothing_is_sent_as_it_is(markdown: str) -> None:
    assert to_html(markdown) is None


def test_what_would_be_too_long_or_too_deep_is_sent_as_it_is() -> None:
    wide = "| a | b |\n|---|---|\n" + f"| {'x' * 500} | 1 |\n" + "| y | 2 |\n" * 20
    assert text_units(wide) < 4096 and to_html(wide) is None
    assert to_html("> " * 500 + "x") is None


def test_a_table_whose_rows_are_longer_than_its_head_is_sent_as_it_is() -> None:
    assert to_html("| a | b |\n|---|---|\n| 1 | 2 | lost |") is None
    assert to_html("> | a | b |\n> |---|---|\n> | 1 | x \\| y |") == (
        "<blockquote><pre>a | b\n--+------\n1 | x | y</pre></blockquote>"
    )


@pytest.mark.parametrize("line_end", ["\r", "\r\n"])
def test_a_table_is_found_and_measured_whatever_lines_end_with(line_end: str) -> None:
    table = "|a|b|\n|-|-|\n|1|2|"
    assert to_html(f"x{line_end}y{line_end * 3}{table}") == "x\ny\n\n<pre>a | b\n--+--\n1 | 2</pre>"
    assert to_html(f"x{line_end}y\n\n{table}LOSTCELL|\n\nend\n\nend2") is None, "the cell would be left out"


def test_words_in_a_thousand_styles_are_sent_as_they_are() -> None:
    with captured_logs() as logs:
        assert to_html("*" * 2000 + "a" + "*" * 2000) is None
    assert not logs


def test_when_the_parser_fails_a_text_is_sent_as_it_is_and_the_fault_is_logged(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: object) -> None:
        raise IndexError("a bug of the parser")

    monkeypatch.setattr(MarkdownIt, "parse", failing)
    with captured_logs() as logs:
        assert to_html("**hello**") is None
    assert [line["log_level"] for line in logs] == ["error"] and logs[0]["exc_info"]


SPECIAL = st.sampled_from([*"*_~`[]()<>&#|-+>!\\\n\r \t\"'=:1.", "```", "\n\n", "](http://a.b)", "**", "~~", "😀", "é"])
HOSTILE = st.lists(SPECIAL | st.text(max_size=3), max_size=60).map("".join)


@settings(max_examples=400, deadline=None)
@given(HOSTILE)
def test_whatever_an_agent_writes_telegram_takes_the_markup(text: str) -> None:
    with captured_logs() as logs:
        html = to_html(text)
    assert not logs, "nothing in it is a fault of ours"
    if html is not None:
        assert read_html(html) == plain_text(html)


WORDS = st.lists(
    st.sampled_from(["alpha", "beta", "gamma", "*", "**", "_", "~~ ", "#", "-", ">", "|", "\n", "\n\n", " "])
)


@settings(max_examples=300, deadline=None)
@given(WORDS.map("".join))
def test_no_word_is_lost_doubled_or_moved(text: str) -> None:
    html = to_html(text)
    if html is not None:
        assert _letters(plain_text(html)) == _letters(text)


def _letters(text: str) -> str:
    return "".join(filter(str.isalpha, text))


PLAIN = st.text(st.characters(categories=["L", "N"]), min_size=1, max_size=8)
STYLED = st.tuples(st.sampled_from(["", "**", "_", "`", "~~", "***"]), PLAIN)


@settings(max_examples=200, deadline=None)
@given(st.lists(STYLED, min_size=1, max_size=8))
def test_the_text_that_is_read_is_the_text_that_was_meant(pieces: list[tuple[str, str]]) -> None:
    markdown = "x " + " ".join(f"{mark}{word}{mark}" for mark, word in pieces)
    html = to_html(markdown)
    assert html is not None and plain_text(html) == "x " + " ".join(word for _, word in pieces)


@pytest.mark.parametrize(
    "piece", ["[", "*a ", "`", "![[", "~~a", "> ", "- ", "<", "&", "[a](b", "**", "_a*b", "a\n", "[](", "`a``b", "1. "]
)
def test_a_hostile_text_takes_no_longer_than_others(piece: str) -> None:
    text = (piece * 4096)[:4096]
    started = time.process_time()
    to_html(text)
    assert time.process_time() - started < 1


@pytest.mark.parametrize(
    "html",
    ["<b>x", "x</b>", "<b><i>x</b></i>", "a < b", "a & b", "<u x='1'>x</u>", "<b><code>x</code></b>", "<h1>x</h1>"],
)
def test_the_reader_of_these_tests_takes_nothing_that_telegram_does_not(html: str) -> None:
    with pytest.raises(BadMarkup):
        read_html(html)
