"""Endpoints: which servers and tools an address shows, matched on pairs and never on names."""

import json

import pytest

from mcp_junction.catalog.catalog import Catalog
from mcp_junction.catalog.endpoints import EVERYTHING, named_set, one_server
from mcp_junction.catalog.items import PROMPTS
from mcp_junction.catalog.own_tools import CALL, DESCRIBE, FIND
from mcp_junction.catalog.scope import everything_at
from mcp_junction.protocol.names import STDIO, Pair, Spelling
from mcp_junction.testing.link import FakeUpstream, catalog_of

SERVERS = dict.fromkeys(["git", "git.hub", "files", "a*", "[x]"])
READ, WRITE = Pair("files", "read_file"), Pair("files", "write_file")


def test_everything_admits_everything():
    assert EVERYTHING.admits(READ)
    assert EVERYTHING.admits_server("anything")
    assert EVERYTHING.prefixed


@pytest.mark.parametrize("key", list(SERVERS))
def test_one_server_is_shown_by_itself_under_its_own_names(key):
    endpoint = one_server(key)
    assert not endpoint.prefixed
    assert [other for other in [*SERVERS, "ab", "x"] if endpoint.admits_server(other)] == [key]
    assert endpoint.admits(Pair(key, "any.thing"))


@pytest.mark.parametrize(
    ("entry", "admitted"),
    [
        ("files", [READ, WRITE]),
        ("files.read_*", [READ]),
        ("files.read_file", [READ]),
        ("f*.write_*", [WRITE]),
        ("*", [READ, WRITE, Pair("git", "hub.push"), Pair("git.hub", "push")]),
        ("git", [Pair("git", "hub.push")]),
        ("git.hub", [Pair("git.hub", "push")]),
        ("git.hub.push", [Pair("git.hub", "push")]),
        ("git.hub.*", [Pair("git.hub", "push")]),
        ("git.h*", [Pair("git", "hub.push")]),
    ],
)
def test_an_entry_of_a_set_names_servers_or_tools(entry, admitted):
    endpoint = named_set("mine", [entry], SERVERS)
    pairs = [READ, WRITE, Pair("git", "hub.push"), Pair("git.hub", "push")]
    assert [pair for pair in pairs if endpoint.admits(pair)] == admitted
    assert endpoint.prefixed


@pytest.mark.parametrize("exposure", [None, "all", "search"])
async def test_what_is_listed_is_as_everywhere_unless_the_set_says_otherwise(exposure):
    endpoint = named_set("mine", ["files"], SERVERS, exposure=exposure)
    upstream = FakeUpstream("files", ["read"])
    for general in ("all", "search"):
        catalog = Catalog(exposure=general).with_offering(upstream.offering(), ["files"])
        names = [
            tool["name"]
            for tool in json.loads(catalog.view(STDIO, scope=everything_at(endpoint)).items.page())[
                "tools"
            ]
        ]
        searching = (exposure or general) == "search"
        assert names == ([FIND, DESCRIBE, CALL] if searching else ["files:read"])
        prompts = catalog.view(STDIO, PROMPTS, everything_at(endpoint)).items.page()
        assert json.loads(prompts) == {"prompts": []}, "prompts are what they are"


def test_a_set_shows_what_any_of_its_entries_admits():
    endpoint = named_set("mine", ["git", "files.read_*"], SERVERS)
    assert [endpoint.admits(pair) for pair in (READ, WRITE, Pair("git", "x"))] == [
        True,
        False,
        True,
    ]
    assert not named_set("none", [], SERVERS).admits(READ)


@pytest.mark.parametrize("entry", ["nobody", "nobody.x", "fil", "z*"])
def test_an_entry_that_names_no_server_is_refused(entry):
    with pytest.raises(ValueError, match="names no server"):
        named_set("mine", ["git", entry], SERVERS)


async def test_a_view_lists_and_finds_what_its_endpoint_admits_and_no_more():
    catalog = catalog_of(FakeUpstream("files", ["read", "write"]), FakeUpstream("git", ["push"]))
    endpoint = named_set("mine", ["files.read", "git"], {"files": 0, "git": 0})
    view = catalog.view(STDIO, scope=everything_at(endpoint))
    names = [tool["name"] for tool in json.loads(view.items.page())["tools"]]
    assert names == ["files:read", "git:push"]
    assert view.find("files:write") is None
    assert view.nearest("files:write") == ["files:read"], "and hints at no more"
    alone = catalog.view(Spelling(":", prefixed=False), scope=everything_at(one_server("git")))
    assert alone.find("push").pair == Pair("git", "push")
    assert alone.find("files:read") is None
