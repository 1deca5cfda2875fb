"""Keeper: the catalog that is current, and who is told what has changed in it."""

import asyncio
import itertools
from typing import Any

import msgspec
import pytest

from mcp_junction.catalog import live_catalog
from mcp_junction.catalog.catalog import Catalog
from mcp_junction.catalog.items import ALL, PROMPTS, RESOURCES, TOOLS
from mcp_junction.catalog.live_catalog import LiveCatalog
from mcp_junction.config.client_dialects import ToolSelection
from mcp_junction.errors import ServerError
from mcp_junction.protocol import encode
from mcp_junction.protocol.names import STDIO
from mcp_junction.tasks import TaskScope
from mcp_junction.testing.fakes import FakeClock
from mcp_junction.testing.link import FakeUpstream
from mcp_junction.upstream import outcome as outcomes
from mcp_junction.upstream.events import ServerChange, ServerChanged
from mcp_junction.upstream.flight import Flight
from mcp_junction.upstream.handshake import Greeting
from mcp_junction.upstream.outcome import Outcome

BY_METHOD = {kind.list_method: kind for kind in ALL}


class Server:
    """A server whose lists the test sets; while it holds, it answers nothing."""

    def __init__(self, key: str = "s") -> None:
        self.lists: dict[str, list[str]] = {"tools": ["echo"]}
        self.refuses: set[str] = set()
        self.holds = False
        self.upstream = FakeUpstream(key, script=self._answer)
        self.upstream.greeting = Greeting(
            "2025-06-18", {"tools": {}, "prompts": {}, "resources": {}}
        )

    def _answer(self, flight: Flight) -> Outcome | None:
        return None if self.holds else self.answer_to(flight)

    def answer_to(self, flight: Flight) -> Outcome:
        kind = BY_METHOD[flight.method]
        if kind.name in self.refuses:
            return outcomes.refused(b'{"code":-32603,"message":"on fire"}')
        items = [{kind.key: name} for name in self.lists.get(kind.name, [])]
        return outcomes.result(encode.dumps({kind.member: items}))

    def reads(self) -> int:
        """How often its tools have been read."""
        return sum(flight.method == "tools/list" for flight in self.upstream.wire.flights)


class Shelf:
    """A Keeper, and what it told."""

    def __init__(self, *order: str, review: Any = None) -> None:
        self.told: list[set[str]] = []
        self.tasks = TaskScope("keeper")
        self.live_catalog = LiveCatalog(
            Catalog(), list(order or "s"), self.tasks, 5.0, self._tell, review
        )

    def _tell(self, changes) -> None:
        self.told.append({change.kind.changed for change in changes})

    def follow(self, server: Server, change: ServerChange) -> None:
        upstream: Any = server.upstream
        self.live_catalog.follow(ServerChanged(upstream, change, upstream.state))

    def names(self) -> list[str]:
        view = self.live_catalog.catalog.view(STDIO)
        return [name for key in self.live_catalog.catalog.offerings for name in view.names_of(key)]


async def turns(count: int = 20) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


@pytest.mark.req("J-DISCOVERY")
async def test_everything_a_server_offers_is_read_and_told_by_kind():
    shelf, server = Shelf(), Server()
    server.lists = {"tools": ["echo"], "resources": ["a://1"], "templates": ["b://{x}"]}
    swapped = shelf.live_catalog.swapped
    await shelf.live_catalog.discover(server.upstream)
    assert shelf.names() == ["s:echo"]
    assert shelf.live_catalog.catalog.resources().find("a://1") is not None
    assert shelf.told == [{TOOLS.changed, RESOURCES.changed}]
    assert swapped.done()
    assert not shelf.live_catalog.swapped.done(), "the next change is another one"


async def test_lists_that_have_not_changed_make_no_new_catalog():
    shelf, server = Shelf(), Server()
    await shelf.live_catalog.discover(server.upstream)
    before = shelf.live_catalog.catalog
    await shelf.live_catalog.discover(server.upstream)
    assert shelf.live_catalog.catalog is before
    assert len(shelf.told) == 1


async def test_a_server_that_offers_nothing_is_in_the_catalog_all_the_same():
    shelf, server = Shelf(), Server()
    server.lists = {}
    await shelf.live_catalog.discover(server.upstream)
    assert list(shelf.live_catalog.catalog.offerings) == ["s"]
    assert shelf.told == [set()]


async def test_servers_stand_in_the_order_of_the_file():
    shelf = Shelf("one", "two")
    for key in ("two", "one"):
        await shelf.live_catalog.discover(Server(key).upstream)
    assert shelf.names() == ["one:echo", "two:echo"]


async def test_a_server_that_leaves_is_told_by_what_it_offered():
    shelf, server = Shelf(), Server()
    server.lists = {"tools": ["echo"], "prompts": ["p"]}
    await shelf.live_catalog.discover(server.upstream)
    shelf.live_catalog.remove(server.upstream)
    shelf.live_catalog.remove(server.upstream)
    assert shelf.names() == []
    assert shelf.told[1:] == [{TOOLS.changed, PROMPTS.changed}], "once"
    assert (
        shelf.live_catalog.catalog.view(STDIO).find_departed("s:echo").upstream is server.upstream
    )


