"""RestSearch: what a search over REST found, with all that is known of each tool."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec import UNSET, UnsetType

from mcp_junction.api.models import (
    FoundTool,
    MatchedSkill,
    SearchMetadata,
    SearchResult,
    SourceServer,
    Tool,
    reachable_status,
    source_server,
    tool_model,
)
from mcp_junction.app import Junction
from mcp_junction.calls.tool_search import (
    AUTO,
    KEYWORD,
    SearchAnswer,
    SkillTools,
    ToolHit,
    ToolQuery,
    ToolSearch,
)
from mcp_junction.catalog.endpoints import EVERYTHING
from mcp_junction.catalog.items import TOOLS
from mcp_junction.catalog.own_tools import OWN_SERVER, own_offers
from mcp_junction.catalog.suspicion import NAMING_OTHERS
from mcp_junction.errors import NotFound, RequestError
from mcp_junction.policy.principal import Principal
from mcp_junction.protocol.names import Pair
from mcp_junction.registry.known_tools import ToolState
from mcp_junction.registry.registry import Registry
from mcp_junction.skills.classifier import SkillVerdict
from mcp_junction.store.records import ServerRecord, ToolRecord

if TYPE_CHECKING:
    from mcp_junction.api.requests import Search
    from mcp_junction.registry.search_vectors import SkillMemberships
    from mcp_junction.search.semantic import SemanticIndex
    from mcp_junction.store.store import Store

_DIGITS: Final = 4


class VisibleTools:
    """What a principal may see of the tools, over REST."""

    def __init__(self, junction: Junction, principal: Principal) -> None:
        self.scope = junction.scopes.of(principal, EVERYTHING)
        self._catalog = junction.snapshot.catalog
        self.view = self._catalog.view(junction.spelling(principal=principal), TOOLS, self.scope)

    def check_server(self, record: ServerRecord, ref: str) -> ServerRecord:
        """Return a server of which something is visible. Raises NotFound for any other, by the
        name or id that was used for it."""
        if self.scope.grants is not None and not self._catalog.shows_server(
            self.scope, record.name
        ):
            raise NotFound(f"there is no server {ref!r}")
        return record

    def source(self, record: ServerRecord) -> SourceServer:
        """Describe the server of a tool."""
        if self.scope.grants is None:
            return source_server(record)
        return SourceServer(record.id, record.name, reachable_status(record))

    def admits(self, tool: ToolRecord, server: str) -> bool:
        return self.scope.grants is None or self.scope.admits(TOOLS, Pair(server, tool.name))

    def show(
        self, record: ToolRecord, server: SourceServer, state: ToolState, *, with_schema: bool
    ) -> Tool:
        """Show a tool, to who sees less than everything as if there were no others.

        Of several tools that are alike, hidden ones decide which of them is flagged, and for what;
        and a tool's skills are those that it has by itself, without the rest of its server.
        """
        shown = tool_model(record, server, state, with_schema=with_schema)
        if self.scope.grants is not None:
            kept = (flag for flag in shown.flags if flag.partition(": ")[0] not in NAMING_OTHERS)
            shown.flags = list(kept)
            if own := record.own_skill_confidences:
                verdict = SkillVerdict(own)
                shown.skill_ids, shown.primary_skill_id = list(own), verdict.primary
                shown.skill_confidences = own
        return shown


class RestSearch:
    """The searches of REST clients."""

    def __init__(self, junction: Junction, registry: Registry) -> None:
        self._junction = junction
        self._registry = registry
        self._memberships: dict[bool, SkillMemberships] = {}
        """Of all tools, and of tools that have a skill by themselves: by ``is_own``."""

    def use_vectors(self, store: Store, make_index: Callable[[], SemanticIndex]) -> None:
        """Search by meaning, too, with the index of vectors that is made when it is needed."""
        from mcp_junction.registry.search_vectors import SkillMemberships

        search, registry = self._junction.tool_search, self._registry
        tasks, share = self._junction.tasks, search.intern_pair
        self._memberships = {
            is_own: SkillMemberships(tasks, registry, store, share, is_own=is_own)
            for is_own in (False, True)
        }
        search.describe_server = self._describe_server
        search.make_vectors = make_index

    def _describe_server(self, key: str) -> str:
        try:
            return self._registry.find(key).description
        except NotFound:
            return ""

    async def __call__(self, asked: Search, principal: Principal) -> SearchResult:
        """Search the tools that a principal may see.

        Raises NotFound for an unknown server, RequestError for an unknown skill.
        """
        catalog, chosen = self._junction.snapshot.catalog, asked.server_filter
        visible = VisibleTools(self._junction, principal)
        scope, view = visible.scope, visible.view
        find = self._registry.find
        servers_named = {visible.check_server(find(ref), ref).name for ref in chosen or ()}
        named = None if chosen is None else servers_named
        counts = view.counts
        servers = {
            key: counts.get(key, 0)
            for key in catalog.offerings
            if asked.include_external
            and (named is None or key in named)
            and catalog.shows_server(scope, key)
        }
        is_limited = scope.grants is not None
        skilled = await self._skilled(asked.skill_filter, is_own=is_limited)
        own = view.own if named is None and skilled is None else frozenset[str]()
        search = self._junction.tool_search
        query = ToolQuery(
            asked.query,
            asked.limit,
            asked.strategy,
            None if named is None and asked.include_external else frozenset(servers),
            skilled,
            with_own=bool(own),
            skills=await self._read_memberships(is_own=is_limited),
        )
        found = await search(query, view)
        if skilled is None:
            total = sum(servers.values()) + len(own)
        else:
            total = sum(pair.server in servers and view.admits(pair) for pair in skilled)
        return SearchResult(
            asked.query,
            await self._shown(found.hits, visible, asked),
            [MatchedSkill(id_, round(score, _DIGITS)) for id_, score in found.skills.items()],
            SearchMetadata(len(servers), total, found.strategy, _warn(asked, found, search)),
        )

    async def _read_memberships(self, *, is_own: bool) -> Sequence[SkillTools]:
        read = self._memberships.get(is_own)
        return () if read is None else await read()

    async def _skilled(self, refs: list[str] | None, *, is_own: bool) -> set[Pair] | None:
        """The tools that have one of these skills, or by themselves; None where any will do."""
        if refs is None:
            return None
        try:
            found = await self._registry.skills.holding(refs, is_own=is_own)
        except NotFound as error:
            raise RequestError("SKILL_NOT_FOUND", str(error)) from None
        names = {record.id: record.name for record in self._registry.all()}
        return {Pair(names[server], name) for server, name in found if server in names}

    async def _shown(
        self, hits: list[ToolHit], visible: VisibleTools, asked: Search
    ) -> list[FoundTool]:
        with_schema = asked.include_schemas
        external = [hit.pair for hit in hits if hit.pair.server != OWN_SERVER]
        records = await self._registry.tools.named(external)
        servers = self._sources(external, visible)
        found = []
        for hit in hits:
            score = round(hit.score, _DIGITS)
            record = records.get(hit.pair)
            if hit.pair.server == OWN_SERVER:
                found.append(_own(hit.pair.name, score, with_schema=with_schema))
            elif record is None or record.server_id not in servers:
                continue  # it has left meanwhile
            else:
                server = servers[record.server_id]
                state = self._registry.tools.state_of(record)
                shown = visible.show(record, server, state, with_schema=with_schema)
                found.append(FoundTool(**msgspec.structs.asdict(shown), score=score))
            if asked.explain and found:
                found[-1].explain = {k: round(part, _DIGITS) for k, part in hit.parts.items()}
        return found

    def _sources(self, pairs: Iterable[Pair], visible: VisibleTools) -> dict[str, SourceServer]:
        """Describe the servers of these tools, by their ids."""
        found = {}
        for name in {pair.server for pair in pairs}:
            try:
                record = self._registry.find(name)
            except NotFound:
                continue  # it has left meanwhile
            found[record.id] = visible.source(record)
        return found


def _warn(asked: Search, found: SearchAnswer, search: ToolSearch) -> str | UnsetType:
    """Say what was asked for, or is set up, and could not be had."""
    if search.store_error:
        return "the vector store is away: vectors in memory were searched"
    if found.strategy == KEYWORD and asked.strategy not in (AUTO, KEYWORD):
        return "there are no vectors yet, or they cannot be had now: words were searched"
    return UNSET


def _own(name: str, score: float, *, with_schema: bool) -> FoundTool:
    """A tool of Junction's own: no server, and nothing to decide about it."""
    (offer,) = (one for one in own_offers({}) if one.name == name)
    said = {key: msgspec.json.decode(raw) for key, raw in offer.members.items()}
    return FoundTool(
        id=name,
        name=name,
        original_name=name,
        description=said["description"],
        source_server=None,
        skill_ids=[],
        primary_skill_id=None,
        skill_confidences={},
        own_skill_confidences={},
        classified_by="",
        is_classified=False,
        is_external=False,
        enabled=True,
        risk=None,
        pinned_hash="",
        quarantined=False,
        flags=[],
        input_schema=said["inputSchema"] if with_schema else UNSET,
        score=score,
    )
