"""Scope: what a policy hides from an agent has no part in its names, lists, hints or histories."""

import gc
import json
import weakref

import pytest
from msgspec import Raw

from mcp_junction.catalog.catalog import Catalog
from mcp_junction.catalog.endpoints import EVERYTHING, one_server
from mcp_junction.catalog.items import PROMPTS, RESOURCES, TEMPLATES, TOOLS, ListItem, ServerLists
from mcp_junction.catalog.name_history import MOST_UNUSED
from mcp_junction.catalog.scope import OPEN, Scope, Scopes, everything_at
from mcp_junction.policy.principal import Principal, Role
from mcp_junction.protocol.names import PLATFORM, STDIO, STRICT, Pair, Spelling
from mcp_junction.testing.link import FakeUpstream, catalog_of

BARE = Spelling(":", prefixed=False)
ANN = Principal("ann", Role.AGENT)
SPELLINGS = [BARE, STDIO, PLATFORM, STRICT]


class Hides:
    """Grants of everything but these."""

    def __init__(self, *hidden: Pair) -> None:
        self.hidden = set(hidden)

    def of(self, _: str, server: str):
        return lambda name: Pair(server, name) not in self.hidden

    def names(self, _: str) -> bool:
        return True


class Policy:
    """What ann may use, for as long as it stays so."""

    def __init__(self, grants: Hides | None = None) -> None:
        self.current = grants

    def grants(self, _: Principal) -> Hides | None:
        return self.current


def item(kind, name: str) -> ListItem:
    return ListItem(name, {kind.key: Raw(json.dumps(name).encode())})


def offering(key: str, **named: list[str]) -> ServerLists:
    kinds = {"tools": TOOLS, "prompts": PROMPTS, "resources": RESOURCES, "templates": TEMPLATES}
    lists = {
        name: tuple(item(kinds[name], each) for each in names) for name, names in named.items()
    }
    return ServerLists(FakeUpstream(key), **lists)


def catalog(*offerings: ServerLists, **how) -> Catalog:
    found, order = Catalog(**how), [each.upstream.key for each in offerings]
    for each in offerings:
        found = found.with_offering(each, order)
    return found


def hiding(*hidden: Pair, agent: str = "ann") -> Scope:
    return Scope(EVERYTHING, Hides(*hidden), agent)


def listed(made: Catalog, scope: Scope, spelling=BARE, kind=TOOLS) -> list[str]:
    page = json.loads(made.page(spelling, kind, scope, None))
    return [each[kind.key] for each in page[kind.member]]


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("kind", [TOOLS, PROMPTS])
async def test_a_hidden_item_has_no_part_in_names_hints_or_bytes(spelling, kind):
    for first, second in [(("x", "who"), ("y", "who")), (("a", "b.c"), ("a.b", "c"))]:
        hidden, shown = Pair(*first), Pair(*second)
        with_it = catalog(
            offering(hidden.server, **{kind.name: [hidden.name, "else"]}),
            offering(shown.server, **{kind.name: [shown.name]}),
        )
        without = catalog(
            offering(hidden.server, **{kind.name: ["else"]}),
            offering(shown.server, **{kind.name: [shown.name]}),
        )
        scope = hiding(hidden)
        assert with_it.page(spelling, kind, scope, None) == without.page(spelling, kind, OPEN, None)
        names = {each.spell(pair) for each in SPELLINGS for pair in (hidden, shown)}
        names |= {each.hashed(each.spell(hidden), hidden) for each in SPELLINGS}
        ours, theirs = with_it.view(spelling, kind, scope), without.view(spelling, kind)
        for name in names:
            found, other = ours.find(name), theirs.find(name)
            assert (found and found.pair) == (other and other.pair)
            assert ours.nearest(name) == theirs.nearest(name)
            assert ours.pairs_called(name) == theirs.pairs_called(name)
        assert not ours.admits(hidden)
        assert ours.counts == theirs.counts


async def test_a_hidden_resource_is_not_listed_read_or_told_apart_from():
    one = offering("one", resources=["a://1"], templates=["n://{id}"])
    two = offering("two", resources=["a://1"], templates=["n://{id}"])
    made = catalog(one, two)
    scope = hiding(Pair("one", "a://1"), Pair("one", "n://{id}"), Pair("one", "n://7"))
    assert listed(made, scope, kind=RESOURCES) == ["a://1"]
    assert listed(made, scope, kind=TEMPLATES) == ["n://{id}"]
    view = made.resources(scope)
    assert view.find("a://1").upstream is two.upstream
    assert view.find("n://7").upstream is two.upstream
    assert view.find_template("n://{id}").upstream is two.upstream
    assert view.find("one+a://1") is None
    nobody = hiding(*(Pair(key, uri) for key in ("one", "two") for uri in ("a://1", "a://2")))
    assert made.resources(nobody).find("a://2") is None


