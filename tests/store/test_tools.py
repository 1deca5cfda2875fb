"""The shelves of tools and of other offers, on every backend."""

import pytest
from tests.store.records import definition, definition_hash, server

from mcp_junction.errors import NotFound, VersionConflict
from mcp_junction.store.records import Classified, ToolCount, ToolDefinitionRow


@pytest.fixture
async def files(store) -> str:
    return (await store.servers.add(server("files"))).id


async def names(store, server_id: str | None = None) -> list[str]:
    return [tool.name for tool in await store.tools.all(server_id)]


async def test_a_list_is_kept_in_its_order_with_the_servers_own_bytes(store, files):
    raw = b'{"name" : "b", "inputSchema":{"type":"object"}, "x-unknown": 1.0e3, "title":"\xc3\xa9"}'
    given = [ToolDefinitionRow("b", raw, definition_hash(raw)), definition("a")]
    changes = await store.tools.replace(files, given)
    assert [tool.name for tool in changes.added] == ["b", "a"]
    found = await store.tools.all(files)
    assert found == changes.added
    assert [tool.definition for tool in found] == [one.definition for one in given]
    assert found[0].hash == found[0].pinned_hash == definition_hash(raw)
    assert (found[0].quarantined, found[0].flags) == (False, [])
    assert (await store.servers.get(files)).tool_count == 2


async def test_some_tools_are_read_by_server_and_name_without_those_that_are_gone(store, files):
    other = (await store.servers.add(server("other"))).id
    for server_id in (files, other):
        await store.tools.replace(server_id, [definition(name) for name in "abc"])
    await store.tools.replace(files, [definition("a"), definition("b")])
    wanted = [(files, "a"), (files, "c"), (other, "c"), (other, "never"), ("nobody", "a")]
    found = await store.tools.some(wanted)
    assert {(tool.server_id, tool.name) for tool in found} == {(files, "a"), (other, "c")}
    assert await store.tools.some([]) == []
    many = [(files, f"x{number}") for number in range(99)]
    assert len(await store.tools.some([*many, (files, "b")])) == 1


async def test_the_same_list_again_changes_nothing(store, files):
    given = [definition("a"), definition("b")]
    await store.tools.replace(files, given)
    generation = (await store.generations())["tools"]
    changes = await store.tools.replace(files, given)
    assert not changes
    assert changes.unchanged == 2
    assert (await store.generations())["tools"] == generation


async def test_a_new_list_is_told_by_its_difference(store, files):
    await store.tools.replace(files, [definition(name) for name in "abc"])
    before = {tool.name: tool for tool in await store.tools.all(files)}
    changes = await store.tools.replace(
        files, [definition("d"), definition("b", description="new"), definition("a")]
    )
    assert [tool.name for tool in changes.added] == ["d"]
    assert [tool.name for tool in changes.removed] == ["c"]
    ((old, new),) = changes.changed
    assert (old, new.id, new.first_seen_at) == (before["b"], old.id, old.first_seen_at)
    assert changes.unchanged == 1
    assert await names(store, files) == ["d", "b", "a"]
    assert (await store.tools.get(files, "a")).id == before["a"].id


async def test_one_name_twice_is_one_tool(store, files):
    await store.tools.replace(files, [definition("a", title="1"), definition("a", title="2")])
    (tool,) = await store.tools.all(files)
    assert b'"1"' in tool.definition


async def test_a_changed_tool_keeps_its_pin_and_what_was_decided(store, files):
    await store.tools.replace(files, [definition("a")])
    await store.tools.mark(files, {"a": (["hidden"], False)})
    pinned = await store.tools.get(files, "a")
    await store.tools.replace(files, [definition("a", description="other")])
    found = await store.tools.get(files, "a")
    assert found.flags == pinned.flags == ["hidden"]
    assert found.pinned_hash == pinned.hash != found.hash
    assert found.pinned_definition == pinned.definition
    assert not found.quarantined


