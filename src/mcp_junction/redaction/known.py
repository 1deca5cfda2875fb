"""KnownSecrets: every secret that this process knows by value, taken out of any text.

Values are learned from the servers' definitions and from our own environment, and are not
forgotten: a credential that was replaced may still be one. A *strong* one could hardly be in a text
by chance and is hidden everywhere; a weak one (a word, a number) only in what its own server says.

Asking costs next to nothing: one scan for the four rarest characters of each secret. Learning is
put off until somebody asks. Any thread may do either.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from threading import Lock
from typing import TYPE_CHECKING, Final

from mcp_junction.redaction.texts import redact

if TYPE_CHECKING:
    from mcp_junction.config.servers import ServerDefinition

_LEAST: Final = 6
_ANCHOR: Final = 4
_MOST: Final = 50_000
"""Secrets that are kept, in all their spellings; beyond that the process learns no more."""


class _Finder:
    """Some secrets, and the pattern that tells quickly that none of them is in a text."""

    __slots__ = ("pattern", "secrets")

    def __init__(self, secrets: Iterable[str]) -> None:
        self.secrets = tuple(sorted(secrets, key=len, reverse=True))
        self.pattern = re.compile(_pattern(self.secrets))


class KnownSecrets:
    """The secrets that were learned."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._pending: list[ServerDefinition | str] = []
        self._strong: set[str] = set()
        self._finder: _Finder | None = None
        self._weak: dict[str, _Finder] = {}

    # -- learning

    def learn(self, definition: ServerDefinition) -> None:
        """Remember what a server is given."""
        self._pending.append(definition)

    def learn_value(self, value: str) -> None:
        """Remember one secret of our own, if it is strong."""
        self._pending.append(value)

    def forget(self) -> None:
        """Forget everything; for tests, which share a process."""
        with self._lock:
            self._pending, self._strong, self._finder, self._weak = [], set(), None, {}

    # -- asking

    def is_in(self, text: str, server_id: str | None = None) -> bool:
        """Whether one of them may be in a text of everybody, or of one server."""
        if self._pending:
            self._take_pending()
        finder = self._finder
        if finder is not None and finder.pattern.search(text) is not None:
            return True
        weak = self._weak.get(server_id) if server_id is not None else None
        return weak is not None and weak.pattern.search(text) is not None

    def redact(self, text: str, server_id: str | None = None, *, is_cut: bool = False) -> str:
        """A text without them; ``is_cut``: the last may be cut short."""
        if not self.is_in(text, server_id):
            return text
        weak = self._weak.get(server_id) if server_id is not None else None
        for finder in (self._finder, weak):
            if finder is not None:
                text = redact(text, finder.secrets, is_cut=is_cut)
        return text

    def _take_pending(self) -> None:
        # Imported where they are used: in stdio mode often nobody asks.
        from mcp_junction.redaction.secrets import secrets_of, spelled

        with self._lock:
            pending, self._pending = self._pending, []
            strong = set(self._strong)
            for source in pending:
                if isinstance(source, str):
                    strong.update(spelled([source]) if _is_strong(source) else ())
                    continue
                secrets = secrets_of(source)
                strong.update(filter(_is_strong, secrets))
                weak = [secret for secret in secrets if not _is_strong(secret)]
                if weak and source.id:
                    self._weak[source.id] = _Finder(weak)
            if strong != self._strong and len(strong) <= _MOST:
                self._strong, self._finder = strong, _Finder(strong)


KNOWN: Final = KnownSecrets()
"""What this process knows."""


def _is_strong(secret: str) -> bool:
    from mcp_junction.redaction.values import is_ordinary

    return len(secret) >= _LEAST and not is_ordinary(secret)


def _pattern(secrets: Iterable[str]) -> str:
    """What matches some part of each secret, and little else."""
    by_first: dict[str, set[str]] = {}
    for secret in secrets:
        anchor = _anchor(secret)
        by_first.setdefault(anchor[0], set()).add(anchor[1:])
    return "|".join(
        f"{re.escape(first)}(?:{'|'.join(map(re.escape, sorted(rest)))})"
        for first, rest in sorted(by_first.items())
    )


def _anchor(secret: str) -> str:
    """The four neighbouring characters of a secret that are rarest in other texts."""
    places = range(max(len(secret) - _ANCHOR, 0) + 1)
    pieces = [secret[at : at + _ANCHOR] for at in places]
    return max(pieces, key=_rarity)


def _rarity(piece: str) -> int:
    # The first character counts most: where it is not in a text the scan goes on at once.
    first = 0 if piece[0].islower() or piece[0] in ' "{}:,\\/' else 4
    return first + sum(not (c.islower() or c == " ") for c in piece)
