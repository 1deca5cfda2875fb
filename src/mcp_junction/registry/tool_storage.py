"""ToolStorage: writes what servers offer to the store, and reads it at start."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Final

import msgspec
from msgspec import Raw

from mcp_junction.catalog import pins
from mcp_junction.catalog.items import ALL, TOOLS, ListItem, ListKind, ServerLists
from mcp_junction.errors import NotFound, StoreError, StoreUnavailable
from mcp_junction.policy.pinning import STRICT
from mcp_junction.policy.risk import says_destructive
from mcp_junction.protocol import encode, param_headers
from mcp_junction.registry.member import Member
from mcp_junction.store.records import OfferRecord, ToolChanges, ToolDefinitionRow, ToolRecord
from mcp_junction.store.store import Store
from mcp_junction.tasks import TaskScope

log = logging.getLogger("mcp_junction.registry")

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
