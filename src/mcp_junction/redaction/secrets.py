"""Finds the secrets in a server's definition, and the spellings in which they may turn up.

What counts, and where the line is:

- What a name calls a secret (of a variable, a flag, a header, a parameter, a member of JSON), what
  follows ``Bearer`` and its like, and what a url holds before its host, from 4 characters on:
  shorter ones are found in every other word, and hiding them would tell more than it hides.
- An argument, a segment of a url's path or a value of its query that can hardly be anything but a
  credential (``values.is_token``).
- A password after a user's name (``-u name:password``, ``name:password@host``), unless it is
  ordinary.
- Whatever else stands in ``headers``, from 6 characters on; and of ``env``, and of variables that
  came into ``args``, what is not ordinary: paths, words, hosts and numbers stay, and variables
  that every process has. They are what messages are about. A reference to a variable is its name.

A value of many lines is kept line by line as well, and each in the ways that programs quote and
encode it (``_spellings``). Taking them out of a text is ``texts.py``.
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
"""Before a host, from here on a lone name is a token: those of people are shorter."""
_SCHEMES: Final = frozenset({"apikey", "basic", "bearer", "digest", "negotiate", "token"})
_PLAIN: Final = _SCHEMES | {"true", "false", "none", "null", "auto", "default"}
"""Values that are no secret, whatever they are called."""
_SHORT_FLAG: Final = re.compile("-[kptsa]")
"""Flags that often mean a key, a password or a token: their value counts if it is unusual."""
_USER_FLAGS: Final = ("-u", "--user")
_USER_AT_HOST: Final = re.compile(r"[^\s:/@]++:([^\s/@]++)@[\w(\[]")
_HEADER_FLAGS: Final = ("-h", "--header", "--headers")
_HEADER: Final = re.compile(r"([\w-]+):(?!//)\s*(.+)", re.DOTALL)
_BREAKS: Final = re.compile(r"\r\n?|\n|\\r|\\n")  # also as .env files and JSON write them
# Nothing here goes back over what it has read: a long text takes no longer than several short ones.
_PAIR_NAME: Final = re.compile(r"(?<![\w.-])([\w.-]++)=")
_PAIR_ENDS: Final = re.compile(r"[\s;&,#]+")
_BEFORE_HOST: Final = re.compile(r"://([^/?#\s]++)")
_USER: Final = re.compile(r"://[^/?#\s:]*+:")
_JSON_PAIR: Final = re.compile(r'"([^"\\]++)"\s*+:\s*+"((?:[^"\\]|\\.)*+)"', re.DOTALL)
_URL_PARTS: Final = re.compile(r"[/?&;#]|(?<=[^=])=(?=[^=])")
_LOWER_HEX: Final = re.compile("%[0-9A-F]{2}")
_SHELL_WORD: Final = re.compile(r"""(?:"[^"]*+"|'[^']*+'|\S)++""")
_LOOKED_AT: Final = 65_536
"""Of one value, in characters; a longer one is kept as a whole as well."""
_NESTED: Final = 4
"""How many secrets may stand in each other, as in ``a=b=c``."""


class SecretSources(NamedTuple):
    """The parts of a server's definition that may hold a secret; hashable, for a cache."""

    words: tuple[str, ...] = ()
    """Of its command and its arguments."""
    urls: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    headers: tuple[tuple[str, str], ...] = ()
    variables: tuple[tuple[str, str], ...] = ()


def secrets_of(definition: ServerDefinition) -> tuple[str, ...]:
    """What a server is given that it should not repeat, in every spelling; the longest first."""
    missing = frozenset(definition.missing)

    def plain(text: str) -> str:
        return without_references(text, missing) if missing else text

    return _all_spellings(
        SecretSources(
            tuple(map(plain, (*definition.command.split(), *definition.args))),
            (plain(definition.url),),
            tuple((name, plain(value)) for name, value in definition.env.items()),
            tuple((name, plain(value)) for name, value in definition.headers.items()),
            tuple(definition.variables.items()),
        )
    )


@lru_cache(maxsize=128)
def _all_spellings(sources: SecretSources) -> tuple[str, ...]:
    """Cached: it is needed twice per failure, and a server that fails does so again."""
    return with_spellings(find_secrets(sources))


def with_spellings(values: Iterable[str]) -> tuple[str, ...]:
    """Return secrets with their other spellings, the longest first."""
    found = set(values)
    found |= {spelling for value in found for spelling in _spellings(value)}
    return tuple(sorted(found, key=len, reverse=True))


def find_secrets(sources: SecretSources) -> set[str]:
    """Find the secrets in parts of a definition, as they are written there."""
    found = {
        value for value in _named(sources) if len(value) >= SHORTEST and value.lower() not in _PLAIN
    }
    found |= {value for value in _unnamed(sources) if len(value) >= _LEAST}
    lines = {line.strip() for value in found for line in _BREAKS.split(value)}
    return found | {line for line in lines if len(line) >= _LEAST}


