"""`metrics`, `breakers` and `escalations`: what a running service says of calls and failures."""

import json
import sys

import pytest
from tests.cli.serving import serve_demo

pytestmark = pytest.mark.preloaded
BROKEN = """
import json, sys
for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message:
        continue
    if message["method"] == "initialize":
        result = {
            "protocolVersion": message["params"]["protocolVersion"],
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "broken", "version": "1"},
        }
    elif message["method"] == "tools/list":
        result = {"tools": [{"name": "hang", "inputSchema": {"type": "object"}}]}
    elif message["method"] == "tools/call":
        continue
    else:
        result = {}
    print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
"""
"""A server that never answers a call."""


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    quick = {"MCP_INVOCATION_TIMEOUT_MS": "200", "MCP_CIRCUIT_FAILURE_THRESHOLD": "1"}
    with serve_demo(tmp_path_factory.mktemp("failing"), **quick) as served:
        yield served


@pytest.fixture
def ask(demo, program):
    def run(*words, fails=False, **how):
        where = ["--url", demo.url, "--data-dir", demo.folder]
        at = words.index("--") if "--" in words else len(words)
        ended = program(*words[:at], *where, *words[at:], **how)
        assert (ended.returncode != 0) is fails, (ended.stdout, ended.stderr)
        return ended

    return run


@pytest.fixture
def ask_json(ask):
    def run(*words, **how):
        return json.loads(ask(*words, "--json", **how).stdout)

    return run


def test_a_tool_that_fails_opens_its_circuit_and_is_escalated(ask, ask_json):
    ask("tools", "call", "clock.now")
    assert "CLOSED" in ask("breakers").stdout
    assert "Every circuit is closed" in ask("breakers", "--open").stdout
    assert "Nothing waits for anybody" in ask("escalations").stdout
    ask("servers", "add", "broken", "--", sys.executable, "-c", BROKEN)
    ask("tools", "call", "broken.hang", fails=True)
    refused = ask("tools", "call", "broken.hang", fails=True)
    assert "circuit" in refused.stderr
    (row,) = ask_json("breakers", "--open")
    assert (row["server_id"], row["tool_name"], row["state"]) == ("broken", "hang", "OPEN")
    assert "broken.hang" in ask("breakers", "--open").stdout
    assert "is closed" in ask("breakers", "reset", "broken.hang").stdout
    assert ask_json("breakers", "--open") == []
    (failed,) = ask_json("escalations")
    assert (failed["server_id"], failed["tool_name"]) == ("broken", "hang")
    assert "broken.hang" in ask("escalations", env={"COLUMNS": "200"}).stdout
    seen = ask("escalations", "acknowledge", failed["id"], "--note", "it is mended").stdout
    assert "is acknowledged" in seen
    assert ask_json("escalations") == []
    (kept,) = ask_json("escalations", "--all")
    assert kept["note"] == "it is mended"


def test_calls_are_counted(ask, ask_json):
    for _ in range(2):
        ask("tools", "call", "clock.now")
    ask("tools", "call", "arithmetic.evaluate", '{"expression": "1 / 0"}', fails=True)
    found = ask_json("metrics", "--range", "15m")
    tools = {(one["server_id"], one["tool_name"]): one for one in found["tools"]}
    assert tools["clock", "now"]["calls"] >= 2
    assert tools["arithmetic", "evaluate"]["errors"] == {"tool": 1}
    shown = ask("metrics", env={"COLUMNS": None}).stdout
    (row,) = (line for line in shown.splitlines() if "arithmetic.evaluate" in line)
    assert "tool 1" in row
    assert "fallbacks" not in shown, "nothing fell back"
    narrow = ask("metrics", env={"COLUMNS": "60"}).stdout
    assert "…" not in narrow
    assert max(map(len, narrow.splitlines())) <= 60
    first = "".join(line.split("│")[1].strip() for line in narrow.splitlines() if "│" in line)
    assert "arithmetic.evaluate" in first
    (only,) = ask_json("metrics", "--server", "clock", "--tool", "now")["tools"]
    assert only["tool_name"] == "now"
    assert "time_range" in ask("metrics", "--range", "soon", fails=True).stderr


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("breakers", "reset"), "name a circuit"),
        (("breakers", "reset", "nowhere.now"), "names no known server"),
        (("breakers", "mend"), "invalid choice"),
        (("escalations", "acknowledge"), "give the id"),
        (("escalations", "acknowledge", "no-such"), "there is no such escalation"),
    ],
)
def test_what_makes_no_sense_is_refused_with_words(ask, words, told):
    assert told in ask(*words, fails=True).stderr
