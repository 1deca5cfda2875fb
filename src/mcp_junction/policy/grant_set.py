"""GrantSet: all grants of one agent, compiled so that 10,000 of them are asked as fast as one.

For each server and kind it has the exact names in a dict, and the patterns under one short piece of
text that each of them needs: only those whose piece a name has are tried. What was found for a name
is remembered, so that a call made again is one look-up. Immutable but for that; a change of grants
makes a new one. A grant with a condition admits what its condition leaves possible, as far as that
is known before a call; one whose condition cannot be used admits nothing. Whether a call meets a
condition and needs a token is not decided here.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from mcp_junction.policy.conditions import GrantCondition
from mcp_junction.policy.grants import ANY, KINDS, RESOURCES, Grant, is_evasive_uri
from mcp_junction.policy.patterns import NamePattern, compile_pattern, is_exact
from mcp_junction.policy.principal import Admits, admit_all
from mcp_junction.policy.tokens import TokenMode

MAX_NAME: Final = 8_192
"""Characters of the longest name that a pattern other than ``*`` is tried on."""
_REMEMBERED: Final = 512
_LONGEST_REMEMBERED: Final = 256
_PIECE: Final = 3
_FEW: Final = 16
"""So many patterns are tried one by one rather than looked up by their pieces."""
_STRICTNESS: Final = {mode: rank for rank, mode in enumerate(TokenMode)}
_NOTHING: Final[tuple[Grant, ...]] = ()
_NO_CONDITIONS: Final[Mapping[str, GrantCondition]] = {}


class GrantSet:
    """The grants of one agent, as decisions ask for them."""

    __slots__ = (
        "_matchers",
        "_remembered",
        "agent_id",
        "agent_type",
        "conditions",
        "expiries",
        "generation",
        "grants",
        "places",
        "server_ids",
    )

    def __init__(
        self,
        agent_id: str,
        grants: Iterable[Grant] = (),
        generation: int = 0,
        conditions: Mapping[str, GrantCondition] = _NO_CONDITIONS,
        agent_type: str = "",
        server_ids: Mapping[str, str] = {},
    ) -> None:
        """``conditions`` are those that can be used, by their source.

        ``server_ids`` leads from the names of servers to their ids.
        """
        self.agent_id = agent_id
        self.agent_type = agent_type
        self.server_ids = server_ids
        self.generation = generation
        """Another number when the agent's grants or tokens have changed."""
        self.grants = tuple(sorted(grants, key=_leniency))
        self.expiries = sorted(g.expires_at for g in self.grants if g.expires_at is not None)
        self._remembered: dict[tuple[str, str, str], tuple[Grant, ...]] = {}
        self.places: dict[tuple[str, str], list[Grant]] = {}
        """The grants of each kind and server."""
        self._matchers: dict[tuple[str, str], _Matcher] = {}
        """The same compiled, as far as they were asked for."""
        found = ((g.id, conditions.get(g.when)) for g in self.grants if g.when)
        usable = {grant_id: one for grant_id, one in found if one is not None}
        self.conditions: Mapping[str, GrantCondition] = usable
        """The conditions of grants, by the ids of these."""
        for grant in self.grants:
            if not grant.when or grant.id in usable:
                for kind in grant.kinds:
                    self.places.setdefault((kind, grant.server_id), []).append(grant)

    def __len__(self) -> int:
        return len(self.grants)

    def admits(self, kind: str, server_id: str, name: str, now: float) -> Grant | None:
        """Return the most lenient grant that may admit something of a server; None when none."""
        found = self._remembered.get((kind, server_id, name))
        if found is None:
            found = self.matching(kind, server_id, name)
        for grant in found:
            if (grant.expires_at is None or now < grant.expires_at) and (
                not grant.when or self.is_possible(grant, kind, server_id, name)
            ):
                return grant
        return None

    def is_possible(self, grant: Grant, kind: str, server_id: str, name: str) -> bool:
        """Whether a call of something may meet a grant's condition; without one, it does."""
        condition = self.conditions.get(grant.id)
        if condition is None:
            return not grant.when
        server = next((key for key, one in self.server_ids.items() if one == server_id), server_id)
        tool = {"server": server, "name": name, "kind": kind}
        agent = {"id": self.agent_id, "type": self.agent_type}
        return condition.is_possible({"agent": agent, "tool": tool})

    def matching(self, kind: str, server_id: str, name: str) -> tuple[Grant, ...]:
        """Return all grants for it, expired ones too, the most lenient first."""
        key = kind, server_id, name
        found = self._remembered.get(key)
        if found is None:
            found = self.match(kind, server_id, name)
            if len(name) <= _LONGEST_REMEMBERED:
                if len(self._remembered) >= _REMEMBERED:
                    self._remembered.clear()
                self._remembered[key] = found
        return found

    def match(self, kind: str, server_id: str, name: str) -> tuple[Grant, ...]:
        """Find all grants for it, without remembering them."""
        matchers = self._matchers_of(kind, server_id)
        if not matchers:
            return _NOTHING
        is_plain = len(name) <= MAX_NAME and not (kind == RESOURCES and is_evasive_uri(name))
        found: list[Grant] = []
        for matcher in matchers:
            found += matcher.everything
            if is_plain:
                matcher.collect(name, found)
        return tuple(sorted(found, key=_leniency)) if len(found) > 1 else tuple(found)

    def _matchers_of(self, kind: str, server_id: str) -> list[_Matcher]:
        """Return the matcher of a server and the one of all servers, as far as there are any."""
        found: list[_Matcher] = []
        for place in ((kind, server_id), (kind, ANY)):
            matcher = self._matchers.get(place)
            if matcher is None and place in self.places:
                matcher = self._matchers[place] = _Matcher(self.places[place])
            if matcher is not None:
                found.append(matcher)
        return found


