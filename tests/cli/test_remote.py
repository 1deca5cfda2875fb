"""`servers`, `tools` and `state`: the commands that talk to a running `serve --demo`."""

import json
import os
import shlex
import sys
from types import SimpleNamespace

import pytest
from tests.cli.serving import serve_demo
from tests.plugin_journeys import PROGRAM, Runs

pytestmark = pytest.mark.preloaded

CLOCK = [sys.executable, "-m", "mcp_junction.demo.clock"]


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    """The program, serving the demo."""
    with serve_demo(tmp_path_factory.mktemp("demo")) as served:
        yield served


@pytest.fixture
def ask(demo, program):
    """Run a command on the demo, as its owner."""

    def run(*words, **how):
        where = ["--url", demo.url, "--data-dir", str(demo.folder)]
        size = 1 if words[0] == "state" else 2
        return program(*words[:size], *where, *words[size:], **how)

    return run


def test_the_demo_says_what_to_do_next_and_its_key_once(demo):
    assert f"{demo.url}/mcp" in demo.said
    assert "servers add" in demo.said
    kept = (demo.folder / "admin.key").read_text().strip()
    assert demo.said.count(kept) == 1
    assert (demo.folder / "admin.key").stat().st_mode & 0o777 == 0o600
    for path in demo.folder.rglob("junction.db*"):
        assert kept.split("_", 2)[2].encode() not in path.read_bytes()


@pytest.mark.parametrize(("what", "said"), [("See the servers", "clock"), ("Call a tool", "42")])
def test_what_the_demo_says_to_do_next_works_as_it_is_printed(demo, what, said):
    (line,) = (line for line in demo.said.splitlines() if what in line)
    program, *words = shlex.split(line.partition(what)[2])
    ended = Runs([program])(*words)
    assert ended.returncode == 0, ended.stderr
    assert said in ended.stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("tools", "call", "arithmetic.evaluate", '{"expression": "6 * 7"}'), "42"),
        (("tools", "search", "what time is it now"), "clock.now"),
        (("servers", "list"), "arithmetic"),
        (("skills", "list"), "Databases"),
        (("state",), "total servers"),
    ],
    ids=lambda given: "-".join(given[:2]) if isinstance(given, tuple) else "",
)
def test_each_command_runs_as_it_is_installed(demo, words, said):
    """The other tests here have everything loaded; these load what they need themselves."""
    where = ["--url", demo.url, "--data-dir", str(demo.folder)]
    ended = Runs([str(PROGRAM)])(*words, *where)
    assert ended.returncode == 0, ended.stderr
    assert said in ended.stdout


def test_tools_are_found_by_what_they_are_for(ask):
    table = ask("tools", "search", "what time is it now")
    assert table.returncode == 0
    assert "clock.now" in table.stdout
    found = json.loads(ask("tools", "search", "evaluate", "--json", "--limit", "1").stdout)
    assert [tool["name"] for tool in found["tools"]] == ["arithmetic.evaluate"]
    assert found["metadata"]["servers_searched"] == 3
    none = ask("tools", "search", "evaluate", "--server", "clock")
    assert "fits; try other words" in none.stdout
    refused = ask("tools", "search", "x", "--limit", "0")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "limit" in refused.stderr


def test_skills_are_listed_with_how_many_tools_have_them(ask):
    table = ask("skills", "list")
    assert table.returncode == 0
    assert "Databases" in table.stdout
    skills = json.loads(ask("skills", "list", "--json").stdout)
    assert len(skills) == 31
    assert "calendar-time" in {skill["id"] for skill in skills}
    refused = ask("tools", "search", "time", "--skill", "cooking")
    assert (refused.returncode, "cooking" in refused.stderr) == (1, True)


def test_servers_are_listed_shown_and_counted(ask):
    table = ask("servers", "list")
    assert table.returncode == 0
    for name in ("arithmetic", "clock", "notes", "CONNECTED"):
        assert name in table.stdout
    found = json.loads(ask("servers", "list", "--json", "--status", "connected").stdout)
    assert [one["name"] for one in found] == ["arithmetic", "clock", "notes"]
    shown = ask("servers", "show", "clock")
    assert found[1]["id"] in shown.stdout
    assert "countdown" in shown.stdout
    state = ask("state", "--json")
    assert json.loads(state.stdout)["connected_servers"] == 3
    assert "total servers" in ask("state").stdout


def test_tools_are_listed_and_called(ask):
    assert "clock.now" in ask("tools", "list", "--server", "clock").stdout
    names = [one["name"] for one in json.loads(ask("tools", "list", "--json").stdout)]
    assert "arithmetic.evaluate" in names
    done = ask("tools", "call", "arithmetic.evaluate", '{"expression": "6 * 7"}')
    assert (done.returncode, json.loads(done.stdout)["value"]) == (0, 42)
    whole = ask("tools", "call", "evaluate", "-", "--json", stdin='{"expression": "2"}')
    assert json.loads(whole.stdout)["metadata"]["routed_to"] == "arithmetic"
    by_server = ask("tools", "call", "--server", "clock", "now")
    assert by_server.returncode == 0
    failed = ask("tools", "call", "arithmetic.evaluate", '{"expression": "1 / 0"}')
    assert failed.returncode == 1
    unknown = ask("tools", "call", "clock.nothing")
    assert unknown.returncode == 1
    assert "there is no tool 'clock.nothing'" in unknown.stderr


