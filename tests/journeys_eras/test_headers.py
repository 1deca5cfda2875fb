"""The rules for headers and envelopes of 2026-07-28, on the wire.

Every rule is held against the SDK's own server too: what it does is what the gateway must do.
"""

import base64
import json
from typing import Any

import pytest
from tests.journeys_eras.offers import DOCUMENT, GREETING, TOOLS
from tests.journeys_eras.stacks import KEY, Stacks
from tests.journeys_eras.wire import (
    BOTH,
    CAPABILITIES_KEY,
    VERSION,
    VERSION_KEY,
    Wire,
    envelope,
    request,
)

MISMATCH, NO_CAPABILITY, NO_VERSION = -32020, -32021, -32022
INVALID_PARAMS, INVALID_REQUEST, NO_METHOD, NO_JSON = -32602, -32600, -32601, -32700

pytestmark = [pytest.mark.req("J-ERA-HEADERS"), pytest.mark.timeout(60)]


class Place:
    """Where a rule is tried, and how the server's things are called there."""

    def __init__(self, url: str, prefix: str = "", mirrors: bool = True) -> None:
        self.wire = Wire(url)
        self.prefix = prefix
        self.mirrors = mirrors  # whether the server behind is told arguments in headers
        self.echo = {"name": self.named("echo"), "arguments": {"text": "hi"}}

    def named(self, own: str) -> str:
        return f"{self.prefix}{own}"


@pytest.fixture(params=["reference", "before a new server", "before an old server"])
def place(request: pytest.FixtureRequest, stacks: Stacks) -> Place:
    if request.param == "reference":
        return Place(stacks.server("new"))
    if request.param == "before a new server":
        return Place(stacks.http("new", "http").url, f"{KEY}.")
    return Place(stacks.http("old", "http").url, f"{KEY}.", mirrors=False)


def sentinel(value: str) -> str:
    return f"=?base64?{base64.b64encode(value.encode()).decode()}?="


# What is right


def test_a_request_that_keeps_the_rules_is_answered_without_a_session(place):
    answer = place.wire.ask("tools/call", place.echo)
    assert (answer.status, answer.text) == (200, "hi")
    assert answer.result["resultType"] == "complete"
    assert "mcp-session-id" not in answer.headers


def test_results_say_what_they_are_and_lists_how_long_they_keep(place):
    for method in ("server/discover", "tools/list", "prompts/list", "resources/list"):
        result = place.wire.ask(method).result
        assert result["resultType"] == "complete"
        assert isinstance(result["ttlMs"], int)
        assert result["cacheScope"] in ("public", "private")
    discovered = place.wire.ask("server/discover").result
    assert VERSION in discovered["supportedVersions"]
    assert {"tools", "prompts", "resources", "completions"} <= discovered["capabilities"].keys()


def test_white_space_around_a_value_and_the_case_of_a_name_do_not_matter(place):
    name = place.named("echo")
    changed = {"Mcp-Name": None, "mcp-NAME": f"  {name} "}
    assert place.wire.ask("tools/call", place.echo, headers=changed).status == 200


def test_a_name_may_come_in_base64(place):
    headers = {"Mcp-Name": sentinel(place.named("echo"))}
    assert place.wire.ask("tools/call", place.echo, headers=headers).text == "hi"


def test_client_info_is_optional(place):
    meta = {VERSION_KEY: VERSION, CAPABILITIES_KEY: {}}
    assert place.wire.ask("tools/call", place.echo, meta=meta).text == "hi"


# Headers that disagree with the body

WRONG = {
    "no method": {"Mcp-Method": None},
    "another method": {"Mcp-Method": "tools/list"},
    "a method in capitals": {"Mcp-Method": "Tools/Call"},
    "a method twice": {"Mcp-Method": ["tools/call", "tools/call"]},
    "two methods": {"Mcp-Method": ["tools/call", "tools/list"]},
    "an empty method": {"Mcp-Method": ""},
    "no name": {"Mcp-Name": None},
    "another name": {"Mcp-Name": "hold"},
    "an empty name": {"Mcp-Name": ""},
    "broken base64": {"Mcp-Name": "=?base64?###?="},
    "base64 of something else": {"Mcp-Name": sentinel("hold")},
    "base64 of no text": {"Mcp-Name": "=?base64?//8=?="},
    "another known version": {"MCP-Protocol-Version": [VERSION, "2025-11-25"]},
    "the version twice": {"MCP-Protocol-Version": [VERSION, VERSION]},
}


