"""Patterns of credentials: keys of clouds, git hosts, chat platforms and model providers.

Every search takes time that grows with the length of the text only. A pattern that has begun to match runs to the end
of its characters without going back, and the next search starts behind it. A credential also takes the letters and
digits that follow it. So the text after it begins at a boundary, before and after redaction, and a redacted text
contains no credential.

A new kind of key is one line in `_PREFIXES`.

Other values are secret only by their name: `password=…`, `"apiKey": "…"`, `token: …`, `--secret …`. Names are read at
their end: `DB_PASSWORD`, `dbPassword` and `db-password` are all a password, and `max_tokens` is not a token. With `=`,
or with quotes, any value counts that is not a placeholder or a piece of code. After a colon a value must stand alone on
its line, as in YAML, or look like no word of a sentence. With no sign between them (`the password hunter2`) it must be
a word with digits in it; of a token or key, a long one with capitals too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property

REDACTED = "[redacted]"
MASK = "[hidden]"
"""What stands for a secret that is known word for word."""

Span = tuple[int, int]

_WORD = r"[A-Za-z0-9_-]"
_PREFIXES: dict[str, str] = {
    # Clouds
    "AKIA ASIA ABIA ACCA": r"[A-Z0-9]{16}[A-Za-z0-9]*+",
    "AIza": rf"{_WORD}{{30,}}+",
    "ya29.": r"[A-Za-z0-9_.-]{20,}+",
    "GOCSPX-": rf"{_WORD}{{20,}}+",
    "1//0": rf"{_WORD}{{30,}}+",
    "dop_v1_ doo_v1_": r"[a-f0-9]{32,}+[A-Za-z0-9]*+",
    "hvs. hvb.": rf"{_WORD}{{20,}}+",
    "tskey-": rf"{_WORD}{{16,}}+",
    # Git hosts and package registries
    "ghp_ gho_ ghu_ ghs_ ghr_ github_pat_": rf"{_WORD}{{20,}}+",
    "glpat- gldt- glrt- glcbt- glptt- glft- glsoat- gloas-": r"[A-Za-z0-9_.-]{20,}+",
    "ATBB ATCTT3 ATATT3": r"[A-Za-z0-9_=-]{24,}+",
    "npm_": r"[A-Za-z0-9]{30,}+",
    "pypi-": rf"{_WORD}{{40,}}+",
    "dckr_pat_ rubygems_": rf"{_WORD}{{20,}}+",
    # Chat platforms and services
    "xoxa- xoxb- xoxe- xoxo- xoxp- xoxr- xoxs- xapp-": r"[A-Za-z0-9-]{10,}+",
    "hooks.slack.com/services/": r"[A-Za-z0-9_/+-]{16,}+",
    "/api/webhooks/": r"[0-9]{6,}+/[A-Za-z0-9_-]{20,}+",
    "sk_live_ sk_test_ rk_live_ rk_test_ whsec_": r"[A-Za-z0-9+/=]{10,}+",
    "SK": r"[a-f0-9]{32}[A-Za-z0-9]*+",
    "SG.": rf"{_WORD}{{16,}}+\.{_WORD}{{16,}}+",
    "shpat_ shpss_ shpca_ lin_api_ ntn_ figd_": rf"{_WORD}{{20,}}+",
    # Model providers
    "sk-": rf"{_WORD}{{20,}}+",
    "gsk_ hf_ r8_": r"[A-Za-z0-9]{20,}+",
    "xai- pplx- nvapi- csk- fw_ tgp_v1_": rf"{_WORD}{{20,}}+",
    # Our own, and tokens that anybody makes
    "bc_": rf"{_WORD}{{20,}}+",
    "eyJ": rf"{_WORD}{{8,}}+(?:\.{_WORD}*+)*+",
}
_ALWAYS = ("AKIA", "ASIA", "ABIA", "ACCA")
"""Keys of capitals only, which look like nothing but the prefix."""


@dataclass(frozen=True)
class _Shape:
    """One kind of credential; the part to hide is the group `secret`, or all of it."""

    hint: str
    source: str
    accepts: Callable[[re.Match[str], str], bool]
    """Asked with the match and the text that would be hidden."""
    flags: re.RegexFlag = re.NOFLAG

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        """Compiled when the hint is first met: all of them together would take a tenth of the gateway's start."""
        return re.compile(self.source, self.flags)


def has_digit(text: str) -> bool:
    return any(map(str.isdigit, text))


def looks_random(text: str) -> bool:
    """Whether a text is no plain word: it has digits, or capitals among small letters."""
    return has_digit(text) or text not in (text.lower(), text.upper(), text.capitalize())


def is_placeholder(text: str) -> bool:
    """Whether a text stands in for a secret: `${TOKEN}`, `<token>`, `{{ token }}`, `****`, `[redacted]`."""
    return REDACTED in text or MASK in text or _PLACEHOLDER.fullmatch(text) is not None


