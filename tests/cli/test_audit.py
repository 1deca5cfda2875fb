"""`mcp-junction audit`: what the commands did is in the record, and the record can be checked."""

import json
import sqlite3
import subprocess

import pytest
from tests.plugin_journeys import PROGRAM
from tests.plugin_store import schema_url

pytestmark = pytest.mark.preloaded


@pytest.fixture
def run(program, tmp_path):
    """Run a command on this test's data directory; what it printed."""

    def run(*words: str, status: int = 0, **how) -> str:
        ended = program(*words, "--data-dir", tmp_path, **how)
        assert ended.returncode == status, ended
        assert "Traceback" not in ended.stderr
        return ended.stdout + ended.stderr

    return run


def lines(text: str) -> list[dict]:
    return [json.loads(line) for line in text.splitlines()]


@pytest.fixture
def key(run) -> dict:
    said = run("keys", "create", "--role", "agent", "--agent", "[b]bot", "--json")
    return json.loads(said.splitlines()[0])  # what it closes is said after it


@pytest.mark.req("J-CLI")
def test_what_was_done_to_keys_is_in_the_record(run, key):
    run("keys", "revoke", key["id"])
    run("keys", "revoke", "nosuch", status=2)
    told = lines(run("audit", "tail", "--json"))
    acts = [(row["kind"], row["action"], row["target"], row["outcome"]) for row in told]
    assert [act for act in acts if act[0] != "opened"] == [
        ("intent", "key.create", "[b]bot", None),
        ("outcome", "key.create", "[b]bot", "ok"),
        ("intent", "key.revoke", key["id"], None),
        ("outcome", "key.revoke", key["id"], "ok"),
        ("intent", "key.revoke", "nosuch", None),
        ("outcome", "key.revoke", "nosuch", "error"),
    ]
    assert {row["actor"] for row in told if row["kind"] == "intent"} == {"local-owner"}
    assert key["key"].split("_", 2)[2] not in run("audit", "export")
    failed = lines(run("audit", "tail", "--json", "--outcome", "error"))
    assert [row["target"] for row in failed] == ["nosuch"]
    shown = run("audit", "tail", "-n", "3", "--kind", "outcome")
    assert shown.count("key.revoke") == 2
    assert "[b]bot" in shown


def test_a_row_is_a_line_where_it_is_read_by_a_program(run):
    run("keys", "create", "--role", "agent", "--agent", "an-agent-with-a-rather-long-name")
    shown = run("audit", "tail", "--action", "key.create", env={"COLUMNS": None})
    assert sum("an-agent-with-a-rather-long-name" in line for line in shown.splitlines()) == 2


