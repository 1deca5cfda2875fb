"""Two gateways side by side: a policy hides items in one, and the servers of the other lack them.

Whatever an agent asks, both must answer the same.
"""

import re
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from tests.plugin_rest import Served, _SqliteOpener, serve_api
from tests.registry.toolbox import Toolbox, until

from mcp_junction.policy.principal import Principal, Role
from mcp_junction.protocol.names import Pair

Hidden = frozenset[tuple[str, Pair]]
"""Kinds of items, and which of them are hidden."""


class Except:
    """The grants of agents: everything, except what is hidden."""

    def __init__(self, hidden: Hidden = frozenset(), servers: tuple[str, ...] = ()) -> None:
        self.hidden = hidden
        self.servers = servers

    def of(self, kind: str, server: str) -> Any:
        if server in self.servers:
            return None
        return lambda name: (kind, Pair(server, name)) not in self.hidden

    def names(self, server: str) -> bool:
        return server not in self.servers


class Hiding:
    """A policy that hides items from agents. With ``servers``, it hides these whole."""

    def __init__(
        self, hidden: Hidden = frozenset(), *, servers: tuple[str, ...] = (), is_hiding: bool = True
    ) -> None:
        self.granted = Except(hidden, servers)
        self.is_hiding = is_hiding

    def grants(self, principal: Principal) -> Except | None:
        return self.granted if self.is_hiding and principal.role is Role.AGENT else None


def _is_classified(served: Served) -> bool:
    """Whether the search tool names the skills of all tools."""
    tools = sum(record.tool_count for record in served.registry.all())
    return len(served.junction.live_catalog.catalog.skills) == tools > 0


class Two:
    """The gateway that hides something, and the one that has no such thing."""

    def __init__(self, hiding: Served, without: Served, boxes: list[dict[str, Any]]) -> None:
        self.both = hiding, without
        self.hiding = hiding
        self.boxes = boxes

    async def classify(self) -> None:
        """Wait until the search tools of both name the skills of all tools."""
        await until(lambda: all(map(_is_classified, self.both)))

    async def ask(self, ask: Any) -> list[str]:
        """Ask both the same; their answers."""
        return [plain(await ask(served)) for served in self.both]


class Gateways:
    """Starts gateways, each with servers of its own, in the order of their registration."""

    def __init__(
        self, stack: AsyncExitStack, folder: Path, vault: Any, make: Callable[..., dict[str, Any]]
    ) -> None:
        self._stack = stack
        self._folder = folder
        self._vault = vault
        self._make = make
        """Makes the servers, not started: ``with_hidden``, or without what is to be hidden."""

    async def begin(self, name: str, *, with_hidden: bool, **how: Any) -> tuple[Served, dict]:
        opener = _SqliteOpener(self._stack, self._folder / name, self._vault)
        served = await serve_api(self._stack, opener, **{"names": "strict", **how})
        boxes: dict[str, Toolbox] = self._make(with_hidden=with_hidden)
        for key, box in boxes.items():
            await self._stack.enter_async_context(box)
            await served.register(key, transport_type="HTTP", connection_config={"url": box.url})
        return served, boxes

    async def both(self, policy: Hiding, **settings: Any) -> Two:
        hiding, one = await self.begin("one", with_hidden=True, policy=policy, **settings)
        without, other = await self.begin("two", with_hidden=False, **settings)
        return Two(hiding, without, [one, other])


def plain(text: str) -> str:
    """An answer without what differs from run to run: ids, times, which tools are classified."""
    text = re.sub(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", "ID", text)
    text = re.sub(r'"correlation_id": ?"[^"]+"', '"correlation_id": "ID"', text)
    text = re.sub(r'"skill_ids":.*?"is_classified":(true|false)', "", text)
    return re.sub(r'"(\w+_(?:ms|at))": ?[^,}]+', r'"\1":0', text)