@pytest.mark.parametrize("headers", WRONG.values(), ids=WRONG)
def test_a_header_that_is_missing_wrong_or_double_is_a_mismatch(place, headers):
    answer = place.wire.ask("tools/call", place.echo, headers=headers)
    assert answer.refusal == (400, MISMATCH)


def test_a_name_twice_is_a_mismatch(place):
    name = place.named("echo")
    for twice in ([name, name], [name, place.named("hold")], [place.named("hold"), name]):
        answer = place.wire.ask("tools/call", place.echo, headers={"Mcp-Name": twice})
        assert answer.refusal == (400, MISMATCH)


def test_prompts_and_resources_have_their_name_in_a_header_too(place):
    prompt = {"name": place.named(GREETING), "arguments": {"name": "Ada"}}
    assert place.wire.ask("prompts/get", prompt).status == 200
    assert place.wire.ask("resources/read", {"uri": DOCUMENT}).status == 200
    for method, params in (("prompts/get", prompt), ("resources/read", {"uri": DOCUMENT})):
        for wrong in (None, "else", [DOCUMENT, DOCUMENT]):
            answer = place.wire.ask(method, params, headers={"Mcp-Name": wrong})
            assert answer.refusal == (400, MISMATCH), (method, wrong)


def test_the_version_header_and_the_envelope_must_agree(place):
    answer = place.wire.ask("tools/call", place.echo, meta=envelope(version="2099-01-01"))
    assert answer.refusal == (400, MISMATCH)


@pytest.mark.parametrize("version", [None, "2025-11-25"])
def test_an_envelope_without_its_version_header_is_not_served(place, version):
    headers = {"MCP-Protocol-Version": version}
    answer = place.wire.ask("tools/call", place.echo, headers=headers)
    assert answer.status == 400


# Headers of arguments

PARAM = "Mcp-Param-Region"


def region(place: Place, arguments: dict[str, Any], value: Any) -> Any:
    params = {"name": place.named("region"), "arguments": arguments}
    return place.wire.ask("tools/call", params, headers={PARAM: value})


@pytest.mark.parametrize(
    ("argument", "header"),
    [("eu", "eu"), ("eu", sentinel("eu")), ("é 🚦", sentinel("é 🚦")), (" eu ", sentinel(" eu "))],
)
def test_an_argument_in_its_header_reaches_the_server_in_both_places(place, argument, header):
    seen, _, mirrored = region(place, {"region": argument}, header).text.rpartition(" ")
    assert seen == argument
    plain = argument.isascii() and argument == argument.strip()
    assert mirrored in ((argument, header) if plain else (header,)) or not place.mirrors


@pytest.mark.parametrize(
    ("arguments", "header"),
    [
        ({"region": "eu"}, None),
        ({"region": "eu"}, "us"),
        ({"region": "eu"}, "EU"),
        ({"region": "eu"}, ""),
        ({"region": "eu"}, ["eu", "eu"]),
        ({"region": "eu"}, "=?base64?###?="),
        ({}, "eu"),
        ({"region": None}, "eu"),
    ],
)
def test_an_argument_that_its_header_denies_is_a_mismatch(place, arguments, header):
    assert region(place, arguments, header).refusal == (400, MISMATCH)


def test_without_the_argument_there_is_no_header(place):
    assert region(place, {}, None).text == "None None"


# Versions, envelopes, methods


def test_an_unknown_version_is_told_what_is_spoken(place):
    wrong = "2099-01-01"
    answer = place.wire.ask(
        "tools/call",
        place.echo,
        headers={"MCP-Protocol-Version": wrong},
        meta=envelope(version=wrong),
    )
    assert answer.refusal == (400, NO_VERSION)
    data = answer.last["error"]["data"]
    assert data["requested"] == wrong
    assert VERSION in data["supported"]


