"""The opening: what a server is told, and what is read from its answer."""

import json

import pytest

from mcp_junction.errors import FrameError
from mcp_junction.protocol.versions import LATEST_HANDSHAKE, Era
from mcp_junction.upstream.handshake import Greeting, Hello, read_discovery, read_greeting


@pytest.mark.req("J-HANDSHAKE")
def test_a_server_is_told_our_name_and_the_clients_version_and_capabilities():
    hello = Hello("2025-06-18", b'{"roots":{"listChanged":true},"x":{"n":1.0}}')
    assert json.loads(hello.params("hub", "9")) == {
        "protocolVersion": "2025-06-18",
        "capabilities": {"roots": {"listChanged": True}, "x": {"n": 1.0}},
        "clientInfo": {"name": "hub", "version": "9"},
    }
    assert b'"n":1.0' in hello.params("hub", "9")


def test_without_a_client_our_newest_version_and_no_capabilities_are_told():
    told = json.loads(Hello().params("hub", "9"))
    assert (told["protocolVersion"], told["capabilities"]) == (LATEST_HANDSHAKE, {})


def test_a_greeting_is_read():
    text = b"""{"protocolVersion": "2025-06-18", "capabilities": {"tools": {"listChanged": true}},
        "serverInfo": {"name": "files", "version": "1.2"}, "instructions": "hi", "_meta": {}}"""
    assert read_greeting(text) == Greeting(
        "2025-06-18",
        {"tools": {"listChanged": True}},
        "files",
        "1.2",
        "hi",
        info={"name": "files", "version": "1.2"},
    )


@pytest.mark.parametrize(
    "rest",
    [
        "",
        ',"serverInfo":null,"capabilities":null',
        ',"serverInfo":5,"capabilities":[]',
        ',"serverInfo":{"name":null},"instructions":5',
    ],
)
def test_all_but_the_version_may_be_missing_or_odd(rest):
    greeting = read_greeting(b'{"protocolVersion":"x"%b}' % rest.encode())
    assert (greeting.protocol_version, greeting.capabilities) == ("x", {})


@pytest.mark.parametrize("text", [b"{}", b'{"protocolVersion":5}', b"[]", b"null", b"5"])
def test_a_greeting_without_a_version_is_refused(text):
    with pytest.raises((ValueError, FrameError)):
        read_greeting(text)


def test_a_handshake_never_names_a_version_that_knows_none():
    told = json.loads(Hello("2026-07-28").params("hub", "9"))
    assert told["protocolVersion"] == LATEST_HANDSHAKE


def test_what_a_stateless_server_says_of_itself_is_read():
    text = b"""{"resultType": "complete", "supportedVersions": ["2025-11-25", "2026-07-28", "x"],
        "capabilities": {"tools": {}, "extensions": {"a.b/c": {"d": 1}}}, "instructions": "hi",
        "_meta": {"io.modelcontextprotocol/serverInfo": {"name": "files", "version": "2"}}}"""
    greeting = read_discovery(text)
    assert greeting.era is Era.STATELESS
    assert (greeting.protocol_version, greeting.name, greeting.version) == (
        "2026-07-28",
        "files",
        "2",
    )
    assert greeting.supported == ("2025-11-25", "2026-07-28", "x")
    assert greeting.extensions == {"a.b/c": {"d": 1}}
    assert greeting.instructions == "hi"


@pytest.mark.parametrize("text", [b"{}", b'{"supportedVersions":["2025-11-25"]}'])
def test_a_server_that_names_no_stateless_version_is_none(text):
    assert read_discovery(text) is None


@pytest.mark.parametrize("text", [b"[]", b'{"supportedVersions":5}', b"null"])
def test_a_discovery_that_makes_no_sense_is_refused(text):
    with pytest.raises((ValueError, FrameError)):
        read_discovery(text)


@pytest.mark.parametrize("odd", [b"5", b"[]", b"null"])
def test_extensions_that_are_no_object_are_none(odd):
    text = b'{"protocolVersion":"x","capabilities":{"extensions":%b}}' % odd
    assert read_greeting(text).extensions == {}
