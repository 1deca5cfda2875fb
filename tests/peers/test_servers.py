"""The real servers answer by themselves, so that a journey through Junction that fails is ours."""

import json
import subprocess
from pathlib import Path

import pytest
from tests.peers.servers import Peers, why_missing

NAMES = sorted(Peers(Path(), Path()).entries())

HELLO = (
    {
        "id": 1,
        "method": "initialize",
        "params": {
            "protocolVersion": "2025-11-25",
            "capabilities": {},
            "clientInfo": {"name": "junction-tests", "version": "0"},
        },
    },
    {"method": "notifications/initialized"},
    {"id": 2, "method": "tools/list", "params": {}},
)


@pytest.mark.peers
@pytest.mark.parametrize("name", NAMES)
def test_a_real_server_lists_its_tools(peers: Peers, name: str):
    entry = peers.entries()[name]
    process = subprocess.Popen(
        [entry["command"], *entry["args"]],
        env=entry["env"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    with process:
        for message in HELLO:
            process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
        process.stdin.flush()
        answers = map(json.loads, process.stdout)
        listed = next(answer for answer in answers if answer.get("id") == 2)
        process.stdin.close()
        assert listed["result"]["tools"]


def test_missing_servers_say_why(tmp_path: Path):
    assert why_missing(tmp_path) == "PEERS SKIPPED: run `make peers`"
    (tmp_path / ".skipped").write_text("the registry is out of reach\n")
    assert why_missing(tmp_path) == "PEERS SKIPPED: the registry is out of reach"
    (tmp_path / ".ready").touch()
    assert why_missing(tmp_path) is None
