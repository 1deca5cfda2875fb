"""Pinned definitions: the same, or changed; and what the change was."""

import json
import sys
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from mcp_junction.catalog import pins
from mcp_junction.catalog.pins import define, diff
from mcp_junction.catalog.suspicion import ExaminedTool, examine
from mcp_junction.protocol.names import Pair

TOOL = {
    "name": "read_file",
    "title": "Read",
    "description": "Reads a file.",
    "inputSchema": {
        "type": "object",
        "properties": {"path": {"type": "string", "maxLength": 100}},
        "required": ["path"],
    },
    "outputSchema": {"type": "object"},
    "annotations": {"readOnlyHint": True},
}


def members(tool: object) -> dict[str, Raw]:
    return {key: Raw(json.dumps(value).encode()) for key, value in tool.items()}


def defined(**changes: object) -> pins.ToolDefinition:
    return define(members({**TOOL, **changes}))


def written(text: str) -> pins.ToolDefinition:
    """A tool with this schema, spelled so."""
    return define({**members(TOOL), "inputSchema": Raw(text.encode())})


def test_the_same_definition_has_the_same_hash():
    backwards = dict(reversed(TOOL.items()))
    backwards["inputSchema"] = dict(reversed(TOOL["inputSchema"].items()))
    assert define(members(backwards)) == defined()
    assert defined().is_plain


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ('{"a":1,"b":[2,{"c":3,"d":4}]}', '{ "b": [2, {"d":4,\n"c":3}], "a":1 }'),
        ('{"a":1,"b":-2,"c":100}', '{"a":1.0,"b":-2.00,"c":1e2}'),
        ('{"a":"é/\\n"}', '{"\\u0061":"\\u00e9\\/\\u000a"}'),
        ('{"a":0}', '{"a":-0.0}'),
        ('{"a":1.50}', '{"a":15e-1}'),
    ],
)
def test_a_spelling_makes_no_difference(one, other):
    assert written(one) == written(other)
    assert written(one).is_plain


@pytest.mark.parametrize(
    ("one", "other"),
    [('{"a":1}', '{"a":"1"}'), ('{"a":1}', '{"a":true}'), ('{"a":[1,2]}', '{"a":[2,1]}'),
     ('{"a":null}', "{}"), ('{"a":1.5}', '{"a":1.25}'), ('{"a":"1.0,"}', '{"a":"1,"}')],
)  # fmt: skip
def test_a_meaning_does(one, other):
    assert written(one).hash != written(other).hash
    assert diff(written(one).text, written(other).text)


@pytest.mark.parametrize("field", pins.PINNED)
def test_a_change_in_any_one_field_is_a_change(field):
    changed = defined(**{field: "another"})
    removed = define({k: v for k, v in members(TOOL).items() if k != field})
    for other in (changed, removed):
        assert other.hash != defined().hash
        assert {change.path.split("/")[1] for change in diff(defined().text, other.text)} == {field}


def test_what_is_no_part_of_the_definition_does_not_count():
    assert defined(_meta={"seen": 3}, icons=[]) == defined()


@pytest.mark.parametrize(
    "schema",
    [
        '{"a":1,"a":2}',
        '{"p":{"x":"\\"","x":""}}',
        '{"a":"\\u0022\\u0022\\u0022\\u0022","b":1,"b":1}',
        '{"a":1e999}',
        '{"a":"\\ud800"}',
        "[" * 2000 + "]" * 2000,
    ],
)
def test_what_has_two_readings_is_told_by_its_bytes(schema):
    found = written(schema)
    assert not found.is_plain
    assert found.hash != written(schema.replace("1", "3") + " ").hash


def test_a_key_given_twice_cannot_hide_a_change():
    assert written('{"a":1,"a":2}').hash != written('{"a":3,"a":2}').hash


def test_bytes_that_are_no_text_are_no_trouble():
    found = define({**members(TOOL), "description": Raw(b'"\xff"')})
    assert not found.is_plain
    assert diff(found.text, defined().text)


def test_a_difference_is_said_by_its_place():
    schema = {
        "type": "object",
        "properties": {"path": {"type": "number", "maxLength": 100}, "a/b~c": {}},
        "required": [],
    }
    changes = diff(defined().text, defined(inputSchema=schema, description="Do\u202e it.").text)
    assert [str(change) for change in changes] == [
        '~ /description: "Reads a file." -> "Do\\u202e it."',
        "+ /inputSchema/properties/a~1b~0c: {}",
        '~ /inputSchema/properties/path/type: "string" -> "number"',
        '- /inputSchema/required/0: "path"',
    ]
    assert [change.op for change in changes] == ["replace", "add", "replace", "remove"]


def test_true_is_not_one():
    (change,) = diff(b'{"a":true}', b'{"a":1}')
    assert change.path == "/a"


def test_a_long_difference_is_cut():
    (change,) = diff(defined().text, defined(description="x" * 5000).text)
    assert len(str(change)) < 300


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=12,
)


def applied(before: object, changes: tuple[pins.DefinitionChange, ...]) -> object:
    """The document after its changes; removals from the end, so that places hold."""
    root = {"": before}
    ordered = [c for c in changes if c.op != "remove"]
    ordered += reversed([c for c in changes if c.op == "remove"])
    for change in ordered:
        *way, last = [p.replace("~1", "/").replace("~0", "~") for p in change.path.split("/")]
        spot = root
        for step in way:
            spot = spot[int(step) if isinstance(spot, list) else step]
        if change.op == "remove":
            del spot[int(last) if isinstance(spot, list) else last]
        elif isinstance(spot, list):
            spot[int(last) : int(last) + 1] = [json.loads(bytes(change.after))]
        else:
            spot[last] = json.loads(bytes(change.after))
    return root[""]


@given(json_values, json_values)
def test_the_differences_lead_from_one_to_the_other(before, after):
    changes = diff(json.dumps(before).encode(), json.dumps(after).encode())
    assert json.dumps(applied(before, changes), sort_keys=True) == json.dumps(after, sort_keys=True)


@pytest.mark.bulk
def test_ten_thousand_tools_cost_little():
    described = "Reads what is there and gives it back, see `other_{n}` and the docs. " * 3
    offers = [
        (Pair(f"s{n % 20}", f"tool_{n}"), members({**TOOL, "name": f"tool_{n}",
         "description": described.format(n=n)}))
        for n in range(10_000)
    ]  # fmt: skip

    def once() -> float:
        began = time.process_time()
        flags = examine(ExaminedTool(pair, define(offer)) for pair, offer in offers)
        assert flags == {}
        return time.process_time() - began

    bound = 0.5 if sys.gettrace() is None else 2.0  # counting lines costs more than the lines
    assert min(once() for _ in range(5)) < bound
