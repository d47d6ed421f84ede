"""Settings written as JSON5 in every style: quotes or none, one line or many, commas and comments anywhere."""

from __future__ import annotations

import json
import random
import re
from typing import Any

_PLAIN = re.compile(r"[A-Za-z_$][A-Za-z0-9_$]*\Z")


class Writer:
    """Writes values in styles that a random source chooses; each comment is unlike all others."""

    def __init__(self, random: random.Random, newline: str = "\n") -> None:
        self._random = random
        self._newline = newline
        self._quotes = random.choice(["", "", '"', "'"])
        self._comments_often = random.choice([0.0, 0.1, 0.4])
        self.comments: list[str] = []

    def document(self, value: Any) -> str:
        return self._space() + self._value(value, "") + self._space()

    def _value(self, value: Any, indent: str) -> str:
        if isinstance(value, dict):
            return self._group("{}", [self._name(name) for name in value], list(value.values()), indent)
        if isinstance(value, list):
            return self._group("[]", [""] * len(value), value, indent)
        return json.dumps(value, ensure_ascii=self._random.random() < 0.5)

    def _group(self, brackets: str, names: list[str], values: list[Any], indent: str) -> str:
        is_broken = bool(values) and self._random.random() < 0.6
        inner = indent + self._random.choice(["  ", "    ", "\t"]) if is_broken else indent
        line = self._newline + inner if is_broken else self._random.choice(["", " "])
        text = brackets[0]
        for number, (name, value) in enumerate(zip(names, values, strict=True)):
            text += self._space() + line + self._space() + name
            text += self._value(value, inner) + self._space()
            is_last = number == len(values) - 1
            text += "," if not is_last or self._random.random() < 0.4 else ""
            text += self._end_of_line() if is_broken else ""
        return text + self._space() + (self._newline + indent if is_broken else line) + brackets[1]

    def _name(self, name: str) -> str:
        quote = self._random.choice([self._quotes, self._quotes, '"'])
        shown = json.dumps(name) if quote == '"' or not _PLAIN.match(name) else quote + name + quote
        return shown + self._space() + ":" + self._space() + self._random.choice(["", " "])

    def _space(self) -> str:
        if self._random.random() >= self._comments_often:
            return ""
        space = self._random.choice(["", " ", "  ", self._newline, self._newline * 2])
        if self._random.random() < 0.3:
            return space + self._comment("//") + self._newline
        return space + self._comment("/*") + self._random.choice(["", " ", self._newline])

    def _end_of_line(self) -> str:
        if self._random.random() >= self._comments_often:
            return ""
        return " " + self._comment("//") + self._newline if self._random.random() < 0.8 else " " + self._comment("/*")

    def _comment(self, kind: str) -> str:
        words = f"note {len(self.comments)}"
        if kind == "//":
            text = f"// {words}" + self._random.choice(["", " , }", " /* x"])
        else:
            text = f"/* {words}" + self._random.choice([" */", " // x */", f" ,{self._newline}   ] */", "**/"])
        self.comments.append(text)
        return text
