"""What each method of a client leads to, at the Dispatcher: frames in, frames out."""

import asyncio

import pytest
from tests.listener.backends import Client, FakeBackend

from mcp_junction import __version__
from mcp_junction.protocol.versions import (
    HANDSHAKE_VERSIONS,
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    PARSE_ERROR,
)
from mcp_junction.testing.link import FakeUpstream, greets, silence
from mcp_junction.upstream import outcome as outcomes


def opened(*upstreams: FakeUpstream, name: str = "test", **settings: object) -> Client:
    client = Client(FakeBackend(*upstreams, **settings))
    client.open(name)
    return client


def quiet(key: str = "one") -> FakeUpstream:
    """A server that never answers a call by itself."""
    return FakeUpstream(key, script=greets(["echo"], silence))


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


# -- opening


@pytest.mark.parametrize("version", HANDSHAKE_VERSIONS)
async def test_a_client_is_answered_with_the_version_it_asked_for(version):
    client = Client(FakeBackend())
    client.request("initialize", {"protocolVersion": version})
    result = client.answer()["result"]
    assert result["protocolVersion"] == version
    assert result["serverInfo"] == {"name": "mcp-junction", "version": __version__}
    assert result["capabilities"] == {
        "tools": {"listChanged": True},
        "prompts": {"listChanged": True},
        "resources": {"subscribe": True, "listChanged": True},
        "completions": {},
        "logging": {},
    }


async def test_a_client_of_another_version_is_offered_our_newest():
    client = Client(FakeBackend())
    client.request("initialize", {"protocolVersion": "1999-01-01"})
    assert client.answer()["result"]["protocolVersion"] == HANDSHAKE_VERSIONS[-1]


@pytest.mark.req("J-CLI")
async def test_name_and_version_are_what_the_settings_say():
    client = Client(FakeBackend(name="hub", version="9"))
    assert client.open()["result"]["serverInfo"] == {"name": "hub", "version": "9"}


@pytest.mark.parametrize(
    "params",
    [{}, {"protocolVersion": 1}, [], {"protocolVersion": "2025-06-18", "clientInfo": 1}],
)
async def test_an_opening_that_makes_no_sense_is_refused(params):
    client = Client(FakeBackend())
    client.request("initialize", params)
    assert client.answer()["error"]["code"] == INVALID_PARAMS
    assert not client.session.is_open


@pytest.mark.req("R-QUOTA")
@pytest.mark.parametrize("member", ["clientInfo", "capabilities"])
async def test_an_opening_that_says_too_much_of_its_client_is_refused(member):
    params = {"protocolVersion": "2025-11-25", "clientInfo": {"name": "c", "version": "0"}}
    client = Client(FakeBackend())
    for size in (16_300, 16_400):
        said = {**params, member: {"name": "n", "x": "y" * size}}
        client.request("initialize", said, id=size)
    taken, refused = client.take()
    assert "result" in taken
    error = refused["error"]
    assert error["code"] == INVALID_PARAMS
    assert error["message"].startswith(f"initialize: {member} is ")
    assert error["message"].endswith("send at most 16384")


async def test_the_backend_is_told_who_has_come():
    client = Client(FakeBackend())
    client.open("inspector", sampling={}, roots={"listChanged": True})
    assert client.backend.sessions == [client.session]
    assert client.session.client == "inspector"
    assert bytes(client.session.capabilities["roots"]) == b'{"listChanged": true}'


@pytest.mark.parametrize(
    "method", ["tools/list", "tools/call", "resources/read", "logging/setLevel"]
)
async def test_nothing_but_a_ping_comes_before_the_opening(method):
    client = Client(FakeBackend(FakeUpstream("one")))
    client.request(method, {"name": "one:echo"})
    error = client.answer()["error"]
    assert (error["code"], error["message"]) == (INVALID_REQUEST, "send initialize first")
    client.request("ping")
    assert client.answer()["result"] == {}


@pytest.mark.parametrize("is_open", [True, False])
async def test_an_unknown_method_is_named(is_open):
    client = opened() if is_open else Client(FakeBackend())
    client.request("tools/destroy" + "x" * 1000)
    error = client.answer()["error"]
    assert error["code"] == METHOD_NOT_FOUND
    assert "tools/destroy" in error["message"]
    assert len(error["message"]) < 200


async def test_what_is_no_frame_is_answered():
    client = opened()
    client.say(b"nonsense")
    assert client.answer(None)["error"]["code"] == PARSE_ERROR
    client.say(b'{"jsonrpc":"2.0","id":5,"method":"ping","params":{"a":NaN}}')
    assert client.answer(5)["error"]["code"] == PARSE_ERROR


# -- lists


