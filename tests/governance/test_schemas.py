"""Schemas of tools are compiled once, within limits, and never reach out."""

import json
import socket

import pytest

from mcp_junction.governance import schemas
from mcp_junction.governance.schema_cost import (
    MAX_CHAIN,
    MAX_COST,
    count_nested_repeats,
    measure_cost,
    weigh_pattern,
)
from mcp_junction.governance.schemas import SchemaCache, check_schema, compile_schema
from mcp_junction.policy.arguments import read_arguments

DRAFT7 = "http://json-schema.org/draft-07/schema#"
DRAFT2020 = "https://json-schema.org/draft/2020-12/schema"


def dump(schema) -> bytes:
    return schema if isinstance(schema, bytes) else json.dumps(schema).encode()


def problems_of(schema, text: str):
    data = text.encode()
    return compile_schema(dump(schema)).find_problems(read_arguments(data), len(data))


NOTE = {
    "type": "object",
    "properties": {"title": {"type": "string"}, "stars": {"type": "integer", "maximum": 5}},
    "required": ["title"],
    "additionalProperties": False,
}


# -- what is a usable schema


@pytest.mark.req("REQ-MCP-REG-002")
@pytest.mark.parametrize("draft", [None, DRAFT7, DRAFT2020, DRAFT7.rstrip("#")])
def test_a_good_schema_of_either_draft_has_no_problems(draft):
    assert check_schema(dump(NOTE if draft is None else {"$schema": draft, **NOTE})) == []


def test_the_draft_is_what_the_schema_says():
    """A list under ``items`` is what draft 7 has for tuples; the newer draft knows none."""
    assert check_schema(dump({"$schema": DRAFT7, "items": [{"type": "string"}]})) == []
    assert [p.path for p in check_schema(dump({"items": [{"type": "string"}]}))] == ["/items"]


@pytest.mark.req("REQ-MCP-REG-002")
@pytest.mark.parametrize(
    ("schema", "path", "words"),
    [
        ({"type": "strin"}, "/type", "anyOf"),
        ({"properties": {"a": {"minimum": "x"}}}, "/properties/a/minimum", "number"),
        ({"pattern": "("}, "/pattern", "regex"),
        ({"$schema": "http://elsewhere.test/draft"}, "/$schema", "use draft 2020-12"),
        ({"$schema": 7}, "/$schema", "use draft 2020-12"),
        ({"$ref": "#/$defs/none"}, "", "/$defs/none"),
        (b"[]", "", "must be an object"),
        (b'"x"', "", "must be an object"),
        (b'{"type":"object","type":"string"}', "", "twice"),
        (b'{"type":', "", "cannot be read"),
        (b'{"title":"\xff"}', "", "cannot be read"),
    ],
)
def test_what_is_wrong_with_a_schema_is_told_with_its_place(schema, path, words):
    (problem,) = check_schema(dump(schema))
    assert problem.path == path
    assert words in problem.message


# -- nothing is fetched


def test_references_are_never_fetched(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0)
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/schema.json"
        secret = tmp_path / "secret.json"
        secret.write_text('{"type": "string"}')
        for reference in (url, f"file://{secret}", secret.as_uri(), "other.json"):
            for name in ("$ref", "$dynamicRef", "$schema"):
                assert check_schema(dump({name: reference})), (name, reference)
        with pytest.raises(BlockingIOError):  # nobody has come
            listener.accept()


# -- arguments


def test_arguments_that_fit_have_no_problems():
    assert problems_of(NOTE, '{"title": "x", "stars": 5}') == []


def test_every_problem_of_short_arguments_is_told_without_their_values():
    found = problems_of(NOTE, '{"title": 12345, "stars": 9, "password": "hunter2"}')
    assert {problem.path for problem in found} == {"", "/stars", "/title"}
    words = json.dumps(found)
    assert "hunter2" not in words
    assert "12345" not in words
    assert "password" in words  # which member is too much is what the caller has to know


def test_the_path_is_a_json_pointer():
    schema = {"properties": {"a/b~c": {"items": {"type": "string"}}}}
    assert [p.path for p in problems_of(schema, '{"a/b~c": ["x", 1]}')] == ["/a~1b~0c/1"]


