"""The stdio loop the demo servers share, seen from outside."""

import os
import signal
import subprocess
import sys

import pytest
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS

from mcp_junction import __version__
from mcp_junction.demo import DEMOS, wire

MISBEHAVING = """
from mcp_junction.demo.wire import DemoServer, DemoTool, text

def crash(request, arguments):
    raise LookupError("mislaid")

def chatter(request, arguments):
    print("this is not protocol")
    return text("done")

def tool(name, run):
    return DemoTool(name, name, name, run, properties={}, annotations={})

DemoServer("odd", "Odd", "", [tool("crash", crash), tool("chatter", chatter)]).serve()
"""


def initialize(version):
    client = {"name": "test", "version": "1"}
    return {"protocolVersion": version, "capabilities": {}, "clientInfo": client}


def test_it_knows_every_revision_that_has_a_handshake():
    assert wire.VERSIONS == HANDSHAKE_PROTOCOL_VERSIONS


@pytest.mark.parametrize("version", wire.VERSIONS)
def test_it_agrees_to_the_revision_it_is_offered(start, version):
    result = start("clock").result("initialize", initialize(version))
    assert result["protocolVersion"] == version
    assert result["serverInfo"]["version"] == __version__
    assert result["capabilities"] == {"tools": {}}


def test_it_offers_its_newest_revision_to_a_client_of_another(start):
    result = start("clock").result("initialize", initialize("2026-07-28"))
    assert result["protocolVersion"] == "2025-11-25"


def test_an_initialize_without_a_version_is_invalid(start):
    error = start("clock").error("initialize", {})
    assert error["code"] == -32602
    assert "protocolVersion" in error["message"]


@pytest.mark.parametrize("name", DEMOS)
def test_every_tool_says_what_it_is_and_what_it_takes(start, name):
    for tool in start(name).result("tools/list")["tools"]:
        assert tool["title"]
        assert tool["description"].endswith(".")
        assert isinstance(tool["annotations"]["readOnlyHint"], bool)
        schema = tool["inputSchema"]
        assert schema["type"] == "object"
        assert set(schema.get("required", ())) <= set(schema["properties"])
        assert all(argument["description"] for argument in schema["properties"].values())


@pytest.mark.parametrize(
    "line",
    [b"{", b"\xff\xfe{}", b'{"jsonrpc": "2.0", "id": NaN}', b"[" * 100_000, b"{}{}"],
    ids=["cut short", "not UTF-8", "NaN", "too deep", "two on a line"],
)
def test_a_line_that_is_not_json_is_a_parse_error_and_the_next_one_is_heard(start, line):
    peer = start("clock")
    peer.send_line(line)
    answer = peer.receive()
    assert (answer["id"], answer["error"]["code"]) == (None, -32700)
    assert peer.result("ping") == {}


@pytest.mark.parametrize(
    ("message", "id"),
    [
        ([{"jsonrpc": "2.0", "id": 1, "method": "ping"}], None),
        ("ping", None),
        ({"jsonrpc": "2.0", "id": None, "method": "ping"}, None),
        ({"jsonrpc": "2.0", "id": True, "method": "ping"}, None),
        ({"jsonrpc": "2.0", "id": 1.5, "method": "ping"}, None),
        ({"jsonrpc": "2.0", "id": 7}, 7),
        ({"id": 7, "method": "ping"}, 7),
        ({"jsonrpc": "2.0", "id": "a", "method": 5}, "a"),
    ],
)
def test_json_that_is_not_a_request_is_refused_as_one(start, message, id):
    peer = start("clock")
    peer.send(message)
    answer = peer.receive()
    assert (answer["id"], answer["error"]["code"]) == (id, -32600)


def test_blank_lines_answers_and_notifications_get_no_answer(start):
    peer = start("clock")
    peer.send_line(b"")
    peer.send({"jsonrpc": "2.0", "id": 99, "result": {}})
    peer.send({"jsonrpc": "2.0", "id": 98, "error": {"code": 1, "message": "no"}})
    peer.notify("notifications/initialized")
    peer.notify("notifications/of_another_age")
    peer.notify("notifications/cancelled", {"requestId": 97})
    peer.send({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": [[]]})
    assert peer.result("ping") == {}


def test_carriage_returns_and_a_byte_order_mark_do_no_harm(start):
    peer = start("clock")
    peer.send_line(b'\xef\xbb\xbf{"jsonrpc": "2.0", "id": "a", "method": "ping"}\r')
    assert peer.receive() == {"jsonrpc": "2.0", "id": "a", "result": {}}


@pytest.mark.parametrize("method", ["server/discover", "resources/list", "prompts/get", "nonsense"])
def test_a_method_it_does_not_have_is_not_found(start, method):
    error = start("clock").error(method)
    assert error["code"] == -32601
    assert method in error["message"]


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("tools/call", {}),
        ("tools/call", {"name": 5}),
        ("tools/call", {"name": "now", "arguments": ["UTC"]}),
        ("tools/list", {"cursor": "page-2"}),
        ("ping", ["by position"]),
    ],
)
def test_wrong_params_are_invalid_params(start, method, params):
    assert start("clock").error(method, params)["code"] == -32602