async def test_names_that_an_agent_was_shown_stay_when_its_grants_change():
    made = catalog_of(FakeUpstream("x", ["who"]), FakeUpstream("y", ["who"]))
    policy = Policy(Hides(Pair("x", "who")))
    scopes = Scopes(policy)
    before = scopes.of(ANN, EVERYTHING)
    assert scopes.of(ANN, EVERYTHING) is before
    assert listed(made, before) == ["who"]
    policy.current = Hides()
    after = scopes.of(ANN, EVERYTHING)
    assert after is not before
    hashed, plain = listed(made, after)
    assert plain == "who"
    assert made.view(BARE, TOOLS, after).find("who").pair == Pair("y", "who")
    assert made.view(BARE, TOOLS, after).find(hashed).pair == Pair("x", "who")
    assert listed(made, OPEN)[0] == "who", "others have names of their own"
    assert listed(made, hiding(agent="bob"))[0] == "who"
    policy.current = Hides(Pair("y", "who"))
    assert listed(made, scopes.of(ANN, EVERYTHING)) == [hashed], "the other name is not free"


async def test_who_saw_everything_before_knows_those_names():
    made = catalog_of(FakeUpstream("x", ["who"]), FakeUpstream("y", ["who"]))
    policy = Policy()
    scopes = Scopes(policy)
    assert scopes.of(ANN, EVERYTHING) is OPEN
    _, hashed = listed(made, OPEN)
    policy.current = Hides(Pair("x", "who"))
    assert listed(made, scopes.of(ANN, EVERYTHING)) == [hashed]
    assert made.view(BARE, TOOLS, scopes.of(ANN, EVERYTHING)).find("who") is None
    bob = Principal("bob", Role.AGENT)
    assert listed(made, scopes.of(bob, EVERYTHING)) == ["who"], "who never saw it"


async def test_equal_scopes_share_their_mask_and_a_change_elsewhere_keeps_their_views():
    made = catalog_of(FakeUpstream("x", ["a", "b"]), FakeUpstream("y", ["c"]))

    class Only:
        def of(self, _, server):
            return (lambda name: True) if server == "x" else None

    ann, bob = (Scope(EVERYTHING, Only(), agent) for agent in ("ann", "bob"))
    views = [made.view(STDIO, TOOLS, each) for each in (ann, bob, everything_at(one_server("x")))]
    assert views[0].mask is views[1].mask
    after = made.with_offering(FakeUpstream("y", ["d"]).offering(), ["x", "y"])
    again = [after.view(STDIO, TOOLS, each) for each in (ann, bob, everything_at(one_server("x")))]
    assert all(one is other for one, other in zip(views, again, strict=True))
    assert after.view(STDIO) is not made.view(STDIO)


