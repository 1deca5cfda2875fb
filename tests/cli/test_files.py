"""The stdio mode with files and nothing where pipes usually are."""

import json
import subprocess

import pytest
from tests.journeys.client import BOUND
from tests.plugin_journeys import PROGRAM, own_environment, scripted

HELLO = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "a file"}}
REQUESTS = [
    {"id": 1, "method": "initialize", "params": HELLO},
    {"method": "notifications/initialized"},
    {"id": 2, "method": "tools/list"},
    {"id": 3, "method": "tools/call", "params": {"name": "one:big", "arguments": {"size": 900000}}},
]


def run(path, stdin, stdout):
    ended = subprocess.run(
        [str(PROGRAM), "--config", str(path)],
        stdin=stdin,
        stdout=stdout,
        stderr=subprocess.PIPE,
        env=own_environment(),
        timeout=BOUND,
    )
    assert (ended.returncode, ended.stderr) == (0, b"")


@pytest.mark.req("FR-012", "J-EOF")
def test_requests_in_a_file_are_answered_into_a_file(config, tmp_path):
    path = config({"one": scripted("big")})
    asked, answered = tmp_path / "asked", tmp_path / "answered"
    asked.write_text("".join(json.dumps({"jsonrpc": "2.0", **one}) + "\n" for one in REQUESTS))
    with asked.open("rb") as stdin, answered.open("wb") as stdout:
        run(path, stdin, stdout)
    lines = answered.read_text().removesuffix("\n").split("\n")
    frames = {frame["id"]: frame for frame in map(json.loads, lines)}
    assert frames[2]["result"]["tools"][0]["name"] == "one:big"
    assert frames[3]["result"]["content"][0]["text"] == "é0" * 300000


@pytest.mark.req("J-EOF")
def test_no_input_at_all_is_the_end_of_input(config):
    path = config({"one": scripted("echo")})
    run(path, subprocess.DEVNULL, subprocess.PIPE)
    run(path, subprocess.DEVNULL, subprocess.DEVNULL)