@pytest.mark.req("J-DISCOVERY")
async def test_a_change_that_is_announced_is_read():
    shelf, server = Shelf(), Server()
    await shelf.live_catalog.discover(server.upstream)
    server.lists["tools"] = ["echo", "more"]
    shelf.live_catalog.announce(server.upstream)
    await shelf.tasks.settle(5)
    assert shelf.names() == ["s:echo", "s:more"]


async def test_changes_during_a_read_are_read_after_it_and_together():
    shelf, server = Shelf(), Server()
    server.holds = True
    for _ in range(5):
        shelf.live_catalog.announce(server.upstream)
        await turns()
    assert server.reads() == 1, "not beside it"
    server.holds = False
    for flight in server.upstream.wire.waiting:
        flight.end(server.answer_to(flight))
    await shelf.tasks.settle(5)
    assert server.reads() == 2
    shelf.live_catalog.announce(server.upstream)
    await shelf.tasks.settle(5)
    assert server.reads() == 3, "the next one is read again"


@pytest.mark.req("R-ISOLATE")
async def test_a_server_that_announces_changes_without_end_rests_between_reads():
    shelf, server, clock = Shelf(), Server(), FakeClock()
    server.upstream.clock = clock
    server.holds = True
    shelf.live_catalog.announce(server.upstream, TOOLS.changed)
    await turns()
    assert server.reads() == 1, "the first one is read at once"
    shelf.live_catalog.announce(server.upstream, TOOLS.changed)
    await clock.advance(0.5)
    server.holds = False
    for flight in server.upstream.wire.waiting:
        flight.end(server.answer_to(flight))
    await clock.advance(1.9)
    assert server.reads() == 1, "it took half a second, so there are two seconds until the next"
    await clock.advance(0.2)
    assert server.reads() == 2
    read_at = [clock.now()]
    while len(read_at) < 5:
        shelf.live_catalog.announce(server.upstream, TOOLS.changed)
        before = server.reads()
        await clock.advance(0.1)
        read_at += [clock.now()] * (server.reads() - before)
    gaps = [after - before for before, after in itertools.pairwise(read_at)]
    assert gaps == pytest.approx([4, 5, 5, 5], abs=0.3), "longer each time"
    before = server.reads()
    shelf.live_catalog.announce(server.upstream)
    await clock.advance(6)
    assert server.reads() > before
    await clock.advance(60)
    before = server.reads()
    shelf.live_catalog.announce(server.upstream, TOOLS.changed)
    await turns()
    assert server.reads() == before + 1, "it was quiet for a while"


async def test_when_reading_a_change_fails_the_lists_stay_as_they_were(caplog):
    shelf, server = Shelf(), Server()
    await shelf.live_catalog.discover(server.upstream)
    server.refuses = {"tools"}
    shelf.live_catalog.announce(server.upstream)
    await shelf.tasks.settle(5)
    assert shelf.names() == ["s:echo"]
    assert "its lists stay as they were" in caplog.text
    server.refuses, server.lists = set(), {"tools": ["new"]}
    shelf.live_catalog.announce(server.upstream)
    await shelf.tasks.settle(5)
    assert shelf.names() == ["s:new"]


async def test_without_its_tools_a_server_has_failed():
    shelf, server = Shelf(), Server()
    server.refuses = {"tools"}
    with pytest.raises(ServerError, match="on fire"):
        await shelf.live_catalog.discover(server.upstream)
    assert shelf.told == []


@pytest.mark.parametrize("kind", ["prompts", "resources", "templates"])
async def test_without_another_list_the_rest_of_it_serves(kind, caplog):
    shelf, server = Shelf(), Server()
    server.refuses = {kind}
    await shelf.live_catalog.discover(server.upstream)
    assert shelf.names() == ["s:echo"]
    assert "the rest of it serves" in caplog.text


async def test_a_server_that_went_away_while_it_was_read_is_not_put_back():
    shelf, server = Shelf(), Server()
    server.upstream.greeting = Greeting("2025-06-18", {"tools": {}})
    server.holds = True
    reading = shelf.tasks.spawn(shelf.live_catalog.discover(server.upstream))
    await turns()
    (flight,) = server.upstream.wire.waiting
    flight.end(server.answer_to(flight))
    server.upstream.go_down()
    await asyncio.wait({reading}, timeout=5)
    assert shelf.names() == []
    assert shelf.told == []


async def test_tools_are_shown_as_the_operator_selects_and_names_them():
    shelf, server = Shelf(), Server()
    server.lists = {"tools": ["read", "write", "drop"], "prompts": ["drop"]}
    selection = ToolSelection(deny=("drop",), rename={"read": "look"})
    server.upstream.definition = server.upstream.definition._replace(tools=selection)
    await shelf.live_catalog.discover(server.upstream)
    assert shelf.names() == ["s:look", "s:write"]
    route = shelf.live_catalog.catalog.view(STDIO).find("s:look")
    assert bytes(route.raw_name) == b'"read"', "the server is called by its own name"
    assert shelf.live_catalog.catalog.view(STDIO, PROMPTS).find("s:drop") is not None, "tools only"


