"""Rewriting of a configuration's text to today's names, with its comments kept.

`Layout` is a JSON5 text as a tree that can be changed and written again: what is not touched stays as it was. A comment
belongs to the setting that follows it or, when it ends a line, to the setting before it. What stands before a closing
bracket belongs to the group.

`rewrite` takes settings out first, the last one first, and then puts them where they stand today. A group that is left
empty goes away. Its comments go with the setting that left it last, which is the first one in the file. An older
top-level group keeps its place in the file for its replacement.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias, Union

from backchannel.config.source import LINE_COMMENT, Positions
from backchannel.core.settings import SettingPath, Step
from backchannel.openclaw.settings import Move, written_id

Value: TypeAlias = Union[str, "Group"]

_COMMENT = re.compile(LINE_COMMENT + r"|/\*.*?(?:\*/|\Z)", re.DOTALL)  # unclosed ones too: else it is not linear
_COMMA = re.compile(_COMMENT.pattern + r"|(,)", re.DOTALL)
_SHORT_COMMENT = r"[ \t]*/\*(?:[^*\n\r]|\*(?!/))*\*/"
_REST_OF_LINE = re.compile(rf"(?:{_SHORT_COMMENT})*(?:[ \t]*{LINE_COMMENT})?(?=[ \t]*[\n\r\u2028\u2029])")
_REST_OF_GROUP = re.compile(rf"(?:{_SHORT_COMMENT})+(?=[ \t]*\Z)")
_BEGINS_LINE = re.compile(r"[ \t]*[\n\r\u2028\u2029]")

_USUAL_UNIT = "  "
_INDENT = re.compile(r".*\n([ \t]*)", re.DOTALL)
_BLANK_LINE = re.compile(r"[ \t]*\r?\n[ \t]*\r?\n")
_LINE_START = re.compile(r"(\r?\n)([ \t]*)(?![ \t\r\n])")


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
    """Split what between two members belongs to the first: up to the comma, the comma, the rest of its line."""
    comma = next((match.start() for match in _COMMA.finditer(gap) if match[1]), None)
    after = gap if comma is None else gap[comma + 1 :]
    own = _REST_OF_LINE.match(after) or (_REST_OF_GROUP.match(after) if is_last else None)
    rest = own[0] if own else ""
    return (rest, False, "") if comma is None else (gap[:comma], True, rest)


def _outside(text: str, is_in_comment: bool) -> str:
    return f"\n{text}" if is_in_comment and not _BEGINS_LINE.match(text) else text


class LostComment(NamedTuple):
    """A comment that stood at a setting which is left out."""

    path: SettingPath
    text: str


def rewrite(layout: Layout, moves: Sequence[Move]) -> list[LostComment]:
    """Make all moves in the layout, and return the comments that could not be kept.

    Raises:
        LookupError: the layout is not that of the settings which the moves are about.
    """
    rewriting = _Rewriting(layout, moves)
    for move in moves:
        if move.fate == "renamed":
            rewriting.rename(move)
    lost = [lost for move in moves if move.is_left_out for lost in rewriting.drop(move)]
    moved = [move for move in moves if move.fate == "moved"]
    taken = [rewriting.take(move.old) for move in reversed(moved)]
    for move in moved:
        rewriting.put(move, taken.pop())
    rewriting.finish()
    return lost


class _Taken(NamedTuple):
    """A setting on its way."""

    member: Member
    indent: str
    comments: list[str]
    """Those of the groups that it left empty."""


class _Spot(NamedTuple):
    """A group, and the indentation of the line that it begins on."""

    group: Group
    indent: str


class _Rewriting:
    def __init__(self, layout: Layout, moves: Sequence[Move]) -> None:
        self._root = _Spot(layout.root, _indent(layout.lead) or "")
        self._newline = "\r\n" if "\r\n" in str(layout) else "\n"
        self._unit = (_inner_indent(layout.root) or "").removeprefix(self._root.indent) or _USUAL_UNIT
        self._has_last_commas = _has_last_commas(layout.root)
        self._moved = {move.old for move in moves if move.fate == "moved"}
        self._places: dict[Step, Member] = {}

    def rename(self, move: Move) -> None:
        """Give a setting its name of today, and its value, where that is written in another way."""
        member = self._spot(move.old[:-1]).group.find(move.old[-1])
        _call(member, str(move.new[-1]))
        if move.value is not None:
            member.value = move.value

    def drop(self, move: Move) -> list[LostComment]:
        """Leave a setting out."""
        member, _, comments = self.take(move.old)
        return [LostComment(move.old, text) for text in (*comments, *member.comments, *comments_of(member.value))]

    def take(self, path: SettingPath) -> _Taken:
        """Take a setting out, and the groups around it that are empty then."""
        spot = self._spot(path[:-1])
        member = spot.group.find(path[-1])
        self._remove(spot.group, member)
        return _Taken(member, _indent(member.lead) or spot.indent, self._prune(path[:-1]))

    def put(self, move: Move, taken: _Taken) -> None:
        """Put a setting where it stands today."""
        member, last = taken.member, move.new[-1]
        comments = _detach_comments(member, of_colon=isinstance(last, int))
        needs_lines = bool(taken.comments or comments or member.rest or "\n" in str(member.value))
        place = self._places.get(move.old[0], member)
        quote = _quote(place.key)  # names of agents may have needed quotes where others do without
        spot, inherited = self._make_way(move, quote, taken.comments, needs_lines=needs_lines)
        _shift(member, taken.indent, self._line_in(spot))
        _call(member, "" if isinstance(last, int) else last)
        line = self._insert(spot, member, inherited + comments, self._place(spot.group, move))
        if isinstance(last, int) and isinstance(member.value, Group):
            first = member.value.members[0].key if member.value.members else quote
            self._insert(_Spot(member.value, line), _id_member(str(move.old[-1]), _quote(first)), [], 0)

    def finish(self) -> None:
        """Give up the places of the older groups."""
        for place in self._places.values():
            self._root.group.remove(place)

    def _spot(self, path: SettingPath) -> _Spot:
        spot = self._root
        for step in path:
            spot = self._enter(spot, step)
        return spot

    def _enter(self, spot: _Spot, step: Step) -> _Spot:
        member = spot.group.find(step)
        if not isinstance(member.value, Group):
            raise LookupError(step)
        return _Spot(member.value, _indent(member.lead) or spot.indent)

    def _remove(self, group: Group, member: Member) -> None:
        if group is not self._root.group:
            group.remove(member)
            return
        blank = member.lead[: len(member.lead) - len(member.lead.lstrip())]
        place = Member(blank, member.key, member.name, ":", "null", has_comma=member.has_comma)
        group.members[group.members.index(member)] = place
        self._places[member.name] = place

    def _prune(self, path: SettingPath) -> list[str]:
        """Take a group out if it is empty and not to be moved itself, and return the comments it had."""
        if not path or path in self._moved:
            return []
        around = self._spot(path[:-1]).group
        member = around.find(path[-1])
        if not isinstance(member.value, Group) or member.value.members:
            return []
        self._remove(around, member)
        return [*self._prune(path[:-1]), *member.comments, *comments_in(member.value.end)]

    def _make_way(self, move: Move, quote: str, comments: list[str], *, needs_lines: bool) -> tuple[_Spot, list[str]]:
        """Enter the group of a setting's place, and make those that are missing; the first one gets the comments."""
        spot = self._root
        for step, inner in zip(move.new[:-1], move.new[1:], strict=True):
            if needs_lines:
                self._break(spot)
            if isinstance(step, str) and all(member.name != step for member in spot.group.members):
                made = Group("[]" if isinstance(inner, int) else "{}")
                around = Member("", f"{quote}{step}{quote}", step, ": ", made)
                line = self._insert(spot, around, comments, self._place(spot.group, move))
                made.end = self._newline + line if spot.group.is_broken else ""
                comments = []
            spot = self._enter(spot, step)
        if needs_lines:
            self._break(spot)
        return spot, comments

    def _place(self, group: Group, move: Move) -> int:
        if group is self._root.group and move.old[0] in self._places:
            return group.members.index(self._places[move.old[0]])
        return len(group.members)

    def _line_in(self, spot: _Spot) -> str:
        """The indentation of the members of a group."""
        return (_inner_indent(spot.group) or spot.indent + self._unit) if spot.group.is_broken else spot.indent

    def _insert(self, spot: _Spot, member: Member, comments: list[str], index: int) -> str:
        """Put a member into a group, in the group's style, and return the indentation that it has."""
        line, group = self._line_in(spot), spot.group
        if group.is_broken:
            start = self._newline + line
            blank_line = self._newline * (group is self._root.group and self._is_apart(index))
            member.lead = blank_line + start + "".join(comment + start for comment in comments)
        elif group.brackets == "{}":
            member.lead, group.end = " ", group.end or " "
        else:
            member.lead = " " if group.members else ""
        member.set_comma(group.is_broken and self._has_last_commas)  # for the first one; others follow their neighbour
        group.insert(index, member)
        return line

    def _is_apart(self, index: int) -> bool:
        """Whether a blank line stands before a top-level setting."""
        members = self._root.group.members
        return index < len(members) and _BLANK_LINE.match(members[index].lead) is not None

    def _break(self, spot: _Spot) -> None:
        """Give each member of a group a line of its own, if none has one."""
        if spot.group.is_broken:
            return
        line = spot.indent + self._unit
        start = self._newline + line
        for member in spot.group.members:
            _shift(member, spot.indent, line)
            member.lead = start + member.lead.lstrip()
        if spot.group.members:
            spot.group.members[-1].set_comma(self._has_last_commas)
        comments = comments_in(spot.group.end)
        spot.group.end = "".join(start + comment for comment in comments) + self._newline + spot.indent


