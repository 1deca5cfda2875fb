"""Frames inside frames: a payload with line breaks reaches the other side as one line, and no more.

A carriage return may stand between the tokens of a frame on stdio; a line feed may not, there, but
may in a frame that comes on another wire: those are given to the dispatcher and the link directly.
"""

import json
import sys
import uuid
from collections import Counter
from typing import Any

import pytest
from tests.faults.inside import inside, until
from tests.plugin_faults import Rig

from mcp_junction.testing import processes
from mcp_junction.testing.client import LineClient, key

CALL = (
    '{"jsonrpc":"2.0","id":%d,"method":"tools/call",'
    '"params":{"name":"%s","arguments":{"nonce":"smuggled"}}}'
)

pytestmark = pytest.mark.preloaded
ANSWER = '{"jsonrpc":"2.0","id":%d,"result":{"content":[],"smuggled":true}}'
CANCEL = '{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":%d}}'
# Inside a string these are plain characters, some of which some readers take for line ends.
SEPARATORS = "\u2028\u2029\u0085\u000b\u000c\u001c\u001d\u001e"

REQUESTS = {
    "arguments": '{"name":"led:echo","arguments":{"nonce":"asked","deep":[@]}}',
    "arguments-first": '{"arguments":{"deep":[@],"nonce":"asked"},"name":"led:echo"}',
    "meta": '{"name":"led:echo","arguments":{"nonce":"asked"},"_meta":{"x":[@]}}',
    "meta-with-token": (
        '{"name":"led:echo","arguments":{"nonce":"asked"},"_meta":{"progressToken":"t","x":[@]}}'
    ),
    "progress-token": (
        '{"name":"led:echo","arguments":{"nonce":"asked"},"_meta":{"progressToken":[@]}}'
    ),
    "unknown-member": '{"x":[@],"name":"led:echo","arguments":{"nonce":"asked"}}',
    "between-members": '{"name":"led:echo",@@"arguments":{"nonce":"asked"}}',
}


def filled(template: str, nested: str, line_break: str) -> str:
    """The template with a nested frame on a line of its own, or only with line breaks."""
    text = template.replace("@@", line_break)
    return text.replace("@", f"{line_break}{nested}{line_break}")


def request(template: str, nested: str, line_break: str) -> bytes:
    params = filled(template, nested, line_break)
    return f'{{"jsonrpc":"2.0","id":"asked","method":"tools/call","params":{params}}}'.encode()


def calls_received(rig: Rig, key: str = "led") -> list[str]:
    """The lines with calls that a server was sent."""
    lines = [entry["text"] for entry in rig.ledger(key).entries("line")]
    assert not any(set(line) & set("\r\n") for line in lines)
    assert rig.ledger(key).entries("garbage") == []
    return [line for line in lines if '"tools/call"' in line[:60]]


@pytest.mark.req("S-11")
@pytest.mark.parametrize("nested", [CALL % (1, "record"), CALL % (1, "led:record"), CANCEL % 1])
@pytest.mark.parametrize("line_break", ["\r", "\r\r", " \r\t"])
@pytest.mark.parametrize("place", REQUESTS)
def test_a_request_with_carriage_returns_is_one_line_at_the_server(
    smuggling_rig: tuple[Rig, LineClient], place: str, line_break: str, nested: str
) -> None:
    rig, client = smuggling_rig
    before = len(calls_received(rig))
    client.answers.clear()
    client.send(request(REQUESTS[place], nested, line_break) + b"\n")
    assert client.answer("asked")["result"]["structuredContent"] == {"nonce": "asked"}
    calls = calls_received(rig)
    assert len(calls) == before + 1
    assert json.loads(calls[-1])["params"]["name"] == "echo"
    assert "smuggled" not in rig.ledger().runs()
    assert rig.ledger().entries("cancel") == []
    assert client.broken == []


RESULTS = {
    "result": '{"jsonrpc":"2.0","id":@ID@,"result":{"content":[],"deep":[@]}}',
    "result-first": '{"result":{"content":[],"deep":[@]},"jsonrpc":"2.0","id":@ID@}',
    "error": '{"jsonrpc":"2.0","id":@ID@,"error":{"code":1,"message":"m","data":[@]}}',
    "envelope": '{"jsonrpc":"2.0",@@"id":@ID@,@@"result":{"content":[]}@@}',
    "unknown-member": '{"jsonrpc":"2.0","x":[@],"id":@ID@,"result":{"content":[]}}',
}
NOTICES = {
    "progress": (
        '{"jsonrpc":"2.0","method":"notifications/progress",'
        '"params":{"progressToken":@TOKEN@,"progress":1,"x":[@]}}'
    ),
    "log": (
        '{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"error","data":[@]}}'
    ),
    "question": ('{"jsonrpc":"2.0","id":"q","method":"roots/list","params":{"_meta":{"x":[@]}}}'),
}


