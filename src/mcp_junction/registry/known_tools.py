"""KnownTools: all tools that servers list or were registered with; and which of them are hidden.

ToolRules says whether a tool may be listed and called, or else why not. A tool is hidden while it
is quarantined, disabled by the operator, of a version that is not compatible, or, under
``strict_schemas``, while its schema is invalid; and while the operator's setting is not validly
signed. Who may see and call what is shown is another question (``policy/``).

ToolStorage stores what servers offer, and it is read from there at the start.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import StrEnum
from typing import Any, Final

import msgspec
from msgspec import Raw

from mcp_junction.catalog import pins
from mcp_junction.catalog.items import ALL, TOOLS, ListItem, ListKind, ServerLists
from mcp_junction.errors import NotFound, StoreError, StoreUnavailable
from mcp_junction.governance.tool_facts import ToolSettings
from mcp_junction.policy.pinning import STRICT
from mcp_junction.policy.risk import Risk, says_destructive
from mcp_junction.policy.tool_settings import ToolSetting
from mcp_junction.policy.versions import is_compatible, parse_ranges
from mcp_junction.protocol import encode, param_headers
from mcp_junction.registry.member import INCOMPATIBLE, INVALID_SCHEMA, Member, Members
from mcp_junction.store.records import OfferRecord, ToolChanges, ToolDefinitionRow, ToolRecord
from mcp_junction.store.store import Store
from mcp_junction.store.tool_settings import DeclaredTool
from mcp_junction.tasks import TaskScope

log = logging.getLogger("mcp_junction.registry")


class HiddenReason(StrEnum):
    """Why a tool cannot be called."""

    QUARANTINED = "quarantined"
    DISABLED = "disabled"
    UNVERIFIED = "setting_unverified"
    INCOMPATIBLE = INCOMPATIBLE
    INVALID_SCHEMA = INVALID_SCHEMA
    NOT_OFFERED = "not_offered"


class ToolState(msgspec.Struct, frozen=True):
    """What is known of a tool beside its definition."""

    version: str | None
    risk: Risk
    setting: ToolSetting
    reason: HiddenReason | None = None
    """Why it cannot be called; None when it can."""

    @property
    def enabled(self) -> bool:
        return self.reason is None


class _Versioned(msgspec.Struct):
    version: Any = None


_decode_meta = msgspec.json.Decoder(_Versioned).decode
_LONGEST_VERSION: Final = 200


def _version_of(members: dict[str, Raw], server_version: str | None) -> str | None:
    """Return the version of a tool: its ``_meta.version``, or else its server's."""
    try:
        own = _decode_meta(members.get("_meta") or b"{}").version
    except msgspec.MsgspecError:  # a server may write anything
        own = None
    found = own if isinstance(own, str) and own else server_version
    return found[:_LONGEST_VERSION] if found else None


class ToolRules:
    """Decides whether tools are hidden, by the settings as they are now."""

    def __init__(self, settings: ToolSettings, *, strict_schemas: bool = False) -> None:
        self.settings = settings
        self.strict_schemas = strict_schemas

    def why_hidden(
        self, member: Member, tool: ListItem, *, is_listed: bool = True
    ) -> HiddenReason | None:
        """Return why a tool is hidden; None when it is not.

        One that was declared, and is not listed, lacks nothing but its server's connection when
        that was never made.
        """
        name = tool.name
        decision = member.decisions.get(name) if is_listed else None
        if decision is not None and decision.quarantined:
            return HiddenReason.QUARANTINED
        if self.settings.is_unverified(member.id, name):
            return HiddenReason.UNVERIFIED
        setting = self.settings.of(member.id, name)
        is_enabled = setting.enabled if setting is not None else None
        if is_enabled is False:
            return HiddenReason.DISABLED
        if self.explain_incompatible(member, tool):
            return HiddenReason.INCOMPATIBLE
        is_invalid = decision is not None and decision.schema_fault
        if is_invalid and self.strict_schemas and is_enabled is None:
            return HiddenReason.INVALID_SCHEMA
        return None if is_listed or member.offering is None else HiddenReason.NOT_OFFERED

    def explain_incompatible(self, member: Member, tool: ListItem) -> str:
        """Explain why the version of a tool is not compatible; empty when it is."""
        versions = self.settings.versions_of(member.id, tool.name)
        if versions is None:
            return ""
        version = _version_of(tool.members, member.server_version)
        if is_compatible(version, parse_ranges(versions)):
            return ""
        return f"version {version} is not in {versions}"

    def state_of(self, member: Member, tool: ListItem, *, is_listed: bool = True) -> ToolState:
        """Describe a tool."""
        return ToolState(
            _version_of(tool.members, member.server_version),
            self.settings.risk_of(member.id, tool.name, tool.members.get("annotations")),
            self.settings.of(member.id, tool.name) or ToolSetting(member.id, tool.name),
            self.why_hidden(member, tool, is_listed=is_listed),
        )


