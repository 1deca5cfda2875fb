"""Commands before a server of both eras: it is started once, and its instructions are shown."""

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


def test_inspect_shows_the_instructions_of_servers(program, config, tmp_path):
    args = ["-E", "-S", str(SERVER), str(tmp_path / "starts"), "Count\u202e with care."]
    path = config({"p": {"command": sys.executable, "args": args}})
    shown = program("inspect", "--config", path)
    assert "instructions of p: Count with care." in " ".join(shown.stdout.split())
    document = json.loads(program("inspect", "--json", "--config", path).stdout)
    assert document["servers"][0]["instructions"] == "Count with care."


@pytest.mark.req("S-07")
@pytest.mark.parametrize("form", [[], ["--json"]])
def test_inspect_shows_no_secret_that_instructions_repeat(program, config, tmp_path, form):
    args = ["-E", "-S", str(SERVER), str(tmp_path / "starts"), "Log in with Zq8-canary-77."]
    entry = {"command": sys.executable, "args": args, "env": {"API_KEY": "Zq8-canary-77"}}
    shown = program("inspect", *form, "--config", config({"p": entry}))
    assert "Log in with ***." in " ".join(shown.stdout.split())
    assert "canary" not in shown.stdout + shown.stderr
