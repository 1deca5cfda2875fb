"""ConnectedClients: whom a changed list is announced to."""

import asyncio

import pytest
from msgspec import Raw

from mcp_junction.catalog.endpoints import EVERYTHING
from mcp_junction.catalog.items import TOOLS, ListItem
from mcp_junction.catalog.live_catalog import ListChange
from mcp_junction.catalog.scope import OPEN, Scope
from mcp_junction.sessions.clients import ConnectedClients

METHOD = TOOLS.changed


class Only:
    """Grants of these names, and how often it was asked about one."""

    def __init__(self, *names: str) -> None:
        self.names = names
        self.asked = 0

    def of(self, _: str, __: str):
        return self.admits

    def admits(self, name: str) -> bool:
        self.asked += 1
        return name in self.names


class Client:
    """A session that listed tools in a generation, or a listening stream."""

    def __init__(self, scope: Scope, seen: int = 0) -> None:
        self.scope = scope
        self.listed = {METHOD: seen}
        self.announcements = {METHOD}
        self.heard: list[str] = []
        self.hears = asyncio.Event()

    def notify(self, method: str) -> None:
        self.heard.append(method)
        self.hears.set()


def added(name: str) -> ListChange:
    return ListChange(TOOLS, "s", (), (ListItem(name, {"name": Raw(b'"x"')}),))


async def announce(clients: ConnectedClients, *changes: tuple[int, ListChange]) -> None:
    everybody = Client(OPEN)
    clients.listens.add(everybody)
    for generation, change in changes:
        clients.announce([change], generation)
    await asyncio.wait_for(everybody.hears.wait(), 30)


@pytest.mark.parametrize(
    ("names", "seen", "hears"),
    [
        (("a",), 0, True),
        (("a",), 1, False),  # it has listed since
        (("b",), 1, True),
        (("a", "b"), 2, False),
        (("c",), 0, False),
    ],
)
async def test_who_can_see_a_change_made_after_it_listed_hears_of_it(names, seen, hears):
    clients = ConnectedClients()
    session = Client(Scope(EVERYTHING, Only(*names)), seen)
    listen, everybody = Client(session.scope), Client(OPEN, seen)
    clients.sessions, clients.listens = {session, everybody}, {listen}
    await announce(clients, (1, added("a")), (2, added("b")))
    assert session.heard == [METHOD] * hears
    assert everybody.heard == [METHOD] * (seen < 2)
    assert listen.heard == [METHOD] * (names != ("c",))


async def test_the_policy_is_asked_once_for_all_sessions_of_a_scope():
    clients, grants = ConnectedClients(), Only("b")
    scope = Scope(EVERYTHING, grants)
    sessions = [Client(scope) for _ in range(50)]
    clients.sessions, clients.listens = set(sessions), {Client(scope)}
    await announce(clients, (1, added("a")))
    assert not any(session.heard for session in sessions)
    assert grants.asked == 1
