"""Finder: the index follows the offers, reads only what changed, and holds nobody up."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.search.tools import tool

from mcp_junction import slices
from mcp_junction.protocol.names import Pair
from mcp_junction.search import finder as finders
from mcp_junction.search.finder import Finder
from mcp_junction.tasks import TaskScope


@pytest.fixture
async def finder():
    tasks = TaskScope("test")
    yield Finder(tasks)
    await tasks.close()


@pytest.fixture
def read(monkeypatch):
    """The tools that were read, in order."""
    seen: list[Pair] = []
    tool_fields = finders.tool_fields

    def watched(server, described, title):
        seen.append(Pair(server, described.name))
        return tool_fields(server, described, title)

    monkeypatch.setattr(finders, "tool_fields", watched)
    return seen


def found(finder: Finder, query: str) -> list[str]:
    return [".".join(hit.pair) for hit in finder.index.search(query, 100, lambda pair: True)]


async def test_what_is_offered_is_found_and_what_is_withdrawn_is_not(finder):
    one, two = (tool("echo"),), (tool("echo"), tool("about"))
    finder.follow({"one": one, "two": two})
    await finder.wait_until_current()
    assert found(finder, "echo") == ["one.echo", "two.echo"]
    finder.follow({"two": (two[1],)})
    await finder.wait_until_current()
    assert (found(finder, "echo"), found(finder, "about")) == ([], ["two.about"])
    finder.follow({"two": ()})
    await finder.wait_until_current()
    assert len(finder.index) == 0


@pytest.mark.req("AG-US6-AC5")
async def test_only_what_changed_is_read_again(finder, read):
    first = tuple(tool(f"t{n}", "as it was") for n in range(10))
    finder.follow({"one": first, "two": (tool("other"),)})
    await finder.wait_until_current()
    read.clear()
    again = tuple(tool(f"t{n}", "as it was") for n in range(10))
    finder.follow({"one": again, "two": (tool("other"),)})
    await finder.wait_until_current()
    assert read == []
    changed = (*again[:3], tool("t3", "a penguin"), *again[4:], tool("new"))
    finder.follow({"one": changed, "two": (tool("other"),)})
    await finder.wait_until_current()
    assert read == [Pair("one", "t3"), Pair("one", "new")]
    assert found(finder, "penguin") == ["one.t3"]


async def test_a_server_under_another_name_is_found_under_that(finder):
    tools = (tool("echo"),)
    finder.follow({"old": tools})
    await finder.wait_until_current()
    finder.follow({"new": tools})
    await finder.wait_until_current()
    assert found(finder, "echo") == ["new.echo"]
    assert found(finder, "old") == []


async def test_offers_that_change_while_they_are_indexed_are_followed_to_the_end(
    finder, monkeypatch
):
    monkeypatch.setattr(slices, "WORK", 0.0)  # a turn of the loop for every tool
    for name in ("IDLE_WORK", "REST", "IDLE_REST", "BUSY_REST"):
        monkeypatch.setattr(slices, name, 0.0)
    finder.follow({"one": tuple(tool(f"a{n}", "penguin") for n in range(20)), "two": ()})
    for _ in range(5):
        await asyncio.sleep(0)
    assert 0 < len(finder.index) < 20
    assert not finder.is_current
    finder.follow({"two": (tool("b", "walrus"),)})
    await finder.wait_until_current()
    assert finder.is_current
    assert (found(finder, "penguin"), found(finder, "walrus")) == ([], ["two.b"])


async def test_others_get_their_turn_while_many_tools_are_indexed(finder):
    words = "does one of many things, and says so in a sentence of ordinary length"
    finder.follow({"one": tuple(tool(f"thing_{n}", words) for n in range(2000))})
    turns = 0
    while not finder.is_current:
        await asyncio.sleep(0)
        turns += 1
    assert turns > 5
    assert len(finder.index) == 2000


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
    finder, fresh = Finder(tasks), Finder(tasks)
    offers: dict = {}
    for state in states:
        offers = {server: tuple(tool(*pair) for pair in tools) for server, tools in state.items()}
        finder.follow(offers)
        for _ in range(turns):
            await asyncio.sleep(0)
    fresh.follow(offers)
    await finder.wait_until_current()
    await fresh.wait_until_current()
    for query in ("penguin", "walrus one", "a seal two"):
        assert finder.index.search(query, 50, lambda pair: True) == fresh.index.search(
            query, 50, lambda pair: True
        )
    await tasks.close()
