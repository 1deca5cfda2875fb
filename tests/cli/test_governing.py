"""`grants`, `agents` and `explain`: who may call what, at a running service."""

import io
import json

import pytest
from tests.cli.serving import serve_demo

pytestmark = pytest.mark.preloaded


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    with serve_demo(tmp_path_factory.mktemp("governed")) as served:
        yield served


@pytest.fixture
def ask(demo, program):
    """Run a command on the service, as its administrator unless a key is given."""

    def run(*words, fails=False, **how):
        ended = program(*words, "--url", demo.url, "--data-dir", demo.folder, **how)
        assert (ended.returncode != 0) is fails, (ended.stdout, ended.stderr)
        return ended

    return run


@pytest.fixture
def ask_json(ask):
    def run(*words, **how):
        return json.loads(ask(*words, "--json", **how).stdout)

    return run


@pytest.fixture
def agent(ask, demo, request):
    """A new agent with a key: its id and the key."""
    name = f"agent-{abs(hash(request.node.name)) % 10**8}"
    made = json.loads(ask("agents", "add", name, "--make-key", "--json").stdout)
    return name, made["key"]


@pytest.mark.req("REQ-MCP-AUTH-001")
def test_an_agent_sees_nothing_then_what_it_is_granted_and_then_nothing_again(ask, ask_json, agent):
    name, key = agent
    nothing = " ".join(ask("tools", "list", "--key", key).stdout.split())
    assert "Ask the operator for a grant" in nothing
    assert "clock" not in nothing
    (made,) = ask_json("grants", "add", name, "clock.now", "--note", "to know the time")
    assert (made["agent_id"], made["server_id"], made["tool_name"]) == (name, "clock", "now")
    tools = ask_json("tools", "list", "--key", key)
    assert [tool["name"] for tool in tools] == ["clock.now"]
    assert ask("tools", "call", "clock.now", "--key", key)
    refused = ask("tools", "call", "clock.convert", "--key", key, fails=True)
    assert "there is no tool" in refused.stderr
    shown = ask("grants", "list", name, env={"COLUMNS": "200"}).stdout
    assert "clock.now" in shown
    assert made["id"][:8] in shown
    assert "is revoked" in ask("grants", "revoke", made["id"]).stdout
    assert ask_json("grants", "list", name) == []
    assert ask_json("tools", "list", "--key", key) == []


@pytest.mark.parametrize(
    ("pattern", "has_token", "why"),
    [
        ("clock.now", False, ""),
        ("notes.delete", True, "notes.delete is high-risk: its name contains 'delete'"),
        ("notes.*", True, "is high-risk"),
        ("clock.*", True, "may be high-risk"),
        ("clock.unseen", True, "may be high-risk"),
    ],
)
def test_a_token_is_shown_where_a_tool_may_need_it_and_why(ask, agent, pattern, has_token, why):
    said = ask("grants", "add", agent[0], pattern).stdout
    assert ("jtk_" in said) is has_token
    assert why in said


def test_a_grant_of_a_tool_that_is_not_known_is_given_with_a_warning(ask, agent):
    name, _ = agent
    said = ask("grants", "add", name, "clock.now", "clock.nwo")
    assert said.stdout.count("Grant ") == 2
    assert said.stderr.count("warning: ") == 1
    assert "no known tool of 'clock' is named 'nwo' (near: now)" in said.stderr
    said = ask("grants", "add", name, "clock.nwo", "--when", "false", "--json")
    (made,) = json.loads(said.stdout)
    assert [f"warning: {words}" for words in made["warnings"]] == said.stderr.splitlines()
    said = ask("agents", "add", "declaring", "--tool", "clock:nwo")
    assert "warning: no known tool of 'clock'" in said.stderr


def test_a_key_with_a_grant_of_a_tool_that_is_not_known_is_made_with_a_warning(demo, program):
    words = ["keys", "create", "--role", "agent", "--agent", "keyed", "--data-dir", demo.folder]
    said = program(*words, "--grant", "clock.now", "--grant", "clock.*", "--grant", "notes.l?st")
    assert (said.returncode, "warning" in said.stderr) == (0, False)
    said = program(*words, "--grant", "clock.nwo")
    assert (said.returncode, said.stdout[:4]) == (0, "jct_")
    assert "warning: --grant clock.nwo fits no known tool" in said.stderr


@pytest.mark.parametrize(
    "words",
    [("grants", "add", "local-owner", "clock.now"), ("agents", "add", "local-owner")],
    ids=" ".join,
)
def test_the_owners_id_is_not_given_to_an_agent(ask, words):
    assert "agent_id must not be the local owner's" in ask(*words, fails=True).stderr


