"""ResourceView: addresses stay as they are, and lead to one server or to none."""

import json

import pytest
from msgspec import Raw

from mcp_junction.catalog.catalog import Catalog
from mcp_junction.catalog.endpoints import one_server
from mcp_junction.catalog.items import ListItem, ServerLists
from mcp_junction.catalog.resources import ResourceView, parse_template
from mcp_junction.catalog.scope import everything_at
from mcp_junction.protocol import encode
from mcp_junction.protocol.names import STDIO, Pair
from mcp_junction.testing.link import FakeUpstream
from mcp_junction.upstream.handshake import Greeting


def offering(
    key: str, resources: tuple[str, ...] = (), templates: tuple[str, ...] = ()
) -> ServerLists:
    upstream = FakeUpstream(key)
    upstream.greeting = Greeting("2025-06-18", {"resources": {}})
    return ServerLists(
        upstream,
        resources=tuple(ListItem(uri, {"uri": Raw(encode.dumps(uri))}) for uri in resources),
        templates=tuple(ListItem(t, {"uriTemplate": Raw(encode.dumps(t))}) for t in templates),
    )


def catalog(*offerings: ServerLists) -> Catalog:
    made = Catalog()
    for each in offerings:
        made = made.with_offering(each, [o.upstream.key for o in offerings])
    return made


def view(*offerings: ServerLists) -> ResourceView:
    return catalog(*offerings).resources()


def listed(found: ResourceView) -> list[str]:
    return [item["uri"] for item in json.loads(found.items.page())["resources"]]


async def test_an_address_that_one_server_lists_stays_as_it_is():
    one, two = offering("one", ("a://1",)), offering("two", ("b://1",))
    found = view(one, two)
    assert listed(found) == ["a://1", "b://1"]
    assert found.find("b://1").upstream is two.upstream
    assert found.find("b://1").pair == Pair("two", "b://1")


async def test_of_two_servers_with_one_address_the_later_is_listed_under_another():
    one, two = offering("one", ("a://1",)), offering("my two", ("a://1", "a://2"))
    found = view(one, two)
    assert listed(found) == ["a://1", "my-two+a://1", "a://2"]
    assert found.find("a://1").upstream is one.upstream
    route = found.find("my-two+a://1")
    assert route.upstream is two.upstream
    assert bytes(route.raw_name) == b'"a://1"', "the server is asked for its own"


async def test_no_two_addresses_become_one():
    found = view(
        offering("one", ("a://1", "two+a://1")),
        offering("two", ("a://1",)),
        offering("t.w.o", ("a://1",)),
    )
    assert listed(found) == ["a://1", "two+a://1", "x-two+a://1", "t.w.o+a://1"]
    assert found.find("x-two+a://1").pair == Pair("two", "a://1")


async def test_an_address_nobody_lists_is_looked_for_in_the_templates():
    one = offering("one", templates=("note://{id}",))
    two = offering("two", ("b://1",), ("file:///{+path}",))
    found = view(one, two)
    assert found.find("note://7").upstream is one.upstream
    assert found.find("file:///a/b").upstream is two.upstream
    assert bytes(found.find("file:///a/b").raw_name) == b'"file:///a/b"'
    assert found.find("mail://7") is None, "it fits nobody"


async def test_of_two_servers_with_one_template_the_later_is_listed_under_another():
    one, two = offering("one", templates=("n://{id}",)), offering("two", templates=("n://{id}",))
    found = view(one, two)
    templates = json.loads(found.templates.page())["resourceTemplates"]
    assert [t["uriTemplate"] for t in templates] == ["n://{id}", "two+n://{id}"]
    assert found.find("n://1").upstream is one.upstream
    assert found.find("two+n://1").pair == Pair("two", "n://1"), "the server is asked for its own"
    assert found.find_template("two+n://{id}").pair == Pair("two", "n://{id}")


async def test_an_address_that_fits_two_servers_is_not_guessed_at():
    found = view(offering("one", templates=("n://{id}",)), offering("two", templates=("n://{x}",)))
    assert found.find("n://1") is None


