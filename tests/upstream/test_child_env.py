"""What a server's process is given, and the circle that is seen."""

import sys
from pathlib import Path

import pytest

from mcp_junction.config.servers import ServerDefinition
from mcp_junction.errors import Phase, ServerError
from mcp_junction.upstream.child_env import (
    CHAIN_VARIABLE,
    child_env,
    explain_start_failure,
    find_command,
    is_circular,
)

OURS = {
    "PATH": "/bin",
    "HOME": "/home/me",
    "USER": "me",
    "LOGNAME": "me",
    "SHELL": "/bin/sh",
    "LANG": "C",
    "LC_ALL": "C",
    "LC_TIME": "C",
    "TZ": "UTC",
    "TMPDIR": "/tmp",
    "TERM": "dumb",
    "https_proxy": "http://p",
    "NO_PROXY": "x",
    "SSL_CERT_FILE": "/c",
    "AWS_SECRET_ACCESS_KEY": "secret",
    "JUNCTION_ADMIN_KEY": "secret",
    "VIRTUAL_ENV": "/v",
    "PYTHONPATH": "/p",
    "LD_PRELOAD": "/l",
}
NOT_FOR_CHILDREN = {
    "AWS_SECRET_ACCESS_KEY",
    "JUNCTION_ADMIN_KEY",
    "VIRTUAL_ENV",
    "PYTHONPATH",
    "LD_PRELOAD",
}

ENOENT = FileNotFoundError(2, "Not there")


def definition(**members: object) -> ServerDefinition:
    return ServerDefinition("s", "stdio", **{"command": "x", **members})


@pytest.mark.req("FR-011", "J-ENV-INHERIT")
def test_a_child_inherits_only_the_listed_variables():
    env = child_env(definition(), OURS, "id", inherit=False)
    assert set(env) == set(OURS) - NOT_FOR_CHILDREN | {CHAIN_VARIABLE}


@pytest.mark.req("J-ENV-INHERIT")
def test_when_told_to_it_inherits_all_but_our_own():
    env = child_env(definition(), OURS, "id", inherit=True)
    assert set(env) == {*OURS, CHAIN_VARIABLE} - {"JUNCTION_ADMIN_KEY"}


@pytest.mark.req("FR-011")
def test_what_the_file_gives_comes_on_top():
    env = child_env(definition(env={"HOME": "/else", "API_KEY": "k"}), OURS, "id", inherit=False)
    assert (env["HOME"], env["API_KEY"], env["PATH"]) == ("/else", "k", "/bin")


@pytest.mark.req("EDGE-CIRCULAR")
def test_the_chain_of_files_above_grows_with_each_aggregator():
    env = child_env(definition(), OURS, "one", inherit=False)
    assert is_circular(env, "one")
    assert not is_circular(env, "two")
    below = child_env(definition(), env, "two", inherit=False)
    assert is_circular(below, "one")
    assert is_circular(below, "two")
    assert not is_circular(OURS, "one")


@pytest.mark.req("EDGE-CIRCULAR")
def test_the_file_cannot_hide_the_chain():
    env = child_env(
        definition(env={CHAIN_VARIABLE: ""}), {CHAIN_VARIABLE: "one"}, "two", inherit=False
    )
    assert is_circular(env, "one")
    assert is_circular(env, "two")


def test_a_path_is_taken_as_it_is():
    assert find_command(definition(command="./run"), {}) == "./run"


def test_a_name_is_looked_up_on_the_childs_own_path(tmp_path):
    program = tmp_path / "only-here"
    program.touch(mode=0o755)
    found = find_command(definition(command="only-here"), {"PATH": str(tmp_path)})
    assert found == str(program)


def test_a_program_installed_beside_us_is_found_last(tmp_path):
    name = Path(sys.executable).name
    assert find_command(definition(command=name), {"PATH": str(tmp_path)}) == sys.executable


@pytest.mark.req("US1-6", "FR-009")
def test_a_command_that_is_nowhere_fails_the_start_and_says_what_to_do(tmp_path):
    with pytest.raises(ServerError, match="not found on PATH; install it") as caught:
        find_command(definition(command="no-such-program"), {"PATH": str(tmp_path)})
    assert (caught.value.phase, caught.value.server) == (Phase.STARTUP, "s")


@pytest.mark.req("US1-6", "FR-009")
def test_arguments_inside_the_command_are_told_to_go_elsewhere():
    hint = "its arguments belong into args"
    with pytest.raises(ServerError, match=f"not found on PATH; .*{hint}"):
        find_command(definition(command="python3 -m server"), {"PATH": "/bin"})
    said = explain_start_failure(definition(command="python3 /x/server.py"), ENOENT)
    assert said.startswith("could not start 'python3 /x/server.py': Not there; ")
    assert said.endswith(hint)


def test_nothing_is_said_of_arguments_where_there_are_none(tmp_path):
    program = tmp_path / "my program"
    program.touch()
    said = explain_start_failure(definition(command=str(program)), PermissionError(13, "Denied"))
    assert said == f"could not start {str(program)!r}: Denied"


def test_a_folder_that_is_missing_is_not_blamed_on_the_command(tmp_path):
    gone, file = tmp_path / "gone", tmp_path / "file"
    file.touch()
    assert (
        explain_start_failure(definition(cwd=str(gone)), ENOENT)
        == f"its cwd {str(gone)!r} is missing"
    )
    said = explain_start_failure(
        definition(cwd=str(file)), NotADirectoryError(20, "Not a directory")
    )
    assert said == f"its cwd {str(file)!r} is not a folder"
    assert (
        explain_start_failure(definition(cwd=str(tmp_path)), ENOENT)
        == "could not start 'x': Not there"
    )


def test_a_folder_that_is_not_a_full_path_is_shown_in_full(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    said = explain_start_failure(definition(cwd="gone"), ENOENT)
    assert said == f"its cwd 'gone' ({tmp_path}/gone) is missing"


@pytest.mark.parametrize("members", [{"cwd": "~/x"}, {"command": "~/bin/server"}])
def test_a_tilde_is_said_not_to_be_expanded(members):
    assert explain_start_failure(definition(**members), ENOENT).endswith(
        "; '~' is not expanded here: write $HOME"
    )