class GrantsInForce:
    """The grants of an agent that have not expired, as Scopes ask for them.

    It never changes: when a grant expires there is another.
    """

    __slots__ = ("_grants", "_since", "has_everything", "until")

    def __init__(self, grants: GrantSet, now: float) -> None:
        self._grants = grants
        self._since = now
        later = bisect_right(grants.expiries, now)
        self.until = grants.expiries[later] if later < len(grants.expiries) else float("inf")
        """When the next grant expires."""
        self.has_everything = all(
            any(g.tool_name == ANY and not g.when for g in self._live((kind, ANY)))
            for kind in KINDS
        )
        """Whether it admits all there is, of every kind, as the migrated grants do."""

    def of(self, kind: str, server: str) -> Admits | None:
        """Return what says of each of a server's names whether it may be used; None if none."""
        grants, now = self._grants, self._since
        server_id = grants.server_ids.get(server)
        if server_id is None:
            return None
        live = [*self._live((kind, server_id)), *self._live((kind, ANY))]
        if not live:
            return None
        if any(grant.when for grant in live):
            return lambda name: grants.admits(kind, server_id, name, now) is not None
        if any(grant.tool_name == ANY for grant in live):
            return admit_all
        if all(is_exact(grant.tool_name) for grant in live):
            names = {grant.tool_name for grant in live}
            if kind == RESOURCES:
                names = {name for name in names if not is_evasive_uri(name)}
            return names.__contains__
        return lambda name: any(grant.is_live(now) for grant in grants.match(kind, server_id, name))

    def names(self, server: str) -> bool:
        """Whether a grant is for this very server."""
        server_id = self._grants.server_ids.get(server)
        if server_id is None:
            return False
        return any(True for kind in KINDS for _ in self._live((kind, server_id)))

    def _live(self, place: tuple[str, str]) -> Iterator[Grant]:
        """Iterate over the grants of a kind on a server that have not expired."""
        grants = self._grants.places.get(place, ())
        return (grant for grant in grants if grant.is_live(self._since))


class _Matcher:
    """The grants of one kind on one server."""

    __slots__ = ("_again", "_exact", "_few", "_indexed", "_sizes", "everything")

    def __init__(self, grants: list[Grant]) -> None:
        self.everything = [grant for grant in grants if grant.tool_name == ANY]
        self._exact: dict[str, Grant] = {}
        self._again: dict[str, list[Grant]] = {}
        """Further grants of a name that has one."""
        patterns: list[tuple[NamePattern, Grant]] = []
        for grant in grants:
            if is_exact(grant.tool_name):
                if self._exact.setdefault(grant.tool_name, grant) is not grant:
                    self._again.setdefault(grant.tool_name, []).append(grant)
            elif grant.tool_name != ANY:
                patterns.append((compile_pattern(grant.tool_name), grant))
        self._few, self._indexed = _index(patterns)
        self._sizes = sorted({len(piece) for piece in self._indexed})

    def collect(self, name: str, found: list[Grant]) -> None:
        """Add the grants for a name to a list, but for those of everything."""
        exact = self._exact.get(name)
        if exact is not None:
            found.append(exact)
            found += self._again.get(name, ())
        found += [grant for pattern, grant in self._few if pattern.matches(name)]
        for size in self._sizes:
            pieces = {name[at : at + size] for at in range(len(name) - size + 1)}
            for piece in pieces & self._indexed.keys():
                patterns = self._indexed[piece]
                found += [grant for pattern, grant in patterns if pattern.matches(name)]


_Patterns = list[tuple[NamePattern, Grant]]


def _index(patterns: _Patterns) -> tuple[_Patterns, dict[str, _Patterns]]:
    """Sort patterns by the rarest piece that each needs; those without any are kept apart."""
    if len(patterns) <= _FEW:
        return patterns, {}
    pieces = [_pieces(pattern) for pattern, _ in patterns]
    counts = Counter(piece for some in pieces for piece in some)
    few: _Patterns = []
    indexed: dict[str, _Patterns] = {}
    for entry, some in zip(patterns, pieces, strict=True):
        if some:
            rarest = min(some, key=lambda piece: (counts[piece], piece))
            indexed.setdefault(rarest, []).append(entry)
        else:
            few.append(entry)
    return few, indexed


def _pieces(pattern: NamePattern) -> set[str]:
    """Return the pieces of text that a name needs to match, of one size, the longest there are."""
    literals = pattern.literals
    size = min(_PIECE, max(map(len, literals), default=0))
    if not size:
        return set()
    return {text[at : at + size] for text in literals for at in range(len(text) - size + 1)}


def _leniency(grant: Grant) -> tuple[bool, int, float, str]:
    expires_at = grant.expires_at if grant.expires_at is not None else float("inf")
    return grant.limits is not None, _STRICTNESS[grant.token_mode], -expires_at, grant.id
