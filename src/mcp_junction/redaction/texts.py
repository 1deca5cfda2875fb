"""Masks secrets in texts: those of one server, and with KnownSecrets all that this process knows.

A server's own words, such as errors and stderr, may repeat the credentials that it was given, be a
megabyte long, or contain control characters; anybody may read them once they are redacted. Results
of calls are not: they are between the server and its caller.

KnownSecrets learns values from servers' definitions and from our own environment, and never forgets
them: a replaced credential may still be valid. Of a credential that is renewed by itself, again and
again, the last few values are known. A *strong* secret hardly occurs in a text by chance and is
masked everywhere; a weak one (a word, a number) only in texts of its own server. Keys that Junction
issues are recognised by their form: their values are stored nowhere.

Searching is cheap: one scan for the four rarest characters of each secret, in what is left of a
text without all others. Learning is deferred until the first search. All methods are thread-safe.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from threading import RLock
from typing import Any, Final, NamedTuple

from mcp_junction.config.servers import ServerDefinition
from mcp_junction.errors import ServerError

MASK: Final = "***"
"""Replaces a secret."""
LONGEST: Final = 2_000
SHORTEST: Final = 4
"""A shorter value does not count as a secret."""
_MANY: Final = 50
_START: Final = 16


def redact_error(error: ServerError, definition: ServerDefinition) -> ServerError:
    """Redact an error of a server."""
    message = redact_line(error.message, definition)
    return error.with_message(message, redact_lines(error.stderr_tail, definition))


def redact_line(text: str, definition: ServerDefinition) -> str:
    """Redact a text of a server, and make it one line."""
    return to_plain_line(redact_text(text, definition))


def redact_lines(text: str, definition: ServerDefinition) -> str:
    """Redact a text of a server, and make its lines printable."""
    # Before splitting: a secret may have several lines.
    return "\n".join(map(to_plain_line, redact_text(text, definition).splitlines()))


def redact_text(text: str, definition: ServerDefinition) -> str:
    """Redact a text of a server, without any other change."""
    return redact(text, _secrets_of(definition))


def keep_tail(written: bytes, size: int, definition: ServerDefinition) -> str:
    """Return about the last ``size`` bytes of what a server wrote.

    The rest of a secret that is cut would not be recognised: the tail begins after it.
    """
    start = len(written) - size
    if start <= 0:
        return written.decode("utf-8", "replace")
    text = written.decode("utf-8", "surrogateescape")  # as secrets from the environment are
    start = len(written[:start].decode("utf-8", "surrogateescape"))
    secrets = _secrets_of(definition)
    first = max(start - max(map(len, secrets), default=0), 0)
    text, start = text[first:], start - first
    for begin, end in _find_spans(text, secrets):
        if begin < start < end:
            start = end
    return text[start:].encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def to_plain_line(text: str) -> str:
    """Return a text as one line of bounded length, without control characters."""
    if len(text) > LONGEST:
        text = f"{text[:LONGEST]}…"
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else " " if c.isspace() else "\ufffd" for c in text)


def redact(text: str, secrets: tuple[str, ...], *, is_cut: bool = False) -> str:
    """Replace each secret by a mask; ``is_cut``: one at the end may be cut short."""
    parts: list[str] = []
    shown = 0
    for start, end in _find_spans(text, secrets):
        if start > shown or not parts:
            parts += [text[shown:start], MASK]
        shown = end
    rest = text[shown:]
    return "".join([*parts, _mask_cut_secret(rest, secrets) if is_cut else rest])


def _mask_cut_secret(text: str, secrets: Iterable[str]) -> str:
    """Mask the beginning of a secret that is cut short at the end of a text."""
    for secret in secrets:
        at = text.find(secret[:_START]) if len(secret) > _START else -1
        if at >= 0 and secret.startswith(text[at:]):
            return f"{text[:at]}{MASK}"
    return text


def _secrets_of(definition: ServerDefinition) -> tuple[str, ...]:
    # Imported late: its patterns take milliseconds, and few servers fail.
    from mcp_junction.redaction.secrets import secrets_of

    return secrets_of(definition)


def _find_spans(text: str, secrets: tuple[str, ...]) -> list[tuple[int, int]]:
    """Find where secrets are in a text, in order; overlapping ones are merged."""
    covered: list[tuple[int, int]] = []
    for start, end in sorted(s for secret in _likely(text, secrets) for s in _spans(text, secret)):
        if covered and start < covered[-1][1]:
            start, before = covered.pop()
            end = max(end, before)
        covered.append((start, end))
    return covered


def _likely(text: str, secrets: tuple[str, ...]) -> Iterable[str]:
    """Select the secrets that may be in a text, quickly, where there are very many."""
    if len(secrets) <= _MANY:
        return secrets
    pieces = {text[at : at + SHORTEST] for at in range(len(text))}
    return [s for s in secrets if s[:SHORTEST] in pieces and s[-SHORTEST:] in pieces]


def _spans(text: str, secret: str) -> Iterator[tuple[int, int]]:
    """Find one secret in a text; occurrences that overlap are one span."""
    size = len(secret)
    start = text.find(secret)
    while start >= 0:
        end = start + size
        while (later := text.rfind(secret, end - size + 1, end + size - 1)) >= 0:
            end = later + size
        yield start, end
        start = text.find(secret, end)


_LEAST: Final = 6
_ANCHOR: Final = 4
_KEPT: Final = 3
"""How many values of a renewed credential are known: the current one, and those before it."""
_MOST_PENDING: Final = 64
"""How many values are left to be learned later, where nothing is ever masked."""
_OWN_KEY: Final = re.compile(r"jct_[0-9a-f]{12}_[\w-]{8,}")
"""A key that Junction issued, whole or cut short."""


class _Finder:
    """Some secrets, and a pattern that tells quickly whether one of them may be in a text."""

    __slots__ = ("_dropped", "_pattern", "_pattern_of_bytes", "secrets")

    def __init__(self, secrets: Iterable[str]) -> None:
        self.secrets = tuple(sorted(secrets, key=len, reverse=True))
        anchors = set(map(_anchor, self.secrets))
        self._pattern = re.compile(_prefix_pattern(anchors))
        letters = "".join(anchors)
        kept = set(letters.encode("ascii", "ignore"))
        self._dropped = bytes(byte for byte in range(256) if byte not in kept)
        """The bytes that are in no anchor. Nothing is left of most texts without them, and what
        stood together in an anchor still does."""
        self._pattern_of_bytes = (
            re.compile(self._pattern.pattern.encode()) if letters.isascii() else None
        )

    def may_occur_in(self, text: str) -> bool:
        """Whether the beginning of a search finds something in a text."""
        pattern = self._pattern_of_bytes
        if (
            pattern is not None
            and text.isascii()
            and pattern.search(text.encode().translate(None, self._dropped)) is None
        ):
            return False
        return self._pattern.search(text) is not None


class _Url(NamedTuple):
    text: str


class _Renewed(NamedTuple):
    credential: str
    value: str


class KnownSecrets:
    """Learns secrets, and masks them in texts."""

    def __init__(self) -> None:
        self._lock = RLock()
        self._is_learning = False
        self._pending: list[ServerDefinition | _Url | _Renewed | str] = []
        self._strong: tuple[_Finder, ...] = ()
        self._lasting: set[str] = set()
        self._renewed: dict[str, deque[frozenset[str]]] = {}
        """The spellings of each of the last values, by credential. They and ``_lasting`` are
        sought; also some values from before, until a finder is made of the rest."""
        self._weak: dict[str, _Finder] = {}

    # -- learning

    def learn(self, definition: ServerDefinition) -> None:
        """Learn the secrets in a server's definition."""
        self._pending.append(definition)

    def learn_value(self, value: str) -> None:
        """Learn one secret of our own, if it is strong."""
        self._pending.append(value)

    def learn_renewed(self, credential: str, value: str) -> None:
        """Learn the new value of a credential, if it is strong; its oldest one is forgotten."""
        self._pending.append(_Renewed(credential, value))
        if len(self._pending) > _MOST_PENDING:
            self.process_pending()

    def learn_url(self, url: str) -> None:
        """Learn the secrets in a url of our own."""
        self._pending.append(_Url(url))

    def forget(self) -> None:
        """Forget everything; for tests."""
        with self._lock:
            self._pending, self._strong, self._weak = [], (), {}
            self._lasting, self._renewed = set(), {}

    @property
    def size(self) -> int:
        """Count the spellings of secrets that are sought in every text."""
        return sum(len(finder.secrets) for finder in self._strong)

    # -- masking

    def may_occur_in(self, text: str, server_id: str | None = None) -> bool:
        """Whether a known secret may be in a text, or a weak one of the given server."""
        if self._pending:
            self.process_pending()
        for finder in self._strong:
            if finder.may_occur_in(text):
                return True
        if "jct_" in text and _OWN_KEY.search(text) is not None:
            return True
        weak = self._weak.get(server_id) if server_id is not None else None
        return weak is not None and weak.may_occur_in(text)

    def redact(self, text: str, server_id: str | None = None, *, is_cut: bool = False) -> str:
        """Mask known secrets in a text; ``is_cut``: one at its end may be cut short."""
        if not self.may_occur_in(text, server_id):
            return text
        weak = self._weak.get(server_id) if server_id is not None else None
        finders = (*self._strong, weak) if weak is not None else self._strong
        found = tuple(
            secret for finder in finders if finder.may_occur_in(text) for secret in finder.secrets
        )
        return redact(_OWN_KEY.sub(MASK, text), found, is_cut=is_cut)

    def redact_data(self, value: Any) -> Any:
        """Mask known secrets in every string of a JSON value."""
        if isinstance(value, str):
            return self.redact(value)
        if isinstance(value, Mapping):
            return {name: self.redact_data(inner) for name, inner in value.items()}
        if isinstance(value, list | tuple):
            return [self.redact_data(inner) for inner in value]
        return value

    @property
    def has_weak(self) -> bool:
        """Whether there are secrets that are masked only in texts of their own server."""
        return bool(self._weak)

    @property
    def is_pending(self) -> bool:
        """Whether there is something to learn for ``process_pending``."""
        return bool(self._pending)

    def process_pending(self) -> None:
        """Find the secrets in what is to be learned: some tenths of a millisecond per server.

        Masking does so first; call this ahead, in a thread, to keep masking fast.
        """
        with self._lock:
            if self._is_learning:  # this very thread: a log message that learning has led to
                return
            self._is_learning, pending = True, self._pending[:]
            try:
                self._learn_all(pending)
            finally:  # not before: until then, other threads wait here before they mask
                del self._pending[: len(pending)]
                self._is_learning = False

    def _learn_all(self, pending: list[ServerDefinition | _Url | _Renewed | str]) -> None:
        known = {secret for finder in self._strong for secret in finder.secrets}
        new: set[str] = set()
        for source in pending:
            secrets = _secrets_in(source)
            strong = frozenset(secret for secret in secrets if _is_strong(secret))
            new |= strong
            if isinstance(source, _Renewed):
                values = self._renewed.setdefault(source.credential, deque(maxlen=_KEPT))
                if strong not in values:
                    values.append(strong)
                continue
            self._lasting |= strong
            weak = [secret for secret in secrets if not _is_strong(secret)]
            if weak and not isinstance(source, str | _Url) and source.id:
                self._weak[source.id] = _Finder(weak)
        if new := new - known:
            self._strong = self._without_former(_with_new(self._strong, new))

    def _without_former(self, finders: tuple[_Finder, ...]) -> tuple[_Finder, ...]:
        """Drop the former values of credentials, once they are more than what is still known."""
        wanted = self._lasting.union(*(one for some in self._renewed.values() for one in some))
        is_due = sum(len(finder.secrets) for finder in finders) > 2 * len(wanted)
        return (_Finder(wanted),) if is_due else finders