@pytest.mark.req("FR-005", "US2-1", "US2-2", "SC-006")
async def test_one_list_holds_every_tool_of_every_server():
    client = opened(FakeUpstream("one", ["search", "get"]), FakeUpstream("two", ["search"]))
    client.request("tools/list")
    names = [tool["name"] for tool in client.answer()["result"]["tools"]]
    assert names == ["one:search", "one:get", "two:search"]


@pytest.mark.req("J-NAMES-CLIENT")
async def test_a_strict_client_is_shown_strict_names():
    client = opened(FakeUpstream("my files", ["read"]), name="claude-ai")
    client.request("tools/list", {})
    assert [t["name"] for t in client.answer()["result"]["tools"]] == ["my_files__read"]


@pytest.mark.req("J-NAMES-SEPARATOR")
async def test_a_separator_that_was_set_holds_for_strict_clients_too():
    client = opened(FakeUpstream("one", ["read"]), name="claude-ai", separator=":")
    client.request("tools/list", {})
    assert [t["name"] for t in client.answer()["result"]["tools"]] == ["one:read"]


@pytest.mark.parametrize("cursor", ["garbage", "W10=", 7, ["W10="], False])
async def test_a_cursor_that_is_not_ours_is_refused(cursor):
    client = opened(FakeUpstream("one"))
    client.request("tools/list", {"cursor": cursor})
    assert client.answer()["error"]["code"] == INVALID_PARAMS


@pytest.mark.req("J-FIRST-LIST")
async def test_the_first_list_waits_until_the_servers_are_up():
    client = opened(settled=False)
    client.request("tools/list")
    client.request("ping", id=2)
    assert client.answer(2)["result"] == {}, "others are not held up"
    await turns()
    assert client.take() == []
    client.backend.settle(FakeUpstream("one"))
    await client.finished()
    assert [tool["name"] for tool in client.answer()["result"]["tools"]] == ["one:echo"]


# -- calls


@pytest.mark.req("FR-006", "US3-1")
async def test_a_call_goes_to_the_server_that_owns_the_tool():
    one, two = FakeUpstream("one"), FakeUpstream("two")
    client = opened(one, two)
    client.request("tools/call", {"name": "two:echo", "arguments": {"a": 1}})
    await client.finished()
    assert client.answer()["result"] == {"name": "echo", "arguments": {"a": 1}}
    assert one.wire.flights == []
    assert len(two.wire.flights) == 1


@pytest.mark.req("J-NOT-FOUND", "US3-4")
async def test_an_unknown_tool_is_answered_with_the_nearest_names():
    client = opened(FakeUpstream("files", ["read_file", "write_file"]))
    client.request("tools/call", {"name": "files:reed_file"})
    await client.finished()
    error = client.answer()["error"]
    assert error["code"] == INVALID_PARAMS
    assert "files:reed_file" in error["message"]
    assert error["data"]["nearest"][0] == "files:read_file"
    assert error["data"]["delivery"] == "not_sent"


