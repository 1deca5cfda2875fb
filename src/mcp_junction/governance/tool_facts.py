"""ToolFacts: all that stages need to know of what a call is for; made once, then looked up.

They come from the definition that the server gave, the operator's setting of the tool, and the
options of the server. A changed definition is another Route, and a changed setting another
generation: facts that were made of the old ones are not used again.

ToolSettings has the operator's settings of all tools in memory. It reads and writes no store.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec import Raw

from mcp_junction.catalog.items import TOOLS, ListKind, Route
from mcp_junction.policy.decision import CallTarget
from mcp_junction.policy.grants import RESOURCES
from mcp_junction.policy.risk import Risk, assess, says_destructive
from mcp_junction.policy.tool_settings import ALL_TOOLS, FallbackTarget, ToolSetting
from mcp_junction.resilience.retry import RepeatHints

if TYPE_CHECKING:
    from mcp_junction.governance.schemas import CompiledSchema, SchemaCache

MAX_CACHED: Final = 20_000


_OfServer = dict[str, ToolSetting]


class ToolSettings:
    """The settings of tools by server id and the server's own name, and the risk that follows.

    It also knows which tools ever called themselves destructive.
    """

    __slots__ = ("_by_server", "_destructive", "generation")

    def __init__(self, settings: Iterable[ToolSetting] = ()) -> None:
        self._by_server: dict[str, _OfServer] = {}
        self._destructive: set[tuple[str, str]] = set()
        """The (server's id, tool's name) of what ever had ``destructiveHint: true``."""
        self.generation = 0
        """Another number after each change: what was made of the settings is out of date."""
        self.replace_all(settings)

    def of(self, server_id: str, tool_name: str) -> ToolSetting | None:
        """Return the setting of a tool, if there is one."""
        found = self._by_server.get(server_id)
        return None if found is None else found.get(tool_name)

    def risk_of(self, server_id: str, tool_name: str, annotations: Raw | None) -> Risk:
        """Assess a tool by its name, its annotations now and before, and the operator's word."""
        setting = self.of(server_id, tool_name)
        return assess(
            tool_name,
            is_destructive=says_destructive(annotations),
            was_destructive=(server_id, tool_name) in self._destructive,
            operator=setting.risk if setting is not None else None,
        )

    def note_destructive(self, server_id: str, tool_names: Iterable[str]) -> None:
        """Remember that these tools said they destroy, whatever they say from now on."""
        new = {(server_id, name) for name in tool_names} - self._destructive
        if new:
            self._destructive |= new
            self.generation += 1

    def forget_destructive(self, server_id: str, tool_name: str) -> None:
        """Believe the annotations of a tool again: an operator approved its definition."""
        self._destructive.discard((server_id, tool_name))
        self.generation += 1

    @property
    def unverified(self) -> int:
        """How many settings are not known because their signature is wrong."""
        return sum(one.is_unverified for some in self._by_server.values() for one in some.values())

    def is_unverified(self, server_id: str, tool_name: str) -> bool:
        """Whether a setting of a tool, or of all tools of its server, is not known."""
        found = (self.of(server_id, name) for name in (tool_name, ALL_TOOLS))
        return any(one.is_unverified for one in found if one is not None)

    def of_server(self, server_id: str) -> list[ToolSetting]:
        """Return all settings of a server's tools, seen or not."""
        return list(self._by_server.get(server_id, {}).values())

    def versions_of(self, server_id: str, tool_name: str) -> str | None:
        """Return the compatible versions of a tool: its own, or those for all of its server."""
        for name in (tool_name, ALL_TOOLS):
            setting = self.of(server_id, name)
            if setting is not None and setting.versions is not None:
                return setting.versions
        return None

    def put(self, setting: ToolSetting) -> None:
        """Use this setting from now on."""
        self._by_server.setdefault(setting.server_id, {})[setting.tool_name] = setting
        self.generation += 1

    def replace_all(self, settings: Iterable[ToolSetting]) -> set[str]:
        """Use these settings, and no others, from now on; return the servers that have others."""
        before, after = self._by_server, dict[str, _OfServer]()
        for one in settings:
            after.setdefault(one.server_id, {})[one.tool_name] = one
        self._by_server = after
        self.generation += 1
        servers = before.keys() | after.keys()
        return {server for server in servers if before.get(server) != after.get(server)}

    def forget_server(self, server_id: str) -> None:
        """Drop all that is known of the tools of a server that was removed for good.

        One that is only absent from the config file keeps it: it may come back.
        """
        self._by_server.pop(server_id, None)
        self._destructive = {tool for tool in self._destructive if tool[0] != server_id}
        self.generation += 1


