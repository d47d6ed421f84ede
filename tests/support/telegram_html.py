"""Telegram's HTML, read as strictly as its documents describe it: https://core.telegram.org/bots/api#html-style

What they do not allow is an error here, also where Telegram itself would silently show something else.
"""

from __future__ import annotations

import re
from html import unescape

STYLES = {"b", "strong", "i", "em", "u", "ins", "s", "strike", "del", "tg-spoiler"}
_TOKEN = re.compile(r"<(/?)([a-z-]+)((?:\s+[a-z-]+(?:=\"[^\"<>]*\")?)*)\s*>|([^<>]+)|([<>])")
_ENTITY = re.compile(r"&(?:(?:lt|gt|amp|quot|#\d{1,7}|#x[0-9a-fA-F]{1,6});)?")
_CODE_CLASS = re.compile(r' class="language-[^"\s]+"\Z')
_LINK = re.compile(r' href="(?:https?|tg|ftp|mailto):[^"]+"\Z')


class BadMarkup(ValueError):
    """The text is not what the documents allow."""


def read_html(html: str) -> str:
    """Give the text without its markup.

    Raises:
        BadMarkup: it is not allowed.
    """
    text: list[str] = []
    opened: list[str] = []
    for match in _TOKEN.finditer(html):
        closes, tag, attributes, words, stray = match.groups()
        if stray:
            raise BadMarkup(f"a {stray} that is not escaped: {html[match.start() :][:40]!r}")
        if words is not None:
            text.append(_unescaped(words))
        elif closes:
            if not opened or opened.pop() != tag or attributes:
                raise BadMarkup(f"</{tag}> closes nothing that is open")
        else:
            _check_opening(tag, attributes, opened)
            opened.append(tag)
    if opened:
        raise BadMarkup(f"<{opened[-1]}> is not closed")
    return "".join(text)


def _unescaped(words: str) -> str:
    for match in _ENTITY.finditer(words):
        if match.group() == "&":
            raise BadMarkup(f"an & that is not escaped: {words[match.start() :][:40]!r}")
    return unescape(words)


def _check_opening(tag: str, attributes: str, opened: list[str]) -> None:
    inside = opened[-1] if opened else None
    if tag == "code" and inside == "pre":
        if not _CODE_CLASS.match(attributes):
            raise BadMarkup(f"<code{attributes}> in <pre> has no language")
        return
    if {"pre", "code"} & set(opened):
        raise BadMarkup(f"<{tag}> in code")
    if tag in ("pre", "code"):
        if (STYLES | {"a"}) & set(opened) or attributes:
            raise BadMarkup(f"<{tag}{attributes}> in {opened}")
    elif tag == "blockquote":
        if opened or attributes not in ("", " expandable"):
            raise BadMarkup(f"<blockquote{attributes}> in {opened}")
    elif tag == "a":
        if "a" in opened or not _LINK.match(attributes):
            raise BadMarkup(f"<a{attributes}> in {opened}")
    elif tag not in STYLES or attributes:
        raise BadMarkup(f"unsupported: <{tag}{attributes}>")