@pytest.mark.parametrize(
    "meta", [{}, {VERSION_KEY: VERSION}, {CAPABILITIES_KEY: {}}], ids=["all", "caps", "version"]
)
def test_an_envelope_that_lacks_something_is_invalid(place, meta):
    assert place.wire.ask("tools/call", place.echo, meta=meta).refusal == (400, INVALID_PARAMS)


def test_a_request_without_params_or_meta_is_invalid(place):
    _, headers = request("tools/list", {})
    for params in ({}, {"params": {}}, {"params": {"_meta": 7}}):
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", **params}
        answer = place.wire.exchange(json.dumps(body).encode(), headers)
        assert answer.refusal == (400, INVALID_PARAMS), params


@pytest.mark.parametrize(
    "method",
    ["no/such", "initialize", "ping", "logging/setLevel", "resources/subscribe", "tasks/list"],
)
def test_a_method_that_the_era_does_not_have_is_not_found(place, method):
    assert place.wire.ask(method, {}).refusal == (404, NO_METHOD)


@pytest.mark.parametrize("method", ["GET", "DELETE", "PUT"])
def test_there_is_nothing_but_post(place, method):
    headers = {"Accept": BOTH, "MCP-Protocol-Version": VERSION}
    with place.wire.send(b"", headers, method) as answer:
        assert answer.status == 405
        assert "POST" in answer.headers["allow"]


def test_a_notification_is_taken_and_nothing_more(place):
    _, headers = request("notifications/cancelled", {})
    body = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}}
    answer = place.wire.exchange(json.dumps(body).encode(), headers)
    assert (answer.status, answer.frames) == (202, [])


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"{", NO_JSON),
        (b"[]", INVALID_REQUEST),
        (b'[{"jsonrpc":"2.0","id":1,"method":"tools/list"}]', INVALID_REQUEST),
        (b'{"jsonrpc":"2.0","id":1,"result":{}}', INVALID_REQUEST),
        (b'{"jsonrpc":"2.0","id":{},"method":"tools/list"}', INVALID_REQUEST),
    ],
)
def test_a_body_that_is_no_request_is_refused(place, body, code):
    _, headers = request("tools/list", {})
    assert place.wire.exchange(body, headers).refusal == (400, code)


@pytest.mark.parametrize("accept", ["application/json", "text/html"])
def test_listening_needs_a_client_that_takes_a_stream(place, accept):
    body, headers = request("subscriptions/listen", {"notifications": {"toolsListChanged": True}})
    answer = place.wire.exchange(body, {**headers, "Accept": accept})
    assert answer.status == 406


def test_unknown_names_are_invalid_params(place):
    unknown = {"name": place.named("no-such-tool"), "arguments": {}}
    assert place.wire.ask("tools/call", unknown).refusal == (400, INVALID_PARAMS)
    assert place.wire.ask("resources/read", {"uri": "cell://nowhere"}).refusal[1] == INVALID_PARAMS


# Listening


def test_a_listener_is_told_first_what_it_will_hear_and_every_frame_is_its_own(place):
    wanted = {"notifications": {"resourceSubscriptions": [DOCUMENT]}}
    with place.wire.open("subscriptions/listen", wanted) as stream:
        frames = stream.frames()
        first = next(frames)
        assert first["method"] == "notifications/subscriptions/acknowledged"
        assert first["params"]["notifications"]["resourceSubscriptions"] == [DOCUMENT]
        subscription = first["params"]["_meta"]["io.modelcontextprotocol/subscriptionId"]
        touch = {"name": place.named("touch"), "arguments": {"uri": DOCUMENT}}
        assert place.wire.ask("tools/call", touch).text == "touched"
        second = next(frames)
        assert second["method"] == "notifications/resources/updated"
        assert second["params"]["uri"] == DOCUMENT
        meta = second["params"]["_meta"]
        assert meta["io.modelcontextprotocol/subscriptionId"] == subscription


def test_every_tool_of_the_server_is_listed(place):
    names, cursor = [], None
    while True:
        page = place.wire.ask("tools/list", {} if cursor is None else {"cursor": cursor}).result
        names += [tool["name"] for tool in page["tools"]]
        cursor = page.get("nextCursor")
        if cursor is None:
            break
    assert {place.named(own) for own in TOOLS} <= set(names)
