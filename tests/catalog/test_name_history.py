"""Given: a name that was shown stays its tool's, whoever comes, goes or is first in the file."""

import json

import pytest

from mcp_junction.catalog.catalog import Catalog
from mcp_junction.catalog.endpoints import EVERYTHING, Endpoint, named_set, one_server
from mcp_junction.catalog.items import PROMPTS, TOOLS
from mcp_junction.catalog.name_history import MOST_PAST
from mcp_junction.catalog.scope import everything_at
from mcp_junction.protocol.names import PLATFORM, STDIO, STRICT, Pair, Spelling, assign
from mcp_junction.testing.link import FakeUpstream, catalog_of

pytestmark = pytest.mark.req("S-06", "EDGE-CONFLICT")

BARE = Spelling(":", prefixed=False)
STRICT_BARE = Spelling("__", strict=True, max_length=64, prefixed=False)

# Two servers whose tools get one name: the first in the file, the second, and that name.
COLLISIONS = [
    pytest.param(STRICT, Pair("d", "y__who"), Pair("d__y", "who"), "d__y__who", id="strict-split"),
    pytest.param(STRICT, Pair("a.b", "who"), Pair("a_b", "who"), "a_b__who", id="strict-dot"),
    pytest.param(BARE, Pair("x", "who"), Pair("y", "who"), "who", id="bare"),
    pytest.param(STRICT_BARE, Pair("x", "w.o"), Pair("y", "w_o"), "w_o", id="strict-bare"),
    pytest.param(PLATFORM, Pair("a", "b.c"), Pair("a.b", "c"), "a.b.c", id="platform"),
    pytest.param(STDIO, Pair("a", "b:c"), Pair("a:b", "c"), "a:b:c", id="stdio"),
]
colliding = pytest.mark.parametrize(("spelling", "first", "second", "name"), COLLISIONS)


def shown(catalog: Catalog, spelling: Spelling, **at) -> list[str]:
    """The names in a list that a client asks for."""
    page = catalog.show(spelling, **at).items.page()
    return [tool["name"] for tool in json.loads(page)["tools"]]


def pair_of(catalog: Catalog, spelling: Spelling, name: str) -> Pair | None:
    route = catalog.view(spelling).find(name)
    return None if route is None else route.pair


def offering(*pairs: Pair, key: str | None = None):
    server = key or pairs[0].server
    return FakeUpstream(server, [pair.name for pair in pairs]).offering()


def hashed(first: Pair, second: Pair, spelling: Spelling) -> str:
    """The name of the second where the first has the plain one."""
    return list(assign([first, second], spelling))[1]


class Two:
    """A catalog of two servers, the second of which is there and listed."""

    def __init__(self, spelling: Spelling, first: Pair, second: Pair) -> None:
        self.first, self.second = first, second
        self.order = [first.server, second.server]
        self.before = Catalog().with_offering(offering(second), self.order)
        self.listed = shown(self.before, spelling)

    def grown(self, catalog: Catalog | None = None) -> Catalog:
        """With the first server there, too."""
        return (catalog or self.before).with_offering(offering(self.first), self.order)


@colliding
async def test_a_server_that_is_earlier_in_the_file_takes_no_name_that_was_shown(
    spelling, first, second, name
):
    two = Two(spelling, first, second)
    assert two.listed == [name]
    after = two.grown()
    other = hashed(second, first, spelling)
    assert shown(after, spelling) == [other, name], "in the order of the file all the same"
    assert pair_of(after, spelling, name) == second
    assert pair_of(after, spelling, other) == first
    again = after.without(first.server).with_offering(offering(first), two.order)
    assert shown(again, spelling) == [other, name], "and so it stays"


@colliding
async def test_a_tool_that_is_added_takes_no_name_that_was_shown(spelling, first, second, name):
    order = [first.server, second.server]
    quiet = Pair(first.server, "add")
    catalog = Catalog().with_offering(offering(quiet), order)
    catalog = catalog.with_offering(offering(second), order)
    assert shown(catalog, spelling)[1] == name
    after = catalog.with_offering(offering(quiet, first), order)
    assert pair_of(after, spelling, name) == second
    assert shown(after, spelling)[1:] == [hashed(second, first, spelling), name]


@colliding
async def test_servers_that_come_before_any_list_are_named_in_the_order_of_the_file(
    spelling, first, second, name
):
    order = [first.server, second.server]
    catalog = Catalog().with_offering(offering(second), order)
    assert pair_of(catalog, spelling, name) == second, "looked up, and not shown to anybody"
    after = catalog.with_offering(offering(first), order)
    assert shown(after, spelling) == [name, hashed(first, second, spelling)]
    assert pair_of(after, spelling, name) == first