class KnownTool(msgspec.Struct, frozen=True, eq=False):
    """A tool with its definition and its state."""

    member: Member
    item: ListItem
    rules: ToolRules
    is_listed: bool
    """Whether its server lists it; else it was registered with it."""

    @property
    def name(self) -> str:
        return self.item.name

    @property
    def server_id(self) -> str:
        return self.member.id

    @property
    def server(self) -> str:
        """The name of its server."""
        return self.member.name

    @property
    def flags(self) -> tuple[str, ...]:
        """What was noticed about it."""
        decision = self.member.decisions.get(self.name)
        return decision.flags if decision is not None else ()

    @property
    def reason(self) -> HiddenReason | None:
        """Why it cannot be called; None when it can."""
        return self.rules.why_hidden(self.member, self.item, is_listed=self.is_listed)

    @property
    def state(self) -> ToolState:
        return self.rules.state_of(self.member, self.item, is_listed=self.is_listed)


class KnownTools:
    """Finds and lists the tools of all servers; has those that servers were registered with."""

    def __init__(self, members: Members, rules: ToolRules) -> None:
        self._members = members
        self._rules = rules
        self._declared: dict[str, dict[str, ListItem]] = {}
        """By server id and tool name, whether listed or not."""

    def of(self, ref: str | None = None) -> Iterator[KnownTool]:
        """Iterate over the tools of one server, or of all. Raises NotFound."""
        members = self._members
        return self._each(list(members) if ref is None else [members.get(ref)])

    def _each(self, members: list[Member]) -> Iterator[KnownTool]:
        for member in members:
            for item in member.listed_tools:
                yield KnownTool(member, item, self._rules, is_listed=True)
            declared = self.declared(member.id)
            listed = {item.name for item in member.listed_tools} if declared else set()
            for name, item in declared.items():
                if name not in listed:
                    yield KnownTool(member, item, self._rules, is_listed=False)

    def find(self, ref: str, name: str) -> KnownTool | None:
        """Find a tool by its server's id or name, and its own name."""
        member = self._members.find(ref)
        if member is None:
            return None
        listed = next((item for item in member.listed_tools if item.name == name), None)
        item = listed or self.declared(member.id).get(name)
        if item is None:
            return None
        return KnownTool(member, item, self._rules, is_listed=listed is not None)

    # -- declared tools

    def declared(self, server_id: str) -> Mapping[str, ListItem]:
        """Return the tools that a server was registered with."""
        return self._declared.get(server_id, {})

    def declare(self, server_id: str, tools: Iterable[DeclaredTool]) -> None:
        """Take what a server declares now in place of what it declared before."""
        self._declared[server_id] = {
            one.tool_name: to_item(one.tool_name, one.definition) for one in tools
        }

    def forget_declared(self, server_id: str) -> None:
        """Forget what a server declared that was removed for good."""
        self._declared.pop(server_id, None)

    def replace_declared(self, tools: Iterable[DeclaredTool]) -> set[str]:
        """Take these for all servers; return the servers that have declared something else."""
        before, after = self._declared, dict[str, dict[str, ListItem]]()
        for one in tools:
            item = to_item(one.tool_name, one.definition)
            after.setdefault(one.server_id, {})[one.tool_name] = item
        self._declared = after
        servers = before.keys() | after.keys()
        return {server for server in servers if before.get(server) != after.get(server)}


# -- what servers offer, in the store

_AT_ONCE: Final = 2
_RETRY: Final = 0.5
_members = msgspec.json.Decoder(dict[str, Raw])

PreparedLists = dict[str, list[ToolDefinitionRow]]
"""The rows of every list of a server, by the name of the list's kind."""


def prepare_lists(offering: ServerLists) -> PreparedLists:
    """Turn a server's lists into rows. Slow: call it in a thread."""
    return {kind.name: [_to_row(kind, o) for o in offering.of(kind)] for kind in ALL}


