"""Two servers with one address: what is read says the address that it was asked for by."""

import json

from msgspec import Raw
from tests.calls.world import World, body

from mcp_junction.calls.call import Call, Snapshot
from mcp_junction.calls.methods import address
from mcp_junction.catalog.catalog import Catalog
from mcp_junction.catalog.items import RESOURCES, ListItem, ServerLists
from mcp_junction.catalog.scope import OPEN
from mcp_junction.protocol import names
from mcp_junction.testing.link import FakeUpstream
from mcp_junction.upstream import outcome as outcomes
from mcp_junction.upstream.flight import Flight
from mcp_junction.upstream.outcome import Outcome


async def test_one_of_two_resources_with_one_address_is_read_under_the_other():
    def reads(flight: Flight) -> Outcome:
        said = json.loads(flight.params)["uri"]
        return outcomes.result(json.dumps({"contents": [{"uri": said, "text": "x"}]}).encode())

    offer, world = ListItem("a://1", {"uri": Raw(b'"a://1"')}), World()
    catalog = Catalog()
    for key in ("one", "two"):
        catalog = catalog.with_offering(
            ServerLists(FakeUpstream(key, script=reads), resources=(offer,)), ["one", "two"]
        )
    snapshot = Snapshot(catalog, world.handlers)
    listed = json.loads(catalog.page(names.STDIO, RESOURCES, OPEN, None))
    addresses = [item["uri"] for item in listed["resources"]]
    assert len(set(addresses)) == 2
    for uri in addresses:
        params = {"uri": Raw(json.dumps(uri).encode())}
        what = "resources/read", address("resources/read", params), params
        outcome = await snapshot.handle(Call(world.session, snapshot, *what, world.session))
        assert body(outcome)["contents"] == [{"uri": uri, "text": "x"}]
