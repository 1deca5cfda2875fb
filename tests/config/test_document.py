"""JSON with comments: lenient where people are, exact about where a fault is."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.protocol import json_texts

from mcp_junction.config.document import child_path, parse
from mcp_junction.errors import ConfigError, ProblemCode


def fault(text: str) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        parse(text, "file.json")
    return caught.value


@pytest.mark.req("J-CONFIG-LENIENT")
@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('// first\n{"a": 1} // last', {"a": 1}),
        ('{/* a */"a"/* b */:/* c */1/**/}', {"a": 1}),
        ('{"a": 1, /* many\nlines\n*/ "b": 2}', {"a": 1, "b": 2}),
        ('{"a": [1, 2,],}', {"a": [1, 2]}),
        ('{"a": 1, // why\n /* and */ }', {"a": 1}),
        ('{"url": "http://x//y", "c": "/* no */"}', {"url": "http://x//y", "c": "/* no */"}),
        ('{"a": "\\"// no", "b": "\\\\"} // yes', {"a": '"// no', "b": "\\"}),
        ('{"a": ",]", "b": ",}"}', {"a": ",]", "b": ",}"}),
        ('\ufeff{"a": 1}', {"a": 1}),
        ('{\r\n// x\r\n"a": 1\r\n}', {"a": 1}),
        ("{/***/ /* * / */}", {}),
    ],
)
def test_comments_and_trailing_commas_are_accepted(text, value):
    assert parse(text, "x") == (value, [])


@given(json_texts.values)
def test_plain_json_means_what_it_always_means(text):
    pairs = json.loads(text, object_pairs_hook=lambda pairs: pairs)
    value, repeated = parse(text, "x")
    assert value == json.loads(text)
    assert bool(repeated) == _repeats(pairs)


def _repeats(value: object) -> bool:
    if not isinstance(value, list):
        return False
    names = [pair[0] for pair in value if isinstance(pair, tuple)]
    inner = [pair[1] if isinstance(pair, tuple) else pair for pair in value]
    return len(set(names)) != len(names) or any(_repeats(one) for one in inner)


_comments = st.sampled_from(["// x\n", "/* x */", "/**/", "/* ,}] */", "//,]\n", " ", "\n", "//\n"])


@given(st.lists(_comments, max_size=6).map("".join), st.lists(_comments, max_size=6).map("".join))
def test_comments_may_stand_between_any_two_tokens(one, two):
    text = f'{one}{{{two}"a"{one}:{two}[1{one},{two}2{one},{two}]{one},{two}}}{one}'
    assert parse(text, "x") == ({"a": [1, 2]}, [])


@pytest.mark.parametrize("row", ["/" * 5000, "/**/" * 5000, "// " * 5000, "/* * / */ //\n" * 999])
def test_a_row_of_slashes_or_comments_is_read_in_one_go(row):
    assert parse(f'{{"a": 1,\n{row}\n"b": 2}}', "x") == ({"a": 1, "b": 2}, [])


@pytest.mark.req("US1-4", "SC-005", "J-CONFIG-REPORT")
@pytest.mark.parametrize(
    ("text", "line", "column"),
    [
        ('{"a": }', 1, 7),
        ('{\n  "a": 1\n  "b": 2\n}', 3, 3),
        ('{\n  // comment, with "quotes\n  "a": tru\n}', 3, 8),
        ('{ /* two\nlines */ "a" 1}', 2, 14),
        ('{"a": 1', 1, 8),
        ("", 1, 1),
        ("/* never closed", 1, 1),
        ('{"a": "no end\n"}', 1, 14),
    ],
)
def test_broken_json_is_reported_with_line_and_column(text, line, column):
    error = fault(text)
    assert error.code is ProblemCode.INVALID_JSON
    (problem,) = error.problems
    assert f"line {line}, column {column}" in problem.message


@pytest.mark.parametrize("text", ['{"a": NaN}', "[Infinity]", "-Infinity"])
def test_numbers_that_json_does_not_have_are_refused(text):
    assert fault(text).code is ProblemCode.INVALID_JSON


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000, "1" * 100_000])
def test_a_file_without_bounds_is_refused(text):
    problem = fault(text)
    assert problem.code is ProblemCode.INVALID_JSON
    assert "recursion" not in str(problem)


@pytest.mark.req("J-CONFIG-DUPLICATE")
def test_every_key_that_stands_twice_is_reported_with_its_path():
    text = """{
      "mcpServers": {
        "a": {"command": "x", "command": "y", "env": {"A": "1", "B": "2", "A": "3"}},
        "my server": {"args": [{"k": 1, "k": 2}]},
        "a": {}
      }
    }"""
    _, problems = parse(text, "x")
    assert {problem.code for problem in problems} == {ProblemCode.INVALID_SCHEMA}
    paths = {problem.path for problem in problems}
    assert paths == {
        "$.mcpServers.a",
        "$.mcpServers.a.command",
        "$.mcpServers.a.env.A",
        '$.mcpServers["my server"].args[0].k',
    }, "also in what another of the same name has replaced"
    assert len(problems) == 4


@pytest.mark.req("J-CONFIG-DUPLICATE")
def test_a_key_in_another_spelling_is_the_same_key():
    _, (problem,) = parse('{"id": 1, "\\u0069d": 2}', "x")
    assert problem.path == "$.id"


@pytest.mark.parametrize(
    ("key", "path"),
    [
        ("a", "$.a"),
        ("with-dash", "$.with-dash"),
        ("with space", '$["with space"]'),
        ('q"', '$["q\\""]'),
        ("", '$[""]'),
        (3, "$[3]"),
        ("a.b", '$["a.b"]'),
    ],
)
def test_a_path_can_be_read_back(key, path):
    assert child_path("$", key) == path
