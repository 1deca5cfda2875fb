"""Task: the id of a task leads to the server that made it, for the one it was made for."""

import json

import pytest
from msgspec import Raw
from tests.calls.world import World, body

from mcp_junction.calls.call import Call
from mcp_junction.calls.methods import OF_TASKS, TASKS, Address
from mcp_junction.catalog.endpoints import EVERYTHING, Endpoint, one_server
from mcp_junction.eras.tickets import SealedTask, server_ref
from mcp_junction.policy.principal import LOCAL_OWNER, Principal, Role
from mcp_junction.protocol import names
from mcp_junction.protocol.versions import INVALID_PARAMS, Era
from mcp_junction.sessions.stateless import StatelessClient
from mcp_junction.testing.link import FakeUpstream
from mcp_junction.upstream import outcome as outcomes
from mcp_junction.upstream.flight import Flight
from mcp_junction.upstream.outcome import Outcome

BOB = Principal("bob", Role.AGENT)


def working(flight: Flight) -> Outcome | None:
    """Each server calls its task the same."""
    return outcomes.result(b'{"resultType":"complete","taskId":"1","status":"working"}')


class Workers:
    """Two stateless servers that have a task of one id."""

    def __init__(self) -> None:
        self.servers = {
            key: FakeUpstream(key, script=working, era=Era.STATELESS) for key in ("one", "two")
        }
        self.world = World(*self.servers.values())

    def sealed(self, server: str, endpoint: Endpoint = EVERYTHING) -> str:
        seal = self.world.parked_calls.seal
        known = self.servers.get(server)
        ref = server if known is None else server_ref(known.definition)
        return seal.seal_task(SealedTask("1", ref), LOCAL_OWNER, endpoint.name)

    async def ask(
        self,
        task: str,
        method: str = "tasks/get",
        principal: Principal = LOCAL_OWNER,
        endpoint: Endpoint = EVERYTHING,
    ) -> Outcome:
        visitor = StatelessClient(principal, endpoint, names.STDIO, {}, Raw(b"{}"))
        params = {"taskId": Raw(json.dumps(task).encode())}
        call = Call(visitor, self.world.snapshot, method, Address(TASKS, task), params, visitor)
        return await self.world.run(call)

    def reached(self) -> dict[str, list[str]]:
        """The ids each server was asked for."""
        return {
            key: [json.loads(flight.params)["taskId"] for flight in server.wire.flights]
            for key, server in self.servers.items()
        }


@pytest.mark.parametrize("method", sorted(OF_TASKS))
async def test_a_task_is_asked_for_where_it_is_by_the_id_it_has_there(method):
    workers = Workers()
    task = workers.sealed("two")
    result = body(await workers.ask(task, method))
    assert (result["taskId"], result["status"]) == (task, "working")
    assert workers.reached() == {"one": [], "two": ["1"]}


@pytest.mark.parametrize("task", ["1", "", "two.1"])
async def test_an_id_that_is_not_ours_leads_nowhere(task):
    workers = Workers()
    assert (await workers.ask(task)).code == INVALID_PARAMS
    assert workers.reached() == {"one": [], "two": []}


async def test_another_principal_or_endpoint_does_not_reach_it():
    workers = Workers()
    task = workers.sealed("two")
    for other in ({"principal": BOB}, {"endpoint": one_server("one")}):
        assert (await workers.ask(task, **other)).code == INVALID_PARAMS
    assert workers.reached() == {"one": [], "two": []}


async def test_a_server_that_an_endpoint_does_not_show_is_not_reached_through_it():
    workers = Workers()
    only_one = one_server("one")
    task = workers.sealed("two", only_one)
    assert (await workers.ask(task, endpoint=only_one)).code == INVALID_PARAMS
    assert workers.reached() == {"one": [], "two": []}


async def test_a_task_of_a_server_that_is_no_more_is_unknown():
    workers = Workers()
    assert (await workers.ask(workers.sealed("three"))).code == INVALID_PARAMS
