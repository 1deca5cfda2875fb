"""ToolSearch: searches the tools of the current catalog. The caller's View says what may be found.

Nothing is indexed before somebody wants to search (``begin``). Tools of servers that left stay
indexed, but are not found, until the servers return. Without a SemanticIndex a search goes by
words; with one, by words and meaning, unless the vectors cannot be had in time.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence, Set
from itertools import chain
from typing import TYPE_CHECKING, Final, NamedTuple

from mcp_junction.catalog.catalog import Catalog
from mcp_junction.catalog.items import ListItem, ServerLists
from mcp_junction.catalog.own_tools import OWN_SERVER, own_offers
from mcp_junction.catalog.view import View
from mcp_junction.protocol.names import Pair
from mcp_junction.tasks import TaskScope

if TYPE_CHECKING:
    from mcp_junction.search.index_updater import IndexUpdater
    from mcp_junction.search.ranker_cache import KeyedMask, KeyedSkills
    from mcp_junction.search.semantic import SemanticIndex
    from mcp_junction.search.vectors import Ranked

AUTO: Final = "auto"
KEYWORD: Final = "keyword"
HYBRID: Final = "hybrid"
_REMEMBERED: Final = 2_000_000
"""Bytes of all remembered masks of tools that can be found."""


class SkillTools(NamedTuple):
    """A skill, and the tools that have it."""

    id: str
    text: str
    tools: Collection[Pair]


class ToolQuery(NamedTuple):
    """What to search for, and among what."""

    text: str
    limit: int
    strategy: str = AUTO
    servers: frozenset[str] | None = None
    """Only tools of these servers; of all, if it is None."""
    tools: Set[Pair] | None = None
    """Only these tools; all, if it is None."""
    with_own: bool = True
    """Whether Junction's own tools can be found, where they are listed."""
    skills: Sequence[SkillTools] = ()


class ToolHit(NamedTuple):
    """A tool that was found, its score from 0 to 1, and the parts of that."""

    pair: Pair
    score: float
    parts: Mapping[str, float] = {}


class SearchAnswer(NamedTuple):
    """What was found, best first; by which strategy; and the skills that fit, with scores."""

    hits: list[ToolHit]
    strategy: str
    skills: Mapping[str, float] = {}


class _Admission(NamedTuple):
    """What a caller may find; ``visible`` is what counts for rarity."""

    admitted: KeyedMask
    visible: KeyedMask


class _NumberedSkills(NamedTuple):
    """Skills with their tools as numbers, which hold for one version of the index."""

    skills: Sequence[SkillTools]
    version: int
    keyed: KeyedSkills