@colliding
async def test_a_name_is_nobody_elses_when_its_server_has_left(spelling, first, second, name):
    two = Two(spelling, first, second)
    after = two.grown(two.before.without(second.server))
    view = after.view(spelling)
    assert view.find(name) is None
    assert view.find_departed(name).pair == second
    assert shown(after, spelling) == [hashed(second, first, spelling)]
    back = after.with_offering(offering(second), two.order)
    assert pair_of(back, spelling, name) == second


@colliding
async def test_a_name_is_nobody_elses_when_its_tool_is_no_longer_listed(
    spelling, first, second, name
):
    two = Two(spelling, first, second)
    other = Pair(second.server, "other")
    after = two.grown(two.before.with_offering(offering(other), two.order))
    view = after.view(spelling)
    assert view.find(name) is None
    assert view.find_departed(name) is None
    assert name not in shown(after, spelling)
    back = after.with_offering(offering(other, second), two.order)
    assert pair_of(back, spelling, name) == second


@colliding
async def test_a_past_tool_is_not_mistaken_for_another_in_any_spelling(
    spelling, first, second, name
):
    two = Two(STDIO if spelling != STDIO else PLATFORM, first, second)
    elsewhere = STDIO if spelling != STDIO else PLATFORM
    after = two.grown(two.before.with_offering(offering(Pair(second.server, "other")), two.order))
    assert pair_of(after, elsewhere, name) is None, "it could mean the one that was there"


@colliding
async def test_a_server_that_is_removed_for_good_frees_its_names(spelling, first, second, name):
    two = Two(spelling, first, second)
    after = two.grown(two.before.forgetting(second.server, [first.server]))
    assert shown(after, spelling) == [name]
    assert pair_of(after, spelling, name) == first


@colliding
async def test_the_name_with_the_hash_is_accepted_wherever_the_plain_one_is_listed(
    spelling, first, second, name
):
    two = Two(spelling, first, second)
    ours, theirs = hashed(first, second, spelling), hashed(second, first, spelling)
    for catalog in (two.before, two.grown()):
        assert pair_of(catalog, spelling, ours) == second
        if spelling.prefixed:
            assert pair_of(catalog, STDIO, ours) == second, "from a client of another spelling"
    assert pair_of(two.before, spelling, theirs) is None
    assert pair_of(two.grown(), spelling, theirs) == first
    left = two.grown().without(second.server).view(spelling)
    assert left.find(ours) is None
    assert left.find_departed(ours).pair == second
    assert pair_of(two.before, spelling, name + "_00000000") is None


async def test_the_order_of_the_file_may_change_and_names_do_not():
    catalog = catalog_of(FakeUpstream("x", ["who"]), FakeUpstream("y", ["who"]))
    before = shown(catalog, BARE)
    turned = catalog.with_offering(offering(Pair("y", "who"), Pair("y", "new")), ["y", "x"])
    again = turned.with_offering(offering(Pair("x", "who")), ["y", "x"])
    assert shown(again, BARE) == [before[1], "new", before[0]]
    assert pair_of(again, BARE, "who") == Pair("x", "who")


async def test_a_name_that_a_server_made_up_to_be_anothers_does_not_become_it():
    two = Two(BARE, Pair("x", "who"), Pair("y", "who"))
    wanted = hashed(two.second, two.first, BARE)
    hostile = Catalog().with_offering(offering(Pair("y", "who"), Pair("y", wanted)), two.order)
    assert shown(hostile, BARE) == ["who", wanted]
    after = two.grown(hostile)
    assert pair_of(after, BARE, wanted) == Pair("y", wanted)
    assert len(set(shown(after, BARE))) == 3
    late = two.grown().with_offering(offering(Pair("y", "who")), two.order)
    assert shown(late, BARE)[0] == wanted
    late = late.with_offering(offering(Pair("y", "who"), Pair("y", wanted)), two.order)
    assert pair_of(late, BARE, wanted) == two.first


@colliding
async def test_the_name_with_the_hash_is_not_another_servers_to_take(spelling, first, second, name):
    two = Two(spelling, first, second)
    ours = hashed(first, second, spelling)
    made_up = Pair(first.server, first.name + ours[-9:])
    assert spelling.spell(made_up) == ours
    shown(two.before, STDIO)
    assert pair_of(two.before, spelling, ours) == second
    after = two.before.with_offering(offering(made_up), two.order)
    assert pair_of(after, spelling, ours) == second
    assert pair_of(after, spelling, shown(after, spelling)[0]) == made_up
    if spelling.prefixed:
        assert pair_of(after, STDIO, ours) == second, "nor where it is one spelling of many"