class _Annotations(msgspec.Struct):
    """The annotations that matter here; anything else than true is no hint."""

    readOnlyHint: bool | None = None
    idempotentHint: bool | None = None


_UNSET: Final = ToolSetting("", "")


class ToolFacts(msgspec.Struct, frozen=True, eq=False):
    """What is known of the tool, prompt or resource that a call is for."""

    target: CallTarget
    """What the policy decides about."""
    hints: RepeatHints
    timeout: float
    """Seconds that one attempt may take; 0 is no limit of the tool's own."""
    schema: Raw | None
    """The schema of its arguments, for a tool that has one."""
    fallbacks: tuple[FallbackTarget, ...] = ()
    is_high_risk: bool = False
    is_plain: bool = True
    """Whether it is neither high-risk nor has fallbacks."""
    compiled: CompiledSchema | None = None
    """The same schema, for checking; None where nothing is checked, or it cannot be used."""


class ToolFactsCache:
    """Makes ToolFacts, and remembers them by Route."""

    __slots__ = ("_by_route", "_generation", "_schemas", "settings")

    def __init__(self, settings: ToolSettings, schemas: SchemaCache | None = None) -> None:
        """``schemas`` compiles the schemas of tools; without it arguments are not checked."""
        self.settings = settings
        self._schemas = schemas
        self._generation = settings.generation
        self._by_route: dict[Route, ToolFacts] = {}
        """Of what servers list; a route leads to one kind of thing."""

    def of(self, route: Route, kind: ListKind) -> ToolFacts:
        """Return the facts about what a route of this kind leads to."""
        if self.settings.generation != self._generation:
            self._by_route.clear()
            self._generation = self.settings.generation
        known = self._by_route.get(route)
        if known is not None:
            return known
        made = self._make(route, kind)
        if route.item is not None:  # others are made for one call, as for a template's URI
            if len(self._by_route) >= MAX_CACHED:
                self._by_route.clear()
            self._by_route[route] = made
        return made

    def _make(self, route: Route, kind: ListKind) -> ToolFacts:
        upstream, name = route.upstream, route.pair.name
        if kind is not TOOLS:
            capability = kind.capability or RESOURCES
            target = CallTarget(upstream.definition.id, name, capability, server=route.pair.server)
            return ToolFacts(target, RepeatHints(read_only=True), route.timeout, None)
        setting = self.settings.of(upstream.definition.id, name) or _UNSET
        members = route.item.members if route.item is not None else {}
        annotations, schema = members.get("annotations"), members.get("inputSchema")
        risk = self.settings.risk_of(upstream.definition.id, name, annotations)
        notes = _read_annotations(annotations)
        return ToolFacts(
            CallTarget(
                upstream.definition.id,
                name,
                TOOLS.name,
                risk,
                server=route.pair.server,
                annotations=annotations,
            ),
            RepeatHints(
                setting.read_only,
                setting.idempotent,
                notes.readOnlyHint is True,
                notes.idempotentHint is True,
                upstream.definition.trust_annotations,
            ),
            setting.timeout_ms / 1000 if setting.timeout_ms else route.timeout,
            schema,
            setting.fallbacks,
            risk.is_high,
            not risk.is_high and not setting.fallbacks,
            None if schema is None or self._schemas is None else self._schemas.of(schema),
        )


def _read_annotations(raw: Raw | None) -> _Annotations:
    try:
        return msgspec.json.decode(raw or b"{}", type=_Annotations)
    except msgspec.MsgspecError:  # a server may write anything
        return _Annotations()
