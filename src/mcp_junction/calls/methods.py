"""The methods of clients that lead to a server, what in their params names it, and the RouteCache.

Clients call the same tools again and again, by names in the same bytes: the RouteCache remembers
which route such a request led to. It holds look-ups in one catalog and is dropped with its
snapshot. It decides nothing: every stage that may refuse a call runs each time.
"""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import Raw

from mcp_junction.catalog.catalog import Catalog
from mcp_junction.catalog.items import PROMPTS, RESOURCES, TOOLS, ListKind, Route
from mcp_junction.catalog.scope import Scope
from mcp_junction.errors import FrameError
from mcp_junction.protocol import encode, frames
from mcp_junction.protocol.names import Spelling
from mcp_junction.protocol.param_headers import ParamHeader, encode_plain
from mcp_junction.protocol.versions import INVALID_PARAMS


class Address(msgspec.Struct, frozen=True, gc=False):
    """What a request is for: a kind of thing and its name or address."""

    kind: ListKind
    name: str
    is_template: bool = False
    server: str | None = None
    """The server that ``name`` is its own name for a tool at, where the caller says which."""
    takes_own_name: bool = False
    """Whether a server's own name for a tool will do, if one server alone has it."""


TASKS: Final = ListKind("tasks", "", "", "taskId", "", "")
"""Work that a stateless server goes on with after its answer. Nothing lists it."""

OWN: Final = ListKind("own tools", "", "", "name", "", "")
"""What Junction itself offers to call, where it does."""

_KEYS: Final = {
    "tools/call": (TOOLS, "name"),
    "prompts/get": (PROMPTS, "name"),
    "resources/read": (RESOURCES, "uri"),
    "resources/subscribe": (RESOURCES, "uri"),
    "resources/unsubscribe": (RESOURCES, "uri"),
    "tasks/get": (TASKS, "taskId"),
    "tasks/update": (TASKS, "taskId"),
    "tasks/cancel": (TASKS, "taskId"),
}
KIND_OF: Final = {method: kind for method, (kind, _) in _KEYS.items()}
"""The kind of what each method is for; a completion says it itself."""
COMPLETE: Final = "completion/complete"
READ: Final = "resources/read"
NAMED: Final = frozenset(("tools/call", "prompts/get"))
"""Those that are for something with a name, which a view leads from."""
ASKING: Final = frozenset(("tools/call", "prompts/get", "resources/read"))
"""Those whose answer, in the stateless era, may be a question."""
OF_TASKS: Final = frozenset(method for method, (kind, _) in _KEYS.items() if kind is TASKS)
SUBSCRIBING: Final = frozenset(("resources/subscribe", "resources/unsubscribe"))
ALL_METHODS: Final = (*_KEYS, COMPLETE)
HANDSHAKE_CALLS: Final = frozenset(ALL_METHODS) - OF_TASKS
"""What handshake clients may call; tasks are the other era's."""
STATELESS_CALLS: Final = frozenset(ALL_METHODS) - SUBSCRIBING
"""What stateless clients may call; they subscribe by ``subscriptions/listen``."""

MAX_CACHED_ROUTES: Final = 4096
MAX_CACHED_NAME: Final = 256
"""A longer name is looked up each time."""


def address(method: str, params: dict[str, Raw]) -> Address:
    """What a routed request is for. Raises FrameError when its params do not say."""
    if method == COMPLETE:
        return _reference(params)
    kind, key = _KEYS[method]
    name = frames.text(params.get(key))
    if name is None:
        raise FrameError(INVALID_PARAMS, f"{key} is missing, or not a string")
    return Address(kind, name)


def _reference(params: dict[str, Raw]) -> Address:
    ref = frames.members(params.get("ref") or b"")
    kind = frames.text(ref.get("type"))
    key = {"ref/prompt": "name", "ref/resource": "uri"}.get(kind or "")
    name = frames.text(ref.get(key)) if key else None
    if name is None:
        raise FrameError(INVALID_PARAMS, "ref must name a prompt or a resource")
    if key == "name":
        return Address(PROMPTS, name)
    return Address(RESOURCES, name, is_template=True)


def with_name(method: str, params: dict[str, Raw], raw_name: Raw) -> dict[str, Raw]:
    """A copy of params with the name the server itself uses; everything else as it was."""
    if method != COMPLETE:
        return {**params, _KEYS[method][1]: raw_name}
    ref = frames.members(params["ref"])
    ref["name" if "name" in ref else "uri"] = raw_name
    return {**params, "ref": Raw(encode.dumps(ref))}


class CachedRoute(msgspec.Struct, frozen=True):
    """What a request is for, and the route that it leads to."""

    method: str
    address: Address
    plain_headers: tuple[bytes, bytes] | None
    """The expected headers of method and name; None where they must be compared in full."""
    route: Route | None = None
    """None if the stage ``resolve`` has to find it."""
    headers: tuple[ParamHeader, ...] = ()
    """The arguments that the client must repeat as headers."""


class RouteCache(dict[tuple[Spelling, Scope, str, bytes], CachedRoute]):
    """The cached routes of all clients in one snapshot.

    Keyed by all that a look-up depends on: spelling, Scope, method, and the bytes of the name.
    """

    def find(
        self,
        catalog: Catalog,
        spelling: Spelling,
        scope: Scope,
        method: str,
        params: dict[str, Raw],
    ) -> CachedRoute:
        """Find what a request is for, and remember it. Raises FrameError as ``address`` does."""
        target = address(method, params)
        name = encode_plain(target.name)
        plain = None if name is None else (method.encode(), name)
        if method not in NAMED:
            return CachedRoute(method, target, plain)
        view = catalog.view(spelling, target.kind, scope)
        route = view.find(target.name)
        if route is None:
            former = view.find_departed(target.name)  # its server may be back in time
            marked = former.headers if former is not None else ()
            return CachedRoute(method, target, None if marked else plain, headers=marked)
        cached = CachedRoute(method, target, None if route.headers else plain, route, route.headers)
        written = frames.octets(params["name"])
        if len(written) <= MAX_CACHED_NAME:
            if len(self) >= MAX_CACHED_ROUTES:  # a cache: it fills again
                self.clear()
            self[spelling, scope, method, written] = cached
        return cached
