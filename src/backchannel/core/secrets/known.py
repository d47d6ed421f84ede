"""Secrets of the settings: the list of them, and their redaction wherever text is shown.

This module alone decides which parts of the settings are secret. These are the values of fields marked as secret, and
variables and headers whose name or value looks like a secret. So are the argument behind a flag such as `--api-key`,
and everything in an address but the place that it leads to. In every other text, redaction decides.

Each secret is then known word for word, and hidden wherever it turns up. That includes the log, the last output of a
dead program, and the list of the gateway's problems.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from backchannel.core.secrets.credentials import MASK, REDACTED, is_mixed, is_secret_name
from backchannel.core.secrets.redaction import credentials_in, redact
from backchannel.core.settings import HIDDEN, Settings, secret_fields

SHORTEST_SOUGHT = 8
"""Shorter secrets are not looked for in texts: masking `x` would hide parts of ordinary words."""
_PLACEHOLDERS = re.compile(
    r"anything|changeme|(?:dummy|fake|test|unused)(?:-api)?-key|lm-studio|(?:sk-)?no-(?:api-)?key(?:-needed|-required)?|"
    r"(?:sk-)?not-(?:needed|required|used)|placeholder|your[-_]api[-_]key",
    re.IGNORECASE,
)
"""Keys that local model servers are given, which are no secrets. Shorter ones need not be named."""

LOOKS_SECRET_LENGTH = 20
"""How long a value of an environment is that is hidden whatever its name is."""

_MASKED_WORD = re.compile(r"[\w.*-]+")
_PIECE = re.compile(r"[\w.-]{8,}")
_LONG_WORD = re.compile(r"[A-Za-z0-9]{16,}+")
_MARK = re.compile(r"([:=/@&?#])")
_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*+://\S++")
_FLAGS = frozenset(["--key", "--auth", "--pat", "--bearer"])
_QUERY_NAMES = frozenset(["key", "auth", "code", "sig", "signature", "pat"])


class KnownSecrets:
    """Secrets that are known word for word; takes them out of texts."""

    def __init__(self, secrets: Iterable[str]) -> None:
        self._words: set[str] = set()
        self._known: re.Pattern[str] | None = None
        self.add(secrets)

    def add(self, secrets: Iterable[str]) -> None:
        """Know further secrets."""
        # In JSON, and in an address, a secret may stand escaped.
        sought = filter(is_sought, secrets)
        self._words |= {form for each in sought for form in (each, json.dumps(each)[1:-1], quote(each, safe=""))}
        self._known = secrets_pattern(self._words) if self._words else None

    def mask(self, text: str) -> str:
        """Take the secrets that are known out of a text."""
        return self._known.sub(MASK, text) if self._known else text

    def hide(self, text: str) -> str:
        """Take them out of a text that others than the owner of the machine read, and what looks like a credential."""
        return redact(self.mask(text))[0]


def is_sought(secret: str) -> bool:
    """Whether a secret is looked for in texts: not if it is short, or a placeholder for a key that is not needed."""
    return len(secret) >= SHORTEST_SOUGHT and not _PLACEHOLDERS.fullmatch(secret)


def hide_key(text: str, key: str | None) -> str:
    """Take the key of a provider out of its words: whole, in pieces, or as providers echo it, `sk-ab****yz`."""
    if not key:
        return text
    text = _MASKED_WORD.sub(lambda word: REDACTED if "***" in word[0] else word[0], text)
    if not is_sought(key):
        return text
    return _PIECE.sub(lambda piece: REDACTED if piece[0] in key else piece[0], text.replace(key, REDACTED))


def secrets_pattern(words: Iterable[str]) -> re.Pattern[str]:
    """Make the pattern that finds any of these words; the longest first, so that no part of one is left."""
    return re.compile("|".join(map(re.escape, sorted(words, key=len, reverse=True))))


def secrets_in(value: Any) -> Iterator[str]:
    """Find the secrets of settings, or of a part of them; some may come twice."""
    match value:
        case Settings():
            hidden = secret_fields(type(value))
            for name in value.__struct_fields__:
                inner = getattr(value, name)
                yield from _of_secret_field(inner) if name in hidden else secrets_in(inner)
        case dict():
            for inner in value.values():
                yield from secrets_in(inner)
        case tuple() | list():
            for before, inner in pairwise((None, *value)):
                yield from [inner] if _is_secret_argument(before, inner) else secrets_in(inner)
        case str():
            yield from credentials_in(value)
            yield from _of_address(value)


def _of_secret_field(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
        yield from _of_address(value)
    elif isinstance(value, dict):
        yield from _by_name(value)


def _by_name(values: Mapping[str, str]) -> Iterator[str]:
    """Choose from an environment or headers what may be a secret: hiding `production` would hide an ordinary word."""
    for name, value in values.items():
        if is_secret_name(name) or len(value) >= LOOKS_SECRET_LENGTH or _looks_like_key(value):
            yield value
            yield value.rpartition(" ")[2]  # of `Bearer <token>` the token alone too
        yield from secrets_in(value)


def _is_secret_argument(before: Any, value: Any) -> bool:
    """Whether an argument of a program is a secret by the flag before it: `--api-key`, or any before a key."""
    if not isinstance(before, str) or not isinstance(value, str) or not before.startswith("-") or "=" in before:
        return False
    return is_secret_name(before) or before.lower() in _FLAGS or _looks_like_key(value)


def _of_address(text: str) -> Iterator[str]:
    """Find what an address says besides where it leads: a password, the values of a query, a path that is a key."""
    if not _ADDRESS.fullmatch(text):
        return
    try:
        parts = urlsplit(text)
    except ValueError:  # no address after all
        return
    if parts.password:
        yield from (parts.password, unquote(parts.password))
    for name, value in parse_qsl(parts.query):
        if is_secret_name(name) or name.lower() in _QUERY_NAMES or _looks_like_key(value):
            yield value
    yield from (unquote(step) for step in parts.path.split("/") if _looks_like_key(step))


def _looks_like_key(text: str) -> bool:
    """Whether a text has a long word of digits, capitals and small letters, as nobody thinks one up."""
    return any(is_mixed(word) for word in _LONG_WORD.findall(text))


def shown_settings(value: Any, secrets: KnownSecrets) -> Any:
    """Write settings as plain values, with a word in place of each secret."""
    match value:
        case Settings():
            return _tag(value) | _shown_fields(value, secrets)
        case dict():
            return {secrets.hide(str(name)): shown_settings(inner, secrets) for name, inner in value.items()}
        case tuple() | list():
            return _shown_items(value, secrets)
        case frozenset():
            return _shown_items(sorted(value, key=str), secrets)
        case str():
            return secrets.hide(_without_short(value))
        case int() | float() | bool() | None:
            return value
    return secrets.hide(str(value))


def _without_short(address: str) -> str:
    """Hide the secrets of an address that are too short to be looked for elsewhere: here they stand at their place."""
    short = {form for own in _of_address(address) if not is_sought(own) for form in (own, quote(own, safe=""))}
    return "".join(MASK if piece in short else piece for piece in _MARK.split(address)) if short else address


def _tag(settings: Settings) -> dict[str, Any]:
    config = settings.__struct_config__
    return {config.tag_field: config.tag} if config.tag_field else {}


def _shown_fields(settings: Settings, secrets: KnownSecrets) -> dict[str, Any]:
    hidden = secret_fields(type(settings))
    names = zip(settings.__struct_encode_fields__, settings.__struct_fields__, strict=True)
    given = ((written, name, getattr(settings, name)) for written, name in names)
    return {
        written: HIDDEN if name in hidden and inner else shown_settings(inner, secrets)
        for written, name, inner in given
    }


def _shown_items(values: Sequence[Any], secrets: KnownSecrets) -> list[Any]:
    return [
        HIDDEN if _is_secret_argument(before, inner) else shown_settings(inner, secrets)
        for before, inner in pairwise((None, *values))
    ]