MANY = [f"t{n}" for n in range(600)]


@pytest.fixture
def meanwhile(monkeypatch):
    """What is to be done once while names are spelled, which has a break after every step."""
    todo: list = []

    class Breaks:
        count, is_over = 0, True

        async def rest(self) -> None:
            self.count += 1
            while todo:
                todo.pop()()

    monkeypatch.setattr(live_catalog, "Slices", Breaks)
    return todo


async def test_names_of_many_tools_are_spelled_before_the_catalog_is_shown(meanwhile):
    server, shelf = Server(), Shelf()
    await shelf.live_catalog.discover(server.upstream)
    before = shelf.live_catalog.catalog
    before.view(STDIO)
    server.lists["tools"] = MANY
    seen: list[list[str]] = []
    meanwhile.append(lambda: seen.append(shelf.names()))
    await shelf.live_catalog.discover(server.upstream)
    assert seen == [["s:echo"]]
    roll = before.histories.roll(TOOLS, before.canonical)
    assert not list(roll.prepare_names(STDIO)), "nothing is left to be spelled"
    assert len(shelf.names()) == len(MANY)
    assert shelf.live_catalog.catalog.view(STDIO).find("s__t7") is not None


async def test_names_that_are_shown_while_others_are_spelled_stay(meanwhile):
    first, second, shelf = Server("a"), Server("a:b"), Shelf("a", "a:b")
    second.lists["tools"] = ["c"]
    await shelf.live_catalog.discover(second.upstream)
    shelf.live_catalog.catalog.view(STDIO)
    first.lists["tools"] = ["b:c", *MANY]
    meanwhile.append(lambda: shelf.live_catalog.catalog.note_used("a:b:c", STDIO))
    await shelf.live_catalog.discover(first.upstream)
    assert shelf.live_catalog.catalog.view(STDIO).find("a:b:c").pair.server == "a:b"


async def test_what_is_kept_back_while_names_are_spelled_is_not_shown(meanwhile):
    kept_back: set[str] = set()

    class Reviewer:
        async def review(self, offering):
            tools = tuple(tool for tool in offering.tools if tool.name not in kept_back)
            return msgspec.structs.replace(offering, tools=tools)

    server, shelf = Server(), Shelf(review=Reviewer())
    await shelf.live_catalog.discover(server.upstream)
    server.lists["tools"] = MANY
    meanwhile.append(lambda: kept_back.add("t7"))
    await shelf.live_catalog.discover(server.upstream)
    names = shelf.names()
    assert len(names) == len(MANY) - 1
    assert "s:t7" not in names


async def test_a_catalog_that_changed_while_names_were_spelled_keeps_the_change(meanwhile):
    first, second, shelf = Server("a"), Server("b"), Shelf("a", "b")
    await shelf.live_catalog.discover(first.upstream)
    await shelf.live_catalog.discover(second.upstream)
    first.lists["tools"] = MANY
    meanwhile.append(lambda: shelf.live_catalog.remove(second.upstream))
    await shelf.live_catalog.discover(first.upstream)
    names = shelf.names()
    assert len(names) == len(MANY)
    assert not [name for name in names if name.startswith("b:")]


@pytest.mark.parametrize("is_known", [True, False])
async def test_a_late_read_does_not_put_back_a_server_that_was_replaced(is_known):
    shelf, old, new = Shelf(), Server(), Server()
    shelf.follow(old, ServerChange.ADDED)
    if is_known:
        await shelf.live_catalog.discover(old.upstream)
    old.holds, old.lists["tools"] = True, ["late"]
    shelf.live_catalog.announce(old.upstream)
    await turns()
    shelf.follow(new, ServerChange.REPLACED)
    old.holds = False
    for flight in old.upstream.wire.waiting:
        flight.end(old.answer_to(flight))
    await shelf.tasks.settle(5)
    assert shelf.names() == (["s:echo"] if is_known else [])
    await shelf.live_catalog.discover(new.upstream)
    assert shelf.live_catalog.catalog.offerings["s"].upstream is new.upstream
    assert shelf.names() == ["s:echo"]


async def test_what_is_shown_again_of_a_server_that_was_replaced_leads_to_the_new_one():
    class Reviewer:
        async def review(self, offering):
            self.last = offering
            return offering

        def shown(self, _):
            return self.last

    shelf, old, new = Shelf(review=Reviewer()), Server(), Server()
    await shelf.live_catalog.discover(old.upstream)
    shelf.follow(new, ServerChange.REPLACED)
    shelf.follow(new, ServerChange.TOOLS)
    assert shelf.live_catalog.catalog.offerings["s"].upstream is new.upstream