async def test_the_name_with_the_hash_is_not_another_servers_to_take_in_the_next_run():
    order = ["c", "b", "a"]
    read = [offering(Pair(key, "read")) for key in ("c", "a")]
    ours = hashed(Pair("c", "read"), Pair("a", "read"), BARE)
    made_up = Pair("b", ours)
    for come in ([read[0], offering(made_up), read[1]], [read[1], offering(made_up), read[0]]):
        catalog = Catalog()
        for each in come:
            catalog = catalog.with_offering(each, order)
        assert pair_of(catalog, BARE, ours) == Pair("a", "read")
        plain, other, last = shown(catalog, BARE)
        assert (plain, last) == ("read", ours)
        assert pair_of(catalog, BARE, other) == made_up


# How somebody may call the tool ``read`` of the server ``a b``, who is not shown that.
ALIASES = ["a b:read", "a b.read", "a b__read", "a_b__read"]


@pytest.mark.parametrize("spelling", [BARE, STRICT_BARE])
@pytest.mark.parametrize("called", ALIASES)
async def test_another_spelling_that_led_to_a_tool_is_not_another_servers_to_take(spelling, called):
    read, thief = Pair("a b", "read"), Pair("c", called)
    order = ["c", "a b"]
    catalog = Catalog().with_offering(offering(read), order)
    catalog = catalog.with_offering(offering(Pair("c", "x")), order)
    assert shown(catalog, spelling) == ["x", "read"]
    assert pair_of(catalog, spelling, called) == read
    for _ in range(2):
        catalog = catalog.with_offering(offering(thief), order)
        assert pair_of(catalog, spelling, called) == read, "before it is listed, too"
        theirs, ours = shown(catalog, spelling)
        assert (pair_of(catalog, spelling, theirs), ours) == (thief, "read")
        assert pair_of(catalog, spelling, called) == read
    left = catalog.without("a b").with_offering(offering(thief, Pair("c", "y")), order)
    assert left.view(spelling).find(called) is None
    assert left.view(spelling).find_departed(called).pair == read
    freed = catalog.forgetting("a b", ["c"])
    assert pair_of(freed, spelling, spelling.spell(thief)) == thief


async def test_another_spelling_that_was_called_before_any_list_is_kept():
    order = ["a", "b"]
    catalog = Catalog().with_offering(offering(Pair("b", "read")), order)
    assert catalog.note_used("b:read", BARE)
    late = catalog.with_offering(offering(Pair("a", "b:read"), Pair("a", "b.read")), order)
    assert pair_of(late, BARE, "b:read") == Pair("b", "read")
    assert late.note_used(late.view(BARE).name_of(Pair("a", "b:read")), BARE)
    assert pair_of(late.rebuilt(), BARE, "b:read") == Pair("b", "read")
    together = Catalog().with_offering(offering(Pair("b", "read")), order)
    together = together.with_offering(offering(Pair("a", "b:read")), order)
    assert shown(together, BARE) == ["b:read", "read"], "nobody has called it"
    assert pair_of(together, BARE, "b:read") == Pair("a", "b:read")


async def test_a_server_that_is_renamed_does_not_keep_the_spellings_with_its_old_key():
    catalog = catalog_of(FakeUpstream("a", ["read"]))
    assert shown(catalog, BARE) == ["read"]
    catalog = catalog.with_offering(offering(Pair("c", "a:read")), ["a", "c"])
    assert pair_of(catalog, BARE, "a:read") == Pair("a", "read")
    assert len(shown(catalog, BARE)) == 2
    after = catalog.renamed("a", "b", ["b", "c"])
    assert shown(after, BARE) == shown(catalog, BARE)
    assert pair_of(after, BARE, "a:read") == Pair("c", "a:read")
    assert pair_of(after, BARE, "read") == Pair("b", "read")


@pytest.mark.parametrize("how", ["names_of", "name_of", "describe", "nearest"])
async def test_names_are_kept_however_they_are_told(how):
    two = Pair("x", "who"), Pair("y", "who")
    catalog = Catalog().with_offering(offering(two[1]), ["x", "y"])
    told = {"names_of": "y", "nearest": "whom"}.get(how, two[1])
    assert getattr(catalog.show(BARE), how)(told)
    after = catalog.with_offering(offering(two[0]), ["x", "y"])
    assert pair_of(after, BARE, "who") == two[1]


