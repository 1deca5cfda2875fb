"""Names in the service: servers that come, grow and go at run time take none that is another's."""

import pytest
from tests.plugin_registry import ADMIN
from tests.registry.toolbox import tool, until

from mcp_junction.catalog.endpoints import named_sets
from mcp_junction.catalog.scope import everything_at
from mcp_junction.protocol.names import PLATFORM
from mcp_junction.upstream.outcome import OutcomeKind

pytestmark = pytest.mark.req("S-06", "EDGE-CONFLICT")


async def test_a_server_that_grows_takes_no_name_of_another(single, toolbox):
    first, second = await toolbox(), await toolbox([tool("c")])
    run = await single({"a": {"url": first.url}, "a.b": {"url": second.url}})
    for name in ("a", "a.b"):
        await run.until(name, "CONNECTED")
    assert run.listed() == ["a.echo", "a.b.c"]
    first.tools.append(tool("b.c"))
    await run.registry.refresh("a", ADMIN)
    echo, hashed, plain = run.listed()
    assert (echo, plain) == ("a.echo", "a.b.c")
    assert hashed.startswith("a.b.c_")
    assert (await run.call("a.b.c")).kind is OutcomeKind.RESULT
    assert (first.calls, second.calls) == (0, 1)
    assert (await run.call(hashed)).kind is OutcomeKind.RESULT
    assert (first.calls, second.calls) == (1, 1)


async def test_the_order_of_a_file_that_is_read_again_moves_no_name(single, toolbox):
    first, second = await toolbox([tool("b.c")]), await toolbox([tool("c")])
    run = await single({"a.b": {"url": second.url}})
    await run.until("a.b", "CONNECTED")
    assert run.listed() == ["a.b.c"]
    both = {"a": {"url": first.url}, "a.b": {"url": second.url}}
    await run.registry.reload(single.config(both))
    await run.until("a", "CONNECTED")
    await run.call("a.b.c")
    assert (first.calls, second.calls) == (0, 1)


async def test_a_server_that_is_away_keeps_its_names_and_one_that_is_removed_frees_them(
    single, toolbox
):
    first, second = await toolbox([tool("b.c")]), await toolbox([tool("c")])
    run = await single({"a.b": {"url": second.url}})
    await run.until("a.b", "CONNECTED")
    assert run.listed() == ["a.b.c"]
    await run.registry.disconnect("a.b", ADMIN)
    await run.add("a", first)
    (hashed,) = run.listed()
    assert hashed.startswith("a.b.c_")
    assert (await run.call("a.b.c")).kind is not OutcomeKind.RESULT
    assert first.calls == 0
    await run.registry.reload(single.config({}))
    await until(lambda: len(run.registry.all()) == 1)
    assert run.listed() == [hashed], "what was shown stays"
    assert (await run.call("a.b.c")).kind is OutcomeKind.RESULT, "and the other spelling is free"
    assert first.calls == 1


async def test_what_a_file_takes_out_of_a_set_is_free_there(single, toolbox):
    first, second = await toolbox([tool("b.c")]), await toolbox([tool("c")])
    servers = {"a": {"url": first.url}, "a.b": {"url": second.url}}
    run = await single(servers, endpoints={"dev": ["a", "a.b"]})
    for name in servers:
        await run.until(name, "CONNECTED")

    def whose(name):
        dev = named_sets(run.junction.config)["dev"]
        view = run.junction.snapshot.catalog.show(PLATFORM, scope=everything_at(dev))
        assert view.items.page()
        found = view.find(name)
        return None if found is None else found.pair.server

    assert whose("a.b.c") == "a"
    await run.registry.reload(single.config(servers, endpoints={"dev": ["a.b"]}))
    assert whose("a.b.c") == "a.b"
    await run.registry.reload(single.config(servers, endpoints={"dev": ["a", "a.b"]}))
    assert whose("a.b.c") == "a.b", "what was accepted since stays"
