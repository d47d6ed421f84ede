"""A small terminal screen, with as much as a prompt and its posts need."""

from __future__ import annotations

import re

_PIECES = re.compile(r"\x1b\[(?P<args>[0-9;?]*)(?P<verb>[a-zA-Z])|\x1b[=>]|(?P<key>.)", re.DOTALL)


def read_screen(written: str) -> list[str]:
    """Give the lines that are seen, without what is blank at their ends."""
    lines: list[list[str]] = [[]]
    column = 0
    for piece in _PIECES.finditer(written):
        line, key = lines[-1], piece["key"]
        if piece["verb"] == "K" and piece["args"] in ("", "0"):
            del line[column:]
        elif key == "\r":
            column = 0
        elif key == "\n":
            lines.append([])
        elif key == "\b":
            column = max(0, column - 1)
        elif key is not None and key.isprintable():
            line += " " * (column + 1 - len(line))
            line[column] = key
            column += 1
    return ["".join(line).rstrip() for line in lines]


_STYLING = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


def read_pictures(written: str) -> list[list[str]]:
    """Give the lines of each picture that was drawn on the second screen, and then of what was left on the first."""
    drawn, _, left = written.partition("\x1b[?1049l")
    pictures = [*drawn.split("\x1b[H")[1:], left]
    return [_STYLING.sub("", picture).replace("\r", "").split("\n") for picture in pictures]
