"""With ``--json`` a command prints JSON and nothing else, whatever it does."""

import json
import signal
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

import pytest
from tests.cli.serving import BOUND, serve_demo
from tests.plugin_journeys import PROGRAM, own_environment

pytestmark = pytest.mark.preloaded


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    with serve_demo(tmp_path_factory.mktemp("json")) as served:
        yield served


@pytest.fixture
def scripted_service() -> Iterator[SimpleNamespace]:
    """A service that answers each request with the next of its answers, and the last one again.

    An answer with an ``error`` is a refusal.
    """
    answers: list[object] = []
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(f"{self.command} {self.path}")
            answer = answers.pop(0) if len(answers) > 1 else answers[0]
            body = json.dumps(answer).encode()
            self.send_response(404 if "error" in answer else 200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_GET

        def log_message(self, format: str, *args: object) -> None:
            """Print nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}"
    yield SimpleNamespace(url=url, answers=answers, asked=asked)
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize(
    "words",
    [
        *("servers list", "servers list --all", "servers show clock", "servers auth clock"),
        *("servers connect clock", "servers connect notes"),
        *("tools list", "tools list --schemas", "tools search time", "tools call clock.now"),
        *("tools show clock.now", "tools set clock.now idempotent=true", "tools changes"),
        *("tools changes clock.now", "skills list", "skills suggestions", "state", "metrics"),
        *("agents list", "agents add json-bot", "grants list"),
        *("grants add ann clock.now", "grants add ann clock.now notes.list --dry-run"),
        *("approvals", "breakers", "breakers reset clock.now", "escalations"),
        *("settings", "settings --running"),
    ],
)
def test_what_a_command_prints_with_json_is_one_document(demo, program, words):
    ended = program(*words.split(), "--json", "--url", demo.url, "--data-dir", demo.folder)
    assert ended.returncode == 0, (ended.stdout, ended.stderr)
    json.loads(ended.stdout)


def test_what_cannot_be_done_twice_is_printed_as_json_too(demo, program):
    def ask(*words: str) -> object:
        ended = program(*words, "--json", "--url", demo.url, "--data-dir", demo.folder)
        return json.loads(ended.stdout)

    assert ask("agents", "add", "once", "--tool", "clock:now", "--make-key")["key"]
    assert ask("explain", "once", "clock.now")["decision"] == "ALLOW"
    assert ask("explain", "once", "clock.convert")["decision"] == "DENY"
    (grant,) = ask("grants", "list", "once")
    assert ask("grants", "renew", grant["id"])[0]["token"]
    assert ask("grants", "revoke", grant["id"]) == {"revoked": [grant["id"]]}
    assert ask("agents", "remove", "once") == {"removed": "once"}
    added = ask("servers", "add", "gone", "--no-connect", "--http", "http://127.0.0.1:9/mcp")
    assert added["name"] == "gone"
    assert ask("servers", "disconnect", "gone")["status"]
    assert ask("servers", "remove", "gone") == {"removed": "gone"}


@pytest.mark.parametrize(
    "words",
    [
        *("keys list", "keys create --role viewer", "vault status", "audit verify"),
        "keys revoke-tokens ann --issuer https://issuer.example",
    ],
)
def test_commands_on_the_store_print_one_document_too(demo, program, words):
    ended = program(*words.split(), "--json", "--data-dir", demo.folder)
    assert ended.returncode == 0, (ended.stdout, ended.stderr)
    json.loads(ended.stdout)


def test_deliveries_that_are_retried_are_printed_as_json(scripted_service, program):
    scripted_service.answers += [{"id": "evt_1", "state": "waiting"}, {"id": "evt_2"}]
    how = "--url", scripted_service.url, "--key", "a-key"
    ended = program("webhook", "retry", "evt_1", "evt_2", "--json", *how)
    assert json.loads(ended.stdout) == [{"id": "evt_1", "state": "waiting"}, {"id": "evt_2"}]
    assert scripted_service.asked == [
        f"POST /api/v1/mcp/webhook/evt_{number}/retry" for number in (1, 2)
    ]
    said = program("webhook", "retry", "evt_3", *how).stdout
    assert said == "Delivery evt_3 is made once more.\n"


def test_deliveries_that_are_retried_are_told_when_a_later_one_is_refused(
    scripted_service, program
):
    how = "--url", scripted_service.url, "--key", "a-key"
    refusal = {"error": {"type": "NotFoundError", "message": "there is no delivery evt_2"}}
    for more, told in (((), "Delivery evt_1 is made once more.\n"), (("--json",), None)):
        scripted_service.answers[:] = [{"id": "evt_1"}, refusal]
        ended = program("webhook", "retry", "evt_1", "evt_2", *more, *how)
        assert ended.returncode == 1
        assert "there is no delivery evt_2" in ended.stderr
        if told is None:
            assert json.loads(ended.stdout) == [{"id": "evt_1"}]
        else:
            assert ended.stdout == told


def test_approvals_are_watched_as_lines_of_json(scripted_service):
    first, second = [], [{"id": "7d0a31c2", "state": "pending"}]
    scripted_service.answers += [first, first, second]
    how = "--json", "--url", scripted_service.url, "--key", "a-key"
    process = subprocess.Popen(
        [str(PROGRAM), "approvals", "watch", *how],
        env=own_environment({}),
        stdout=subprocess.PIPE,
        encoding="utf-8",
    )
    assert [json.loads(process.stdout.readline()) for _ in range(2)] == [first, second]
    process.send_signal(signal.SIGINT)
    rest, _ = process.communicate(timeout=BOUND)
    assert (rest, process.returncode) == ("", 0)
