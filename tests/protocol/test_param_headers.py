"""Headers that repeat parts of a call: as the SDK writes them, reads them and judges them."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp.shared import inbound

from mcp_junction.protocol import param_headers
from mcp_junction.protocol.param_headers import ParamHeader

TOKENS = st.sampled_from(["Region", "region", "Tier", "a-b", "x_1", "bad token", "", "ü"])
TYPES = st.sampled_from(["string", "integer", "boolean", "number", "object", None, ["string"]])
KEYS = st.sampled_from(["a", "b", "c.d", "properties", "é"])


def marked(parts: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Schemas around schemas, with marks wherever they may and may not be."""
    return st.fixed_dictionaries(
        {},
        optional={
            "type": TYPES,
            "x-mcp-header": TOKENS | st.integers() | st.none(),
            "properties": st.dictionaries(KEYS, parts, max_size=3) | st.none(),
            "items": parts,
            "anyOf": st.lists(parts, max_size=2),
            "$defs": st.dictionaries(KEYS, parts, max_size=2),
            "default": parts,
        },
    )


SCHEMAS = st.recursive(st.just({"type": "string"}) | st.booleans(), marked, max_leaves=8)
LEAVES = (
    st.none() | st.booleans() | st.integers() | st.text() | st.floats(allow_nan=False, width=32)
)
ARGUMENTS = st.dictionaries(
    KEYS, LEAVES | st.dictionaries(KEYS, LEAVES, max_size=2) | st.lists(LEAVES, max_size=1)
)


def good(mark: str, kind: str, *path: str) -> dict[str, Any]:
    """A schema with one mark at the end of a chain of properties."""
    part: dict[str, Any] = {"type": kind, "x-mcp-header": mark}
    for key in reversed(path):
        part = {"type": "object", "properties": {key: part}}
    return part


MARKED = st.builds(
    lambda one, two: {"properties": {**one["properties"], **two["properties"]}},
    st.builds(good, st.just("Region"), st.sampled_from(["string", "integer"]), KEYS),
    st.builds(good, st.just("Tier"), st.sampled_from(["integer", "boolean"]), KEYS, KEYS),
)


def lines(data: bytes) -> dict[str, str]:
    return dict(line.split(": ", 1) for line in data.decode().split("\r\n")[:-1])


def sdk_lines(schema: Any, arguments: dict[str, Any]) -> dict[str, str]:
    found = inbound.mcp_param_headers(inbound.x_mcp_header_map(schema), arguments)
    return {name.lower(): value for name, value in found.items()}


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_a_value_is_written_as_the_sdk_writes_it_and_read_again(text):
    value = param_headers.encode_value(text)
    assert value.decode() == inbound.encode_header_value(text)
    assert param_headers.decode_value(value) == text


@given(
    st.text(st.characters(max_codepoint=126))
    | st.from_regex(r"\A=\?base64\?[A-Za-z0-9+/= -]{0,8}\?=\Z")
)
def test_any_value_is_read_as_the_sdk_reads_it(value):
    assert param_headers.decode_value(value.encode()) == inbound.decode_header_value(value)


def test_a_wrapped_value_that_is_not_ascii_stands_for_nothing():
    assert param_headers.decode_value(b"=?base64?\x80?=") is None


@given(SCHEMAS)
def test_marks_are_judged_as_the_sdk_judges_them(schema):
    text = json.dumps(schema).encode()
    reason = inbound.find_invalid_x_mcp_header(schema)
    assert (param_headers.read_marks(text)[1] is None) == (reason is None)
    found = {header.path: header.token for header in param_headers.find_marked(text)}
    assert found == ({} if reason is not None else inbound.x_mcp_header_map(schema))


@given(MARKED, ARGUMENTS)
def test_arguments_are_repeated_as_the_sdk_repeats_them(schema, arguments):
    found = param_headers.find_marked(json.dumps(schema).encode())
    written = param_headers.header_lines(found, json.dumps(arguments).encode())
    assert lines(written) == sdk_lines(schema, arguments)


@given(MARKED, ARGUMENTS, ARGUMENTS)
def test_headers_are_held_against_arguments_as_the_sdk_does_it(schema, said, arguments):
    found = param_headers.find_marked(json.dumps(schema).encode())
    headers = sdk_lines(schema, said)
    wrong = param_headers.find_mismatch(
        found,
        json.dumps(arguments).encode(),
        {name.encode(): value.encode("latin-1") for name, value in headers.items()},
    )
    judged = inbound.validate_mcp_param_headers(schema, arguments, headers)
    assert (wrong is None) == (judged is None), (wrong, judged)


@pytest.mark.parametrize(
    ("said", "argument", "fits"),
    [
        ("42", "42", True),
        ("42.0", "42", True),
        ("42", "42.0", True),
        ("42.5", "42", False),
        ("4.2e1", "42", False),
        ("042", "42", True),
        ("9007199254740993", "9007199254740993", True),
        ("9007199254740993", "9007199254740992", False),
        ("true", "true", True),
        ("1", "true", False),
        ("=?base64?NDI=?=", "42", True),
        ("=?base64?NDI?=", "42", False),
    ],
)
def test_whole_numbers_are_compared_as_numbers(said, argument, fits):
    schema = good("N", "integer", "n")
    arguments = f'{{"n":{argument}}}'
    judged = inbound.validate_mcp_param_headers(
        schema, json.loads(arguments), {"mcp-param-n": said}
    )
    found = (ParamHeader(("n",), "N", "integer"),)
    wrong = param_headers.find_mismatch(found, arguments.encode(), {b"mcp-param-n": said.encode()})
    assert (wrong is None, judged is None) == (fits, fits)


def test_a_whole_number_keeps_its_spelling_however_long_it_is():
    found = (ParamHeader(("n",), "N", "integer"),)
    assert param_headers.header_lines(found, b'{"n": 123456789012345678901234567890}') == (
        b"mcp-param-n: 123456789012345678901234567890\r\n"
    )


@pytest.mark.parametrize(
    ("raw", "line"),
    [
        (b'"read"', b"mcp-name: read\r\n"),
        (b'"two words"', b"mcp-name: two words\r\n"),
        (b'" edge"', b"mcp-name: =?base64?IGVkZ2U=?=\r\n"),
        (b'"a\\r\\nx: y"', b"mcp-name: =?base64?YQ0KeDogeQ==?=\r\n"),
        (b'"\\u0061"', b"mcp-name: a\r\n"),
        ('"ü"'.encode(), b"mcp-name: =?base64?w7w=?=\r\n"),
        (b'"=?base64?YQ==?="', b"mcp-name: =?base64?PT9iYXNlNjQ/WVE9PT89?=\r\n"),
        (b'""', b"mcp-name: \r\n"),
    ],
)
def test_a_name_becomes_one_line_whatever_it_holds(raw, line):
    assert param_headers.name_line(raw) == line


def test_a_schema_without_marks_is_not_even_read():
    assert param_headers.find_marked(b'{"type": nonsense') == ()
    assert param_headers.read_marks(b'{"x-mcp-header": nonsense')[1] is not None
