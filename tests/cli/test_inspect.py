"""`mcp-junction inspect`: what became of the servers of a file."""

import json
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from tests.plugin_journeys import PROGRAM, own_environment, python_server, scripted

pytestmark = pytest.mark.preloaded

BAD = scripted(last_words="one\ntwo\nfatal: no database\n", code=7)


def test_the_table_shows_every_server_and_every_tool(program, config):
    path = config({"one": scripted("echo", "count"), "two": scripted("about")})
    shown = program("inspect", "--config", path)
    assert (shown.returncode, shown.stderr) == (0, "")
    assert shown.stdout.count("CONNECTED") == 2
    assert "scripted 1" in shown.stdout
    words = " ".join(shown.stdout.split())
    assert "3 tools: one:count, one:echo, two:about" in words


@pytest.mark.req("US1-6")
def test_the_table_shows_why_a_server_failed(program, config):
    path = config({"good": scripted("echo"), "bad": BAD, "gone": {"command": "no-such-program"}})
    shown = program("inspect", "--config", path, env={"COLUMNS": "200"})
    assert (shown.returncode, shown.stderr) == (1, "")
    assert shown.stdout.count("ERROR") == 2
    assert "exited with code 7" in shown.stdout
    assert "fatal: no database" in shown.stdout
    assert "'no-such-program' was not found on PATH" in shown.stdout
    assert "1 tools: good:echo" in shown.stdout


@pytest.mark.req("US1-6")
def test_json_holds_everything_there_is_to_know(program, config):
    path = config({"good one": scripted("echo"), "bad": BAD})
    shown = program("inspect", "--json", "--config", path)
    assert shown.returncode == 1
    document = json.loads(shown.stdout)
    assert document["config"] == str(path)
    good, bad = document["servers"]
    assert good.pop("start_seconds") > 0
    assert good == {
        "server": "good one",
        "state": "CONNECTED",
        "status": "running",
        "name": "scripted",
        "version": "1",
        "protocol": "2025-11-25",
        "instructions": None,
        "tools": ["good one:echo"],
        "phase": None,
        "diagnostic": None,
        "exit_code": None,
        "stderr_tail": [],
    }
    assert (bad["server"], bad["state"], bad["status"]) == ("bad", "ERROR", "failed")
    assert bad["phase"] in ("startup", "initialization")
    assert bad["exit_code"] == 7
    assert bad["stderr_tail"] == ["one", "two", "fatal: no database"]
    assert "exited with code 7" in bad["diagnostic"]
    assert bad["tools"] == []


@pytest.mark.req("J-LENIENT")
def test_a_server_with_a_missing_variable_is_one_bad_row(program, config):
    unset = {**scripted("echo"), "env": {"KEY": "${JUNCTION_TEST_UNSET}"}}
    path = config({"bad": unset, "good": scripted("echo")})
    shown = program("inspect", "--json", "--config", path)
    assert shown.returncode == 1
    bad, good = json.loads(shown.stdout)["servers"]
    assert (bad["state"], good["state"]) == ("ERROR", "CONNECTED")
    assert "the environment variable JUNCTION_TEST_UNSET is not set" in bad["diagnostic"]
    assert "$.mcpServers.bad.env.KEY" in bad["diagnostic"]
    table = program("inspect", "--config", path, env={"COLUMNS": "200"})
    assert "JUNCTION_TEST_UNSET is not set" in table.stdout
    assert "1 tools: good:echo" in table.stdout


def test_a_server_that_does_not_answer_in_time_is_told_apart(program, config):
    servers = {"mute": python_server("silent"), "good": scripted("echo")}
    path = config(servers, list_wait_ms=1500)
    shown = program("inspect", "--json", "--config", path)
    assert shown.returncode == 1
    mute, good = json.loads(shown.stdout)["servers"]
    assert (mute["state"], mute["status"]) == ("CONNECTING", "initializing")
    assert mute["diagnostic"] == "it has not answered yet"
    assert good["state"] == "CONNECTED"


def test_what_a_program_says_on_stdout_instead_of_frames_is_shown(program, config):
    usage = "import os; print('usage: server KEY', os.environ['TOKEN']); os._exit(2)"
    mute = "import time; print('listening on port 1', flush=True); time.sleep(600)"
    servers = {
        "bad": {
            "command": sys.executable,
            "args": ["-u", "-c", usage],
            "env": {"TOKEN": "hunter2hunter2"},
        },
        "mute": {"command": sys.executable, "args": ["-c", mute]},
        "cat": {"command": "cat"},
    }
    path = config(servers, list_wait_ms=3000)
    shown = program("inspect", "--json", "--config", path)
    bad, waiting, cat = json.loads(shown.stdout)["servers"]
    said = "on stdout it wrote what is no MCP:"
    assert bad["diagnostic"].endswith(f"; {said} usage: server KEY ***")
    assert waiting["diagnostic"] == f"it has not answered yet; {said} listening on port 1"
    assert cat["diagnostic"] == "initialize: it sends back what it is sent: it is no MCP server"