def test_a_server_is_added_disconnected_connected_and_removed(ask):
    added = ask("servers", "add", "--description", "mine", "mine", "--", *CLOCK)
    assert (added.returncode, added.stdout) == (0, "mine is CONNECTED, with 3 tools\n")
    away = ask("servers", "disconnect", "mine")
    assert away.stdout == "mine: DISCONNECTED; 0 calls were under way\n"
    assert ask("tools", "call", "mine.now").returncode == 1
    assert "CONNECTED" in ask("servers", "connect", "mine").stdout
    assert ask("servers", "remove", "mine").returncode == 0
    gone = ask("servers", "show", "mine")
    assert gone.returncode == 1
    assert "there is no server 'mine'" in gone.stderr


def test_a_server_that_does_not_start_is_told_of(ask):
    added = ask("servers", "add", "broken", "--", "/nowhere/at-all")
    assert added.returncode == 1
    assert added.stderr.startswith("broken is ERROR: ")
    assert ask("servers", "remove", "broken", "--json").returncode == 0


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("add", "x"), "give one of"),
        (("add", "x", "--http", "http://a", "--sse", "http://b"), "give one of"),
        (("add", "x", "--env", "novalue", "--", "true"), "--env must be NAME=VALUE"),
        (("add", "Bad Name", "--", "true"), "$.name"),
        (("remove", "clock"), "the config file's"),
        (("list", "--status", "asleep"), "status"),
    ],
)
def test_what_makes_no_sense_is_refused_with_words(ask, words, told):
    ended = ask("servers", *words)
    assert ended.returncode in (1, 2)
    assert told in ended.stderr


def test_the_key_can_be_given_and_a_wrong_one_is_told_of(demo, program):
    kept = (demo.folder / "admin.key").read_text().strip()
    elsewhere = ["--url", demo.url, "--data-dir", str(demo.folder / "none")]
    none = program("state", *elsewhere)
    assert (none.returncode, "wants a key" in none.stderr) == (1, True)
    assert "--data-dir" in none.stderr
    wrong = program("state", *elsewhere, "--key", "jct_a_b")
    assert (wrong.returncode, "does not take this key" in wrong.stderr) == (1, True)
    assert program("state", *elsewhere, "--key", kept).returncode == 0
    assert program("state", *elsewhere, env={"JUNCTION_KEY": kept}).returncode == 0


def test_where_no_service_is_the_command_says_how_to_start_one(program, tmp_path):
    ended = program("state", "--url", "http://127.0.0.1:9", "--data-dir", tmp_path)
    assert ended.returncode == 1
    assert "mcp-junction serve" in ended.stderr
    odd = program("state", "--url", "nonsense", "--data-dir", tmp_path)
    assert (odd.returncode, "must be like" in odd.stderr) == (2, True)


@pytest.mark.parametrize("command", ["servers", "tools", "state"])
def test_help_has_an_example_or_says_what_it_does(program, command):
    shown = program(command, "--help")
    assert shown.returncode == 0
    assert "mcp-junction serve" in shown.stdout


def test_the_owners_key_is_sent_to_this_machine_only(tmp_path, monkeypatch):
    from mcp_junction.cli.remote import ServiceClient

    (tmp_path / "admin.key").write_text("jct_a_secret\n")
    monkeypatch.delenv("JUNCTION_KEY", raising=False)
    given = {"key": None, "data_dir": str(tmp_path)}
    here = ServiceClient.from_options(SimpleNamespace(url="http://127.0.0.1:1", **given))
    there = ServiceClient.from_options(SimpleNamespace(url="http://far.example:1", **given))
    assert here._headers == {"authorization": "Bearer jct_a_secret"}
    assert there._headers == {}


def test_a_demo_and_a_file_are_one_too_many(program, tmp_path):
    words = ["serve", "--demo", "--config", tmp_path / "x.json", "--data-dir", tmp_path]
    assert "choose one" in program(*words).stderr
    assert os.listdir(tmp_path) == []


def test_errors_under_mcp_are_understood(demo):
    from mcp_junction.cli.remote import ServiceClient
    from mcp_junction.errors import RequestError

    kept = (demo.folder / "admin.key").read_text().strip()
    remote = ServiceClient(demo.url, kept)
    with pytest.raises(RequestError) as refused:
        remote.get("/api/v1/mcp/nothing-of-this-name")
    assert refused.value.code == "NotFoundError"
    assert str(refused.value)
    for key, words in ((None, "wants a key"), ("jct_a_b", "does not take this key")):
        with pytest.raises(RequestError, match=words) as refused:
            ServiceClient(demo.url, key).get("/api/v1/mcp/nothing-of-this-name")
        assert refused.value.code == "AuthorizationError"
