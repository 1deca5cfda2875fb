"""A call goes to its server and comes back, and nothing about it is changed on the way."""

import json

import pytest
from tests.plugin_journeys import scripted

pytestmark = pytest.mark.preloaded

ODD = (
    '{"whole":1.0,"large":1e5,"small":-0.0,"exact":12345678901234567890123,"deep":[[[{"a":[]}]]],'
    '"text":"\\u00e9 é \\ud83d\\ude80 \\"quoted\\" \\/","empty":{},"none":null,'
    ' "spaced" : [ 1 , 2 ],"twice":1,"twice":2,"ключ":"значение"}'
)


@pytest.mark.req("US3-1", "FR-006")
async def test_a_call_comes_back_with_the_answer_of_its_server_and_no_other_hears_of_it(junction):
    client = await junction({"one": scripted(), "two": scripted()})
    call = await client.read("one:echo", query="find me")
    assert call["method"] == "tools/call"
    assert call["params"] == {"name": "echo", "arguments": {"query": "find me"}}
    assert not any("find me" in line for line in await client.read("two:seen"))


@pytest.mark.req("FR-007")
async def test_arguments_reach_the_server_as_the_client_wrote_them(junction):
    client = await junction({"one": scripted("echo")})
    params = f'{{"name":"one:echo","arguments":{ODD}}}'
    answer = await client.answer(client.ask_raw("tools/call", params.encode()))
    received = answer["result"]["content"][0]["text"]
    assert received.endswith(f'"params":{{"name":"echo","arguments":{ODD}}}}}')


@pytest.mark.req("FR-007")
async def test_meta_and_unknown_members_reach_the_server_as_the_client_wrote_them(junction):
    client = await junction({"one": scripted("echo")})
    meta = '{"progressToken":"t","vendor/trace":{"id":1.0,"big":12345678901234567890123},"n":1e5}'
    params = f'{{"task":{{"ttl":6e4}},"name":"one:echo","future":{ODD},"_meta":{meta}}}'
    answer = await client.answer(client.ask_raw("tools/call", params.encode()))
    received = answer["result"]["content"][0]["text"]
    assert '"task":{"ttl":6e4}' in received
    assert f'"future":{ODD}' in received
    assert '"vendor/trace":{"id":1.0,"big":12345678901234567890123},"n":1e5' in received
    assert '"arguments"' not in received


@pytest.mark.req("FR-008")
async def test_a_result_reaches_the_client_as_the_server_wrote_it(junction):
    client = await junction({"one": scripted("raw")})
    result = (
        '{"content":[{"type":"text","text":"\\u00e9","annotations":{"audience":["user"],'
        '"priority":0.50},"_meta":{"x":1.0}},{"type":"image","data":"AAAA","mimeType":"image/png"},'
        '{"type":"resource_link","uri":"file:///a","name":"a","icons":[{"src":"i.svg"}]},'
        '{"type":"hologram","of":[1,2]}],'
        f'"structuredContent":{ODD},"isError":false,"_meta":{{"vendor/cost":1e-3}},"newer":{ODD}}}'
    )
    asked = client.begin("one:raw", result=result)
    line = await client.answer_line(asked)
    assert line.decode() == f'{{"jsonrpc":"2.0","id":{asked},"result":{result}}}\n'


@pytest.mark.req("FR-008", "US3-2")
async def test_an_error_of_the_server_reaches_the_client_as_the_server_wrote_it(junction):
    client = await junction({"one": scripted("refuse")})
    error = f'{{"code":-32602,"message":"\\u00e9: expected a number","data":{ODD},"hint":1.0}}'
    asked = client.begin("one:refuse", error=error)
    line = await client.answer_line(asked)
    assert line.decode() == f'{{"jsonrpc":"2.0","id":{asked},"error":{error}}}\n'


@pytest.mark.req("US3-2", "FR-008")
async def test_a_tool_that_says_it_failed_is_passed_on_as_a_result(junction):
    client = await junction({"one": scripted("raw")})
    result = '{"content":[{"type":"text","text":"no such file"}],"isError":true}'
    answer = await client.answer(client.begin("one:raw", result=result))
    assert answer["result"] == json.loads(result)


@pytest.mark.req("FR-008")
async def test_ids_of_every_kind_come_back_as_they_were_given(junction):
    client = await junction({"one": scripted("echo")})
    ids = ['"a string"', '""', '"é \\"x\\""', "0", "-7", "12345678901234567890123", '"1"', "1.5"]
    for frame_id in ids:
        client.send_line(
            f'{{"jsonrpc":"2.0","id":{frame_id},"method":"tools/call",'
            f'"params":{{"name":"one:echo"}}}}'.encode()
        )
    for frame_id in ids:
        start = f'{{"jsonrpc":"2.0","id":{frame_id},"result":'.encode()
        await client.until(lambda start=start: [ln for ln in client.lines if ln.startswith(start)])