def test_there_are_few_problems_with_few_words():
    schema = {"items": {"type": "string"}, "enum": [["x" * 10_000]]}
    found = problems_of(schema, json.dumps([1] * 500))
    assert len(found) == schemas.MAX_ERRORS
    assert all(len(problem.message) <= 300 for problem in found)


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"const": 9007199254740993}, "9007199254740993", "9007199254740992"),
        ({"maximum": 10**400}, "1e400", "1.1e400"),
        ({"type": "integer"}, "18446744073709551617", "18446744073709551617.5"),
        ({"exclusiveMinimum": 0}, "1e-400", "0e5"),
        ({"multipleOf": 0.1}, "0.3", "0.35"),
        ({"type": "integer"}, "1.0", "1.5"),
    ],
)
def test_numbers_are_judged_as_they_are_written(schema, good, bad):
    assert problems_of(schema, good) == []
    assert problems_of(schema, bad) != []


def test_formats_are_not_asserted():
    assert problems_of({"format": "email"}, '"nobody"') == []


# -- hostile schemas


def doubling(levels: int) -> dict:
    """Each level has the next one applied twice: 2^levels in all."""
    parts = {f"a{i}": {"allOf": [{"$ref": f"#/$defs/a{i + 1}"}] * 2} for i in range(levels)}
    return {"$defs": {**parts, f"a{levels}": {"type": "string"}}, "$ref": "#/$defs/a0"}


def chain(length: int, **more) -> dict:
    parts = {f"a{i}": {"allOf": [{"$ref": f"#/$defs/a{i + 1}"}], **more} for i in range(length)}
    return {"$defs": {**parts, f"a{length}": {}}, "$ref": "#/$defs/a0"}


@pytest.mark.parametrize(
    "schema",
    [
        doubling(60),
        chain(5_000),
        chain(1_000, unevaluatedProperties=False),  # ended the process, without a limit
        chain(90, unevaluatedProperties=False),
        {"enum": [{"a": i} for i in range(2_000)]},
        {"enum": [i + 0.5 for i in range(100)]},
        {"enum": [*map(str, range(2_000)), None]},
        {"pattern": "(a{1000}){1000}"},
        b'{"properties":' * 100 + b"{}" + b"}" * 100,
        b'{"allOf":[' * 500 + b"{}" + b"]}" * 500,
        {"title": "x" * schemas.MAX_SCHEMA},
    ],
    ids=lambda schema: str(schema)[:30],
)
def test_a_schema_that_could_stall_us_is_not_used(schema):
    assert len(check_schema(dump(schema))) == 1
    assert lets_all_pass(SchemaCache().of(dump(schema)))


def lets_all_pass(found) -> bool:
    return found is None or (found.is_large and found.find_problems(read_arguments(b"{}"), 2) == [])


def properties(count: int, part: dict) -> dict:
    return {"properties": {f"p{i}": part for i in range(count)}}


@pytest.mark.parametrize(
    "schema",
    [
        properties(9_000, {"type": "string"}),  # 256 KB
        properties(200, {"pattern": r"\p{L}{10}"}),
        properties(10, {"pattern": "(?i)[\\x{0}-\\x{10FFFF}]"}),
        properties(20, {"pattern": ".{1,1000}"}),
        {"$defs": properties(20, {"patternProperties": {r"(\S.){500}": {}}})},
    ],
    ids=["256 KB", "letters", "ignoring case", "counts", "not used"],
)
def test_a_schema_that_takes_long_to_compile_is_flagged_and_not_compiled(schema, monkeypatch):
    monkeypatch.setattr(schemas, "_compile", lambda *_: pytest.fail("it was compiled"))
    assert [p.path for p in check_schema(dump(schema))] == [""]
    assert lets_all_pass(SchemaCache().of(dump(schema)))


