"""NameHistory: the names and URIs that clients were shown in this run, and whose each of them is.

A catalog is of one moment; the history goes on from one to the next. A name that was shown stays
its pair's, and nobody else gets it when that pair is gone: only a server that is removed for good
frees its names. Each list has a history of its own: one kind, one endpoint, one spelling. Nothing
of it outlives the process.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping
from functools import partial
from typing import Final

from mcp_junction.catalog.endpoints import EVERYTHING, Endpoint, one_server
from mcp_junction.catalog.kinds import OfferKind
from mcp_junction.protocol.names import Pair, Spelling

MOST_PAST: Final = 5_000
"""How many tools that it no longer offers a server is remembered for, in each list. One that offers
something else all the time gives up names of its own, and no one else's."""


class NameHistory:
    """The names of one list, or the addresses."""

    def __init__(self) -> None:
        self.names: dict[Pair, str] = {}
        self.owners: dict[str, Pair] = {}
        self.aliases: dict[Pair, list[str]] = {}
        """What else stays a pair's, since somebody came whose name it would have been."""
        self.changes = 0
        """How often the names have changed: a view made before a change may be outdated."""

    def keep(self, table: Mapping[str, Pair], known: Container[Pair]) -> None:
        """These have been shown. ``known`` are the pairs that there are now."""
        for name, pair in table.items():
            if pair not in self.names and name not in self.owners:
                self.names[pair] = name
                self.owners[name] = pair
                self.changes += 1
        past = [pair for pair in self.names if pair not in known]
        if len(past) > MOST_PAST:
            self._give_up(past)

    def keep_aliases(self, table: Mapping[str, Pair]) -> None:
        """These are other spellings of pairs that have names here, and stay theirs."""
        for name, pair in table.items():
            if pair in self.names and name not in self.owners:
                self.changes += 1
                self.owners[name] = pair
                self.aliases.setdefault(pair, []).append(name)

    def forget(self, is_free: Callable[[Pair], bool]) -> bool:
        """Free the names of some pairs. Whether there were any."""
        freed = [pair for pair in self.names if is_free(pair)]
        for pair in freed:
            self._drop(pair)
        return bool(freed)

    def rename(self, old: str, new: str) -> None:
        self.changes += 1
        for pair in [pair for pair in self.aliases if pair.server == old]:
            self._drop_aliases(pair)  # they hold the key
        for name, pair in self.owners.items():
            if pair.server == old:
                self.owners[name] = Pair(new, pair.name)
        self.names = {self.owners[name]: name for name in self.names.values()}

    def _give_up(self, past: list[Pair]) -> None:
        """Forget the oldest of those servers that have too many."""
        over = Counter(pair.server for pair in past)
        for pair in past:
            if over[pair.server] > MOST_PAST:
                over[pair.server] -= 1
                self._drop(pair)

    def _drop(self, pair: Pair) -> None:
        self.changes += 1
        del self.owners[self.names.pop(pair)]
        self._drop_aliases(pair)

    def _drop_aliases(self, pair: Pair) -> None:
        for name in self.aliases.pop(pair, ()):
            del self.owners[name]


class NameHistories:
    """The names of every list."""

    def __init__(self) -> None:
        self.is_settled = False
        """Whether names count as shown from the moment that there is a view of them."""
        self._lists: dict[tuple[Spelling | None, str, str], NameHistory] = {}

    def at(self, spelling: Spelling | None, kind: OfferKind, address: str) -> NameHistory:
        """The names of one list. What has an address of its own is not spelled."""
        return self._lists.setdefault((spelling, kind.name, address), NameHistory())

    def forget(self, server: str) -> None:
        """A server is removed for good."""
        for held in self._lists.values():
            held.forget(lambda pair: pair.server == server)
        self._lists = {key: held for key, held in self._lists.items() if held.names}

    def narrow(self, sets: Iterable[Endpoint]) -> bool:
        """There are these named sets now; what is no longer part of one has no names there.
        Whether there was any."""
        by_address = {endpoint.name: endpoint for endpoint in sets}
        freed = [
            held.forget(partial(_is_left_out, by_address.get(address), address, spelling))
            for (spelling, _, address), held in self._lists.items()
            if address != EVERYTHING.name
        ]
        return any(freed)

    def rename(self, old: str, new: str) -> None:
        """A server has another key. The names that hold its key are others now, too."""
        for (spelling, _, address), held in self._lists.items():
            holds_key = spelling is not None and spelling.prefixed
            if holds_key or address == one_server(old).name:
                held.forget(lambda pair: pair.server == old)
            else:
                held.rename(old, new)


def _is_left_out(now: Endpoint | None, address: str, spelling: Spelling | None, pair: Pair) -> bool:
    """Whether a pair is not to be seen at an address that is one server's, or ``now`` a set's."""
    if one_server(pair.server).name == address:
        return False
    if now is None:
        return True
    return not (now.admits_server(pair.server) if spelling is None else now.admits(pair))
