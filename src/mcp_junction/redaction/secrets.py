"""Finds the secrets in a server's definition, with the spellings in which they may occur.

What counts as a secret:

- A value under a secret's name (of a variable, flag, header, parameter or JSON member), what
  follows ``Bearer`` and the like, and the credentials of a url, from 4 characters on: shorter ones
  occur in every other word, and masking them would reveal more than it hides.
- An argument, a segment of a url's path or a value of its query that has the form of a credential
  (``detect.is_token``).
- A password after a user's name (``-u name:password``, ``name:password@host``), unless it is
  ordinary.
- Any other value of ``headers``, from 6 characters on; and those of ``env``, and of variables that
  were expanded in ``args``, that are not ordinary. Paths, words, hosts and numbers are what
  messages are about, and so are variables that every process has.

Each line of a value with many lines counts as well, and each value in the ways that programs quote
and encode it (``_spellings``). ``texts.py`` masks them in a text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import islice, pairwise
from typing import Final, NamedTuple

from mcp_junction.config.servers import ServerDefinition
from mcp_junction.config.variables import is_common_variable, without_references
from mcp_junction.redaction.detect import is_credential_name, is_token, unusual_parts
from mcp_junction.redaction.texts import SHORTEST

_LEAST: Final = 6
_LONG_USER: Final = 12
"""A user name in a url of at least this length is a token."""
_SCHEMES: Final = frozenset({"apikey", "basic", "bearer", "digest", "negotiate", "token"})
_PLAIN: Final = _SCHEMES | {"true", "false", "none", "null", "auto", "default"}
"""Values that are never secrets, whatever their name."""
_SHORT_FLAG: Final = re.compile("-[kptsa]")
"""Flags that often mean a key, password or token: their value counts if it is unusual."""
_USER_FLAGS: Final = ("-u", "--user")
_USER_AT_HOST: Final = re.compile(r"[^\s:/@]++:([^\s/@]++)@[\w(\[]")
_HEADER_FLAGS: Final = ("-h", "--header", "--headers")
_HEADER: Final = re.compile(r"([\w-]+):(?!//)\s*(.+)", re.DOTALL)
_BREAKS: Final = re.compile(r"\r\n?|\n|\\r|\\n")  # also as .env files and JSON write them
# Possessive: none of these backtracks, so the time is linear in the length of the text.
_PAIR_NAME: Final = re.compile(r"(?<![\w.-])([\w.-]++)=")
_PAIR_ENDS: Final = re.compile(r"[\s;&,#]+")
_BEFORE_HOST: Final = re.compile(r"://([^/?#\s]++)")
_USER: Final = re.compile(r"://[^/?#\s:]*+:")
_JSON_PAIR: Final = re.compile(r'"([^"\\]++)"\s*+:\s*+"((?:[^"\\]|\\.)*+)"', re.DOTALL)
_URL_PARTS: Final = re.compile(r"[/?&;#]|(?<=[^=])=(?=[^=])")
_LOWER_HEX: Final = re.compile("%[0-9A-F]{2}")
_SHELL_WORD: Final = re.compile(r"""(?:"[^"]*+"|'[^']*+'|\S)++""")
_LOOKED_AT: Final = 65_536
"""Characters of one value that are searched; a longer one counts as a whole as well."""
_NESTED: Final = 4
"""How many secrets may be nested, as in ``a=b=c``."""


class SecretSources(NamedTuple):
    """The parts of a server's definition that may hold a secret; hashable, for a cache."""

    words: tuple[str, ...] = ()
    """Of its command and its arguments."""
    urls: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    headers: tuple[tuple[str, str], ...] = ()
    variables: tuple[tuple[str, str], ...] = ()


def secrets_of(definition: ServerDefinition) -> tuple[str, ...]:
    """Find the secrets of a server, in every spelling; the longest first."""
    missing = frozenset(definition.missing)

    def plain(text: str) -> str:
        return without_references(text, missing) if missing else text

    given = definition.auth
    auth = () if given is None else (("secret", given.client_secret), ("token", given.token))
    return _all_spellings(
        SecretSources(
            tuple(map(plain, (*definition.command.split(), *definition.args))),
            (plain(definition.url),),
            tuple((name, plain(value)) for name, value in definition.env.items()),
            tuple((name, plain(value)) for name, value in (*definition.headers.items(), *auth)),
            tuple(definition.variables.items()),
        )
    )


