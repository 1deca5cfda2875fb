"""Waiting for servers that start: who may not see one does not wait for it."""

import asyncio
from types import SimpleNamespace

import pytest

from mcp_junction.calls.startup import ServerStartup
from mcp_junction.catalog.endpoints import EVERYTHING
from mcp_junction.catalog.scope import OPEN, Scope
from mcp_junction.tasks import TaskScope
from mcp_junction.testing.link import FakeUpstream

BOUND = 20


class GrantedServers:
    """Grants everything of some servers."""

    def __init__(self, *servers: str) -> None:
        self._servers = servers

    def of(self, kind, server):
        return (lambda name: True) if server in self._servers else None

    def names(self, server) -> bool:
        return server in self._servers


@pytest.fixture
async def starting():
    """Two servers, the first of which is up."""
    servers = {key: FakeUpstream(key, []) for key in ("up", "slow")}
    servers["slow"].settled.clear()
    tasks = TaskScope("a test")
    catalog = SimpleNamespace(catalog=SimpleNamespace(offerings={}))
    yield ServerStartup(catalog, servers, tasks, 3_600), servers
    await tasks.close()


@pytest.mark.req("R-ISOLATE")
async def test_who_may_not_see_a_server_does_not_wait_for_its_start(starting):
    startup, _ = starting
    scope = Scope(EVERYTHING, GrantedServers("up"), "agent:a")
    await asyncio.wait_for(startup.wait(scope), BOUND)


@pytest.mark.parametrize("scope", [None, OPEN, Scope(EVERYTHING, GrantedServers("slow"), "x")])
async def test_who_may_see_it_waits_for_it(starting, scope):
    startup, servers = starting
    waiting = asyncio.create_task(startup.wait(scope))
    assert not (await asyncio.wait({waiting}, timeout=0.05))[0]
    servers["slow"].settled.set()
    await asyncio.wait_for(waiting, BOUND)
