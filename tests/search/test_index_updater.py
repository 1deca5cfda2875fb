"""IndexUpdater: the index follows the offers, reads only what changed, and holds nobody up."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.search.tools import tool

from mcp_junction import slices
from mcp_junction.protocol.names import Pair
from mcp_junction.search import index_updater
from mcp_junction.search.index_updater import IndexUpdater
from mcp_junction.tasks import TaskScope


@pytest.fixture
async def updater():
    tasks = TaskScope("test")
    yield IndexUpdater(tasks)
    await tasks.close()


@pytest.fixture
def read(monkeypatch):
    """The tools that were read, in order."""
    seen: list[Pair] = []
    tool_fields = index_updater.tool_fields

    def watched(server, described, title):
        seen.append(Pair(server, described.name))
        return tool_fields(server, described, title)

    monkeypatch.setattr(index_updater, "tool_fields", watched)
    return seen


def found(updater: IndexUpdater, query: str) -> list[str]:
    return [".".join(hit.pair) for hit in updater.index.search(query, 100, lambda pair: True)]


async def test_what_is_offered_is_found_and_what_is_withdrawn_is_not(updater):
    one, two = (tool("echo"),), (tool("echo"), tool("about"))
    updater.follow({"one": one, "two": two})
    await updater.wait_until_current()
    assert found(updater, "echo") == ["one.echo", "two.echo"]
    updater.follow({"two": (two[1],)})
    await updater.wait_until_current()
    assert (found(updater, "echo"), found(updater, "about")) == ([], ["two.about"])
    updater.follow({"two": ()})
    await updater.wait_until_current()
    assert len(updater.index) == 0


@pytest.mark.req("AG-US6-AC5")
async def test_only_what_changed_is_read_again(updater, read):
    first = tuple(tool(f"t{n}", "as it was") for n in range(10))
    updater.follow({"one": first, "two": (tool("other"),)})
    await updater.wait_until_current()
    read.clear()
    again = tuple(tool(f"t{n}", "as it was") for n in range(10))
    updater.follow({"one": again, "two": (tool("other"),)})
    await updater.wait_until_current()
    assert read == []
    changed = (*again[:3], tool("t3", "a penguin"), *again[4:], tool("new"))
    updater.follow({"one": changed, "two": (tool("other"),)})
    await updater.wait_until_current()
    assert read == [Pair("one", "t3"), Pair("one", "new")]
    assert found(updater, "penguin") == ["one.t3"]


async def test_a_server_under_another_name_is_found_under_that(updater):
    tools = (tool("echo"),)
    updater.follow({"old": tools})
    await updater.wait_until_current()
    updater.follow({"new": tools})
    await updater.wait_until_current()
    assert found(updater, "echo") == ["new.echo"]
    assert found(updater, "old") == []


async def test_offers_that_change_while_they_are_indexed_are_followed_to_the_end(
    updater, monkeypatch
):
    monkeypatch.setattr(slices, "WORK", 0.0)  # a turn of the loop for every tool
    for name in ("IDLE_WORK", "REST", "IDLE_REST", "BUSY_REST"):
        monkeypatch.setattr(slices, name, 0.0)
    updater.follow({"one": tuple(tool(f"a{n}", "penguin") for n in range(20)), "two": ()})
    for _ in range(5):
        await asyncio.sleep(0)
    assert 0 < len(updater.index) < 20
    assert not updater.is_current
    updater.follow({"two": (tool("b", "walrus"),)})
    await updater.wait_until_current()
    assert updater.is_current
    assert (found(updater, "penguin"), found(updater, "walrus")) == ([], ["two.b"])


async def test_others_get_their_turn_while_many_tools_are_indexed(updater):
    words = "does one of many things, and says so in a sentence of ordinary length"
    updater.follow({"one": tuple(tool(f"thing_{n}", words) for n in range(2000))})
    turns = 0
    while not updater.is_current:
        await asyncio.sleep(0)
        turns += 1
    assert turns > 5
    assert len(updater.index) == 2000


STATES = st.lists(
    st.dictionaries(
        st.sampled_from(["one", "two", "three"]),
        st.lists(
            st.tuples(st.sampled_from("abcd"), st.sampled_from(["penguin", "walrus", "seal"])),
            max_size=4,
            unique_by=lambda pair: pair[0],
        ),
    ),
    max_size=6,
)


@given(STATES, st.integers(0, 4))
async def test_whatever_states_it_saw_in_between_the_last_one_is_what_is_found(states, turns):
    tasks = TaskScope("test")
    updater, fresh = IndexUpdater(tasks), IndexUpdater(tasks)
    offers: dict = {}
    for state in states:
        offers = {server: tuple(tool(*pair) for pair in tools) for server, tools in state.items()}
        updater.follow(offers)
        for _ in range(turns):
            await asyncio.sleep(0)
    fresh.follow(offers)
    await updater.wait_until_current()
    await fresh.wait_until_current()
    for query in ("penguin", "walrus one", "a seal two"):
        assert updater.index.search(query, 50, lambda pair: True) == fresh.index.search(
            query, 50, lambda pair: True
        )
    await tasks.close()