def test_a_declared_tool_may_be_written_as_in_other_commands(ask, ask_json):
    made = ask_json("agents", "add", "dotted", "--tool", "clock.now", "--tool", "notes:*")
    assert made["declared_tools"] == ["clock:now", "notes:*"]
    refused = ask("agents", "add", "dotted", "--tool", "nowhere.now", fails=True)
    assert "'nowhere.now' names no known server" in refused.stderr


def test_a_grant_has_the_terms_that_it_was_given(ask_json, agent):
    name, _ = agent
    terms = ["--kinds", "prompts,tools", "--token-mode", "present", "--ttl", "5m"]
    terms += ["--limit", "100/1h", "--expires", "7d", "--note", "a note"]
    (made,) = ask_json("grants", "add", name, "notes.*", *terms)
    (kept,) = ask_json("grants", "list", name)
    assert kept["kinds"] == ["tools", "prompts"]
    assert (kept["token_mode"], kept["token_ttl"]) == ("present", 300)
    assert (kept["limits"], kept["note"]) == ({"calls": 100, "per": 3600}, "a note")
    assert kept["expires_at"]
    assert made["token"].startswith("jtk_")
    assert "token" not in kept


def test_a_token_is_shown_once_with_a_hint_and_renewed(ask, agent):
    name, _ = agent
    said = ask("grants", "add", name, "notes.delete", "--token-mode", "single_use").stdout
    assert said.count("jtk_") == 1
    assert 'send it as "token"' in said
    grant = said.split()[1].rstrip(":")
    again = ask("grants", "renew", grant).stdout
    assert again.count("jtk_") == 1
    assert again.split("jtk_")[1].split()[0] != said.split("jtk_")[1].split()[0]
    assert "jtk_" not in ask("grants", "list", name).stdout
    assert "are revoked" in ask("grants", "revoke", grant, "--token-only").stdout
    assert grant in ask("grants", "list", name, env={"COLUMNS": "200"}).stdout


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("add", "bot", "nothing.of.this"), "names no known server"),
        (("add", "bot", "clock"), "write server.tool, server.* or *"),
        (("add", "bot", "clock.now", "--kinds", "toys"), "--kinds must be of tools"),
        (("add", "bot", "clock.now", "--ttl", "soon"), "--ttl must be a time like"),
        (("add", "bot", "clock.now", "--limit", "many"), "--limit must be CALLS/TIME"),
        (("add", "bot", "clock.now", "--expires", "never"), "--expires must be like 7d"),
        (("add", "bot", "clock.now", "--expires", "2001-01-01"), "expires_at"),
        (("revoke", "no-such-grant"), "is the id of no grant"),
    ],
)
def test_what_makes_no_sense_is_refused_with_words(ask, words, told):
    refused = ask("grants", *words, fails=True)
    assert told in refused.stderr
    assert refused.stdout == ""


@pytest.mark.req("REQ-MCP-AUTH-002")
def test_an_agent_is_added_with_its_tools_and_removed(ask, ask_json):
    words = ["--type", "ci", "--tool", "clock:now", "--tool", "notes:li*"]
    made = ask_json("agents", "add", "declaring", *words)
    assert made["agent_type"] == "ci"
    granted = ask_json("grants", "list", "declaring")
    assert {(one["server_id"], one["tool_name"]) for one in granted} == {
        ("clock", "now"),
        ("notes", "li*"),
    }
    assert "declaring" in ask("agents", "list").stdout
    assert "is removed" in ask("agents", "remove", "declaring").stdout
    assert "declaring" not in [one["agent_id"] for one in ask_json("agents", "list")]
    again = ask("agents", "remove", "declaring", fails=True)
    assert "declaring" in again.stderr


def test_the_grants_of_all_agents_are_listed(ask_json, agent):
    name, _ = agent
    ask_json("grants", "add", name, "clock.now")
    ask_json("grants", "add", "another", "notes.*")
    found = {one["agent_id"]: one for one in ask_json("grants", "list")}
    assert found[name]["tool_name"] == "now"
    assert found["another"]["kinds"] == ["tools", "prompts", "resources"]


