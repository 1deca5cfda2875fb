"""Frames inside frames over HTTP: whatever the transports, the other side sees exactly one."""

import asyncio
import json
import uuid
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.faults.test_smuggling import (
    ANSWER,
    CALL,
    CANCEL,
    NOTICES,
    REQUESTS,
    RESULTS,
    SEPARATORS,
    request,
    said,
)
from tests.faults_http.wire import Client, frame, until
from tests.plugin_faults_http import KINDS, Gateway, HttpRig

pytestmark = pytest.mark.preloaded

BREAKS = ["\n", "\r\n", "\r", "\n\n", "\n \r\n"]
# What the words of an event would be, if a line of ours ended early.
EVENT = "\n\nevent: message\ndata: "


@pytest.fixture(scope="module")
def smuggling(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """One gateway for the many payloads here: what one leaves behind would show in the next."""
    rig = HttpRig(tmp_path_factory.mktemp("smuggling"))
    for kind in KINDS:
        rig.add_any(kind, kind, "--lines")
    gateway = rig.serve()
    yield rig, gateway
    assert not rig.tear_down()


@pytest.fixture
async def client(smuggling: tuple[HttpRig, Gateway]) -> AsyncIterator[Client]:
    client = Client(smuggling[1].port)
    await client.open(capabilities={"roots": {}})
    await client.tools()
    yield client
    assert await client.delete() == 200


def received(rig: HttpRig, kind: str) -> list[str]:
    """The calls that a server was sent, each as it came."""
    lines = [entry["text"] for entry in rig.ledger(kind).entries("line")]
    return [text for text in lines if '"tools/call"' in text[:60]]


def one_line(text: str) -> bool:
    return not set(text.rstrip("\n")) & set("\r\n")


@pytest.mark.req("S-11")
@pytest.mark.parametrize("line_break", BREAKS)
@pytest.mark.parametrize("place", REQUESTS)
@pytest.mark.parametrize("kind", KINDS)
async def test_a_request_with_line_breaks_is_one_frame_at_the_server(
    smuggling: tuple[HttpRig, Gateway], client: Client, kind: str, place: str, line_break: str
) -> None:
    rig = smuggling[0]
    before = len(received(rig, kind))
    cancelled = rig.ledger(kind).entries("cancel")  # by other tests, whichever came first
    for nested in (CALL % (1, "record"), CALL % (1, f"{kind}:record"), CANCEL % 1):
        body = request(REQUESTS[place].replace("led:", f"{kind}:"), nested, line_break)
        answer = await client.post(body, "asked")
        assert answer["result"]["structuredContent"] == {"nonce": "asked"}
    calls = received(rig, kind)[before:]
    assert len(calls) == 3
    assert all(one_line(text) for text in calls)
    assert {json.loads(text)["params"]["name"] for text in calls} == {"echo"}
    assert "smuggled" not in rig.ledger(kind).runs()
    assert rig.ledger(kind).entries("cancel") == cancelled
    assert rig.ledger(kind).entries("garbage") == []


WAYS = {"stdio": ["body"], "http": ["body", "event"], "sse": ["event"]}


@pytest.mark.req("S-11")
@pytest.mark.parametrize("line_break", ["\n", "\r\n", "\r", "\n\n"])
@pytest.mark.parametrize("place", RESULTS)
@pytest.mark.parametrize(("kind", "way"), [(kind, way) for kind in KINDS for way in WAYS[kind]])
async def test_an_answer_with_line_breaks_is_one_frame_at_the_client_and_ends_one_call(
    smuggling: tuple[HttpRig, Gateway],
    client: Client,
    kind: str,
    way: str,
    place: str,
    line_break: str,
) -> None:
    if kind == "stdio" and "\n" in line_break:
        line_break = line_break.replace("\n", "\r")  # there, a line feed ends a frame
    if way == "event" and "\n\n" in line_break:
        line_break = "\n"  # there, an empty line ends an event
    rig, nonce = smuggling[0], uuid.uuid4().hex
    waiting = asyncio.ensure_future(
        client.call(f"{kind}:record", frame_id="waits", nonce=nonce, fault="hang")
    )
    await until(lambda: rig.ledger(kind).runs()[nonce] == 1, "the call to run")
    wire_id = rig.ledger(kind).entries("run")[-1]["id"]
    text = said(RESULTS[place], ANSWER % wire_id, line_break)
    answer = await client.call(f"{kind}:say", nonce="says", text=text, way=way)
    found = answer["error"]["data"] if place == "error" else answer["result"].get("deep", [])
    assert found in ([], [json.loads(ANSWER % wire_id)])
    assert one_line(client.raw[-1].decode())
    await client.nonce(f"{kind}:echo", "after")
    assert not waiting.done()
    await client.cancel("waits")
    assert await waiting is None


@pytest.mark.req("S-11")
@pytest.mark.parametrize("place", NOTICES)
@pytest.mark.parametrize("kind", KINDS)
async def test_what_a_server_says_meanwhile_is_one_event_at_the_client(
    client: Client, kind: str, place: str
) -> None:
    line_break = "\r" if kind == "stdio" else "\n"
    text = said(NOTICES[place], ANSWER % 7, line_break)
    method = json.loads(text.replace("@TOKEN@", "0"))["method"]
    params = {"name": f"{kind}:say", "_meta": {"progressToken": "mine"}}
    params |= {"arguments": {"nonce": "n", "text": text, "way": "event"}}
    response = await client.send("POST", frame("tools/call", params, "says"))
    assert response.is_stream
    events = response.frames()  # it holds each event to one line of data
    assert (await anext(events))["method"] == method
    assert b"\r" not in response.raw
    await client.cancel("says")
    assert [got async for got in events] == []
    client.done(response)


@pytest.mark.req("S-11")
@pytest.mark.parametrize("line_break", BREAKS)
@pytest.mark.parametrize("kind", KINDS)
async def test_the_clients_answer_to_a_question_is_one_frame_at_the_server(
    smuggling: tuple[HttpRig, Gateway], client: Client, kind: str, line_break: str
) -> None:
    rig, name = smuggling[0], uuid.uuid4().hex
    question = f'{{"jsonrpc":"2.0","id":"{name}","method":"roots/list"}}\n'
    params = {"name": f"{kind}:say", "arguments": {"nonce": "n", "text": question, "way": "event"}}
    response = await client.send("POST", frame("tools/call", params, "asks"))
    events = response.frames()
    asked = await anext(events)
    assert asked["method"] == "roots/list"
    nested = CALL % (1, "record")
    reply = '{"jsonrpc":"2.0","id":@,"result":{"roots":[#!#]}}'.replace("#", line_break)
    reply = reply.replace("@", json.dumps(asked["id"])).replace("!", nested)
    assert (await client.request("POST", reply.encode())).status == 202

    def answered() -> list[str]:
        lines = [entry["text"] for entry in rig.ledger(kind).entries("line")]
        return [text for text in lines if name in text[:80]]

    await until(lambda: bool(answered()), "the answer")
    (text,) = answered()
    assert one_line(text)
    assert json.loads(text)["result"] == {"roots": [json.loads(nested)]}
    assert "smuggled" not in rig.ledger(kind).runs()
    await client.cancel("asks")
    assert [got async for got in events] == []
    client.done(response)


@pytest.mark.req("S-11")
@pytest.mark.parametrize("kind", KINDS)
async def test_characters_that_some_readers_take_for_line_ends_pass_inside_strings_over_http(
    smuggling: tuple[HttpRig, Gateway], client: Client, kind: str
) -> None:
    nested = CALL % (1, "record")
    for nonce in (
        f"a{SEPARATORS}{nested}{SEPARATORS}b",
        f"a\r\n\r\n{nested}\n\nb",
        f"a{EVENT}{nested}\n\nb",
        "a\r\n0\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}",
    ):
        await client.nonce(f"{kind}:echo", nonce)
        await client.nonce(f"{kind}:echo", nonce, fault="stream")
        told = client.others[:]
        meta = {"progressToken": nonce}
        answer = await client.call(
            f"{kind}:echo", meta=meta, nonce=nonce, fault="progress", amount=2
        )
        assert answer["result"]["structuredContent"] == {"nonce": nonce}
        new = client.others[len(told) :]
        assert [n["params"]["progressToken"] for n in new] == [nonce, nonce]
        assert [n["params"]["message"] for n in new] == [nonce, nonce]
    assert "smuggled" not in smuggling[0].ledger(kind).runs()


@pytest.mark.req("S-11")
@pytest.mark.parametrize(
    "raw",
    [
        'data: {"jsonrpc":"2.0",\rdata: "id":@ID@,\rdata: "result":{"content":[]}}\r\r',
        'data: {"jsonrpc":"2.0",\r\ndata: "id":@ID@,"result":{"content":[]}}\r\n\r\n',
        'id: 1\nevent: message\ndata:{"jsonrpc":"2.0","id":@ID@,\ndata\ndata:"result":{}}\n\n',
        ': {"jsonrpc":"2.0","id":1,"result":1}\n'
        'data: {"jsonrpc":"2.0","id":@ID@,"result":{}}\nsmuggled: {}\n\n',
    ],
    ids=["cr", "crlf", "empty-line-of-data", "comment"],
)
@pytest.mark.parametrize("kind", ["http", "sse"])
async def test_an_event_in_several_lines_is_one_frame_at_the_client(
    client: Client, kind: str, raw: str
) -> None:
    answer = await client.call(f"{kind}:say", nonce="n", text=raw, way="raw")
    assert set(answer) == {"jsonrpc", "id", "result"}
    assert one_line(client.raw[-1].decode())


@pytest.mark.req("S-11")
async def test_one_body_with_two_frames_is_refused_and_runs_nothing(
    smuggling: tuple[HttpRig, Gateway], client: Client
) -> None:
    rig = smuggling[0]
    first, second = (CALL % (n, "stdio:record") for n in (1, 2))
    for between in ("\n", "\r\n", "", " ", ",", "\x00", "\u2028"):
        response = await client.request("POST", f"{first}{between}{second}".encode())
        assert response.status == 400
    assert "smuggled" not in rig.ledger("stdio").runs()