def test_a_remote_server_that_fails_is_not_tried_again(program, config):
    posts = []

    class Refusing(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            posts.append(self.path)
            self.send_response(401)
            self.send_header("content-length", "0")
            self.end_headers()

        do_GET = do_POST

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Refusing) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/mcp"
        servers = {"far": {"url": url}, "slow": python_server("silent")}
        shown = program("inspect", "--json", "--config", config(servers, list_wait_ms=2500))
        server.shutdown()
    far, _ = json.loads(shown.stdout)["servers"]
    assert far["state"] == "ERROR"
    assert len(posts) <= 3, "one for each way to open it"


def test_names_are_shown_as_they_would_be_offered(program, config):
    path = config({"one": scripted("echo")})
    for options, name in ((["--separator", "/"], "one/echo"), (["--prefix", "auto"], "echo")):
        shown = program("inspect", "--json", "--config", path, *options)
        assert json.loads(shown.stdout)["servers"][0]["tools"] == [name]


def test_a_file_without_servers_is_fine(program, config):
    shown = program("inspect", "--json", "--config", config({}))
    assert shown.returncode == 0
    assert json.loads(shown.stdout)["servers"] == []
    assert "has no enabled servers" in shown.stderr


def test_odd_names_and_markup_are_shown_as_they_are(program, config):
    key = "[red]🚦[/] a\\b"
    path = config({key: scripted("[bold]")})
    shown = program("inspect", "--config", path, env={"COLUMNS": "120"})
    assert shown.returncode == 0
    assert f"{key}:[bold]" in shown.stdout


def test_colons_are_no_pictures(program, config):
    path = config({"a:b": scripted("echo"), "db:x": scripted(last_words="host:key:1 :warning:")})
    shown = program("inspect", "--config", path, env={"COLUMNS": "200"})
    assert "1 tools: a:b:echo" in shown.stdout
    assert "host:key:1 :warning:" in shown.stdout


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_a_reader_that_goes_away_is_no_reason_for_a_traceback(config, options):
    path = config({f"server{n}": scripted(*(f"tool{m}" for m in range(3000))) for n in range(3)})
    command = [str(PROGRAM), "inspect", "--config", str(path), *options]
    writing = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=own_environment()
    )
    assert writing.stdout.read(1)
    writing.stdout.close()
    said = writing.stderr.read().decode()
    writing.stderr.close()
    writing.wait(30)
    assert said == ""


def test_output_that_cannot_be_written_at_all_is_no_reason_for_a_traceback(config):
    path = config({"one": scripted("echo")})
    command = [str(PROGRAM), "inspect", "--config", str(path)]
    reading = subprocess.Popen(["true"], stdin=subprocess.PIPE)
    reading.wait(30)
    shown = subprocess.run(
        command, stdout=reading.stdin, stderr=subprocess.PIPE, env=own_environment(), timeout=30
    )
    reading.stdin.close()
    assert shown.stderr == b""


def test_last_words_hold_no_secret(program, config):
    token = "0123456789ABCDEFGHIJ-cut-SUFFIX-ZZZZ"
    pem = "-----BEGIN KEY-----\nMIIEfirst\nMIIEsecond\n-----END KEY-----"
    path = config(
        {
            "cut": scripted(last_words=token + "x" * (8192 - 20)) | {"env": {"API_TOKEN": token}},
            "pem": scripted(last_words=f"no key:\n{pem}") | {"env": {"PRIVATE_KEY": pem}},
            "arg": _with_args(scripted(last_words="no sk-of-mine-77"), "--api-key", "${TOK}"),
        }
    )
    shown = program("inspect", "--json", "--debug", "--config", path, env={"TOK": "sk-of-mine-77"})
    said = shown.stdout + shown.stderr
    assert "no key:" in said
    assert not [part for part in ("SUFFIX", "ZZZZ", "MIIE", "sk-of-mine") if part in said]


def _with_args(entry, *args):
    return entry | {"args": [*entry["args"], *args]}


@pytest.mark.req("US1-6")
def test_a_start_that_fails_is_blamed_on_what_is_missing(program, config, tmp_path):
    path = config(
        {
            "folder": scripted("echo") | {"cwd": str(tmp_path / "gone")},
            "words": {"command": f"{sys.executable} {tmp_path}/server.py"},
        }
    )
    document = json.loads(program("inspect", "--json", "--config", path).stdout)
    folder, words = (server["diagnostic"] for server in document["servers"])
    assert folder == f"its cwd '{tmp_path}/gone' is missing"
    assert "its arguments belong into args" in words