KNOWN: Final = KnownSecrets()
"""The secrets that this process knows."""


def _secrets_in(source: ServerDefinition | _Url | _Renewed | str) -> Iterable[str]:
    """Find the secrets in something to be learned, in every spelling."""
    # Imported late: in stdio mode they are often not needed.
    from mcp_junction.redaction.secrets import (
        SecretSources,
        find_secrets,
        secrets_of,
        with_spellings,
    )

    if isinstance(source, str | _Renewed):
        return with_spellings([source if isinstance(source, str) else source.value])
    if isinstance(source, _Url):
        return with_spellings(find_secrets(SecretSources(urls=(source.text,))))
    return secrets_of(source)


def _is_strong(secret: str) -> bool:
    from mcp_junction.redaction.detect import is_ordinary

    return len(secret) >= _LEAST and not is_ordinary(secret)


def _with_new(finders: tuple[_Finder, ...], new: set[str]) -> tuple[_Finder, ...]:
    """Add a finder for new secrets, merged with the small ones at the end.

    So there are few finders, and a secret is seldom compiled into a pattern again.
    """
    kept = list(finders)
    while kept and len(kept[-1].secrets) <= 2 * len(new):
        new |= set(kept.pop().secrets)
    return (*kept, _Finder(new))


def _prefix_pattern(words: set[str]) -> str:
    """Make a pattern of words that shares their common beginnings, like a trie."""
    if "" in words:
        return ""  # the rest of the others need not be looked at
    by_first: dict[str, set[str]] = {}
    for word in words:
        by_first.setdefault(word[0], set()).add(word[1:])
    ways = [re.escape(first) + _prefix_pattern(rest) for first, rest in sorted(by_first.items())]
    return ways[0] if len(ways) == 1 else f"(?:{'|'.join(ways)})"


def _anchor(secret: str) -> str:
    """Return the four adjacent characters of a secret that are rarest in other texts."""
    places = range(max(len(secret) - _ANCHOR, 0) + 1)
    return max((secret[at : at + _ANCHOR] for at in places), key=_rarity)


def _rarity(piece: str) -> int:
    # The first character counts most: where it is not in a text the scan goes on at once.
    first = 0 if piece[0].islower() or piece[0] in ' "{}:,\\/' else 4
    return first + sum(not (c.islower() or c == " ") for c in piece)