@pytest.mark.parametrize(
    "schema",
    [
        {**NOTE, "$defs": properties(500, {"type": "string"})},
        {**NOTE, "$defs": properties(20, {"pattern": r"\p{L}{2}"})},
    ],
    ids=["bytes", "patterns"],
)
def test_a_large_schema_is_compiled_once_when_it_is_used(schema, monkeypatch):
    compiled, compile_one = [], schemas._compile
    monkeypatch.setattr(schemas, "_compile", lambda *of: compiled.append(of) or compile_one(*of))
    found = SchemaCache().of(dump(schema))
    assert found is not None
    assert (found.is_large, compiled) == (True, [])
    for text, paths in ((b'{"title": "x"}', []), (b'{"title": 1}', ["/title"])):
        problems = found.find_problems(read_arguments(text), len(text))
        assert [one.path for one in problems] == paths
    assert len(compiled) == 1


@pytest.mark.parametrize(
    ("pattern", "least", "most"),
    [
        ("^[a-z0-9_-]{1,64}$", 150, 600),
        (r"^\d{4}-\d{2}-\d{2}$", 150, 600),
        (r"\p{L}", 700, 1_000),
        (r"\p{L}{10}", 7_000, 8_000),
        (r"(\p{L}{10}){10}", 20_000, 25_000),
        ("(?i)[a-z]", 9_000, 10_000),
        ("a{99999999}", 20_000, 25_000),
    ],
)
def test_a_pattern_weighs_what_it_takes_to_compile_it(pattern, least, most):
    assert least <= weigh_pattern(pattern) <= most


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#"},
        {"properties": {"a": {"$ref": "#"}, "b": {"$ref": "#"}}},
        {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"},
        {"$dynamicAnchor": "node", "properties": {"next": {"$dynamicRef": "#node"}}},
    ],
)
def test_a_schema_that_refers_to_itself_is_used(schema):
    assert problems_of(schema, '{"a": {"b": {"a": {}}}}') == []
    assert measure_cost(schema).cost < 10


def test_arguments_nested_deeply_into_a_schema_that_doubles_are_checked_once_a_place():
    part = {"properties": {"a": {"$ref": "#"}}, "not": {"type": "integer"}}
    deep = '{"a":' * 50 + "1" + "}" * 50
    (problem,) = problems_of({"allOf": [part, part]}, deep)
    assert problem.message == "does not fit the schema of the tool"  # to look where would double
    assert [p.path for p in problems_of({"allOf": [part, part]}, '{"a": {"a": 1}}')][:1] == ["/a/a"]


def nested(levels: int, start: str, end: str) -> str:
    return start * levels + "1" + end * levels


def twice(keyword: str, **more) -> dict:
    """A schema that its items are checked against twice."""
    again = {"type": "array", "items": {"$ref": "#/$defs/n"}}
    return {"$defs": {"n": {keyword: [again, again], **more}}, "$ref": "#/$defs/n"}


@pytest.mark.parametrize(
    "schema",
    [
        twice("anyOf"),
        dump(twice("anyOf")).replace(b"$ref", rb"\u0024ref"),
        twice("oneOf"),
        twice("anyOf", unevaluatedItems=False),
        {
            "$dynamicAnchor": "n",
            "type": "array",
            "items": {"oneOf": [{"$dynamicRef": "#n"}, {"$dynamicRef": "#n"}]},
        },
    ],
    ids=lambda schema: str(schema)[:50],
)
def test_what_is_wrong_is_not_looked_for_where_it_would_double_with_each_level(schema):
    """It took for ever, and the service with it: the validator remembers no errors."""
    (problem,) = problems_of(schema, nested(60, "[", "]"))
    assert problem.message == "does not fit the schema of the tool"
    assert len(problems_of(schema, nested(1, "[", "]"))) > 0


@pytest.mark.parametrize(
    ("schema", "arguments"),
    [
        ({"items": {"allOf": [{"type": "string"}] * 1_000}}, json.dumps([1] * 2_000)),
        ({"required": [f"r{i}" for i in range(20_000)]}, "{}"),
        (
            {"dependentRequired": {f"k{i}": [f"q{j}" for j in range(100)] for i in range(90)}},
            json.dumps({f"k{i}": 1 for i in range(90)}),
        ),
    ],
    ids=["allOf", "required", "dependentRequired"],
)
def test_thousands_of_problems_are_not_collected(schema, arguments):
    assert len(problems_of(schema, arguments) if not check_schema(dump(schema)) else [""]) == 1