def test_an_unknown_tool_is_invalid_params_and_names_those_there_are(start):
    error = start("clock").error("tools/call", {"name": "then", "arguments": {}})
    assert error["code"] == -32602
    assert "then" in error["message"]
    assert "now, convert, countdown" in error["message"]


@pytest.mark.parametrize("params", [{"name": "now"}, {"name": "now", "arguments": None}])
def test_a_tool_that_needs_nothing_can_be_called_with_nothing(start, params):
    assert "isError" not in start("clock").result("tools/call", params)


def test_every_wrong_argument_is_told_in_one_answer(start):
    words = start("clock").complaint("convert", time=5, frm="UTC", to="UTC")
    assert "'from' is missing: Where the time is from" in words
    assert "'time' must be text" in words
    assert "'frm' is not an argument of this tool; it takes 'time', 'from', 'to'" in words


def test_a_defect_in_a_tool_is_an_internal_error_and_not_the_end(start):
    peer = start(program=MISBEHAVING)
    error = peer.error("tools/call", {"name": "crash"})
    assert error["code"] == -32603
    assert "mislaid" in error["message"]
    assert peer.result("ping") == {}


def test_a_stray_print_goes_to_standard_error(start):
    peer = start(program=MISBEHAVING)
    assert peer.told("chatter") == "done"
    assert peer.end() == (0, "this is not protocol\n")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_its_slow_calls_and_the_server_without_a_traceback(start, number):
    peer = start("clock")
    peer.ask("tools/call", {"name": "countdown", "arguments": {"seconds": 30}})
    assert peer.result("ping") == {}
    peer.process.send_signal(number)
    assert peer.process.wait(20) == 128 + number
    assert peer.end() == (128 + number, "")


def test_somebody_who_starts_it_by_hand_is_told_what_it_waits_for():
    keyboard, terminal = os.openpty()
    module = [sys.executable, "-m", "mcp_junction.demo.clock"]
    with subprocess.Popen(module, stdin=terminal, stderr=subprocess.PIPE) as server:
        os.close(terminal)
        assert b"MCP server" in server.stderr.readline()
        os.write(keyboard, b"\x04")  # Ctrl-D
        assert server.wait(20) == 0
        assert b"Ctrl-D" in server.stderr.read()
    os.close(keyboard)


def test_a_client_that_stops_reading_is_no_error():
    module = [sys.executable, "-m", "mcp_junction.demo.clock"]
    pipe = subprocess.PIPE
    with subprocess.Popen(module, stdin=pipe, stdout=pipe, stderr=pipe) as server:
        server.stdout.close()
        server.stdin.write(b'{"jsonrpc": "2.0", "id": 1, "method": "ping"}\n')
        server.stdin.flush()  # its input stays open: it ends because its answer has no reader
        assert server.wait(20) == 0
        assert server.stderr.read() == b""


@pytest.mark.parametrize("name", DEMOS)
def test_help_shows_how_it_is_called(name):
    module = [sys.executable, "-m", DEMOS[name]]
    shown = subprocess.run([*module, "--help"], capture_output=True, text=True, timeout=30)
    assert (shown.returncode, shown.stderr) == (0, "")
    assert shown.stdout.startswith(f"usage: mcp-junction demo {name}")


@pytest.mark.parametrize("name", DEMOS)
def test_arguments_it_has_no_use_for_are_refused(name):
    module = [sys.executable, "-m", DEMOS[name]]
    refused = subprocess.run([*module, "--loud", "x"], capture_output=True, text=True, timeout=30)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "'--loud x'" in refused.stderr


@pytest.mark.parametrize("name", DEMOS)
def test_it_starts_without_the_slow_parts_of_the_library(name):
    module = [sys.executable, "-X", "importtime", "-S", "-m", DEMOS[name]]
    paths = {"PYTHONPATH": wire.__file__.removesuffix("/mcp_junction/demo/wire.py")}
    listed = subprocess.run(
        module, capture_output=True, text=True, timeout=30, stdin=subprocess.DEVNULL, env=paths
    )
    assert listed.returncode == 0
    imported = {line.rpartition("|")[2].strip() for line in listed.stderr.splitlines()}
    assert "json" in imported
    assert not imported & {"asyncio", "typing", "dataclasses", "inspect", "ast", "zoneinfo"}