def _call(member: Member, name: str) -> None:
    """Give a member another name, in quotes if it had them; without one it becomes an item of a list."""
    if not name:
        member.key = member.colon = ""
    elif name != member.name:
        quote = _quote(member.key)
        member.key = f"{quote}{name}{quote}"
    member.name = name


def _detach_comments(member: Member, *, of_colon: bool) -> list[str]:
    """Take the comments before a member from it; one that ends its line stays."""
    before = comments_in(member.lead, member.colon if of_colon else "")
    after = comments_in(member.tail, member.rest)
    if any(comment.startswith("//") for comment in after[:-1]):
        before, after = before + after, []
    member.lead, member.tail, member.rest = "", "", "".join(f" {comment}" for comment in after)
    return before


def _id_member(name: str, quote: str) -> Member:
    text = written_id(name)
    value = json.dumps(text, ensure_ascii=not text.isprintable())
    return Member("", f"{quote}id{quote}", "id", ": ", value)


def _quote(key: str) -> str:
    return key[:1] if key[:1] in ("'", '"') else ""


def _indent(lead: str) -> str | None:
    """The indentation of the line that a lead begins, if it begins one."""
    found = _INDENT.match(lead)
    return found[1] if found else None


def _inner_indent(group: Group) -> str | None:
    leads = (member.lead for member in group.members if "\n" in member.lead)
    return _indent(next(leads, ""))


def _shift(member: Member, old: str, new: str) -> None:
    """Change the indentation of the lines inside a member."""
    member.colon = _shifted(member.colon, old, new)
    if isinstance(member.value, Group) and old != new:
        for inner in member.value.members:
            _shift(inner, old, new)
            inner.lead = _shifted(inner.lead, old, new)
            inner.tail, inner.rest = _shifted(inner.tail, old, new), _shifted(inner.rest, old, new)
        member.value.end = _shifted(member.value.end, old, new)


def _shifted(space: str, old: str, new: str) -> str:
    def shift(match: re.Match[str]) -> str:
        return match[1] + (new + match[2][len(old) :] if match[2].startswith(old) else match[2])

    return _LINE_START.sub(shift, space)


def _has_last_commas(group: Group) -> bool:
    """Whether a last setting on a line of its own has a comma somewhere, as JSON5 allows."""
    if group.is_broken and group.members and group.members[-1].has_comma:
        return True
    return any(isinstance(member.value, Group) and _has_last_commas(member.value) for member in group.members)