def said(template: str, nested: str, line_break: str) -> str:
    """Bytes for a server to write: its placeholders kept from being taken for ours."""
    text = template.replace("@ID@", "\0").replace("@TOKEN@", "\1")
    text = filled(text, nested, line_break)
    return text.replace("\0", "@ID@").replace("\1", "@TOKEN@") + "\n"


@pytest.mark.req("S-11")
@pytest.mark.parametrize("line_break", ["\r", "\r\r"])
@pytest.mark.parametrize("place", RESULTS)
def test_an_answer_with_carriage_returns_is_one_line_at_the_client_and_ends_one_call(
    smuggling_rig: tuple[Rig, LineClient], place: str, line_break: str
) -> None:
    rig, client = smuggling_rig
    client.answers.clear()
    nonce = uuid.uuid4().hex
    waiting = client.call("led:record", frame_id="waits", nonce=nonce, fault="hang")
    processes.until(lambda: rig.ledger().runs()[nonce] == 1, 30, "the call to run")
    wire_id = rig.ledger().entries("run")[-1]["id"]
    text = said(RESULTS[place], ANSWER % wire_id, line_break)
    answer = client.answer(client.call("led:say", nonce="says", text=text))
    if place == "error":
        assert answer["error"]["data"] == [json.loads(ANSWER % wire_id)]
    else:
        assert answer["result"].get("deep", []) in ([], [json.loads(ANSWER % wire_id)])
    client.result("led:echo", nonce="after")
    assert client.answers[key(waiting)] == []
    client.cancel(waiting)
    client.result("led:echo", nonce="after")
    assert client.broken == []
    assert client.garbage == []
    assert all(len(answers) <= 1 for answers in client.answers.values())


@pytest.mark.req("S-11")
@pytest.mark.parametrize("place", NOTICES)
def test_what_a_server_says_meanwhile_is_one_line_at_the_client(
    smuggling_rig: tuple[Rig, LineClient], place: str
) -> None:
    _, client = smuggling_rig
    client.answers.clear()
    client.others.clear()
    text = said(NOTICES[place], ANSWER % 7, "\r")
    client.call("led:say", frame_id="says", nonce="n", text=text, meta={"progressToken": "mine"})
    method = json.loads(text.replace("@TOKEN@", "0"))["method"]
    client.wait(lambda: any(o.get("method") == method for o in client.others), 30, "the message")
    assert [o["method"] for o in client.others] == [method]
    if place == "question":
        client.send(
            b'{"jsonrpc":"2.0","id":%b,"result":{"roots":[\r%b\r]}}\n'
            % (json.dumps(client.others[0]["id"]).encode(), (ANSWER % 7).encode())
        )
    client.cancel("says")
    client.result("led:echo", nonce="after")
    assert client.answers[key(7)] == []
    assert client.broken == []
    assert client.garbage == []


@pytest.mark.req("S-11")
def test_the_clients_answer_to_a_question_is_one_line_at_the_server(
    smuggling_rig: tuple[Rig, LineClient],
) -> None:
    rig, client = smuggling_rig
    client.others.clear()
    question = '{"jsonrpc":"2.0","id":"q7","method":"roots/list"}\n'
    client.call("led:say", frame_id="asks", nonce="n", text=question)
    client.wait(lambda: bool(client.others), 30, "the question")
    nested = CALL % (1, "record")
    client.send(
        b'{"jsonrpc":"2.0","id":%b,"result":{"roots":[\r%b\r]}}\n'
        % (json.dumps(client.others[0]["id"]).encode(), nested.encode())
    )

    def answered() -> list[str]:
        return [e["text"] for e in rig.ledger().entries("line") if '"q7"' in e["text"][:40]]

    processes.until(lambda: bool(answered()), 30, "the answer")
    (line,) = answered()
    assert json.loads(line)["result"] == {"roots": [json.loads(nested)]}
    assert "smuggled" not in rig.ledger().runs()
    client.cancel("asks")


@pytest.mark.req("S-11")
def test_characters_that_some_readers_take_for_line_ends_pass_inside_strings(
    smuggling_rig: tuple[Rig, LineClient],
) -> None:
    rig, client = smuggling_rig
    nonce = f"a{SEPARATORS}{CALL % (1, 'record')}{SEPARATORS}b"
    assert client.result("led:echo", nonce=nonce)["structuredContent"] == {"nonce": nonce}
    assert "smuggled" not in rig.ledger().runs()