@pytest.mark.req("FR-006")
async def test_answers_may_come_in_another_order_than_the_calls(junction):
    client = await junction({"one": scripted(), "two": scripted()})
    held = [await client.under_way("one:hold") for _ in range(3)]
    assert await client.told("two:count") == "1"
    await client.told("one:release")
    answers = [await client.answer(frame_id) for frame_id in held]
    assert len({answer["result"]["content"][0]["text"] for answer in answers}) == 3
    order = [message.get("id") for message in client.messages if message.get("id") in held]
    assert order == held[::-1]


@pytest.mark.req("FR-006")
async def test_a_hundred_calls_at_once_get_each_their_own_answer(junction):
    client = await junction({"one": scripted("echo"), "two": scripted("echo")})
    ids = {client.begin(f"{('one', 'two')[n % 2]}:echo", n=n): n for n in range(100)}
    for frame_id, n in ids.items():
        text = (await client.answer(frame_id))["result"]["content"][0]["text"]
        assert json.loads(text)["params"]["arguments"] == {"n": n}


@pytest.mark.req("US3-4", "J-NOT-FOUND")
async def test_an_unknown_tool_is_answered_with_its_name_and_the_nearest_ones(junction):
    client = await junction({"files": scripted("read_file", "write_file"), "b": scripted("echo")})
    error = await client.refused("files:raed_file")
    assert error["code"] == -32602
    assert "files:raed_file" in error["message"]
    assert "files:read_file" in error["message"]
    assert error["data"]["delivery"] == "not_sent"
    assert error["data"]["nearest"][0] == "files:read_file"


@pytest.mark.req("US3-4", "J-NOT-FOUND")
@pytest.mark.parametrize("name", ["nobody:echo", "one:", ":echo", "", "one", "é" * 5000])
async def test_a_name_that_leads_nowhere_is_answered_as_not_found(junction, name):
    client = await junction({"one": scripted("echo")})
    error = await client.refused(name)
    assert error["code"] == -32602
    assert f"unknown tool: {name[:200]}" in error["message"]
    assert len(error["message"]) < 500


@pytest.mark.req("US3-4")
async def test_a_name_without_its_server_is_not_guessed_but_hinted_at(junction):
    client = await junction({"one": scripted("echo"), "two": scripted("echo")})
    error = await client.refused("echo")
    assert error["code"] == -32602
    assert set(error["data"]["nearest"]) == {"one:echo", "two:echo"}


@pytest.mark.parametrize(
    "params", ["{}", '{"name":5}', '{"name":null}', '{"name":"one:echo","name":"two:echo"}']
)
async def test_a_call_without_one_name_is_refused(junction, params):
    client = await junction({"one": scripted("echo"), "two": scripted("echo")})
    answer = await client.answer(client.ask_raw("tools/call", params.encode()))
    assert answer["error"]["code"] == -32602


@pytest.mark.req("US3-3")
async def test_a_call_is_waited_for_beyond_every_limit_that_is_not_its_own(junction):
    servers = {
        "patient": scripted(),
        "limited": {**scripted(), "timeout": 500},  # time enough to start in, too
    }
    client = await junction(servers)
    waiting = await client.under_way("patient:hold")
    assert (await client.refused("limited:hold"))["code"] == -32001
    assert (await client.refused("limited:hold"))["code"] == -32001
    await client.told("patient:release")
    assert "released" in (await client.answer(waiting))["result"]["content"][0]["text"]


async def test_a_server_with_a_timeout_is_not_waited_for_longer_and_told_so(junction):
    client = await junction({"slow": {**scripted(), "timeout": 500}})
    error = await client.refused("slow:hold")
    assert error["code"] == -32001
    assert error["data"] == {"delivery": "unknown", "server": "slow"}
    assert "'slow'" in error["message"]
    assert "0.5 s" in error["message"]
    calls = [json.loads(line) for line in await client.read("slow:seen")]
    (held,) = [c["id"] for c in calls if c.get("params", {}).get("name") == "hold"]
    (cancelled,) = [c["params"] for c in calls if c["method"] == "notifications/cancelled"]
    assert cancelled["requestId"] == held


@pytest.mark.req("EDGE-LARGE")
@pytest.mark.parametrize("size", [1 << 20, 10 << 20])
async def test_a_large_result_arrives_whole_and_unchanged(junction, size):
    client = await junction({"one": scripted()})
    assert await client.told("one:big", size=size) == "é0" * (size // 3)
    assert await client.told("one:count") == "1"


@pytest.mark.req("EDGE-LARGE", "FR-007")
@pytest.mark.parametrize("size", [1 << 20, 10 << 20])
async def test_large_arguments_arrive_whole_and_unchanged(junction, size):
    client = await junction({"one": scripted()})
    result = '{"content":[],"text":"%s"}' % ("x" * size)
    asked = client.begin("one:raw", result=result)
    line = await client.answer_line(asked)
    assert line == b'{"jsonrpc":"2.0","id":%d,"result":%b}\n' % (asked, result.encode())