class ToolSearch:
    """Searches the catalog that is current."""

    def __init__(self, tasks: TaskScope, catalog: Catalog) -> None:
        self._tasks = tasks
        self._catalog = catalog
        self._own = own_offers({})
        self._updater: IndexUpdater | None = None
        self._admissions: dict[tuple[View, frozenset[str] | None, bool], _Admission] = {}
        self._version = -1
        self._skills: _NumberedSkills | None = None
        self.make_vectors: Callable[[], SemanticIndex] | None = None
        """Makes the index of vectors; without it a search goes by words alone."""
        self.describe_server: Callable[[str], str] | None = None
        """What an operator says of a server."""

    @property
    def indexed(self) -> int:
        """How many tools of servers can be found, as far as they may be seen."""
        return max(0, len(self._updater.index) - len(self._own)) if self._updater is not None else 0

    @property
    def store_error(self) -> str:
        """Why the vector store is not used now; empty when it is, or when there is none."""
        vectors = self._updater.vectors if self._updater is not None else None
        return vectors.store_error if vectors is not None else ""

    def intern_pair(self, pair: Pair) -> Pair:
        """Return the same pair as the index holds it, if it does: one less in memory."""
        index = self._updater.index if self._updater is not None else None
        number = index.number(pair) if index is not None else None
        return (index.pair(number) or pair) if index is not None and number is not None else pair

    def follow(self, catalog: Catalog) -> None:
        """Search another catalog from now on."""
        self._catalog = catalog
        self._admissions.clear()
        if self._updater is not None:
            self._updater.follow(self._offers(), self._titles())

    def begin(self) -> IndexUpdater:
        """Index what there is, and from now on what comes."""
        if self._updater is None:
            # Imported where it is used: most clients are shown everything, and search nothing.
            from mcp_junction.search.index_updater import IndexUpdater

            vectors = self.make_vectors() if self.make_vectors is not None else None
            self._updater = IndexUpdater(self._tasks, vectors)
            self._updater.follow(self._offers(), self._titles())
        return self._updater

    async def __call__(self, query: ToolQuery, view: View) -> SearchAnswer:
        """Find the best tools for a query in a View, best first, equals by name.

        What the View of the caller hides has no influence, not even on how rare a word is.
        """
        updater = self.begin()
        await updater.wait_until_current()
        admission = self._admit(updater, query, view)
        if updater.vectors is not None and query.strategy != KEYWORD:
            from mcp_junction.search.ranker_cache import RankRequest

            strategy = HYBRID if query.strategy == AUTO else query.strategy
            is_narrowed = query.servers is not None or query.tools is not None
            request = RankRequest(
                query.text,
                query.limit,
                strategy,
                updater.index,
                admission.admitted,
                admission.visible,
                self._number_skills(updater, query.skills),
                is_narrowed or view.scope.grants is not None,
            )
            ranked = await updater.vectors.rank(request)
            if ranked is not None:
                hits = _hits_of(updater, ranked)[: query.limit]
                return SearchAnswer(hits, strategy, ranked.skills)
        mask, index = admission.admitted.mask, updater.index

        def admits(pair: Pair) -> bool:
            number = index.number(pair)
            return number is not None and number < len(mask) and bool(mask[number])

        found = index.search(query.text, query.limit, admits, admission.visible.mask)
        return SearchAnswer(
            [ToolHit(pair, score, {"words": score}) for pair, score in found], KEYWORD
        )

    def _number_skills(self, updater: IndexUpdater, skills: Sequence[SkillTools]) -> KeyedSkills:
        """Convert the tools of skills to numbers."""
        from mcp_junction.search.ranker_cache import KeyedSkills
        from mcp_junction.search.vectors import SkillGroup

        index, known = updater.index, self._skills
        if known is None or known.skills is not skills or known.version != index.version:
            groups = [
                SkillGroup(one.id, one.text, index.numbers_of(one.tools).tobytes())
                for one in skills
            ]
            known = self._skills = _NumberedSkills(skills, index.version, KeyedSkills.make(groups))
        return known.keyed

    # -- what may be found

    def _admit(self, updater: IndexUpdater, query: ToolQuery, view: View) -> _Admission:
        index = updater.index
        remembered = sum(len(one.admitted.mask) for one in self._admissions.values())
        if self._version != index.version or remembered > _REMEMBERED:
            self._admissions.clear()
            self._version = index.version
        key = (view, query.servers, query.with_own)
        found = self._admissions.get(key)
        if found is None:
            found = self._admissions[key] = self._make_admission(updater, *key)
        if query.tools is None:
            return found
        admitted = found.admitted.mask
        mask = bytearray(len(admitted))
        for number in index.numbers_of(query.tools):
            if number < len(admitted):
                mask[number] = admitted[number]
        from mcp_junction.search.ranker_cache import KeyedMask

        return found._replace(admitted=KeyedMask.make(bytes(mask)))

    def _make_admission(
        self, updater: IndexUpdater, view: View, servers: frozenset[str] | None, with_own: bool
    ) -> _Admission:
        from mcp_junction.search.ranker_cache import KeyedMask

        own = [Pair(OWN_SERVER, offer.name) for offer in self._own]
        index = updater.index
        if view.scope.grants is None:
            visible = bytes(index.present)
        else:
            visible = index.mask_of(chain(view.known_pairs(), own))
        present = (
            pair for pair in view.present_pairs() if servers is None or pair.server in servers
        )
        listed = (pair for pair in own if with_own and pair.name in view.own)
        admitted = index.mask_of(chain(present, listed))
        return _Admission(KeyedMask.make(admitted), KeyedMask.make(visible))

    # -- what there is

    def _known(self) -> dict[str, ServerLists]:
        return {**self._catalog.departed, **self._catalog.offerings}

    def _offers(self) -> dict[str, tuple[ListItem, ...]]:
        offers = {key: held.tools for key, held in self._known().items()}
        return offers | {OWN_SERVER: self._own}

    def _titles(self) -> dict[str, str]:
        """What is said of each server: by itself, and by an operator."""
        found = {}
        for key, held in self._known().items():
            info = held.upstream.greeting.info if held.upstream.greeting is not None else {}
            title = info.get("title") or info.get("name")
            said = [title if isinstance(title, str) else ""]
            if self.describe_server is not None:
                said.append(self.describe_server(key))
            found[key] = ", ".join(filter(None, said))
        return found


def _hits_of(updater: IndexUpdater, ranked: Ranked) -> list[ToolHit]:
    """Turn the numbers of ranked tools to hits, best first, equals by name."""
    hits = [
        ToolHit(
            pair,
            one.score,
            {"meaning": one.meaning, "words": one.words, "server": one.server, "skill": one.skill},
        )
        for one in ranked.tools
        if (pair := updater.index.pair(one.number)) is not None
    ]
    return sorted(hits, key=lambda hit: (-hit.score, hit.pair))