@pytest.mark.parametrize(
    "params", ["{}", '{"name":5}', '{"name":null}', "[]", '{"name":"a","name":"one:echo"}']
)
async def test_a_call_that_names_no_tool_or_two_is_refused(params):
    one = FakeUpstream("one")
    client = opened(one)
    client.say(b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":%b}' % params.encode())
    await client.finished()
    assert client.answer()["error"]["code"] == INVALID_PARAMS
    assert one.wire.flights == []


async def test_an_id_that_is_still_in_use_is_refused():
    one = quiet()
    client = opened(one)
    client.request("tools/call", {"name": "one:echo"})
    await turns()
    client.request("tools/call", {"name": "one:echo"})
    assert "still running" in client.answer()["error"]["message"]
    assert len(one.wire.flights) == 1
    one.wire.lose()
    await client.finished()
    assert client.answer()["error"]["data"]["delivery"] == "unknown"


@pytest.mark.req("R-ANSWER")
async def test_answers_go_to_the_requests_they_belong_to():
    one = quiet()
    client = opened(one)
    for number in range(20):
        client.request("tools/call", {"name": "one:echo", "arguments": {"n": number}}, id=number)
    await turns()
    for flight in reversed(one.wire.flights):
        flight.end(outcomes.result(flight.params))
    await client.finished()
    frames = client.take()
    assert len(frames) == 20
    assert all(frame["result"]["arguments"]["n"] == frame["id"] for frame in frames)
    assert client.session.calls == {}


@pytest.mark.req("F-10")
async def test_a_cancelled_call_is_cancelled_upstream_and_not_answered():
    one = quiet()
    client = opened(one)
    client.request("tools/call", {"name": "one:echo"}, id="x")
    await turns()
    client.notify("notifications/cancelled", {"requestId": "x", "reason": "enough"})
    await client.finished()
    ((flight, why),) = one.wire.cancelled
    assert (flight.method, why) == ("tools/call", "enough")
    assert client.take() == []


@pytest.mark.req("F-10")
@pytest.mark.parametrize(
    ("asked", "cancelled"),
    [(b'"a\\/b"', b'"a/b"'), (b'"\\u0061/b"', b'"a/b"'), (b'"a/b"', b'"\\u0061\\/b"')],
    ids=ascii,
)
async def test_an_id_is_known_again_however_it_is_written(asked, cancelled):
    one = quiet()
    client = opened(one)
    client.say(
        b'{"jsonrpc":"2.0","id":%b,"method":"tools/call","params":{"name":"one:echo"}}' % asked
    )
    client.request("tools/call", {"name": "one:echo"}, id=1)
    await turns()
    cancel = b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":%b}}'
    client.say(cancel % b'"other"')
    assert one.wire.cancelled == []
    client.say(cancel % cancelled)
    await turns()
    assert len(one.wire.cancelled) == 1
    assert list(client.session.calls) == [b"1"]
    client.say(cancel % b"1")
    await client.finished()


@pytest.mark.req("F-10")
async def test_a_call_cancelled_before_the_servers_are_up_is_neither_made_nor_answered():
    client = opened(settled=False)
    client.request("tools/call", {"name": "one:echo"}, id=1)
    client.request("tools/call", {"name": "one:nothing"}, id=2)
    await turns()
    client.notify("notifications/cancelled", {"requestId": 1})
    client.notify("notifications/cancelled", {"requestId": 2})
    one = FakeUpstream("one")
    client.backend.settle(one)
    await client.finished()
    assert one.wire.flights == []
    assert client.take() == []


async def test_a_call_before_the_servers_are_up_is_looked_up_when_they_are():
    client = opened(settled=False)
    client.request("tools/call", {"name": "one:echo"})
    await turns()
    client.backend.settle(FakeUpstream("one"))
    await client.finished()
    assert client.answer()["result"]["name"] == "echo"


async def test_a_call_to_a_server_that_is_up_does_not_wait_for_the_others():
    client = opened(FakeUpstream("one"), settled=False)
    client.request("tools/call", {"name": "one:echo"})
    await client.finished()
    assert client.answer()["result"]["name"] == "echo"


# -- the rest


async def test_a_log_level_is_kept_and_passed_on():
    client = opened()
    client.request("logging/setLevel", {"level": "error"})
    await client.finished()
    assert client.answer()["result"] == {}
    assert client.session.log_level == 4
    assert client.backend.levels == [4], "it was asked to pass it on, once, after it was kept"


@pytest.mark.parametrize("params", [{}, {"level": "loud"}, {"level": 3}, []])
async def test_a_log_level_that_does_not_exist_is_refused(params):
    client = opened()
    client.request("logging/setLevel", params)
    assert client.answer()["error"]["code"] == INVALID_PARAMS


async def test_a_change_of_roots_is_passed_on_to_the_servers():
    client = opened()
    client.notify("notifications/roots/list_changed")
    assert client.backend.passed_on == [("notifications/roots/list_changed", b"")]


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("notifications/cancelled", []),
        ("notifications/cancelled", {}),
        ("notifications/cancelled", {"requestId": "nobody"}),
        ("notifications/initialized", {}),
        ("notifications/anything", {"x": 1}),
        ("tools/call", {"name": "one:echo"}),
    ],
)
async def test_a_notification_is_never_answered(method, params):
    one = FakeUpstream("one")
    client = opened(one)
    client.notify(method, params)
    await client.finished()
    assert client.take() == []
    assert one.wire.flights == []


async def test_an_answer_to_nothing_we_asked_is_dropped():
    client = opened()
    client.say(b'{"jsonrpc":"2.0","id":"junction-9","result":{}}')
    client.say(b'{"jsonrpc":"2.0","id":null,"error":{"code":1,"message":"x"}}')
    assert client.take() == []


# -- what Junctions tell each other


@pytest.mark.parametrize("meta", [None, {"x": 1}, {"junction/id": 5}, {"junction/id": "there"}])
async def test_a_junction_is_told_with_a_list_where_it_leads_and_nobody_else_is(meta):
    client = opened(FakeUpstream("one"))
    client.request("tools/list", {} if meta is None else {"_meta": meta})
    result = client.answer()["result"]
    assert [tool["name"] for tool in result["tools"]] == ["one:echo"]
    is_told = meta == {"junction/id": "there"}
    assert result.get("_meta") == ({"junction/reaches": ["behind", "here"]} if is_told else None)
