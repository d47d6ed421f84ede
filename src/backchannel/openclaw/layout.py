"""A JSON5 text as a tree that can be changed and written again: what is not touched stays as it was, comments too.

A comment belongs to the setting that follows it or, when it ends a line, to the setting before it. What stands
before a closing bracket belongs to the group.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TypeAlias, Union

from backchannel.config.findings import SettingPath, Step
from backchannel.config.source import Positions

Value: TypeAlias = Union[str, "Group"]

_LINE_COMMENT = r"//[^\n\r\u2028\u2029]*"
_COMMENT = re.compile(_LINE_COMMENT + r"|/\*.*?(?:\*/|\Z)", re.DOTALL)
_COMMA = re.compile(_COMMENT.pattern + r"|(,)", re.DOTALL)
_SHORT_COMMENT = r"[ \t]*/\*(?:[^*\n\r]|\*(?!/))*\*/"
_REST_OF_LINE = re.compile(rf"(?:{_SHORT_COMMENT})*(?:[ \t]*{_LINE_COMMENT})?(?=[ \t]*[\n\r\u2028\u2029])")
_REST_OF_GROUP = re.compile(rf"(?:{_SHORT_COMMENT})+(?=[ \t]*\Z)")
_BEGINS_LINE = re.compile(r"[ \t]*[\n\r\u2028\u2029]")


@dataclass(slots=True, eq=False)
class Member:
    """A setting, or an item of a list, with all that stands around it."""

    lead: str
    """White space and comments before it."""
    key: str
    """The name as written, with its quotes. Empty in a list, like `name` and `colon`."""
    name: str
    colon: str
    """What stands between name and value."""
    value: Value
    tail: str = ""
    """What follows the value, up to the comma."""
    has_comma: bool = False
    rest: str = ""
    """What follows the comma on the same line."""

    def __str__(self) -> str:
        return f"{self.lead}{self.key}{self.colon}{self.value}{self.tail}{',' * self.has_comma}{self.rest}"

    @property
    def comments(self) -> list[str]:
        """The comments around it, without those inside its value."""
        return comments_in(self.lead, self.colon, self.tail, self.rest)

    @property
    def ends_in_line_comment(self) -> bool:
        """Whether what follows on the same line would be taken for a comment."""
        *_, last = ["", *_COMMENT.findall(self.tail + self.rest)]
        return last.startswith("//") and (self.tail + self.rest).endswith(last)

    def set_comma(self, has_comma: bool) -> None:
        """Put a comma after the value, where no comment hides it, or take it away."""
        if has_comma != self.has_comma:
            self.tail, self.has_comma, self.rest = "", has_comma, self.tail + self.rest


@dataclass(slots=True, eq=False)
class Group:
    """An object or a list."""

    brackets: str
    members: list[Member] = field(default_factory=list)
    end: str = ""
    """White space and comments before the closing bracket."""

    def __str__(self) -> str:
        parts, is_in_comment = [self.brackets[0]], False
        for member in self.members:
            parts.append(_outside(str(member), is_in_comment))
            is_in_comment = member.ends_in_line_comment
        return "".join([*parts, _outside(self.end + self.brackets[1], is_in_comment)])

    @property
    def is_broken(self) -> bool:
        """Whether its members stand on lines of their own."""
        return any("\n" in member.lead for member in self.members) or "\n" in self.end

    def find(self, step: Step) -> Member:
        """The member of this name or, in a list, at this place.

        Raises:
            LookupError: there is none.
        """
        if isinstance(step, int):
            return self.members[step]
        for member in reversed(self.members):
            if member.name == step:
                return member
        raise LookupError(step)

    def insert(self, index: int, member: Member) -> None:
        """Put a member in, with the commas that are then needed; a last one has a comma if the last one had."""
        if index == len(self.members) > 0:
            member.set_comma(self.members[-1].has_comma)
            self.members[-1].set_comma(True)
        elif self.members:
            member.set_comma(True)
        self.members.insert(index, member)

    def remove(self, member: Member) -> None:
        """Take a member out, with the comma that is then too many."""
        index = self.members.index(member)
        del self.members[index]
        if index == len(self.members) > 0:
            self.members[-1].set_comma(member.has_comma)


@dataclass(slots=True)
class Layout:
    """A whole text."""

    lead: str
    root: Group
    end: str

    def __str__(self) -> str:
        return f"{self.lead}{self.root}{self.end}"


def parse_layout(positions: Positions) -> Layout:
    """Take a text apart that holds one object, and in which no key comes twice."""
    text, whole = positions.text, positions.spans[()]
    root = _Parsing(positions).value(())
    if not isinstance(root, Group):
        raise ValueError("the text holds no object")
    return Layout(text[: whole.value], root, text[whole.end :])


def comments_in(*trivia: str) -> list[str]:
    """The comments among white space."""
    return [comment for part in trivia for comment in _COMMENT.findall(part)]


def comments_of(value: Value) -> list[str]:
    """All comments inside a value."""
    if isinstance(value, str):
        return []
    inner = [comment for member in value.members for comment in (*member.comments, *comments_of(member.value))]
    return [*inner, *comments_in(value.end)]


class _Parsing:
    def __init__(self, positions: Positions) -> None:
        self._text = positions.text
        self._positions = positions
        self._inside: dict[SettingPath, list[SettingPath]] = defaultdict(list)
        for path in positions.offsets:  # in the order of the text
            self._inside[path[:-1]].append(path)

    def value(self, path: SettingPath) -> Value:
        span = self._positions.spans[path]
        if self._text[span.value] not in "{[":
            return self._text[span.value : span.end]
        group = Group("{}" if self._text[span.value] == "{" else "[]")
        at, paths = span.value + 1, self._inside[path]
        for inner, following in zip(paths, [*paths[1:], None], strict=False):
            member = self._member(inner, at)
            ends_at = self._positions.spans[inner].end
            gap = self._text[ends_at : self._positions.offsets[following] if following else span.end - 1]
            member.tail, member.has_comma, member.rest = _split(gap, is_last=following is None)
            at = ends_at + len(member.tail) + member.has_comma + len(member.rest)
            group.members.append(member)
        group.end = self._text[at : span.end - 1]
        return group

    def _member(self, path: SettingPath, at: int) -> Member:
        offset, span = self._positions.offsets[path], self._positions.spans[path]
        name = path[-1] if isinstance(path[-1], str) else ""
        key, colon = self._text[offset : span.name_end], self._text[span.name_end : span.value]
        return Member(self._text[at:offset], key, name, colon, self.value(path))


def _split(gap: str, *, is_last: bool) -> tuple[str, bool, str]:
    """Tell what between two members belongs to the first: up to the comma, the comma, the rest of its line."""
    comma = next((match.start() for match in _COMMA.finditer(gap) if match[1]), None)
    after = gap if comma is None else gap[comma + 1 :]
    own = _REST_OF_LINE.match(after) or (_REST_OF_GROUP.match(after) if is_last else None)
    rest = own[0] if own else ""
    return (rest, False, "") if comma is None else (gap[:comma], True, rest)


def _outside(text: str, is_in_comment: bool) -> str:
    return f"\n{text}" if is_in_comment and not _BEGINS_LINE.match(text) else text