@lru_cache(maxsize=128)
def _all_spellings(sources: SecretSources) -> tuple[str, ...]:
    """Find secrets with their spellings. Cached: a failing server fails again."""
    return with_spellings(find_secrets(sources))


def with_spellings(values: Iterable[str]) -> tuple[str, ...]:
    """Return secrets with their other spellings, the longest first."""
    found = set(values)
    found |= {spelling for value in found for spelling in _spellings(value)}
    return tuple(sorted(found, key=len, reverse=True))


def find_secrets(sources: SecretSources) -> set[str]:
    """Find the secrets in parts of a definition, as they are written there."""
    found = {
        value
        for value in _find_named(sources)
        if len(value) >= SHORTEST and value.lower() not in _PLAIN
    }
    found |= {value for value in _find_unnamed(sources) if len(value) >= _LEAST}
    lines = {line.strip() for value in found for line in _BREAKS.split(value)}
    return found | {line for line in lines if len(line) >= _LEAST}


def _find_named(given: SecretSources) -> Iterator[str]:
    """Find values under a secret's name."""
    for name, value in (*given.env, *given.variables):
        if is_credential_name(name) or value.partition(" ")[0].lower() in _SCHEMES:
            yield from _credentials(value)
        yield from _in_text(value)
        yield from _in_command_line(value)
    for name, value in given.headers:
        if is_credential_name(name):
            yield from _words(value)
    for url in given.urls:
        yield from _in_text(url)
    for before, word in pairwise(("", *given.words)):
        yield from _in_argument(before, word)
        yield from _in_command_line(word)


def _find_unnamed(given: SecretSources) -> Iterator[str]:
    """Find values that look like secrets, whatever their name."""
    for _, value in given.headers:
        yield from _words(value)
        yield from _basic_password(value)
    yield from filter(is_token, given.words)
    for name, value in (*given.env, *_variables_in_arguments(given)):
        if not is_common_variable(name) and (parts := unusual_parts(value)):
            yield value
            yield from parts


def _variables_in_arguments(given: SecretSources) -> Iterator[tuple[str, str]]:
    """Return the variables that were expanded in the arguments."""
    for name, value in given.variables:
        if any(value in word for word in given.words):
            yield name, value


def _in_argument(before: str, word: str) -> Iterator[str]:
    """Find secrets in an argument, by itself or as the value of the flag before it."""
    yield from _in_text(word)
    if word.startswith("-"):
        before, _, word = word.partition("=")
    elif before.startswith("-") and "=" not in before:
        if is_credential_name(before):
            yield from _credentials(word)
        elif _SHORT_FLAG.fullmatch(before):
            yield from unusual_parts(word)
        elif before in _USER_FLAGS:
            yield from unusual_parts(word.partition(":")[2])
    if user := _USER_AT_HOST.match(word):
        yield from unusual_parts(user[1])
    header = _HEADER.match(word)
    if header and (is_credential_name(header[1]) or before.lower() in _HEADER_FLAGS):
        yield from _words(header[2])


def _in_command_line(line: str) -> Iterator[str]:
    """Find secrets in the words of a text, split as a shell does."""
    if len(line.split(maxsplit=1)) > 1:
        quoted = _SHELL_WORD.findall(line[:_LOOKED_AT])
        words = [word.replace('"', "").replace("'", "").rstrip(";") for word in quoted]
        for before, word in pairwise(("", *words)):
            yield from _in_argument(before, word)


def _in_text(text: str) -> Iterator[str]:
    """Find values under a secret's name, and credentials of urls, in a text."""
    if len(text) > _LOOKED_AT:
        yield text
        text = text[:_LOOKED_AT]
    if '":' in text:
        yield from _in_json(text)
    if "=" in text:
        for part in _PAIR_ENDS.split(text):
            yield from _in_pair(part)
    if "://" in text:
        for part in _BEFORE_HOST.findall(text):
            yield from _before_host(part)
        for word in text.split():
            yield from _password(word)
            yield from _tokens_in_url(word)
    elif "=" in text:
        for word in text.split():
            yield from _in_pair(word)


