"""What client and servers say to each other besides calls and answers."""

import json

import pytest
from tests.plugin_journeys import scripted

pytestmark = pytest.mark.preloaded

EVERYTHING = {"roots": {"listChanged": True}, "sampling": {}, "elicitation": {}}


def received(lines, method):
    """The frames of a method among the lines a server got."""
    return [frame for frame in map(json.loads, lines) if frame.get("method") == method]


# -- progress


@pytest.mark.req("FR-008")
@pytest.mark.parametrize("token", ['"a token é"', "7", "12345678901234567890123", '"7"'])
async def test_progress_reaches_the_client_under_its_own_token(junction, token):
    client = await junction({"one": scripted()})
    steps = ['"progress":1,"total":2.0', '"progress":2e0,"message":"é \\u00e9","_meta":{"x":1.0}']
    params = json.dumps({"name": "one:progress", "arguments": {"steps": steps}})
    params = f'{params[:-1]},"_meta":{{"progressToken":{token}}}}}'
    answer = await client.answer(client.ask_raw("tools/call", params.encode()))
    seen_by_server = json.loads(answer["result"]["content"][0]["text"])["token"]
    assert seen_by_server != json.loads(token), "tokens of two clients could be the same"
    notified = [line.decode() for line in client.lines if b"notifications/progress" in line]
    assert notified == [
        '{"jsonrpc":"2.0","method":"notifications/progress",'
        f'"params":{{"progressToken":{token},{step}}}}}\n'
        for step in steps
    ]


async def test_progress_comes_before_the_answer_it_belongs_to(junction):
    client = await junction({"one": scripted()})
    asked = client.begin("one:progress", "t", steps=['"progress":1', '"progress":2'])
    await client.answer(asked)
    told = [message.get("method") or message["id"] for message in client.messages]
    assert told[-3:] == ["notifications/progress", "notifications/progress", asked]


async def test_calls_of_one_token_on_two_servers_have_each_their_own_progress(junction):
    client = await junction({"one": scripted(), "two": scripted()})
    asked = [
        client.begin(f"{key}:progress", "same", steps=['"progress":1']) for key in ("one", "two")
    ]
    tokens = {(await client.answer(frame_id))["result"]["content"][0]["text"] for frame_id in asked}
    assert len(tokens) == 2
    assert len(client.heard_so_far("notifications/progress")) == 2


async def test_progress_that_nobody_asked_for_is_not_passed_on(junction):
    client = await junction({"one": scripted()})
    await client.told("one:progress", steps=['"progress":1'])
    assert not client.heard_so_far("notifications/progress")


# -- cancelling


async def test_a_cancelled_call_is_cancelled_at_its_server_and_gets_no_answer(junction):
    client = await junction({"one": scripted(), "two": scripted()})
    kept = await client.under_way("one:hold")
    dropped = await client.under_way("one:hold")
    client.send("notifications/cancelled", {"requestId": dropped, "reason": "changed my mind"})
    lines = await client.read("one:seen")
    calls = [c["id"] for c in received(lines, "tools/call") if c["params"]["name"] == "hold"]
    (cancelled,) = received(lines, "notifications/cancelled")
    assert cancelled["params"] == {"requestId": calls[1], "reason": "changed my mind"}
    assert not received(await client.read("two:seen"), "notifications/cancelled")
    await client.told("one:release")  # answers the cancelled one too, too late
    await client.answer(kept)
    await client.result("ping")
    assert not client.first(lambda message: message.get("id") == dropped)


async def test_cancelling_what_is_over_or_never_was_does_nothing(junction):
    client = await junction({"one": scripted()})
    done = client.begin("one:count")
    await client.answer(done)
    for request_id in (done, "never was", None, [1]):
        client.send("notifications/cancelled", {"requestId": request_id})
    assert await client.told("one:count") == "2"
    assert not received(await client.read("one:seen"), "notifications/cancelled")


# -- logging


async def test_log_messages_of_servers_reach_the_client_as_they_are(junction):
    client = await junction({"one": scripted(capabilities={"logging": {}})})
    message = '{"level":"warning","logger":"db","data":{"n":1.0,"e":1e5},"_meta":{"x":[]}}'
    await client.told("one:log", messages=[message])
    assert (
        f'{{"jsonrpc":"2.0","method":"notifications/message","params":{message}}}\n'.encode()
        in client.lines
    )


async def test_a_log_level_is_told_to_servers_that_log_and_holds_for_all(junction):
    servers = {"logs": scripted(capabilities={"logging": {}}), "rude": scripted()}
    client = await junction(servers)
    await client.tools()
    assert await client.result("logging/setLevel", {"level": "error"}) == {}
    for key in servers:
        levels = ("debug", "warning", "error", "emergency")
        messages = [f'{{"level":"{level}","data":"{key}"}}' for level in levels]
        await client.told(f"{key}:log", messages=messages)
    (told,) = received(await client.read("logs:seen"), "logging/setLevel")
    assert told["params"] == {"level": "error"}
    assert not received(await client.read("rude:seen"), "logging/setLevel")
    heard = [m["params"] for m in client.heard_so_far("notifications/message")]
    assert [(m["data"], m["level"]) for m in heard] == [
        ("logs", "error"),
        ("logs", "emergency"),
        ("rude", "error"),
        ("rude", "emergency"),
    ]


async def test_a_log_level_set_before_a_server_is_up_is_told_to_it_when_it_is(junction, gate):
    client = await junction({"slow": scripted(capabilities={"logging": {}}, gate=str(gate))})
    await client.result("logging/setLevel", {"level": "notice"})
    gate.open()
    await client.tools()
    (told,) = received(await client.read("slow:seen"), "logging/setLevel")
    assert told["params"] == {"level": "notice"}


