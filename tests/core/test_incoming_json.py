"""JSON from outside: what cannot be decoded in a moment is refused, and what cannot be decoded at all is replaced."""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from backchannel.core.incoming_json import MOST_BARE, MOST_WORK, PIECE, IncomingJson, TooMuchJson
from backchannel.core.text import storable_text
from tests.support.timing import seconds

TEXT = st.text(st.characters() | st.sampled_from('\ud800\udbff\udc00\ude00\\"[{,u😀'))
BYTES = st.lists(
    st.sampled_from([b"\\", b"\\u", b"d83d", b"\\ud83d", b"\\ude00", b'"', b"[", b",", b"\xff", b"\xc3", b"\xa9"])
)


def read(data: bytes, ends: list[int] | None = None) -> bytes:
    incoming = IncomingJson()
    starts = sorted({0, *(end % (len(data) + 1) for end in ends or ())})
    pieces = [data[a:b] for a, b in zip(starts, [*starts[1:], len(data)], strict=True)]
    return b"".join([*map(incoming.take, pieces), incoming.end()])


@given(TEXT, st.booleans(), st.lists(st.integers(0, 200)))
def test_a_text_is_read_as_it_is_but_for_halves_of_pairs(text: str, is_escaped: bool, ends: list[int]) -> None:
    data = json.dumps(text).encode() if is_escaped else json.dumps(storable_text(text), ensure_ascii=False).encode()
    assert msgspec.json.decode(read(data, ends)) == storable_text(text)


@given(BYTES, st.lists(st.integers(0, 60)))
@example([rb"\\", rb"ud83d\ud83d"], [8])
def test_it_does_not_matter_where_a_piece_ends(parts: list[bytes], ends: list[int]) -> None:
    data = b"".join(parts)
    assert read(data, ends) == read(data)


def test_bytes_that_are_no_utf8_are_replaced() -> None:
    assert msgspec.json.decode(read(b'"a\xffb\xc3"')) == "a\ufffdb\ufffd"
    assert msgspec.json.decode(read(b'"\xc3\xa9"', [2])) == "é"


def test_what_looks_like_an_escape_and_is_none_stays() -> None:
    assert msgspec.json.decode(read(rb'"\\ud800 \\\ud800"')) == "\\ud800 \\\ufffd"


@pytest.mark.parametrize(
    "data",
    [
        b"[" + b"[]," * (MOST_WORK // 4) + b"1]",
        b"[" + b"{}," * (MOST_WORK // 4) + b"1]",
        b"[" + b'"",' * MOST_WORK + b"1]",
        b"[" + b"1," * (MOST_WORK + 1) + b"1]",
        b"[" * MOST_WORK,
        b"9" * (MOST_BARE + 1),
        b'"' * (MOST_WORK * 2 + 2 * PIECE),
        b'["\\\\",' + b"[]," * MOST_WORK,
        b'["\\"",' + b"[]," * MOST_WORK,
    ],
)
def test_what_would_take_long_to_decode_is_refused(data: bytes) -> None:
    with pytest.raises(TooMuchJson):
        take_all(data)


@pytest.mark.parametrize(
    "data",
    [
        b'"' + b"[{,:" * 10**6 + b'"',
        b'"' + b'\\"[' * 10**6 + b'"',
        b'"' + b"\\\\" * 10**6 + b'[,,"',
        b" " * 10**7 + b"1",
        b"[" + b"1," * 100_000 + b"1]",
    ],
)
def test_a_long_text_is_not_many_parts_whatever_is_in_it(data: bytes) -> None:
    assert take_all(data) == data


@pytest.mark.parametrize("unit", [b"\\ud800", b"\\\\", b'\\"', b'"', b"\xff", b"\\\\\\ud800", b"\n", b"[]"])
def test_each_piece_is_dealt_with_in_a_moment(unit: bytes) -> None:
    piece = (b'"' + unit * PIECE)[:PIECE]

    def work() -> None:
        IncomingJson(10**9).take(piece)

    assert min(seconds(work) for _ in range(4)) < 0.05  # some 5 ms; a machine with other work takes longer


def take_all(data: bytes) -> bytes:
    incoming = IncomingJson()
    return b"".join([incoming.take(data[at : at + PIECE]) for at in range(0, len(data), PIECE)] + [incoming.end()])
