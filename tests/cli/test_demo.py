"""`mcp-junction demo`, and the demo file through the program."""

import json
from pathlib import Path

import pytest

DEMO = Path(__file__).resolve().parents[2] / "examples" / "demo.json"


def test_a_demo_server_speaks_mcp_on_stdin_and_stdout(program):
    hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t"}}
    frame = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello}
    shown = program("demo", "clock", stdin=json.dumps(frame) + "\n")
    assert (shown.returncode, shown.stderr) == (0, "")
    assert json.loads(shown.stdout)["result"]["serverInfo"]["name"] == "junction-demo-clock"


def test_a_demo_that_does_not_exist_is_refused_with_those_that_do(program):
    said = program.refused("demo", "chess")
    for name in ("arithmetic", "clock", "notes"):
        assert name in said


def test_the_demo_file_works_from_anywhere(program, tmp_path):
    shown = program("inspect", "--json", "--config", DEMO, env={"JUNCTION_DEMO_NOTES": None})
    assert shown.returncode == 0
    servers = json.loads(shown.stdout)["servers"]
    assert [server["state"] for server in servers] == ["CONNECTED"] * 3


@pytest.mark.req("US3-1")
def test_a_demo_tool_can_be_called(program):
    shown = program("call", "--config", DEMO, "arithmetic:evaluate", '{"expression": "6 * 7"}')
    assert shown.returncode == 0
    assert json.loads(shown.stdout)["value"] == 42
