"""Commands that start a server of both eras start it once."""

import json
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.preloaded

SERVER = Path(__file__).parent.parent / "upstream" / "dual_server.py"


@pytest.mark.parametrize("words", [["call", "p:count"], ["inspect"]])
def test_call_and_inspect_start_a_server_of_both_eras_once(program, config, tmp_path, words):
    starts = tmp_path / "starts"
    args = ["-E", "-S", str(SERVER), str(starts)]
    path = config({"p": {"command": sys.executable, "args": args}})
    shown = program(words[0], "--config", path, *words[1:])
    assert shown.returncode == 0, shown.stderr
    assert starts.read_text("utf-8") == "start\n"
    if words[0] == "call":
        assert json.loads(shown.stdout) == [1, "newer"]