def test_following_shows_what_is_done_from_now_on(run, key, tmp_path):
    command = [str(PROGRAM), "audit", "tail", "-n", "1", "--follow", "--json"]
    with subprocess.Popen(
        [*command, "--data-dir", str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as following:
        first = json.loads(following.stdout.readline())
        assert (first["kind"], first["target"]) == ("outcome", "[b]bot")
        run("keys", "create", "--role", "agent", "--agent", "later")
        second = json.loads(following.stdout.readline())
        following.terminate()
    assert (second["kind"], second["seq"]) == ("opened", 1)
    assert second["writer"] != first["writer"]


def test_before_anything_was_done_there_is_nothing_to_show(run):
    run("keys", "list")  # so that there is a store
    assert "There are no rows yet." in run("audit", "tail")
    assert "0 rows in 0 chains: sound" in run("audit", "verify")


def test_verify_says_that_all_is_sound_or_names_the_first_bad_row(run, key, tmp_path):
    assert "3 rows in 1 chain: sound" in run("audit", "verify")
    connection = sqlite3.connect(tmp_path / "junction.db", isolation_level=None)
    changed = """replace(CAST(body AS TEXT), '"intent"', '"indent"')"""
    connection.execute(f"UPDATE audit_pages SET body = CAST({changed} AS BLOB)")
    connection.close()
    assert run("audit", "verify", status=1).startswith("row 2 of writer ")
    report = json.loads(run("audit", "verify", "--json", status=1))
    assert not report["sound"]
    assert [finding["seq"] for finding in report["findings"]] == [2]


def test_exported_checkpoints_show_a_tail_that_was_cut(run, key, tmp_path):
    kept = tmp_path / "kept.jsonl"
    run("audit", "export", "--checkpoints", "--output", str(kept))
    assert [point["seq"] for point in lines(kept.read_text())] == [3]
    for path in (tmp_path / "audit").iterdir():
        path.unlink()
    connection = sqlite3.connect(tmp_path / "junction.db", isolation_level=None)
    connection.execute("DELETE FROM audit_pages WHERE last_seq = 3")
    connection.close()
    assert "sound" in run("audit", "verify")
    assert "row 3" in run("audit", "verify", "--checkpoints", str(kept), status=1)


def test_files_that_cannot_be_used_are_named(run, tmp_path):
    run("keys", "list")  # so that there is a store
    missing = str(tmp_path / "no" / "file")
    assert f"--output {missing}" in run("audit", "export", "--output", missing, status=2)
    assert "--checkpoints" in run("audit", "verify", "--checkpoints", missing, status=2)


@pytest.mark.parametrize(
    "words",
    [("audit", "verify"), ("audit", "tail"), ("audit", "export"), ("vault", "status")],
    ids=" ".join,
)
def test_a_store_that_is_not_there_is_not_called_sound_and_not_made(run, tmp_path, words):
    said = run(*words, status=2)
    assert f"there is no store at {tmp_path / 'junction.db'}" in said
    assert "--data-dir or --store" in said
    assert list(tmp_path.iterdir()) == []


async def test_every_command_takes_the_url_of_a_store(
    run, program, postgres, tmp_path, monkeypatch
):
    url = await schema_url(postgres)
    run("keys", "create", "--role", "agent", "--store", url)
    assert len(lines(run("audit", "tail", "--json", "--store", url))) == 3
    assert run("audit", "verify", "--store", url).startswith("3 rows")
    assert "there is no store" in run("audit", "tail", status=2)
    assert "does not serve us" in run(
        "audit", "tail", "--store", "postgresql://x@127.0.0.1:1/x", status=1
    )
    assert "--store takes" in run("audit", "tail", "--store", "redis://x", status=2)


def test_a_filter_that_matches_nothing_does_not_say_that_there_is_nothing(run, key):
    assert "No rows match." in run("audit", "tail", "--agent", "nobody")
    assert "No rows match." in run("audit", "show", "--since", "2099-01-01")
    assert "--decision must be" in run("audit", "tail", "--decision", "maybe", status=2)
    assert "--since must be" in run("audit", "tail", "--since", "soon", status=2)


def test_rows_are_shown_whole_and_by_whom_they_tell(run, key):
    run("keys", "revoke", key["id"])
    shown = run("audit", "show", "--agent", "local-owner", "--target", key["id"], "--since", "1h")
    assert shown.count("action         key.revoke") == 2
    assert "agent_id       local-owner" in shown
    told = lines(run("audit", "show", "--json", "--action", "key.revoke"))
    assert {row["target"] for row in told} == {key["id"]}


@pytest.mark.req("REQ-MCP-OBS-002")
def test_an_index_that_was_tampered_with_is_named_and_made_anew(run, key, tmp_path):
    connection = sqlite3.connect(tmp_path / "junction.db", isolation_level=None)
    connection.execute("DELETE FROM audit_terms")
    connection.close()
    said = run("audit", "verify", status=1)
    assert "3 rows in 1 chain: sound" in said
    assert "audit reindex" in said
    assert json.loads(run("audit", "verify", "--json", status=1))["index"]
    assert "indexed" in run("audit", "reindex")
    assert "sound" in run("audit", "verify")
