"""ToolFacts: all that stages need to know of what a call is for; made once, then looked up.

They come from the definition that the server gave, the operator's setting of the tool, and the
options of the server. A changed definition is another Route, and a changed setting another
generation: facts that were made of the old ones are not used again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec
from msgspec import Raw

from mcp_junction.catalog.items import TOOLS, ListKind, Route
from mcp_junction.governance.tool_settings import ToolSettings
from mcp_junction.policy.decision import CallTarget
from mcp_junction.policy.grants import RESOURCES
from mcp_junction.policy.tool_settings import FallbackTarget, ToolSetting
from mcp_junction.resilience.retry import RepeatHints
from mcp_junction.upstream.upstream import Upstream

if TYPE_CHECKING:
    from mcp_junction.governance.schemas import CompiledSchema, SchemaCache

MAX_CACHED: Final = 20_000


class _Annotations(msgspec.Struct):
    """The annotations that matter here; anything else than true is no hint."""

    readOnlyHint: bool | None = None
    idempotentHint: bool | None = None


_NO_ANNOTATIONS: Final = _Annotations()
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
        notes = _read_annotations(members.get("annotations"))
        risk = self.settings.risk_of(upstream.definition.id, name, members.get("annotations"))
        schema = members.get("inputSchema")
        return ToolFacts(
            CallTarget(
                upstream.definition.id,
                name,
                TOOLS.name,
                risk,
                server=route.pair.server,
                annotations=members.get("annotations"),
            ),
            _hints(setting, notes, upstream),
            setting.timeout_ms / 1000 if setting.timeout_ms else route.timeout,
            schema,
            setting.fallbacks,
            risk.is_high,
            not risk.is_high and not setting.fallbacks,
            self._compile(schema),
        )

    def _compile(self, schema: Raw | None) -> CompiledSchema | None:
        if schema is None or self._schemas is None:
            return None
        return self._schemas.of(schema)


def _hints(setting: ToolSetting, notes: _Annotations, upstream: Upstream) -> RepeatHints:
    return RepeatHints(
        setting.read_only,
        setting.idempotent,
        notes.readOnlyHint is True,
        notes.idempotentHint is True,
        upstream.definition.trust_annotations,
    )


def _read_annotations(raw: Raw | None) -> _Annotations:
    try:
        return msgspec.json.decode(raw or b"{}", type=_Annotations)
    except msgspec.MsgspecError:  # a server may write anything
        return _NO_ANNOTATIONS
