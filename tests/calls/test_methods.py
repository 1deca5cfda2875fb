"""Routed methods: what in their params names the server, and how it is named to the server."""

import pytest
from msgspec import Raw

from mcp_junction.calls.methods import COMPLETE, HANDSHAKE_CALLS, Address, address, with_name
from mcp_junction.catalog.items import PROMPTS, RESOURCES, TOOLS
from mcp_junction.errors import FrameError
from mcp_junction.protocol import encode, frames
from mcp_junction.protocol.versions import INVALID_PARAMS

CASES = [
    ("tools/call", b'{"name":"a"}', Address(TOOLS, "a")),
    ("prompts/get", b'{"name":"a"}', Address(PROMPTS, "a")),
    ("resources/read", b'{"uri":"a"}', Address(RESOURCES, "a")),
    ("resources/subscribe", b'{"uri":"a"}', Address(RESOURCES, "a")),
    ("resources/unsubscribe", b'{"uri":"a"}', Address(RESOURCES, "a")),
    (COMPLETE, b'{"ref":{"type":"ref/prompt","name":"a"}}', Address(PROMPTS, "a")),
    (
        COMPLETE,
        b'{"ref":{"type":"ref/resource","uri":"a"}}',
        Address(RESOURCES, "a", is_template=True),
    ),
]


def test_every_routed_method_has_a_case_here():
    assert {method for method, _, _ in CASES} == set(HANDSHAKE_CALLS)


@pytest.mark.parametrize(("method", "params", "expected"), CASES)
def test_what_a_request_is_for(method, params, expected):
    assert address(method, frames.members(params)) == expected


@pytest.mark.parametrize(("method", "params", "_"), CASES)
def test_a_server_is_asked_by_its_own_name_and_the_rest_stays(method, params, _):
    params = params[:-1] + b',"x":[ 1.0 ]}'
    given = frames.members(params)
    own = with_name(method, given, Raw(b'"own"'))
    assert encode.dumps(given) == params, "it may be tried again"
    assert encode.dumps(own) == params.replace(b'"a"', b'"own"')


@pytest.mark.parametrize("method", sorted(HANDSHAKE_CALLS - {COMPLETE}))
@pytest.mark.parametrize("params", [b"{}", b'{"name":5,"uri":5}', b'{"name":null,"uri":null}'])
def test_a_request_that_names_nothing_is_refused(method, params):
    with pytest.raises(FrameError) as caught:
        address(method, frames.members(params))
    assert caught.value.code == INVALID_PARAMS


@pytest.mark.parametrize(
    "ref",
    [
        b"{}",
        b"5",
        b"null",
        b'{"type":"ref/tool","name":"a"}',
        b'{"type":"ref/prompt","uri":"a"}',
        b'{"type":"ref/resource","name":"a"}',
        b'{"type":5,"name":"a"}',
    ],
)
def test_a_completion_of_nothing_is_refused(ref):
    with pytest.raises(FrameError):
        address(COMPLETE, frames.members(b'{"ref":%b}' % ref))


def test_a_completion_without_a_reference_is_refused():
    with pytest.raises(FrameError):
        address(COMPLETE, {})
