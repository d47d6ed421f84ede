"""Values that only their name gives away as secret: `password=…`, `"apiKey": "…"`, `token: …`, `--secret …`.

Names are read at their end, so `DB_PASSWORD`, `dbPassword` and `db-password` are all a password, and `max_tokens` is
no token. With `=`, or with quotes, any value counts that is no placeholder and no piece of code. After a colon a
value must stand alone on its line, as in YAML, or look like no word of a sentence.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from backchannel.core.credentials import Span, has_digit, is_placeholder

_QUALIFIERS = (
    "api|access|secret|private|account|signing|signature|encryption|auth|shared|master|admin|app|subscription|storage|"
    "webhook|hmac|jwt|deploy"
)
_ENDING = r"(?:_?[0-9]{1,3}|_(?:base|value|prod|dev|test|live|old|new))?"
_WORDS = {
    "pass": r"pass(?P<rest>word|wd|phrase|code)?",
    "pwd": r"pwd",
    "secret": r"secret(?:_key_base)?",
    "token": r"token",
    "key": r"key",
}
_STOP = r"(?:\s|[\"'`]|\Z|[\w. -]{1,40}[=:])"
_VALUE = (
    r"\\(?P<escaped>[\"'])(?P<v1>(?:[^\\\r\n]|\\(?!(?P=escaped)).)*+)"
    r"|[bfru]{0,2}(?P<quote>[\"'`])(?P<v2>(?:(?!(?P=quote))[^\\\r\n]|\\.)*+)"
    rf"|(?![\[{{(](?:[\s\"'\[{{\]}})]|\Z)|[|>]\s)(?P<v3>(?:[^\s\"'`,;&\\]|\\(?![\"'])|[,;&](?!{_STOP}))++)"
)
_TAIL = (
    rf"{_ENDING}(?P<close>\\?[\"'`]\]?)?[*_]{{0,2}}[ \t]{{0,4}}(?P<sep>=>|:=|={{1,3}}|:(?!:|//)|%3d)[*_]{{0,2}}"
    rf"(?P<gap>[ \t]{{0,4}})(?:{_VALUE})"
)
_PAIRS = {word: re.compile(pattern + _TAIL) for word, pattern in _WORDS.items()}
_FLAG = re.compile(
    r"--(?:[a-z0-9]{1,20}[-_]){0,4}(?:pass(?:word|wd|phrase|code)?|secret|token|(?:api|access|secret|private)[-_]?key)"
    r"[ \t]{1,4}(?!-)(?P<quote>[\"']?)(?P<secret>[^\s\"'`]++)"
)
_QUALIFIED = re.compile(rf"(?:{_QUALIFIERS})[ _.-]?\Z")
_NAME = re.compile(
    r"(?:(?:pass(?:word|wd|phrase|code)|pwd|[_-]pass|secret|credential|"
    rf"(?:{_QUALIFIERS})[ _.-]?key)s?|token|authorization|cookie|secret_key_base){_ENDING}\Z"
)
_NAME_OR_WORD = re.compile(r"[^\W\d]?[\w.'’/|\[\]()-]*+")
_YAML_BEFORE = re.compile(r"[ \t>]*+(?:[-*] )?[*_]{0,2}(?:[\w.-]{1,64}+ ){0,2}[\w.-]{0,64}")
_YAML_AFTER = re.compile(r"[ \t]*(?:#[^\r\n]*)?(?:[\r\n]|\Z)")

_REFERENCE = re.compile(
    r"(?:self|this|os|process|config|settings|args|env|options|opts|ctx|req|request|props|params|data|secrets|vars)[.\[].*|"
    r"[A-Za-z_][\w.]*\.\w*?(?:password|passwd|pass|secret|token|key|value)[,;)]*",
    re.DOTALL | re.IGNORECASE,
)
_CODE = re.compile(
    r"[A-Za-z_][\w.]*+[(\[].*|(?:[a-z]+_)*(?:password|passwd|secret|token|key|pwd)[,;)]*|"
    r"[A-Za-z.]*(?:Password|Secret|Token|Key|Str)[,;)]*|#.*|(?:await|new|lambda|typeof|return)",
    re.DOTALL,
)
_PATH = re.compile(r"(?:~|\.{1,2}|[A-Za-z]:)?[/\\][\w.@~/\\-]*+|[a-z][a-z0-9+.-]*+://.*", re.DOTALL | re.ASCII)
_SLASH = re.compile(r"[/\\]")
_NO_SECRETS = re.compile(
    r"none|null|nil|true|false|undefined|str|string|text|number|int|integer|bool|boolean|bytes|any|object|optional|"
    r"required|unset|empty|missing|hidden|masked|redacted|expired|valid|invalid|incorrect|correct|wrong|unknown|present|"
    r"absent|enabled|disabled|accepted|rejected|revoked|failed|changed|yes|not|set|see|the",
    re.IGNORECASE,
)


def is_secret_name(name: str) -> bool:
    """Whether a value under this name is secret, whatever it looks like."""
    return _NAME.search(name[-80:].lower()) is not None


def find_named_values(text: str, folded: str) -> Iterator[Span]:
    """Find values whose name says that they are secret; `folded` is the text in small letters, of the same length."""
    if "=" in folded or ":" in folded or "%3d" in folded:
        for word, pattern in _PAIRS.items():
            if word in folded:
                for match in pattern.finditer(folded):
                    span = _value_span(match)
                    if _is_named(word, match, folded) and _is_secret(word, match, text, span):
                        yield span
    if "-" in folded and "--" in folded:
        for match in _FLAG.finditer(folded):
            value = text[slice(*match.span("secret"))]
            if (match["quote"] or _is_no_word(value)) and not is_placeholder(value):
                yield match.span("secret")


def _value_span(match: re.Match[str]) -> Span:
    group = "v1" if match["v1"] is not None else "v2" if match["v2"] is not None else "v3"
    start, end = match.span(group)
    if group == "v3" and not is_placeholder(match[group]):  # `login(password=hunter2)`, the full stop of a sentence
        end = start + len(match[group].rstrip(")]}.,;:" if match["sep"] == ":" else ")]}"))
    return start, end


def _is_named(word: str, match: re.Match[str], folded: str) -> bool:
    """Whether what stands before the word makes it a name of a secret."""
    start = match.start()
    if word == "key":
        return _QUALIFIED.search(folded, max(0, start - 14), start) is not None
    if _is_bare_pass(word, match):
        before = folded[start - 1 : start]
        return before in ("_", "-") or (match["sep"] == "=" and not before.isalnum())
    return True


def _is_bare_pass(word: str, match: re.Match[str]) -> bool:
    return word == "pass" and match["rest"] is None


def _is_secret(word: str, match: re.Match[str], text: str, span: Span) -> bool:
    """Whether a value is what its name says: no placeholder, count, path or code, and no word of a sentence."""
    value = text[slice(*span)]
    if not value or is_placeholder(value) or _NO_SECRETS.fullmatch(value) or _REFERENCE.fullmatch(value):
        return False
    if value.isdigit() and len(value) < 6 and (word in ("token", "key") or _is_bare_pass(word, match)):
        return False
    if _PATH.fullmatch(value) and not any(len(part) >= 16 and _is_mixed(part) for part in _SLASH.split(value)):
        return False
    is_quoted = match["v3"] is None
    if _closes(match, text, value) if is_quoted else (_CODE.fullmatch(value) and not _is_shell(match, text)):
        return False
    is_prose = match["sep"] == ":" and (match["quote"] == "`" if is_quoted else not match["close"])
    return not is_prose or _is_no_word(value) or (len(value) >= 3 and _is_own_line(match, text, span[1]))


def _is_shell(match: re.Match[str], text: str) -> bool:
    """Whether it is `PASSWORD=value`: there any word is a value, in code it would be a name."""
    return text[match.start()].isupper() and match["sep"] == "=" and not match["gap"]


def _closes(match: re.Match[str], text: str, value: str) -> bool:
    """Whether the quote after the sign ends something that began before: `"?token=" + value`, or a piece of code."""
    if value[0].isspace() or (value[0] in ",;)]}" and value[1:2].strip() == ""):
        return True
    start = match.start()
    return match["quote"] == "`" and text.count("`", max(0, start - 200), start) % 2 == 1


def _is_mixed(text: str) -> bool:
    return has_digit(text) and any(map(str.isupper, text)) and any(map(str.islower, text))


def _is_no_word(value: str) -> bool:
    """Whether a value would be strange in a sentence, and is no name of a type either."""
    return has_digit(value) or _NAME_OR_WORD.fullmatch(value.strip(".,;:!?)('…")) is None


def _is_own_line(match: re.Match[str], text: str, end: int) -> bool:
    """Whether name and value are a line of their own, as in YAML."""
    start = match.start()
    line = max(text.rfind("\n", max(0, start - 160), start) + 1, start - 160, 0)
    return _YAML_BEFORE.fullmatch(text, line, start) is not None and _YAML_AFTER.match(text, end) is not None