async def test_an_address_that_fits_no_template_goes_to_the_one_server_with_its_scheme():
    one = offering("one", ("a://1",), ("note://{id}",))
    two = offering("two", ("b://1",), ("note://{id}/parts",))
    assert view(one, two).find("a://unlisted").upstream is one.upstream
    assert view(one, two).find("B://unlisted").upstream is two.upstream
    assert view(one, two).find("note://1/2/3") is None, "two servers have that scheme"
    assert view(one, two).find("z://unlisted") is None


async def test_a_server_by_itself_is_asked_for_everything():
    one, two = offering("one", ("a://1",)), offering("two", ("b://1",))
    assert view(one).find("z://unlisted").upstream is one.upstream
    assert (
        catalog(one, two).resources(everything_at(one_server("two"))).find("a://1").upstream
        is two.upstream
    )


async def test_what_a_server_that_left_had_does_not_become_anothers():
    one, two = offering("one", ("a://1",), ("n://{x}",)), offering("two", ("a://1", "b://1"))
    left = catalog(one, two).without("one").resources()
    assert listed(left) == ["two+a://1", "b://1"]
    for uri in ("a://1", "n://7"):
        assert left.find(uri).upstream is one.upstream
    assert left.find("b://1").upstream is two.upstream


async def test_a_template_is_found_as_it_is_listed():
    one, two = offering("one", templates=("a://{x}",)), offering("two", templates=("b://{x}",))
    found = view(one, two)
    templates = json.loads(found.templates.page())["resourceTemplates"]
    assert [t["uriTemplate"] for t in templates] == ["a://{x}", "b://{x}"]
    assert found.find_template("b://{x}").upstream is two.upstream
    assert found.find_template("b://5").upstream is two.upstream, "or an address"
    assert found.find_template("c://{x}") is None


async def test_an_endpoint_shows_the_resources_of_its_servers_only():
    made = catalog(offering("one", ("a://1",)), offering("two", ("a://1",)))
    at_two = made.resources(everything_at(one_server("two")))
    assert listed(at_two) == ["a://1"]
    assert at_two.find("a://1").pair.server == "two"
    assert made.resources(everything_at(one_server("two"))) is at_two, "made once"


@pytest.mark.parametrize(
    ("template", "fits", "does_not"),
    [
        ("a://b", "a://b", "a://bc"),
        ("a.b://{x}", "a.b://1", "aXb://1"),
        ("a://{x}/end", "a://1/end", "a://1/2/end"),
        ("a://{+x}/end", "a://1/2/end", "a://1/2/ending"),
        ("a://x{#part}", "a://x#y", "a://xy"),
        ("a://x{?q,r}", "a://x?q=1&r=2", "a://xq=1"),
        ("a://x{?q}", "a://x", "a://x/y"),
        ("a://x{/p*}", "a://x/1/2", "a://x1"),
        ("a://x{.ext}", "a://x.txt", "a://xtxt"),
        ("a://{x}", "a://1", "a://1\n/"),
    ],
)
def test_what_a_template_can_stand_for(template, fits, does_not):
    parsed = parse_template(template)
    assert parsed.matches(fits)
    assert not parsed.matches(does_not)


def test_a_template_made_to_be_slow_is_not():
    parsed = parse_template("a://" + "{x}-" * 500 + "end")
    assert not parsed.matches("a://" + "-" * 100_000), "this would never end by backtracking"


@pytest.mark.req("S-06")
async def test_an_address_that_was_shown_stays_its_servers_whoever_lists_it_later():
    order, two = ["one", "two"], offering("two", ("a://1",), ("n://{id}",))
    before = Catalog().with_offering(two, order)
    assert listed(before.show_resources()) == ["a://1"]
    both = before.with_offering(offering("one", ("a://1",), ("n://{id}",)), order)
    found = both.show_resources()
    assert listed(found) == ["one+a://1", "a://1"], "in the order of the file all the same"
    assert found.find("a://1").upstream is two.upstream
    assert found.find("one+a://1").pair == Pair("one", "a://1")
    assert found.find_template("n://{id}").upstream is two.upstream
    left = both.without("two").resources()
    assert left.find("a://1").upstream is two.upstream
    freed = both.forgetting("two", ["one"]).resources()
    assert listed(freed) == ["one+a://1"], "what was shown stays"


