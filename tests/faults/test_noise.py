"""Servers that write what they should not, where they should not: every valid call is answered."""

import pytest
from tests.plugin_faults import Figures, Rig

from mcp_junction.testing import history, processes
from mcp_junction.testing.client import key
from mcp_junction.testing.history import Seen

MIB = 1024 * 1024


@pytest.mark.req("F-06", "R-ANSWER")
@pytest.mark.parametrize(
    ("rounds", "stderr"),
    [
        pytest.param(3, 10 * MIB, id="short"),
        pytest.param(100, 10 * MIB, id="long", marks=pytest.mark.soak),
    ],
)
def test_valid_calls_are_answered_whatever_a_server_writes_around_them(
    rig: Rig, figures: Figures, rounds: int, stderr: int
) -> None:
    rig.add("led", "--bom")
    client = rig.start()
    before = processes.memory(client.pid)
    faults = [
        {"fault": "stderr", "amount": stderr},
        {"fault": "noise", "amount": 2_000},
        {"fault": "crlf"},
        {"fault": "bom"},
        {"fault": "split", "wide": True},
        {"fault": "split", "wide": True, "size": 3_000},
        {"fault": "join"},
        {"wide": True},
    ]
    calls = {}
    for turn in range(rounds):
        for number, fault in enumerate(faults):
            nonce = f"n{turn}.{number}"
            calls[key(client.call("led:record", nonce=nonce, **fault))] = nonce
        client.wait(lambda: all(client.answers[i] for i in calls), 60, "every answer")
    seen = [Seen(nonce, [a.frame for a in client.answers[i]]) for i, nonce in calls.items()]
    assert history.check(seen, rig.ledger()) == []
    assert history.tally(seen) == {"result": len(calls)}
    assert client.garbage == []
    grown = processes.peak_memory(client.pid) - before
    figures(calls=len(calls), peak_grown_mib=grown / MIB)
    assert grown < 64 * MIB
    assert client.end() == 0


@pytest.mark.req("F-06")
def test_characters_split_between_two_reads_arrive_whole(rig: Rig) -> None:
    rig.add("led")
    client = rig.start()
    result = client.result("led:record", nonce="ünï-€-𝄞", wide=True, fault="split")
    assert result["content"][0]["text"] == "ünï-€-𝄞ä€𝄞 "


@pytest.mark.req("F-06", "R-ANSWER")
@pytest.mark.parametrize(
    "damaged",
    [
        b'{"jsonrpc":"2.0","id":@ID@,"result":{"text":"\xff\xfe"}}\n',
        b'{"jsonrpc":"2.0","result":{"id":1,"text":"\xff"},"id":@ID@}\n',
        b'{"jsonrpc":"2.0","id":@ID@,"result":{"text":NaN}}\n',
        b'{"jsonrpc":"2.0","id":@ID@,"result":{"text":"\\ud800"}}}\n',
        b'{"jsonrpc":"2.0","id":@ID@,"result":{"a":1\n',
        b'{"jsonrpc":"2.0","id":@ID@,"result":' + b"[" * 100_000 + b"]" * 100_000 + b"}\n",
        b'{"jsonrpc":"2.0","id":@ID@,"id":@ID@,"result":{}}\n',
        b'{"jsonrpc":"2.0","id":@ID@}\n',
    ],
    ids=["utf8", "utf8-id-last", "nan", "brace", "cut", "deep", "repeated", "empty"],
)
def test_an_answer_that_cannot_be_used_ends_its_call_and_no_other(rig: Rig, damaged: bytes) -> None:
    rig.add("led")
    client = rig.start()
    waiting = client.call("led:record", nonce="waits", fault="hang")
    answer = client.answer(client.call("led:say", nonce="damaged", hex=damaged.hex()))
    assert history.verdict(answer) == "executed"
    assert "led" in answer["error"]["message"]
    assert client.result("led:record", nonce="next")["structuredContent"] == {"nonce": "next"}
    assert client.answers[key(waiting)] == []


@pytest.mark.req("F-06")
@pytest.mark.parametrize(
    "odd",
    [
        b'{"jsonrpc":"2.0","method":"notifications/progress","params":[1]}',
        b'{"jsonrpc":"2.0","method":"notifications/message","params":[1]}',
        b'{"jsonrpc":"2.0","method":"notifications/message"}',
        b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":[]}',
        b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":{}}}',
        b'{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":{}}}',
        b'{"jsonrpc":"2.0","method":"notifications/tools/list_changed","params":[]}',
        b'{"jsonrpc":"2.0","id":"x","method":"sampling/createMessage","params":[]}',
        b'{"jsonrpc":"2.0","id":"y","method":"no/such","params":{}}',
        b'{"jsonrpc":"2.0","id":99999,"result":{}}',
        b'{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"what?"}}',
        b'{"jsonrpc":"2.0","id":null,"error":[]}',
        b'{"level":"info","id":@ID@,"msg":"working on it"}',
        b'{"level":"error","id":@ID@,"error":"no such file"}',
        b'{"id":@ID@,"result":"done","time":1}',
        b'{"jsonrpc":"2.0","id":12345678901234567890123,"result":null}',
    ],
)
def test_an_odd_message_before_an_answer_costs_nothing_but_itself(rig: Rig, odd: bytes) -> None:
    rig.add("led")
    client = rig.start()
    answer = b'{"jsonrpc":"2.0","id":@ID@,"result":{"content":[]}}\n'
    written = (odd + b"\n" + answer).hex()
    assert client.result("led:say", nonce="odd", hex=written) == {"content": []}
    assert client.result("led:record", nonce="next")["structuredContent"] == {"nonce": "next"}
    assert len(rig.ledger().entries("start")) == 1