async def test_with_a_strict_pin_a_changed_tool_is_quarantined_until_approved(store, files):
    await store.tools.replace(files, [definition("a"), definition("b")], strict=True)
    await store.tools.replace(files, [definition("a", title="!"), definition("b")], strict=True)
    assert [t.quarantined for t in await store.tools.all(files)] == [True, False]
    looked_at = await store.tools.get(files, "a")
    await store.tools.replace(files, [definition("a", title="!!"), definition("b")], strict=True)
    with pytest.raises(VersionConflict):
        await store.tools.approve(files, "a", looked_at.hash)
    latest = await store.tools.get(files, "a")
    approved = await store.tools.approve(files, "a", latest.hash)
    assert (approved.quarantined, approved.pinned_hash) == (False, latest.hash)
    assert approved.pinned_definition is None
    assert not await store.tools.replace(files, [definition("a", title="!!"), definition("b")])


async def test_leaving_and_coming_back_does_not_shake_off_a_pin(store, files):
    await store.tools.replace(files, [definition("a")])
    await store.tools.mark(files, {"a": (["hidden"], False)})
    await store.tools.replace(files, [])
    assert await store.tools.all(files) == []
    assert [tool.name for tool in await store.tools.all(files, with_gone=True)] == ["a"]
    changes = await store.tools.replace(files, [definition("a", title="!")], strict=True)
    assert [new.name for _, new in changes.changed] == ["a"]
    found = await store.tools.get(files, "a")
    assert (found.flags, found.quarantined, found.gone_at) == (["hidden"], True, None)


async def test_a_tool_that_goes_back_to_its_pin_is_let_out(store, files):
    await store.tools.replace(files, [definition("a")], strict=True)
    await store.tools.replace(files, [definition("a", title="!")], strict=True)
    await store.tools.replace(files, [definition("a")], strict=True)
    assert not (await store.tools.get(files, "a")).quarantined
    await store.tools.mark(files, {"a": ([], True)})
    await store.tools.replace(files, [definition("a")], strict=True)
    assert (await store.tools.get(files, "a")).quarantined


async def test_what_is_not_there_cannot_be_changed(store, files):
    for attempt in (
        store.tools.replace("nobody", [definition("a")]),
        store.tools.approve(files, "nothing", "x"),
        store.tools.get(files, "nothing"),
        store.offers.replace("nobody", "prompts", []),
    ):
        with pytest.raises(NotFound):
            await attempt


async def test_tools_are_counted_by_what_they_are(store, files):
    assert await store.tools.count() == {}
    await store.tools.replace(files, [definition(name) for name in "abcde"])
    await store.tools.mark(files, {"b": ([], True)})
    found = {tool.name: tool for tool in await store.tools.all(files)}
    done = [Classified(found[name].id, found[name].hash, {}, None) for name in "ab"]
    await store.classification.put(files, done)
    await store.tools.replace(files, [definition(name) for name in "abcd"])
    assert await store.tools.count() == {files: ToolCount(4, 2, 1)}


async def test_a_removed_server_takes_everything_with_it(store, files):
    await store.tools.replace(files, [definition("a")])
    await store.offers.replace(files, "prompts", [definition("p")])
    await store.servers.remove(files)
    assert await store.tools.all(with_gone=True) == []
    assert await store.offers.all() == []


async def test_prompts_and_resources_are_kept_for_a_restart(store, files, opener):
    given = [definition("p2"), definition("p1")]
    assert await store.offers.replace(files, "prompts", given)
    assert not await store.offers.replace(files, "prompts", given)
    assert await store.offers.replace(files, "resources", [definition("file:///x")])
    assert await store.offers.replace(files, "prompts", [definition("p1"), definition("p3")])
    again = await opener()
    found = [(one.kind, one.name, one.position) for one in await again.offers.all(files)]
    assert found == [("prompts", "p1", 0), ("prompts", "p3", 1), ("resources", "file:///x", 0)]


async def test_ten_thousand_tools_survive_a_restart(store, opener):
    owners = [(await store.servers.add(server(f"s{n}"))).id for n in range(20)]
    for owner in owners:
        given = [definition(f"t{n}", description="x" * 300) for n in range(500)]
        assert len((await store.tools.replace(owner, given)).added) == 500
    again = await opener()
    assert len(await again.tools.all()) == 10_000
    assert [tool.name for tool in await again.tools.all(owners[3])] == [f"t{n}" for n in range(500)]
