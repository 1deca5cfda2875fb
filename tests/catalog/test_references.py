"""References: a tool names the resource that shows its results as clients know it."""

import json

import pytest
from msgspec import Raw

from mcp_junction.catalog.resources import rewrite_contents, rewrite_references
from mcp_junction.protocol.names import Pair

APART = {Pair("two", "ui://form"): "ui://two/form"}


def renamed(meta: object, server: str = "two") -> object:
    return json.loads(bytes(rewrite_references(Raw(json.dumps(meta).encode()), server, APART)))


def test_both_ways_of_naming_it_follow():
    meta = {"ui": {"resourceUri": "ui://form", "a": 1}, "ui/resourceUri": "ui://form", "b": [2]}
    assert renamed(meta) == {
        "ui": {"resourceUri": "ui://two/form", "a": 1},
        "ui/resourceUri": "ui://two/form",
        "b": [2],
    }


@pytest.mark.parametrize("ui", [None, "ui://form", [1]])
def test_one_way_follows_whatever_stands_in_the_place_of_the_other(ui):
    meta = {"ui": ui, "ui/resourceUri": "ui://form"}
    assert renamed(meta) == {"ui": ui, "ui/resourceUri": "ui://two/form"}


def test_the_same_address_at_another_server_stays():
    meta = {"ui": {"resourceUri": "ui://form"}}
    assert renamed(meta, "one") == meta


@pytest.mark.parametrize(
    "meta",
    [{}, {"ui": {}}, {"ui": {"resourceUri": 5}}, {"ui": {"resourceUri": "ui://x"}}, [], None, 5],
)
def test_what_names_nothing_that_moved_is_left_alone(meta):
    raw = Raw(json.dumps(meta).encode())
    assert rewrite_references(raw, "two", APART) is raw


def test_what_is_read_says_the_address_it_was_asked_for_by():
    part = {"uri": "ui://form", "text": "é", "x": 1.0}
    result = {"contents": [part, {"uri": "ui://other"}], "_meta": {"a": 1}}
    told = rewrite_contents(json.dumps(result).encode(), "ui://form", "ui://two/form")
    assert json.loads(bytes(told)) == {
        "contents": [{**part, "uri": "ui://two/form"}, {"uri": "ui://other"}],
        "_meta": {"a": 1},
    }


@pytest.mark.parametrize(
    "result", [b"5", b"{}", b'{"contents":5}', b'{"contents":[5]}', b'{"contents":[{"uri":5}]}']
)
def test_what_is_read_and_names_nothing_stays(result):
    assert json.loads(bytes(rewrite_contents(result, "a", "b"))) == json.loads(result)
