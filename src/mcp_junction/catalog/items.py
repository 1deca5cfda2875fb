"""What servers list: the kinds of lists, an item, all lists of a server, the Route to an item."""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import Raw

from mcp_junction.protocol.names import Pair
from mcp_junction.protocol.param_headers import ParamHeader, name_line
from mcp_junction.upstream.upstream import Upstream


class ListKind(msgspec.Struct, frozen=True, eq=False):
    """One kind of list: what reads it, where its items are, and what announces a change."""

    name: str
    list_method: str
    member: str
    key: str
    capability: str
    changed: str

    @property
    def is_named(self) -> bool:
        """Whether its items have names, which are spelled; others have URIs."""
        return self.key == "name"


TOOLS: Final = ListKind(
    "tools", "tools/list", "tools", "name", "tools", "notifications/tools/list_changed"
)
PROMPTS: Final = ListKind(
    "prompts", "prompts/list", "prompts", "name", "prompts", "notifications/prompts/list_changed"
)
RESOURCES: Final = ListKind(
    "resources",
    "resources/list",
    "resources",
    "uri",
    "resources",
    "notifications/resources/list_changed",
)
TEMPLATES: Final = ListKind(
    "templates",
    "resources/templates/list",
    "resourceTemplates",
    "uriTemplate",
    "resources",
    "notifications/resources/list_changed",
)

ALL: Final = (TOOLS, PROMPTS, RESOURCES, TEMPLATES)
BY_LIST: Final = {kind.list_method: kind for kind in ALL}


class ListItem(msgspec.Struct, frozen=True):
    """One tool, prompt, resource or template, as its server described it; members still raw."""

    name: str
    members: dict[str, Raw]
    headers: tuple[ParamHeader, ...] = ()
    """The arguments that a call repeats as headers, to a stateless server over HTTP."""


class ServerLists(msgspec.Struct, frozen=True):
    """The four lists of one server, as they were read last."""

    upstream: Upstream
    tools: tuple[ListItem, ...] = ()
    prompts: tuple[ListItem, ...] = ()
    resources: tuple[ListItem, ...] = ()
    templates: tuple[ListItem, ...] = ()

    def of(self, kind: ListKind) -> tuple[ListItem, ...]:
        items: tuple[ListItem, ...] = getattr(self, kind.name)
        return items


class Route(msgspec.Struct, frozen=True, eq=False):
    """The server, what it calls the thing itself, and how long it may take."""

    upstream: Upstream
    pair: Pair
    canonical: str
    raw_name: Raw
    timeout: float
    headers: tuple[ParamHeader, ...] = ()
    """The arguments that a call repeats as headers, to a stateless server over HTTP."""
    item: ListItem | None = None
    """What its server's list says of it; None where nothing lists it."""

    @property
    def name_header(self) -> bytes:
        """The header line that repeats the name there. Made when it is wanted: most never are."""
        return name_line(self.raw_name)


def timeout_for(upstream: Upstream, general: float) -> float:
    """A server's own limit on calls, or the general one; 0 is none."""
    return upstream.definition.timeout_ms / 1000 or general