@pytest.mark.req("S-06")
async def test_an_address_that_is_no_longer_listed_is_nobody_elses():
    order = ["one", "two"]
    before = Catalog().with_offering(offering("two", ("a://1", "b://1")), order)
    assert listed(before.show_resources()) == ["a://1", "b://1"]
    after = before.with_offering(offering("two", ("b://1",)), order)
    assert after.resources().find("a://1") is None, "of two places, no one has the scheme"
    after = after.with_offering(offering("one", ("a://2",), ("a://{id}",)), order)
    assert after.resources().find("a://1") is None
    assert after.resources().find("a://3").pair.server == "one"
    again = after.with_offering(offering("two", ("b://1", "a://3")), order)
    assert listed(again.show_resources()) == ["a://2", "b://1", "a://3"]
    assert again.with_offering(offering("one", ("a://1",)), order).resources().find(
        "one+a://1"
    ).pair == Pair("one", "a://1")


@pytest.mark.req("S-06")
async def test_the_addresses_that_a_list_of_tools_refers_to_are_kept_with_it():
    before = Catalog().with_offering(offering("two", ("ui://x",)), ["one", "two"])
    assert before.show(STDIO).items.page()
    after = before.with_offering(offering("one", ("ui://x",)), ["one", "two"])
    assert after.resources().find("ui://x").pair.server == "two"


@pytest.mark.req("S-06")
async def test_an_address_that_led_to_a_server_by_its_template_is_not_anothers_to_list():
    order = ["two", "one"]
    one = offering("one", ("note://1",), ("doc://{id}", "doc://{id}/{part}", "{?all}"))
    before = Catalog().with_offering(one, order)
    before = before.with_offering(offering("two", ("x://1",)), order)
    assert listed(before.show_resources()) == ["x://1", "note://1"]
    assert before.resources().find("doc://7").upstream is one.upstream
    after = before.with_offering(offering("two", ("doc://7", "x://1", "doc:/7")), order)
    for _ in range(2):
        found = after.resources()
        assert listed(found) == ["two+doc://7", "x://1", "doc:/7", "note://1"]
        assert found.find("doc://7").upstream is one.upstream
        assert found.find("two+doc://7").pair == Pair("two", "doc://7")
        after = after.rebuilt()
    assert after.without("one").resources().find("doc://7").upstream is one.upstream
    greedy = before.with_offering(offering("two", ("x://1",), ("doc://{+id}", "{+any}")), order)
    assert listed(greedy.show_resources()) == ["x://1", "note://1"]
    for templates in ((), ("doc://{+id}",)):
        after = greedy.with_offering(offering("two", ("doc://9",), templates), order)
        assert listed(after.show_resources())[0] == "two+doc://9", "in two steps, too"
    late = greedy.with_offering(offering("three", ("y://1",)), [*order, "three"])
    assert listed(late.show_resources())[-1] == "y://1", "a template for all addresses keeps none"
    own = after.with_offering(offering("one", ("doc://8",), ("doc://{id}",)), order).resources()
    assert listed(own)[-1] == "doc://8", "its own template was the first to cover it"


@pytest.mark.req("S-06")
async def test_servers_that_come_together_list_what_the_templates_of_another_stand_for():
    found = view(offering("one", (), ("doc://{id}",)), offering("two", ("doc://7",)))
    assert listed(found) == ["doc://7"]
    assert found.find("doc://7").pair.server == "two"


@pytest.mark.req("S-06")
async def test_a_template_for_every_scheme_comes_after_those_who_have_the_scheme():
    one = offering("one", ("note://1",), ("doc://{id}",))
    three = offering("three", ("doc://x/y", "n://1"), ("n://{id}",))
    two = offering("two", ("x://1",), ("{+any}", "n://{+id}"))
    before, found = view(one, three), view(one, three, two)
    for uri in ("note://2", "doc://7"):
        assert before.find(uri).upstream is found.find(uri).upstream is one.upstream
    assert found.find("n://7") is None, "this fits two, and is not guessed at"
    for uri in ("any://1", "doc://x/z"):
        assert before.find(uri) is None
        assert found.find(uri).upstream is two.upstream