_PLACEHOLDER = re.compile(
    r"\$[A-Z_][A-Z0-9_]*+|\$\{[^{}]*+\}?|\$\(.*+|%[A-Za-z_]\w*+%|%[sdr]"
    r"|\{\{?[\w .$-]*+\}?\}?|<[^<>]*+>?|[*•.…·_-]++|[xX]{3,}+",
    re.DOTALL,
)


def _prefixed(prefix: str, body: str) -> _Shape:
    # The boundary is looked for behind the prefix, because a pattern that begins with plain characters is found
    # much faster. `\n` and `%3D` before a key are escapes, not letters of a longer word.
    start = re.escape(prefix)
    boundary = (
        rf"(?:(?<![A-Za-z0-9]{start})|(?<=\\[nrt]{start})|(?<=%[0-9A-Fa-f]{{2}}{start})|(?<=\\u[0-9a-f]{{4}}{start}))"
    )
    accepts = _is_jwt if prefix == "eyJ" else _always if prefix in _ALWAYS else _is_random
    return _Shape(prefix, f"{start}{boundary}(?P<body>{body})", accepts)


def _always(match: re.Match[str], secret: str) -> bool:
    return True


def _is_random(match: re.Match[str], secret: str) -> bool:
    return looks_random(match["body"])


def _is_random_word(match: re.Match[str], secret: str) -> bool:
    return looks_random(secret)


def _is_jwt(match: re.Match[str], secret: str) -> bool:
    parts = secret.split(".")
    return len(parts) > 1 and len(parts[1]) >= 8


def _is_no_placeholder(match: re.Match[str], secret: str) -> bool:
    return not is_placeholder(secret)


def _is_login(match: re.Match[str], secret: str) -> bool:
    return not is_placeholder(secret) and not secret.replace(":", "").isdigit()  # `-u 1000:1000` is a user and a group


def _is_authorization(match: re.Match[str], secret: str) -> bool:
    if is_placeholder(secret) or secret in _WORDS_AFTER_BEARER:
        return False
    return match["scheme"] is not None or has_digit(secret)


_WORDS_AFTER_BEARER = frozenset(["token", "tokens", "bearer", "basic", "auth", "header", "headers", "authentication"])
_KEY_BLOCK = r"(?:[A-Z0-9]{1,20} ){0,4}PRIVATE KEY(?: BLOCK)?-----"

_KEYS = [
    *(_prefixed(prefix, body) for prefixes, body in _PREFIXES.items() for prefix in prefixes.split()),
    _Shape("Q~", r"[\w~.-]{3}[0-9]Q~[\w~.-]{31,}+", _always, re.ASCII),
    _Shape(":AA", rf"(?<![0-9])[0-9]{{6,12}}:AA{_WORD}{{30,}}+", _always),
]
_SHORTEST_KEY = 15
_SHAPES = [
    # A block without its end goes to the end of the text; a mere mention has no key behind it.
    _Shape(
        "-----BEGIN",
        rf"-----BEGIN {_KEY_BLOCK}(?=(?:[^-]|-(?!-)){{0,300}}?[A-Za-z0-9+/=]{{24}})"
        rf"[\s\S]*?(?:-----END {_KEY_BLOCK}|\Z)",
        _always,
    ),
    _Shape("://", r"://[^\s/:@\"'<>?#]*+:(?P<secret>[^\s/\"'<>?#]+)@", _is_no_placeholder),
    _Shape("://", rf"://(?P<secret>{_WORD}{{20,}}+)@", _is_random_word),
]
_FOLDED_SHAPES = [
    _Shape(
        "authorization",
        r"authorization(?:\\?[\"'])?\s{0,3}[:=]\s{0,3}(?:[bfr]?\\?[\"'`])?"
        r"(?:(?P<scheme>bearer|basic|token|bot|digest|apikey|negotiate)\s{1,3})?(?P<secret>[^\s\"'\\,;<>`]{6,}+)",
        _is_authorization,
    ),
    _Shape("bearer ", r"bearer {1,3}(?P<secret>[\w.~+/=-]{16,}+)", _is_random_word, re.ASCII),
    _Shape(
        "cookie",
        r"cookie[\"']?\s{0,3}:\s{0,3}[\"']?(?P<secret>[^\s=]{1,64}=[^\r\n\"']{6,}+)",
        _is_no_placeholder,
    ),
    *(
        _Shape(hint, rf"{hint}(?<![a-z0-9]{hint})(?P<secret>[\w%+/=~.-]{{16,}}+)", _is_random_word, re.ASCII)
        for hint in ("sig=", "signature=")
    ),
    *(
        _Shape(hint, rf"{hint}[\"']?[\w.@+-]{{1,64}}:(?P<secret>[^\s\"']{{3,}}+)", _is_login)
        for hint in (" -u ", " --user ")
    ),
]
# The first part of a Discord token is a number in base64: digits leave few characters for each place.
_DISCORD_TAIL = re.compile(rf"\.{_WORD}{{6}}\.{_WORD}{{27,}}+")
_DISCORD_HEAD = re.compile(rf"(?:[MNO][DTjz][AEIMQUYcgk][w-z0-5]){{5,6}}{_WORD}{{0,3}}\Z")