async def test_a_name_that_was_called_before_any_list_is_kept_and_only_that():
    pairs = [Pair("y", "who"), Pair("y", "what")]
    catalog = Catalog().with_offering(offering(*pairs), ["x", "y"])
    assert catalog.note_used("who", BARE)
    assert not catalog.note_used("whom", BARE)
    after = catalog.with_offering(offering(Pair("x", "who"), Pair("x", "what")), ["x", "y"])
    assert pair_of(after, BARE, "who") == pairs[0]
    assert pair_of(after, BARE, "what") == Pair("x", "what")


async def test_once_all_have_been_heard_of_a_look_up_is_enough():
    two = Pair("x", "who"), Pair("y", "who")
    catalog = Catalog().with_offering(offering(two[1]), ["x", "y"])
    assert pair_of(catalog, BARE, "who") == two[1]
    catalog.settle()
    after = catalog.with_offering(offering(two[0]), ["x", "y"])
    assert pair_of(after, BARE, "who") == two[1], "of a view that was there"
    assert pair_of(after, STRICT_BARE, "who") == two[0]
    last = after.with_offering(offering(Pair("z", "who")), ["z", "x", "y"])
    assert pair_of(last, STRICT_BARE, "who") == two[0], "and of one that was made since"


async def test_each_address_kind_and_spelling_has_names_of_its_own():
    two = Two(BARE, Pair("x", "who"), Pair("y", "who"))
    after = two.grown()
    elsewhere = Endpoint("mcp/set", prefixed=False)
    assert shown(after, BARE, scope=everything_at(elsewhere))[0] == "who"
    assert shown(after, BARE, scope=everything_at(one_server("x"))) == ["who"]
    assert after.view(BARE, PROMPTS).find("who") is None
    assert after.view(STRICT_BARE, TOOLS).find("who").pair == two.first


async def test_what_is_taken_out_of_a_set_is_free_there_and_only_there():
    catalog = catalog_of(FakeUpstream("x", ["who", "what"]), FakeUpstream("y", ["who", "what"]))
    keys = {"x": None, "y": None}
    both = {name: named_set(name, ["x", "y"], keys) for name in ("dev", "gone", "same")}
    for at in (*both.values(), EVERYTHING, one_server("x")):
        assert "who" in shown(catalog, BARE, scope=everything_at(at))
    part = named_set("dev", ["x.what", "y"], keys)
    after = catalog.with_named_sets([part, both["same"]])
    assert after.with_named_sets([part, both["same"]]) is after

    def whose(name: str, at: Endpoint) -> str | None:
        found = after.view(BARE, scope=everything_at(at)).find(name)
        return None if found is None else found.pair.server

    assert (whose("who", part), whose("what", part)) == ("y", "x")
    assert whose("who", both["same"]) == whose("who", EVERYTHING) == "x"
    assert shown(after, BARE, scope=everything_at(one_server("x"))) == ["who", "what"]
    assert whose("who", named_set("gone", ["y"], keys)) == "y", "of a set that was not there"


async def test_a_server_that_is_renamed_keeps_the_names_it_is_not_part_of():
    two = Two(BARE, Pair("x", "who"), Pair("y", "who"))
    assert shown(two.before, PLATFORM) == ["y.who"]
    after = two.before.renamed("y", "z", ["x", "z"])
    after = after.with_offering(offering(two.first), ["x", "z"])
    assert pair_of(after, BARE, "who") == Pair("z", "who")
    assert shown(after, PLATFORM) == ["x.who", "z.who"]
    assert pair_of(after, PLATFORM, "y.who") is None


async def test_a_server_that_always_offers_something_else_takes_no_memory_without_end():
    order = ["x", "y"]
    catalog = Catalog().with_offering(offering(Pair("y", "who")), order)
    assert shown(catalog, BARE) == ["who"]
    half = MOST_PAST // 2
    for turn in range(4):
        tools = [Pair("x", f"t{turn}-{n}") for n in range(half)]
        catalog = catalog.with_offering(offering(*tools), order)
        catalog.show(BARE)
    held = {pair: name for name, pair in catalog.show(BARE).history.items()}
    assert len(held) == 1 + half + MOST_PAST
    assert Pair("x", "t0-0") not in held, "the oldest of its own were given up"
    assert held[Pair("y", "who")] == "who"
