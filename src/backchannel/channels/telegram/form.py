"""Markdown of an agent as Telegram's HTML, with the few tags of the Bot API.

Bold, italic, struck out, code, code blocks with their language, links and quotes are what they are. Other Markdown
becomes what comes nearest. A heading is bold. An item of a list has a bullet or its number. A table is set with spaces
in a code block. A line across is three dashes, and a picture is a link. A quote in a quote is part of it. A link that
Telegram would not open shows its address behind its text. Code is never bold, nor part of a link, because Telegram does
not permit it. Everything else is text, HTML included, and nothing that can be read is left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from html import escape, unescape
from itertools import groupby
from typing import NamedTuple

import structlog
from markdown_it import MarkdownIt
from markdown_it.token import Token
from markdown_it.tree import SyntaxTreeNode

from backchannel.channels.telegram.length import MAX_UNITS, text_units

log = structlog.get_logger(__name__)

_MAX_NESTING = 40
_LINE = "———"
_BULLET = "•"
_LANGUAGE = re.compile(r"[A-Za-z0-9_+#.-]{1,32}\Z")
_OPENED = re.compile(r"(?:https?://|tg://|mailto:|ftp://)\S+\Z", re.IGNORECASE)
_LINE_END = re.compile(r"\r\n?")
_CELL_END = re.compile(r"(?<!\\)\|")
_TAG = re.compile(r"<[^<>]*>")
_STYLES = {"strong": "b", "em": "i", "s": "s"}

# Definitions of links vanish from what is read, and a line of dashes would make a heading of the words above it.
_markdown = (
    MarkdownIt("commonmark", {"html": False, "maxNesting": _MAX_NESTING})
    .enable(["table", "strikethrough"])
    .disable(["reference", "lheading"])
)


def to_html(markdown: str) -> str | None:
    """Make Telegram's HTML of an agent's text; None when it is better sent as it is.

    A text is sent as it is when its HTML would show nothing, or would be too long. The same holds when the parser would
    leave something out: deep nesting, or cells beyond the columns of their table's head. After a fault in here or in
    the parser the text is sent as it is too, and the fault is logged.
    """
    try:
        return _made(_LINE_END.sub("\n", markdown))
    except Exception:  # nothing is sent yet, so nothing may become of it but a text without markup
        log.exception("a text could not be made into Telegram's HTML, and is sent as it is")
        return None


def _made(markdown: str) -> str | None:
    tokens = _markdown.parse(markdown)
    if any(_is_deep(token) for token in tokens) or _has_spare_cells(tokens, markdown):
        return None
    html = _blocks(SyntaxTreeNode(tokens).children)
    text = plain_text(html)
    return html if text.strip() and text_units(text) <= MAX_UNITS else None


def _is_deep(token: Token) -> bool:
    """Whether a token, or one of the words in it, is nested too deeply."""
    deepest = max((child.level for child in token.children or ()), default=0)
    return max(token.level, deepest) >= _MAX_NESTING - 2


def _has_spare_cells(tokens: Sequence[Token], markdown: str) -> bool:
    """Whether a row of a table has more cells than its head."""
    lines = markdown.split("\n")
    for head, row in enumerate(tokens):
        if row.type != "tr_open" or not row.map:
            continue
        shown = 0
        for token in tokens[head + 1 :]:
            if token.type == "tr_close":
                break
            shown += token.type in ("td_open", "th_open")
        written = _CELL_END.split(lines[row.map[0]].lstrip(" \t>").removeprefix("|").rstrip().removesuffix("|"))
        if len(written) > shown:
            return True
    return False


def plain_text(html: str) -> str:
    """Give what is read of a text that `to_html` made."""
    return unescape(_TAG.sub("", html))


class _Run(NamedTuple):
    """Some words that look alike."""

    text: str
    styles: tuple[str, ...] = ()
    link: str | None = None
    is_code: bool = False


def _blocks(nodes: Sequence[SyntaxTreeNode], *, depth: int = 0, in_quote: bool = False, between: str = "\n\n") -> str:
    shown = (_block(node, depth, in_quote) for node in nodes)
    return between.join(block for block in shown if block)


def _block(node: SyntaxTreeNode, depth: int, in_quote: bool) -> str:
    match node.type:
        case "heading":
            return _inline(node, ("b",))
        case "bullet_list" | "ordered_list":
            return _list(node, depth, in_quote)
        case "blockquote":
            inner = _blocks(node.children, in_quote=True)
            return inner if in_quote or not inner else f"<blockquote>{inner}</blockquote>"
        case "fence" | "code_block":
            return _code(node.content, node.info)
        case "table":
            return _table(node)
        case "hr":
            return _LINE
    return _inline(node)


def _list(node: SyntaxTreeNode, depth: int, in_quote: bool) -> str:
    first = int(node.attrs.get("start", 1)) if node.type == "ordered_list" else None
    lines = []
    for number, item in enumerate(node.children):
        mark = _BULLET if first is None else f"{first + number}."
        inner = _blocks(item.children, depth=depth + 1, in_quote=in_quote, between="\n")
        lines.append(f"{'   ' * depth}{mark} {inner}")
    return "\n".join(lines)


def _code(content: str, info: str) -> str:
    """Show a block of code; what stands behind its language, or in place of one, is a line above it."""
    text, words = escape(content.removesuffix("\n"), quote=False), info.strip()
    if not text.strip():
        return escape(words, quote=False)
    language, _, rest = words.partition(" ")
    if not _LANGUAGE.match(language):
        language, rest = "", words
    title = f"{escape(rest.strip(), quote=False)}\n" if rest.strip() else ""
    block = f'<code class="language-{language}">{text}</code>' if language else text
    return f"{title}<pre>{block}</pre>"


def _table(node: SyntaxTreeNode) -> str:
    rows = [[_words(cell) for cell in row.children] for part in node.children for row in part.children]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [" | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    lines.insert(1, "-+-".join("-" * width for width in widths))
    text = escape("\n".join(lines), quote=False)
    return f"<pre>{text}</pre>"


def _words(node: SyntaxTreeNode) -> str:
    """Give the words of a cell, with the addresses of its links."""
    runs = [run for child in node.children for run in _runs(child.children, _Run(""))]
    return "".join(run.text if run.link is None else f"{run.text} ({run.link})" for run in runs)


def _inline(node: SyntaxTreeNode, styles: tuple[str, ...] = ()) -> str:
    runs = [run for child in node.children for run in _runs(child.children, _Run("", styles))]
    shown = []
    for link, linked in groupby(runs, key=lambda run: run.link):
        words = "".join(_marked(run) for run in linked)
        shown.append(words if link is None else f'<a href="{escape(link)}">{words}</a>')
    return "".join(shown)


def _marked(run: _Run) -> str:
    text = escape(run.text, quote=False)
    if not run.text.strip():
        return text
    if run.is_code and run.link is None:
        return f"<code>{text}</code>"
    for style in reversed(run.styles):
        text = f"<{style}>{text}</{style}>"
    return text


def _runs(nodes: Sequence[SyntaxTreeNode], like: _Run) -> Iterator[_Run]:
    """Take inline nodes apart into words that look alike; `like` is how the words around them look."""
    for node in nodes:
        if (style := _STYLES.get(node.type)) is not None:
            styles = like.styles if style in like.styles else (*like.styles, style)
            yield from _runs(node.children, like._replace(styles=styles))
        elif node.type == "link":
            yield from _link(node, str(node.attrs.get("href", "")), like)
        elif node.type == "image":
            yield from _link(node, str(node.attrs.get("src", "")), like)
        elif node.type == "code_inline":
            yield like._replace(text=node.content, is_code=True)
        elif node.type in ("softbreak", "hardbreak"):
            yield like._replace(text="\n")
        else:
            yield like._replace(text=node.content)


def _link(node: SyntaxTreeNode, address: str, like: _Run) -> Iterator[_Run]:
    """Show a link, or a picture as one: its text leads there, or the address stands behind it."""
    words = list(_runs(node.children, like))
    text = "".join(run.text for run in words)
    if like.link is not None:  # a picture in a link
        yield from words
    elif _OPENED.match(address):
        yield from (run._replace(link=address) for run in words or [like._replace(text=address)])
    else:
        yield from words
        if address and address != text:
            yield like._replace(text=f" ({address})" if text else address)