def find_credentials(text: str, folded: str) -> Iterator[Span]:
    """Find what gives itself away as a credential; `folded` is the text in small letters, of the same length."""
    # Few texts have long words, and a key is one: looking for fifty prefixes in those alone is what makes an
    # ordinary message cheap.
    if words := " ".join([word for word in text.split() if len(word) >= _SHORTEST_KEY]):
        for key in _KEYS:
            if key.hint in words:
                yield from _find(key, text, text)
        yield from _find_discord(text)
    for shape in _SHAPES:
        if shape.hint in text:
            yield from _find(shape, text, text)
    for shape in _FOLDED_SHAPES:
        if shape.hint in folded:
            yield from _find(shape, folded, text)


def _find_discord(text: str) -> Iterator[Span]:
    for tail in _DISCORD_TAIL.finditer(text):
        if head := _DISCORD_HEAD.search(text, max(0, tail.start() - 28), tail.start()):
            yield head.start(), tail.end()


def _find(shape: _Shape, searched: str, text: str) -> Iterator[Span]:
    group = "secret" if "secret" in shape.pattern.groupindex else 0
    for match in shape.pattern.finditer(searched):
        start, end = match.span(group)
        if shape.accepts(match, text[start:end]):
            yield start, end


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


@cache
def _pair(word: str) -> re.Pattern[str]:
    """Compile the pattern of a name and its value, when the name is first met."""
    return re.compile(_WORDS[word] + _TAIL)


_FLAG = re.compile(
    r"--(?:[a-z0-9]{1,20}[-_]){0,4}(?:pass(?:word|wd|phrase|code)?|secret|token|(?:api|access|secret|private)[-_]?key)"
    r"[ \t]{1,4}(?!-)(?P<quote>[\"']?)(?P<secret>[^\s\"'`]++)"
)
_SPOKEN_HINTS = ("pass", "secret", "token", "key")
_SHORTEST_SPOKEN, _LONG_KEY = 6, 12
_SPOKEN = re.compile(
    r"(?:(?P<pass>pass(?:word|wd|phrase|code))|secret|token|api[ _-]?key)[ \t]{1,4}(?:is[ \t]{1,4})?[\"'`(]?"
    r"(?P<secret>[^\s\"'`]{6,}+)"
)
_SPOKEN_WORD = re.compile(r"[a-z][^\s-]*+")
_SPOKEN_METHOD = re.compile(r"(?:sha|md|argon|bcrypt|scrypt|pbkdf|base|utf|aes|rsa|oauth|rfc|http|ipv|win|v)[0-9].*")
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
        for word in _WORDS:
            if word in folded:
                for match in _pair(word).finditer(folded):
                    span = _value_span(match)
                    if _is_named(word, match, folded) and _is_secret(word, match, text, span):
                        yield span
    if "-" in folded and "--" in folded:
        for match in _FLAG.finditer(folded):
            value = text[slice(*match.span("secret"))]
            if (match["quote"] or _is_no_word(value)) and not is_placeholder(value):
                yield match.span("secret")
    for match in _SPOKEN.finditer(folded) if any(word in folded for word in _SPOKEN_HINTS) else ():
        start, end = match.span("secret")
        end = start + len(text[start:end].rstrip(".,;:!?)"))
        if _is_spoken_secret(text[start:end], is_password=match["pass"] is not None):
            yield start, end


def _is_spoken_secret(value: str, *, is_password: bool) -> bool:
    """Whether what follows a name in a sentence, with no sign between them, is its value: `the password hunter2`."""
    if is_placeholder(value) or _PATH.fullmatch(value) or _REFERENCE.fullmatch(value) or _CODE.fullmatch(value):
        return False
    if is_mixed(value):
        return is_password or len(value) >= _LONG_KEY
    folded = value.lower()
    return (
        is_password
        and has_digit(value)
        and _SPOKEN_WORD.fullmatch(folded) is not None
        and len(value) >= _SHORTEST_SPOKEN
        and not _SPOKEN_METHOD.fullmatch(folded)
    )


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
    if _PATH.fullmatch(value) and not any(len(part) >= 16 and is_mixed(part) for part in _SLASH.split(value)):
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


def is_mixed(text: str) -> bool:
    """Whether a text has digits, capitals and small letters."""
    return has_digit(text) and any(map(str.isupper, text)) and any(map(str.islower, text))


def _is_no_word(value: str) -> bool:
    """Whether a value would be strange in a sentence, and is no name of a type either."""
    return has_digit(value) or _NAME_OR_WORD.fullmatch(value.strip(".,;:!?)('…")) is None


def _is_own_line(match: re.Match[str], text: str, end: int) -> bool:
    """Whether name and value are a line of their own, as in YAML."""
    start = match.start()
    line = max(text.rfind("\n", max(0, start - 160), start) + 1, start - 160, 0)
    return _YAML_BEFORE.fullmatch(text, line, start) is not None and _YAML_AFTER.match(text, end) is not None