async def test_a_log_level_that_does_not_exist_is_refused(junction):
    client = await junction({})
    error = await client.error("logging/setLevel", {"level": "loud"})
    assert error["code"] == -32602
    assert "emergency" in error["message"]


# -- questions of servers


QUESTIONS = {
    "elicitation/create": '{"message":"Who?","requestedSchema":{"type":"object","x":1.0}}',
    "sampling/createMessage": '{"messages":[],"maxTokens":1e2,"_meta":{"new":null}}',
    "roots/list": "{}",
}


@pytest.mark.parametrize("method", QUESTIONS)
async def test_a_question_of_a_server_is_answered_by_the_client(junction, method):
    client = await junction({"one": scripted()}, capabilities=EVERYTHING)
    params = QUESTIONS[method]
    asked = client.begin("one:ask", method=method, params=params, question='my "own" id')
    question = await client.heard(method)
    assert f'"method":"{method}","params":{params}'.encode() in client.lines[-1]
    answer = '{"action":"accept","content":{"n":1.0,"big":12345678901234567890123},"_meta":{}}'
    question_id = json.dumps(question["id"])
    client.send_line(f'{{"jsonrpc":"2.0","id":{question_id},"result":{answer}}}'.encode())
    line = (await client.answer(asked))["result"]["content"][0]["text"]
    assert line == f'{{"jsonrpc":"2.0","id":"my \\"own\\" id","result":{answer}}}'


async def test_a_refusal_of_the_client_reaches_the_server_as_it_is(junction):
    client = await junction({"one": scripted()}, capabilities=EVERYTHING)
    asked = client.begin("one:ask", method="roots/list")
    question = json.dumps((await client.heard("roots/list"))["id"])
    error = '{"code":-1,"message":"no","data":[1.0]}'
    client.send_line(f'{{"jsonrpc":"2.0","id":{question},"error":{error}}}'.encode())
    line = (await client.answer(asked))["result"]["content"][0]["text"]
    assert line == f'{{"jsonrpc":"2.0","id":"q","error":{error}}}'


async def test_questions_of_two_servers_with_one_id_are_kept_apart(junction):
    client = await junction({"one": scripted(), "two": scripted()}, capabilities=EVERYTHING)
    calls = {
        key: client.begin(
            f"{key}:ask", method="elicitation/create", params=f'{{"message":"{key}"}}'
        )
        for key in ("one", "two")
    }
    await client.until(lambda: len(client.heard_so_far("elicitation/create")) == 2)
    for question in reversed(client.heard_so_far("elicitation/create")):
        client.respond(question, {"to": question["params"]["message"]})
    for key, call in calls.items():
        line = (await client.answer(call))["result"]["content"][0]["text"]
        assert json.loads(line) == {"jsonrpc": "2.0", "id": "q", "result": {"to": key}}


async def test_a_server_may_ask_when_no_call_is_running_and_when_several_are(junction):
    client = await junction({"one": scripted()}, capabilities=EVERYTHING)
    await client.told("one:ask_after", method="roots/list", question="idle")
    client.respond(await client.heard("roots/list"), {"roots": []})
    for _ in range(2):
        await client.under_way("one:hold")
    so_far = len(client.messages)
    await client.told("one:ask_after", method="roots/list", question="busy")
    client.respond(await client.heard("roots/list", so_far), {"roots": []})
    answers = [json.loads(line) for line in await client.read("one:seen")]
    answers = [frame for frame in answers if "result" in frame]
    assert [frame["id"] for frame in answers] == ["idle", "busy"]
    await client.told("one:release")


@pytest.mark.parametrize("method", [*QUESTIONS, "something/new"])
async def test_a_question_the_client_cannot_answer_is_refused_on_its_behalf(junction, method):
    client = await junction({"one": scripted()})
    answer = await client.read("one:ask", method=method)
    assert answer["id"] == "q"
    assert answer["error"]["code"] == -32601
    assert method in answer["error"]["message"]
    assert not client.heard_so_far(method)


async def test_a_question_that_a_server_withdraws_is_withdrawn_from_the_client(junction):
    client = await junction({"one": scripted()}, capabilities=EVERYTHING)
    await client.told("one:ask_after", method="roots/list")
    question = await client.heard("roots/list")
    await client.told("one:withdraw")
    withdrawn = await client.heard("notifications/cancelled")
    assert withdrawn["params"]["requestId"] == question["id"]
    client.respond(question, {"roots": []})  # too late
    answers = [
        frame for frame in map(json.loads, await client.read("one:seen")) if "result" in frame
    ]
    assert answers == []


async def test_a_question_of_a_server_that_dies_is_withdrawn_from_the_client(junction):
    client = await junction({"one": scripted()}, capabilities=EVERYTHING)
    await client.told("one:ask_after", method="roots/list")
    question = await client.heard("roots/list")
    await client.refused("one:die")
    withdrawn = await client.heard("notifications/cancelled")
    assert withdrawn["params"]["requestId"] == question["id"]


async def test_a_change_of_the_clients_roots_is_told_to_the_servers(junction):
    client = await junction({"one": scripted(), "two": scripted()}, capabilities=EVERYTHING)
    await client.tools()
    client.send("notifications/roots/list_changed")
    for key in ("one", "two"):
        lines = await client.read(f"{key}:seen")
        assert len(received(lines, "notifications/roots/list_changed")) == 1
