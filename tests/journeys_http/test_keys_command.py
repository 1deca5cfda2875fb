"""`mcp-junction keys`, and what keys mean to a server that is running."""

import asyncio
import json
import subprocess
from pathlib import Path

import pytest
from tests.http.wire import BOUND
from tests.plugin_http import stdio_entry

pytestmark = pytest.mark.preloaded

PING = b'{"jsonrpc":"2.0","id":1,"method":"ping"}'


@pytest.fixture
def keys(tmp_path, executable):
    """Run `mcp-junction keys` on the data directory that `serve` uses here."""

    def run(*words: str, status: int = 0) -> subprocess.CompletedProcess[str]:
        command = [*executable, "keys", *words, "--data-dir", str(tmp_path / "data")]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=BOUND)
        assert ended.returncode == status, ended
        assert "Traceback" not in ended.stderr
        return ended

    return run


@pytest.fixture
def file(tmp_path) -> Path:
    return tmp_path / "data" / "junction.db"


def made(keys, *words: str) -> dict[str, str]:
    role = () if "--role" in words else ("--role", "agent")
    return json.loads(keys("create", "--json", *role, *words).stdout)


def test_without_a_role_and_without_a_terminal_no_key_is_made(keys, file):
    assert "--role is needed: one of admin, orchestrator, agent, viewer" in (
        keys("create", "--agent", "bot", status=2).stderr
    )
    assert not file.exists()


def test_the_first_key_for_anybody_but_an_administrator_says_what_it_closes(keys):
    assert "needs a key" not in keys("create", "--role", "admin").stderr
    first = keys("create", "--role", "viewer", "--json")
    assert "From now on every request to /mcp needs a key" in first.stderr
    assert "serve --owner-without-key" in first.stderr
    assert "needs a key" not in keys("create", "--role", "agent").stderr
    keys("revoke", json.loads(first.stdout)["id"])
    assert "needs a key" not in keys("create", "--role", "agent").stderr


def test_a_key_is_printed_once_and_only_its_hash_is_kept(keys, file):
    created = keys("create", "--role", "agent", "--agent", "build-bot")
    key = created.stdout.strip()
    assert key.startswith("jct_")
    assert "It is not shown again." in created.stderr
    secret = key.split("_", 2)[2]
    assert len(secret) >= 40
    shown = keys("list").stdout + keys("list", "--json").stdout
    assert secret not in file.read_bytes().decode("latin-1") + created.stderr + shown


def test_only_its_owner_can_read_the_file(keys, file):
    made(keys)
    assert file.stat().st_mode & 0o777 == 0o600
    assert file.parent.stat().st_mode & 0o777 == 0o700
    file.chmod(0o644)
    made(keys)
    assert file.stat().st_mode & 0o777 == 0o600


def test_keys_are_listed_with_what_became_of_them(keys):
    assert "There are no keys yet." in keys("list").stdout
    assert json.loads(keys("list", "--json").stdout) == []
    one = made(keys, "--role", "viewer")
    two = made(keys, "--agent", "[red]bot[/]")
    revoked = json.loads(keys("revoke", one["id"], "--json").stdout)
    listed = {key["id"]: key for key in json.loads(keys("list", "--json").stdout)}
    assert listed[one["id"]]["revoked_at"] == revoked["revoked_at"] is not None
    assert (listed[two["id"]]["role"], listed[two["id"]]["revoked_at"]) == ("agent", None)
    shown = keys("list").stdout
    assert "[red]bot[/]" in shown
    assert (shown.count("revoked"), shown.count("in force")) == (1, 1)


def test_a_revocation_is_for_ever(keys):
    one = made(keys)
    first = json.loads(keys("revoke", one["id"], "--json").stdout)
    assert json.loads(keys("revoke", one["id"], "--json").stdout) == first


def test_a_key_that_is_not_there_cannot_be_revoked(keys):
    ended = keys("revoke", "nosuchkey", status=2)
    assert "there is no key 'nosuchkey'; see: mcp-junction keys list" in ended.stderr


@pytest.mark.parametrize(
    "words",
    [(), ("delete",), ("create", "--role", "owner"), ("create", "--role", "king"), ("revoke",)],
)
def test_wrong_words_are_explained(keys, words):
    assert "--help" in keys(*words, status=2).stderr


def test_a_file_that_is_damaged_is_named(keys, file):
    made(keys)
    file.write_bytes(b"{" * 5000)
    assert "junction.db cannot be read" in keys("list", status=2).stderr


async def statuses(program, *keys: str | None) -> list[int]:
    found = []
    for key in keys:
        wire = await program.wire()
        wire.request("POST", "/mcp", PING, authorization=f"Bearer {key}" if key else None)
        found.append((await wire.response()).status)
        wire.reset()  # it is asked again and again: open files have a limit
    return found


async def until_statuses(program, wanted: list[int], *keys: str | None) -> None:
    async with asyncio.timeout(BOUND):
        while await statuses(program, *keys) != wanted:
            pass


async def test_a_running_server_knows_new_and_revoked_keys(serve, keys):
    program = await serve({"p": stdio_entry()})
    assert await statuses(program, None, "jct_x_y") == [400, 401]  # let in, and has no session
    one = made(keys, "--agent", "one", "--grant", "p.*")
    await until_statuses(program, [401, 400], None, one["key"])
    two = made(keys, "--agent", "two")
    await until_statuses(program, [400, 400], one["key"], two["key"])
    client = await program.front(key=one["key"])
    held = await client.under_way("p.hold")
    keys("revoke", one["id"])
    await until_statuses(program, [401, 400], one["key"], two["key"])
    assert (await client.answer(held))["error"]["message"] == "the key was revoked"
    assert one["key"].split("_", 2)[2] not in program.errors


@pytest.mark.req("REQ-MCP-AUTH-001")
async def test_a_new_agent_may_call_what_its_key_was_made_with_and_nothing_else(serve, keys):
    program = await serve({"p": stdio_entry(), "q": stdio_entry()})
    some = made(keys, "--agent", "some", "--grant", "p.echo", "--grant", "q.h*")
    none = made(keys, "--agent", "none")
    await until_statuses(program, [400, 400], some["key"], none["key"])
    client = await program.front(key=some["key"])
    listed = set(await client.names())
    assert {"p.echo", "q.hold"} <= listed
    assert not {"p.hold", "q.echo"} & listed
    assert (await client.refused("q.echo"))["message"].startswith("unknown tool: q.echo")
    other = await program.front(key=none["key"])
    assert await other.names() == []


def test_a_pattern_that_names_no_server_makes_neither_key_nor_agent(keys):
    ended = keys("create", "--role", "agent", "--grant", "nowhere.echo", status=2)
    assert "--grant nowhere.echo: names no known server" in ended.stderr
    ended = keys("create", "--role", "viewer", "--grant", "*", status=2)
    assert "--grant is for keys of the role agent" in ended.stderr
    assert json.loads(keys("list", "--json").stdout) == []


async def test_the_owner_is_let_in_without_a_key_when_that_is_asked_for_at_the_start(serve, keys):
    made(keys)
    program = await serve({"p": stdio_entry()})
    assert await statuses(program, None) == [401]
    await program.stop()
    program = await serve({"p": stdio_entry()}, "--owner-without-key")
    assert await statuses(program, None) == [400]
    assert "--owner-without-key was given" in program.errors


async def test_with_require_key_the_loopback_asks_for_one_too(serve, keys):
    program = await serve({"p": stdio_entry()}, "--require-key")
    assert await statuses(program, None) == [401]
    one = made(keys)
    await until_statuses(program, [401, 400], None, one["key"])