SLOW = "(?=a)(a|aa)+(?=b)$"


@pytest.mark.parametrize(
    "schema",
    [
        {"propertyNames": {"pattern": SLOW}},
        {"patternProperties": {SLOW: {}}},
        {"items": {"multipleOf": 0.01}},
        {"items": {"multipleOf": 1e-300}},
        {"pattern": "(a{0,30}){0,30}[^a]"},
    ],
    ids=str,
)
def test_what_takes_long_for_each_value_is_used_on_few(schema):
    assert check_schema(dump(schema)) == []
    (problem,) = problems_of(schema, json.dumps({"a" * 30 + str(i): 1 for i in range(2_000)}))
    assert "send less at a time" in problem.message


@pytest.mark.parametrize(
    "schema",
    [
        {"pattern": "(a{0,300}){0,50}[^a]"},
        {"pattern": "((a{9}){9}){999}"},
        {"patternProperties": {f"{SLOW}{i}": {} for i in range(100)}},
    ],
    ids=lambda schema: str(schema)[:40],
)
def test_patterns_that_could_stall_us_make_a_schema_unusable(schema):
    (problem,) = check_schema(dump(schema))
    assert "could stall us" in problem.message


@pytest.mark.parametrize(
    ("pattern", "count"),
    [
        ("^[0-9a-f]{8}-([0-9a-f]{4}-){3}[0-9a-f]{12}$", 12),
        ("^[A-Za-z]{2,255}$", 0),
        ("(a{0,300}){0,20}", 6_000),
        ("(?:(a{2}b{3}){4}c){5,}", 60),
        ("a{2}{3}", 6),
        (r"\(a{300}\){20}[({]{9}", 0),
        (")){2}(", 0),
        ("(a{99999999999}){99999999999}", 10**9),
    ],
)
def test_counts_that_apply_to_each_other_are_multiplied(pattern, count):
    assert count_nested_repeats(pattern) == count


def test_a_pattern_that_backtracks_is_tried_in_linear_time():
    assert len(problems_of({"pattern": "^(a+)+$"}, json.dumps("a" * 60_000 + "!"))) == 1


def test_a_pattern_that_looks_around_gives_up_after_some_steps():
    schema = {"pattern": r"^(?=a)(a+)+\1$"}
    assert check_schema(dump(schema)) == []
    assert len(problems_of(schema, json.dumps("a" * 60_000 + "!"))) == 1


def test_more_arguments_than_a_costly_schema_can_be_checked_on_are_refused():
    schema = {"items": {"enum": [{"a": i} for i in range(1_000)]}}
    assert problems_of(schema, '[{"a": 999}]') == []
    (problem,) = problems_of(schema, json.dumps([{"a": 999}] * 2_000))
    assert "send less at a time" in problem.message


def test_cost_counts_what_is_applied_to_one_place():
    wide = {"properties": {f"p{i}": {"type": "string"} for i in range(1_000)}}
    assert measure_cost(wide).cost == 2
    assert measure_cost({"allOf": [{}, {}, {"not": {}}]}).cost == 5
    assert measure_cost(doubling(60)).cost > MAX_COST
    assert measure_cost(chain(MAX_CHAIN)).chain > MAX_CHAIN


# -- the cache


def test_a_schema_is_compiled_once():
    cache = SchemaCache()
    assert cache.of(dump(NOTE)) is cache.of(bytes(dump(NOTE)))
    assert len(cache) == 1


def test_the_cache_is_bounded_by_number_and_bytes():
    cache = SchemaCache(limit=10, limit_bytes=2_000)
    for i in range(50):
        cache.of(dump({"title": f"{i}"}))
        assert len(cache) <= 10
    for i in range(10):
        cache.of(dump({"title": f"{i}" + "x" * 900}))
        assert len(cache) <= 10
    assert len(cache) <= 2
