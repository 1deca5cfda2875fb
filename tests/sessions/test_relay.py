"""What clients tell all servers at once: at once, and then now and then, while they are there."""

import asyncio
from types import SimpleNamespace

import pytest

from mcp_junction.policy.principal import LOCAL_OWNER
from mcp_junction.protocol import names
from mcp_junction.sessions.clients import MOST_TOLD, TOLD_AFTER, ClientRelay, ConnectedClients
from mcp_junction.sessions.session import Session
from mcp_junction.tasks import TaskScope

METHOD = "notifications/roots/list_changed"


class Links(list):
    """The further links of a server: none."""

    def end_session(self, session) -> None:
        pass


class Relayed:
    """A relay between one session and one server, with what the server was told."""

    def __init__(self) -> None:
        self.told: list[bytes] = []
        link = SimpleNamespace(notify=lambda method, params: self.told.append(params))
        server = SimpleNamespace(
            key="s", link=link, session=None, is_isolated=False, extra_links=Links()
        )
        clients = ConnectedClients()
        self.session = Session(LOCAL_OWNER, names.STDIO, lambda frame: None)
        self.session.protocol_version = "2025-11-25"
        clients.sessions.add(self.session)
        self.relay = ClientRelay({"s": server}, clients, TaskScope("a test"))

    def tell(self, *params: bytes) -> None:
        for one in params:
            self.relay.notify_servers(self.session, METHOD, one)


@pytest.fixture
async def relayed() -> Relayed:
    return Relayed()


async def test_of_many_notifications_the_first_and_the_last_are_passed_on(relayed):
    relayed.tell(*(b"%d" % number for number in range(100)))
    assert relayed.told == [b"0"]
    await asyncio.sleep(2 * TOLD_AFTER)
    assert relayed.told == [b"0", b"99"]
    await asyncio.sleep(2 * TOLD_AFTER)
    relayed.tell(b"100")
    assert relayed.told == [b"0", b"99", b"100"]


async def test_long_params_are_not_passed_on(relayed):
    relayed.tell(b"x" * (MOST_TOLD + 1))
    assert relayed.told == [b""]


async def test_nothing_is_passed_on_for_a_session_that_is_over(relayed):
    relayed.tell(b"0", b"1")
    relayed.relay.end_session(relayed.session)
    await asyncio.sleep(2 * TOLD_AFTER)
    assert relayed.told == [b"0"]