def _in_json(text: str) -> Iterator[str]:
    """Find values under a secret's name in JSON, also in JSON inside a string."""
    for written in {text, text.replace('\\"', '"')}:
        for name, value in _JSON_PAIR.findall(written):
            if is_credential_name(name):
                yield from _words(value)
                yield from _words(_unescaped(value))


def _unescaped(value: str) -> str:
    import json  # few need it

    try:
        return str(json.loads(f'"{value}"', strict=False))
    except ValueError:
        return value


def _in_pair(part: str) -> Iterator[str]:
    """Find what follows a secret's name and "=", to the end of this part of a text."""
    names = (
        name
        for name in _PAIR_NAME.finditer(part)
        if is_credential_name(name[1]) or name[1] in ("Pwd", "pwd")  # PWD is a folder
    )
    for name in islice(names, _NESTED):
        yield from _decoded(part[name.end() :].strip("\"'"))


def _tokens_in_url(word: str) -> Iterator[str]:
    """Find the tokens in the path and the query of a url."""
    place = word.partition("://")[2]
    return filter(is_token, _URL_PARTS.split(place)[1:])


def _before_host(part: str) -> Iterator[str]:
    user, _, password = part.rpartition("@")[0].partition(":")
    yield from _decoded(password)
    if len(user) >= _LONG_USER:
        yield from _decoded(user)


def _password(word: str) -> Iterator[str]:
    """Find the password of a url in which special characters are not escaped."""
    before = word.rpartition("@")[0]
    if user := _USER.search(before):
        yield from _decoded(before[user.end() :])


def _words(value: str) -> Iterator[str]:
    """Return the value of a header, and its words without the scheme."""
    yield value
    yield from (word for word in value.split() if word.lower() not in _SCHEMES)


def _credentials(value: str) -> Iterator[str]:
    """Return a secret, and what follows its scheme, or else its unusual words."""
    yield value
    scheme, *words = value.split() or [""]
    yield from words if scheme.lower() in _SCHEMES else unusual_parts(value)


def _basic_password(value: str) -> Iterator[str]:
    """Decode the password of a Basic credential."""
    scheme, _, encoded = value.partition(" ")
    if scheme.lower() == "basic":
        from base64 import b64decode  # few need it

        try:
            yield b64decode(encoded, validate=True).decode().partition(":")[2]
        except ValueError:
            return


def _decoded(value: str) -> Iterator[str]:
    yield value
    if "%" in value:
        from urllib.parse import unquote  # few need it

        yield unquote(value)


def _spellings(value: str) -> Iterator[str]:
    """Spell a value as JSON, Python, JavaScript and urls quote it, and encoded."""
    if len(value) >= _LEAST:
        yield from _encoded(value)
    if value.isascii() and value.isalnum():
        return
    # Imported late: few servers fail.
    import json
    from urllib.parse import quote, quote_plus

    escaped = value.replace("\\", "\\\\")
    for plain, written in (("\n", "\\n"), ("\r", "\\r"), ("\t", "\\t")):
        escaped = escaped.replace(plain, written)
    single = escaped.replace("'", "\\'")
    yield from (escaped, single, escaped.replace('"', '\\"'), single.replace('"', '\\"'))
    quoted = json.dumps(value)[1:-1]
    yield from (quoted, repr(value)[1:-1], ascii(value)[1:-1])
    yield from (json.dumps(quoted)[1:-1], quoted.replace("/", "\\/"))  # in JSON, and by PHP
    for url in (
        quote(value, errors="surrogateescape"),
        quote(value, "", errors="surrogateescape"),
        quote_plus(value, errors="surrogateescape"),
    ):
        yield from (url, _LOWER_HEX.sub(lambda code: code[0].lower(), url))


def _encoded(value: str) -> Iterator[str]:
    """Encode a value in hexadecimal and in base64, also as a part of something longer.

    Its offset in a longer text gives three forms in base64; of each only the digits that do not
    depend on the surrounding text are taken.
    """
    from base64 import b64encode

    data = value.encode("utf-8", "surrogateescape")
    yield from (data.hex(), data.hex().upper())
    for before in range(3):
        digits = b64encode(b"\0" * before + data).decode().rstrip("=")
        first = -(-before * 8 // 6)
        last = (before + len(data)) * 8 // 6
        if last - first >= _LEAST:
            core = digits[first:last]
            yield from (core, core.replace("+", "-").replace("/", "_"))