def secret_parts(name: str, value: str) -> set[str]:
    """The secrets in one variable of the environment."""
    return find_secrets(SecretSources(env=((name, value),)))


def _named(given: SecretSources) -> Iterator[str]:
    """What something calls a secret."""
    for name, value in (*given.env, *given.variables):
        if is_credential_name(name) or value.partition(" ")[0].lower() in _SCHEMES:
            yield from _credentials(value)
        yield from _told_in(value)
        yield from _told_in_line(value)
    for name, value in given.headers:
        if is_credential_name(name):
            yield from _words(value)
    for url in given.urls:
        yield from _told_in(url)
    for before, word in pairwise(("", *given.words)):
        yield from _told_by(before, word)
        yield from _told_in_line(word)


def _unnamed(given: SecretSources) -> Iterator[str]:
    """What nothing calls a secret, and may be one."""
    for _, value in given.headers:
        yield from _words(value)
        yield from _basic_password(value)
    yield from filter(is_token, given.words)
    for name, value in (*given.env, *_used(given)):
        if not is_common_variable(name) and (parts := unusual_parts(value)):
            yield value
            yield from parts


def _used(given: SecretSources) -> Iterator[tuple[str, str]]:
    """The variables that came into the arguments."""
    for name, value in given.variables:
        if any(value in word for word in given.words):
            yield name, value


def _told_by(before: str, word: str) -> Iterator[str]:
    """What an argument tells, by itself or as the value of the one before it."""
    yield from _told_in(word)
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


def _told_in_line(line: str) -> Iterator[str]:
    """What is told by the words of a text, as a shell takes it apart."""
    if len(line.split(maxsplit=1)) > 1:
        quoted = _SHELL_WORD.findall(line[:_LOOKED_AT])
        words = [word.replace('"', "").replace("'", "").rstrip(";") for word in quoted]
        for before, word in pairwise(("", *words)):
            yield from _told_by(before, word)


def _told_in(text: str) -> Iterator[str]:
    """What is in a text under the name of a secret, or before the host of a url."""
    if len(text) > _LOOKED_AT:
        yield text
        text = text[:_LOOKED_AT]
    if '":' in text:
        yield from _told_in_json(text)
    if "=" in text:
        for part in _PAIR_ENDS.split(text):
            yield from _paired(part)
    if "://" in text:
        for part in _BEFORE_HOST.findall(text):
            yield from _before_host(part)
        for word in text.split():
            yield from _password(word)
            yield from _tokens_in_url(word)
    elif "=" in text:
        for word in text.split():
            yield from _paired(word)


def _told_in_json(text: str) -> Iterator[str]:
    """What is in JSON under the name of a secret, also where the JSON is in a string of JSON."""
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


def _paired(part: str) -> Iterator[str]:
    """What follows the name of a secret, and "=": to the end of this part of a text."""
    names = (name for name in _PAIR_NAME.finditer(part) if _is_password_name(name[1]))
    for name in islice(names, _NESTED):
        yield from _decoded(part[name.end() :].strip("\"'"))


def _is_password_name(name: str) -> bool:
    """Whether a name before "=" names a secret: ``Pwd`` does, ``PWD`` is a folder."""
    return is_credential_name(name) or name in ("Pwd", "pwd")


def _tokens_in_url(word: str) -> Iterator[str]:
    """What in the path or the query of a url can hardly be anything but a credential."""
    place = word.partition("://")[2]
    return filter(is_token, _URL_PARTS.split(place)[1:])


def _before_host(part: str) -> Iterator[str]:
    user, _, password = part.rpartition("@")[0].partition(":")
    yield from _decoded(password)
    if len(user) >= _LONG_USER:
        yield from _decoded(user)


def _password(word: str) -> Iterator[str]:
    """A password in a url that has what should have been escaped."""
    before = word.rpartition("@")[0]
    if user := _USER.search(before):
        yield from _decoded(before[user.end() :])


def _words(value: str) -> Iterator[str]:
    """The value of a header, and each word of it but the name of a scheme."""
    yield value
    yield from (word for word in value.split() if word.lower() not in _SCHEMES)


def _credentials(value: str) -> Iterator[str]:
    """A secret, what follows the name of a scheme in it, and those of its words that are odd."""
    yield value
    scheme, *words = value.split() or [""]
    yield from words if scheme.lower() in _SCHEMES else unusual_parts(value)


def _basic_password(value: str) -> Iterator[str]:
    """The password of a Basic credential."""
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
    """A value as JSON, Python, JavaScript and urls quote it, and as it is encoded."""
    if len(value) >= _LEAST:
        yield from _encoded(value)
    if value.isascii() and value.isalnum():
        return
    # Imported where they are used: few servers fail.
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
    """A value in base64 and in hexadecimal digits, also as a part of something longer.

    Where it begins in a longer text decides between three forms in base64; of each only the digits
    that do not depend on what stands around it are taken.
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