def test_explain_says_what_is_decided_why_and_what_would_help(ask, ask_json, agent):
    name, _ = agent
    refused = ask("explain", name, "notes.delete", fails=True)
    assert refused.stdout.startswith("DENY by default: ")
    assert "It would pass if:" in refused.stdout
    unknown = ask("explain", name, "notes.delet", fails=True)
    assert "no known tool of 'notes' is named 'delet' (near: delete" in unknown.stderr
    ask("grants", "add", name, "notes.delete", "--token-mode", "present")
    refused = ask("explain", name, "notes.delete", '{"name": "x"}', fails=True)
    assert refused.stdout.startswith("DENY by token: ")
    ask("grants", "add", name, "clock.now")
    assert ask("explain", name, "clock.now").stdout.startswith("ALLOW by grant:")
    assert ask_json("explain", name, "clock.now")["decision"] == "ALLOW"
    allowed = ask("explain", name, "clock.now", '{"timezone": 3}').stdout
    assert "'now' on server 'clock'" in allowed
    assert "It is allowed, but may fail unless:\n  - the arguments fit the schema" in allowed


def test_a_condition_is_granted_shown_and_explained(ask, ask_json, agent):
    name, key = agent
    when = 'args.timezone == "UTC"'
    (made,) = ask_json("grants", "add", name, "clock.now", "--when", when)
    assert made["when"] == when
    assert when in ask("grants", "list", name, env={"COLUMNS": "200"}).stdout
    assert ask("tools", "call", "clock.now", '{"timezone": "UTC"}', "--key", key)
    tokyo = '{"timezone": "Asia/Tokyo"}'
    refused = ask("tools", "call", "clock.now", tokyo, "--key", key, fails=True)
    assert "condition" in refused.stderr
    told = ask("explain", name, "clock.now", tokyo, fails=True).stdout
    assert "is not met" in told
    assert "→  false" in told
    wrong = ask("grants", "add", name, "clock.now", "--when", "args.x ==", fails=True)
    assert "at character 10" in wrong.stderr


def test_a_call_waits_for_a_person_who_approves_it_once(ask, ask_json, agent):
    name, key = agent
    ask("grants", "add", name, "notes.*", "--token-mode", "approval")
    assert (
        "a person approves each call" in ask("grants", "list", name, env={"COLUMNS": "200"}).stdout
    )
    call = ("tools", "call", "notes.delete", '{"name": "none"}', "--key", key)
    assert "a person has to approve this call" in ask(*call, fails=True).stderr
    (waiting,) = [one for one in ask_json("approvals") if one["agent_id"] == name]
    assert waiting["tool_name"] == "delete"
    assert waiting["id"] in ask("approvals", "list", env={"COLUMNS": "200"}).stdout
    (shown,) = json.loads(ask("approvals", "reveal", waiting["id"]).stdout)
    assert shown["arguments"] == {"name": "none"}
    assert "passes once now" in ask("approvals", "approve", waiting["id"], "--note", "ok").stdout
    assert "a person has to approve" not in ask(*call, fails=True).stderr  # there is no such note
    assert "a person has to approve" in ask(*call, fails=True).stderr
    (again,) = [one for one in ask_json("approvals") if one["agent_id"] == name]
    assert "denied" in ask("approvals", "deny", again["id"]).stdout
    assert "nobody can decide" in ask("approvals", "deny", again["id"], fails=True).stderr
    assert "give the id" in ask("approvals", "approve", fails=True).stderr


def test_the_live_table_shows_what_waits():
    from rich.console import Console

    from mcp_junction.cli.approvals import _make_table

    one = {
        "id": "5f2d", "state": "pending", "agent_id": "ann", "asked_by": "boss", "server_id": "s",
        "tool_name": "delete", "preview": "{}", "risk": "its name", "kinds": ["tools"],
        "expires_at": "2030-01-31T12:00:00Z",
    }  # fmt: skip
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(_make_table([one]))
    text = console.export_text()
    assert "5f2d" in text
    assert "ann, by boss" in text
    assert "No call waits" in str(_make_table([]))


def test_a_grant_is_tried_without_being_given(ask, ask_json, agent):
    name, key = agent
    ask("grants", "add", name, "clock.now")
    assert ask("tools", "call", "clock.now", "--key", key)
    ask("tools", "call", "clock.convert", "{}", "--key", key, fails=True)
    tried = ask("grants", "add", name, "clock.nwo", "--when", "1 > 2", "--dry-run")
    assert "no known tool of 'clock' is named 'nwo' (near: now)" in tried.stderr
    assert "can meet its condition" in tried.stderr
    tried = ask("grants", "add", name, "clock.now", "--when", "args.x == 1", "--dry-run")
    assert tried.stderr == ""
    tried = ask("grants", "add", name, "clock.*", "--dry-run", env={"COLUMNS": "200"}).stdout
    assert "more allowed" in tried
    assert "clock.convert" in tried
    assert len(ask_json("grants", "list", name)) == 1