@pytest.mark.req("S-11")
def test_on_stdio_a_line_feed_ends_a_frame_and_half_a_frame_is_refused(
    smuggling_rig: tuple[Rig, LineClient],
) -> None:
    """The client's own lines are the client's own requests; none of them is put together."""
    rig, client = smuggling_rig
    client.answers.clear()
    before = len(calls_received(rig))
    client.send(request(REQUESTS["arguments"], ANSWER % 3, "\n") + b"\n")
    assert client.answer("asked")["error"]["code"] == -32700
    client.result("led:echo", nonce="after")
    assert len(calls_received(rig)) == before + 1


LISTED = """
import json, sys
for line in sys.stdin:
    frame = json.loads(line)
    if frame.get("method") == "initialize":
        result = json.dumps({"protocolVersion": "2025-11-25", "capabilities": {"tools": {}},
                             "serverInfo": {"name": "x", "version": "1"}})
    elif frame.get("method") == "tools/list":
        result = sys.argv[1]
    else:
        continue
    answer = '{"jsonrpc":"2.0","id":%s,"result":%s}' % (json.dumps(frame["id"]), result)
    sys.stdout.buffer.write(answer.encode() + b"\\n")
    sys.stdout.flush()
"""


@pytest.mark.req("S-11")
def test_a_tool_list_with_carriage_returns_is_one_line_at_the_client(rig: Rig) -> None:
    nested = ANSWER % 2
    listed = '{"tools":[\r{"name":"t",\r"inputSchema":{"x":[\r@\r]}}\r]}'.replace("@", nested)
    rig.add_program("lists", [sys.executable, "-c", LISTED, listed])
    client = rig.start(opened=False)
    client.open()
    (tool,) = client.ask("tools/list")["result"]["tools"]
    assert tool == {"name": "lists:t", "inputSchema": {"x": [json.loads(nested)]}}
    assert client.broken == []
    assert client.garbage == []


@pytest.mark.req("S-11")
@pytest.mark.parametrize("line_break", ["\n", "\r\n", "\r", "\n\n", "\n \r\n"])
@pytest.mark.parametrize("place", REQUESTS)
async def test_a_request_that_holds_line_feeds_is_one_line_at_the_server(
    rig: Rig, place: str, line_break: str
) -> None:
    rig.add("led", "--lines")
    async with inside(rig) as within:
        client = within.client()
        client.receive(request(REQUESTS[place], CALL % (1, "record"), line_break))
        await within.settled()
        (answer,) = client.answers("asked")
        assert answer["result"]["structuredContent"] == {"nonce": "asked"}
        assert len(calls_received(rig)) == 1
        assert rig.ledger().runs() == Counter()


@pytest.mark.req("S-11")
@pytest.mark.parametrize("line_break", ["\n", "\r\n", "\r", "\n\n"])
@pytest.mark.parametrize("place", [*RESULTS, "progress", "log"])
async def test_an_answer_that_holds_line_feeds_is_one_frame_at_the_client(
    rig: Rig, place: str, line_break: str
) -> None:
    rig.add("led")
    async with inside(rig) as within:
        client, other = within.client(), within.client()
        other.call("led:record", 9, nonce="other", fault="hang")
        params: dict[str, Any] = {"name": "led:record", "_meta": {"progressToken": 5}}
        params["arguments"] = {"nonce": "asked", "fault": "hang"}
        client.send("tools/call", 8, params)
        await until(lambda: rig.ledger().runs().total() == 2, "the calls to run")
        ids = {entry["nonce"]: entry["id"] for entry in rig.ledger().entries("run")}
        template = (RESULTS | NOTICES)[place]
        text = said(template, ANSWER % ids["other"], line_break).strip("\n")
        text = text.replace("@ID@", str(ids["asked"])).replace("@TOKEN@", str(ids["asked"]))
        before = len(client.lines)
        within.junction.servers["led"].link.multiplexer.receive(text.encode())
        await until(lambda: len(client.lines) > before, "the frame")
        assert len(client.lines) == before + 1
        assert client.lines[-1].endswith(b"\n")
        assert not set(client.lines[-1][:-1]) & set(b"\r\n")
        assert other.answers(9) == []


@pytest.fixture(scope="module")
def smuggling_rig(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """One gateway for the many payloads here: what one leaves behind would show in the next."""
    rig = Rig(tmp_path_factory.mktemp("smuggling"))
    rig.add("led", "--lines")
    client = rig.start(opened=False)
    client.open(capabilities={"roots": {}})
    client.tools()
    yield rig, client
    assert client.end() == 0
    assert not rig.tear_down()