def _to_row(kind: ListKind, offer: ListItem) -> ToolDefinitionRow:
    row = ToolDefinitionRow(offer.name, encode.dumps(offer.members))
    if kind is not TOOLS:
        return row
    is_destructive = says_destructive(offer.members.get("annotations"))
    digest = pins.define(offer.members).hash
    return ToolDefinitionRow(row.name, row.definition, digest, is_destructive)


def group_by_kind(
    tools: Iterable[ToolRecord], offers: Iterable[OfferRecord]
) -> dict[str, tuple[ListItem, ...]]:
    """Turn a server's stored records into lists, by kind; without tools that are gone."""
    found: dict[str, list[ListItem]] = {kind.name: [] for kind in ALL}
    for tool in tools:
        if tool.gone_at is None:
            found[TOOLS.name].append(to_item(tool.name, tool.definition))
    for record in offers:
        found[record.kind].append(to_item(record.name, record.definition))
    return {name: tuple(those) for name, those in found.items()}


def to_item(name: str, definition: bytes) -> ListItem:
    """Make the item of a stored definition."""
    members = {key: raw.copy() for key, raw in _members.decode(definition).items()}
    schema = members.get("inputSchema")
    is_marked = schema is not None and param_headers.MARK_BYTES in definition
    return ListItem(
        name, members, param_headers.find_marked(schema) if is_marked and schema else ()
    )


Lists = tuple[dict[str, list[ToolRecord]], dict[str, list[OfferRecord]]]


async def read_stored_lists(store: Store) -> Lists:
    """Read the stored lists of all servers, by server's id; with tools that are gone."""
    tools: defaultdict[str, list[ToolRecord]] = defaultdict(list)
    offers: defaultdict[str, list[OfferRecord]] = defaultdict(list)
    for tool in await store.tools.all(with_gone=True):
        tools[tool.server_id].append(tool)
    for offer in await store.offers.all():
        offers[offer.server_id].append(offer)
    return tools, offers


class ToolStorage:
    """Writes the newest lists of servers to the store, in the background."""

    def __init__(
        self, store: Store, tasks: TaskScope, on_stored: Callable[[Member, ToolChanges], None]
    ) -> None:
        self._store = store
        self._tasks = tasks
        self._on_stored = on_stored
        self._newest: dict[str, tuple[PreparedLists, frozenset[str]]] = {}
        self._writing: dict[str, asyncio.Task[None]] = {}
        self._gate = asyncio.Semaphore(_AT_ONCE)

    def store_soon(
        self, member: Member, lists: PreparedLists, suspects: Iterable[str] = ()
    ) -> None:
        """Store a server's newest lists soon; the tools in ``suspects`` were flagged."""
        member.tool_count = len(lists[TOOLS.name])
        self._newest[member.id] = lists, frozenset(suspects)
        if member.id not in self._writing:
            self._writing[member.id] = self._tasks.spawn(self._write(member))

    async def wait_until_stored(self, member: Member, limit: float = 10.0) -> None:
        """Wait until a server's newest lists are stored, at most ``limit`` seconds."""
        writing = self._writing.get(member.id)
        if writing is not None:
            await asyncio.wait({writing}, timeout=limit)

    async def _write(self, member: Member) -> None:
        try:
            while (newest := self._newest.pop(member.id, None)) is not None:
                try:
                    async with self._gate:
                        await self._replace(member, *newest)
                except StoreUnavailable as error:
                    log.warning("server %r: its lists cannot be stored: %s", member.name, error)
                    self._newest.setdefault(member.id, newest)
                    await asyncio.sleep(_RETRY)
        except NotFound:
            self._newest.pop(member.id, None)  # it has been removed meanwhile
        except StoreError as error:
            self._newest.pop(member.id, None)
            log.error("server %r: its lists are not stored: %s", member.name, error)
        finally:
            del self._writing[member.id]

    async def _replace(
        self, member: Member, lists: PreparedLists, suspects: frozenset[str]
    ) -> None:
        strict = member.record.pin == STRICT
        tools = lists[TOOLS.name]
        changes = await self._store.tools.replace(
            member.id, tools, strict=strict, suspects=suspects
        )
        for kind in ALL:
            if kind is not TOOLS:
                await self._store.offers.replace(member.id, kind.name, lists[kind.name])
        self._on_stored(member, changes)