@pytest.mark.bulk
async def test_numbers_that_nobody_uses_are_given_up_and_names_stay():
    order = ["x", "y"]
    made = Catalog(page_size=50_000).with_offering(FakeUpstream("y", ["who"]).offering(), order)
    scope = hiding(Pair("x", "who"))
    assert listed(made, scope) == ["who"]
    old = made
    for turn in range(6):
        tools = [f"t{turn}-{n}" for n in range(MOST_UNUSED // 2)]
        made = made.with_offering(FakeUpstream("x", [*tools, "who"]).offering(), order)
        assert made.view(BARE).find(tools[7]) is not None
    assert made.histories is not old.histories
    assert len(made.histories.roll(TOOLS, STDIO).pairs) < 2 * MOST_UNUSED
    assert listed(made, scope)[-1] == "who"
    assert made.view(BARE, TOOLS, scope).find("who").pair == Pair("y", "who")
    assert old.view(BARE, TOOLS, scope).find("who").pair == Pair("y", "who")
    assert old.view(BARE).find("t1-7") is None


@pytest.mark.bulk
@pytest.mark.bulk
async def test_uris_that_nobody_uses_are_given_up_too():
    made = catalog(offering("x", resources=["log://first"]))
    for turn in range(6):
        uris = [f"log://{turn}/{n}" for n in range(MOST_UNUSED // 2)]
        made = made.with_offering(offering("x", resources=uris), ["x"])
        made.page(STDIO, RESOURCES, OPEN, None)
    kept = len(made.histories.roll(RESOURCES, STDIO).pairs)
    assert kept < 3 * MOST_UNUSED, "as many as are shown and present, and some"
    assert made.resources().find(uris[7]).pair == Pair("x", uris[7])


async def test_pages_keep_no_view_of_an_earlier_catalog_alive():
    made = catalog(offering("x", tools=["a"]))
    views = []
    for turn in range(5):
        made = made.with_offering(offering("x", tools=["a", f"t{turn}"]), ["x"])
        made.page(STDIO, TOOLS, OPEN, None)
        views.append(weakref.ref(made.view(STDIO)))
    gc.collect()
    assert [view() is not None for view in views] == [False] * 4 + [True]


async def test_a_policy_that_raises_grants_nothing_and_is_logged_once(caplog):
    class Failing(Policy):
        is_failing = True

        def grants(self, principal):
            if self.is_failing and principal == ANN:
                raise RuntimeError("the store is away")
            return super().grants(principal)

    made, policy = catalog_of(FakeUpstream("x", ["who"])), Failing()
    scopes = Scopes(policy)
    for _ in range(3):
        scope = scopes.of(ANN, EVERYTHING)
        assert not scope.could_see("x")
        assert not made.has_server(scope, "x")
        assert listed(made, scope) == []
        assert scopes.of(ANN, EVERYTHING) is scope
        assert scopes.of(Principal("bob", Role.AGENT), EVERYTHING) is OPEN
    assert caplog.text.count("the access policy failed for agent:ann") == 1
    assert "the store is away" in caplog.text
    policy.is_failing = False
    assert scopes.of(ANN, EVERYTHING) is OPEN


async def test_grants_that_raise_grant_nothing_and_are_logged_once(caplog):
    class Broken(Hides):
        def of(self, _, server):
            raise RuntimeError(f"no idea about {server}")

        def names(self, server):
            return self.of("", server)

    made, scopes = catalog_of(FakeUpstream("x", ["who"])), Scopes(Policy(Broken()))
    for _ in range(3):
        scope = scopes.of(ANN, EVERYTHING)
        assert listed(made, scope) == []
        assert not made.has_server(scope, "x")
        assert made.view(BARE, TOOLS, scope).find("who") is None
    assert caplog.text.count("the grants of agent:ann failed") == 1


async def test_a_server_of_which_nothing_matches_is_none_unless_it_is_named():
    class Pattern(Hides):
        def of(self, _, server):
            return lambda name: name.startswith("read")

        def names(self, server):
            return server == "named"

    made = catalog_of(*(FakeUpstream(key, ["write"]) for key in ("named", "other")))
    scope = Scopes(Policy(Pattern())).of(ANN, EVERYTHING)
    found = {key: made.has_server(scope, key) for key in ("named", "other", "nowhere")}
    assert found == {"named": True, "other": False, "nowhere": False}
    order = ["named", "other"]
    after = made.with_offering(FakeUpstream("other", ["read"]).offering(), order)
    assert after.has_server(scope, "other")
    assert not after.has_server(Scope(one_server("named"), scope.grants, "ann"), "other")


async def test_an_agent_that_left_is_forgotten():
    policy = Policy()
    scopes, bob = Scopes(policy), Principal("bob", Role.AGENT)
    assert scopes.of(ANN, EVERYTHING) is OPEN
    policy.current = Hides()
    before = [scopes.of(each, EVERYTHING) for each in (ANN, bob)]
    assert [scope.saw_everything for scope in before] == [True, False]
    assert scopes.forget(ANN) == before[0].agent
    after = scopes.of(ANN, EVERYTHING)
    assert after is not before[0]
    assert not after.saw_everything
    assert scopes.of(bob, EVERYTHING) is before[1]


async def test_names_that_an_agent_was_shown_are_forgotten_with_it():
    made = catalog_of(FakeUpstream("x", ["who"]), FakeUpstream("y", ["who"]))
    policy = Policy(Hides(Pair("y", "who")))
    scopes = Scopes(policy)
    assert listed(made, scopes.of(ANN, EVERYTHING)) == ["who"]
    policy.current = Hides(Pair("x", "who"))
    assert listed(made, scopes.of(ANN, EVERYTHING)) != ["who"], "that is another's"
    made.forget_agent(scopes.forget(ANN))
    assert listed(made, scopes.of(ANN, EVERYTHING)) == ["who"]


async def test_scopes_of_grants_that_changed_are_let_go():
    policy = Policy(Hides())
    scopes = Scopes(policy)
    old = weakref.ref(scopes.of(ANN, one_server("x")).grants)
    policy.current = Hides()
    scopes.of(ANN, EVERYTHING)
    gc.collect()
    assert old() is None


async def test_a_server_of_which_a_pattern_matches_nothing_leaves_another_alone():
    """An address that nobody lists is read at the only server there is."""

    class Notes(Hides):
        def of(self, kind: str, _: str):
            return (lambda name: name.startswith("note:")) if kind == "resources" else None

        def names(self, _: str) -> bool:
            return False

    scope = Scope(EVERYTHING, Notes(), "ann")
    shown = offering("zoo", templates=["note://{animal}"])
    hidden = offering("cave", resources=["cave://bear"], tools=["dig"])
    for made in (catalog(shown), catalog(hidden, shown)):
        route = made.resources(scope).find("note:elsewhere")
        assert route is not None
        assert route.pair == Pair("zoo", "note:elsewhere")
