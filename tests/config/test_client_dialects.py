"""Keys of other clients' files: those that mean something here, and those that do not."""

import pytest

from mcp_junction.errors import ProblemCode

TOOLS = ["read", "write", "delete"]


def shown(selection):
    return [name for name in TOOLS if selection is None or selection.name_for(name)]


@pytest.mark.req("J-CLIENT-KEYS")
@pytest.mark.parametrize(
    ("keys", "tools"),
    [
        ({"disabledTools": ["delete"]}, ["read", "write"]),
        ({"disabled_tools": ["delete"]}, ["read", "write"]),
        ({"excludeTools": ["write", "delete"]}, ["read"]),
        ({"enabledTools": ["read"]}, ["read"]),
        ({"enabled_tools": ["read"]}, ["read"]),
        ({"includeTools": ["read", "write(path)"]}, ["read", "write"]),
        ({"includeTools": ["read", "write"], "excludeTools": ["write"]}, ["read"]),
        ({"tools": ["read"]}, ["read"]),
        ({"tools": ["*"]}, TOOLS),
        ({"includeTools": []}, []),
        ({"disabledTools": []}, TOOLS),
        ({"disabledTools": None, "tools": {"x": 1}}, TOOLS),
        ({"disabledTools": ["read"], "junction": {"tools": {"deny": ["write"]}}}, ["delete"]),
        ({"includeTools": ["read"], "junction": {"tools": {"allow": ["w*"]}}}, ["write"]),
    ],
)
def test_tools_that_were_switched_off_in_a_client_are_not_shown(server, keys, tools):
    assert shown(server({"command": "x", **keys}).tools) == tools


@pytest.mark.req("J-CLIENT-KEYS")
@pytest.mark.parametrize("key", ["disabledTools", "includeTools", "excludeTools", "enabledTools"])
@pytest.mark.parametrize("value", ["delete", {"delete": True}, [1]])
def test_a_list_of_tools_that_cannot_be_read_is_an_error_that_names_it(folder, key, value):
    (problem,) = folder.problems({"mcpServers": {"s": {"command": "x", key: value}}})
    assert (problem.path, problem.code) == (f"$.mcpServers.s.{key}", ProblemCode.INVALID_SCHEMA)
    assert "array of names" in problem.message


@pytest.mark.req("J-CLIENT-KEYS")
def test_an_env_file_gives_a_server_variables_and_env_goes_before_it(folder):
    (folder.path / "one.env").write_text("A=from file\nB='kept'\n")
    entry = {"command": "x", "envFile": "one.env", "env": {"A": "from env"}, "args": ["$B"]}
    (server,) = folder.load({"mcpServers": {"s": entry}}).servers
    assert server.env == {"A": "from env", "B": "kept"}
    assert server.args == ("kept",)


@pytest.mark.req("J-CLIENT-KEYS")
def test_folders_of_vs_code_are_known_and_are_no_secrets(folder):
    inner = folder.path / ".vscode"
    inner.mkdir()
    folder.file = inner / "mcp.json"
    (folder.path / ".env").write_text("A=1\n")
    entry = {"command": "x", "envFile": "${workspaceFolder}/.env", "cwd": "${userHome}"}
    (server,) = folder.load({"servers": {"s": entry}}, {"HOME": "/ignored"}).servers
    assert server.env == {"A": "1"}
    assert server.cwd
    assert server.variables == {}


@pytest.mark.req("J-CLIENT-KEYS")
def test_a_missing_env_file_is_named_and_is_the_fault_of_its_server_alone(folder):
    document = {"mcpServers": {"s": {"command": "x", "envFile": "no.env"}, "t": {"command": "y"}}}
    (problem,) = folder.problems(document)
    assert (problem.path, problem.code) == ("$.mcpServers.s.envFile", ProblemCode.FILE_NOT_FOUND)
    bad, good = folder.load_leniently(document).servers
    assert "envFile" in bad.fault
    assert not good.fault


@pytest.mark.req("J-CLIENT-KEYS")
@pytest.mark.parametrize("key", ["serverUrl", "httpUrl"])
def test_other_names_of_an_address_are_understood(folder, key):
    (server,) = folder.load({"mcpServers": {"s": {key: "https://x.example/mcp"}}}).servers
    assert (server.transport, server.url) == ("http", "https://x.example/mcp")
    (problem,) = folder.problems({"mcpServers": {"s": {key: "gopher://x"}}})
    assert problem.path == f"$.mcpServers.s.{key}"


@pytest.mark.req("J-CLIENT-KEYS")
def test_a_server_that_is_not_enabled_is_left_out(folder):
    config = folder.load({"mcpServers": {"s": {"command": "x", "enabled": False}}})
    assert (config.servers, config.disabled) == ((), {"s"})
    assert folder.load({"mcpServers": {"s": {"command": "x", "enabled": True}}}).servers


@pytest.mark.req("J-CLIENT-KEYS")
@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("alwaysAllow", ["read"]),
        ("autoApprove", ["read"]),
        ("trust", True),
        ("oauth", {"clientId": "x"}),
        ("watchPaths", ["/a"]),
        ("sandboxEnabled", True),
        ("headersHelper", "./get"),
        ("initTimeout", 5),
        ("timeout", 60),
    ],
)
def test_a_key_without_effect_is_named_in_a_warning(folder, caplog, key, value):
    folder.load({"mcpServers": {"files": {"command": "x", key: value}}})
    (record,) = caplog.records
    assert "'files'" in record.getMessage()
    assert key in record.getMessage()


@pytest.mark.req("J-CLIENT-KEYS")
@pytest.mark.parametrize(
    "entry",
    [
        {"alwaysAllow": [], "trust": False, "timeout": 60_000, "oauth": None},
        {"description": "x", "icon": "y", "gallery": True, "version": "1", "disabledTools": ["a"]},
        {"disabled": True, "alwaysAllow": ["read"]},
    ],
)
def test_nothing_is_said_of_keys_that_change_nothing(folder, caplog, entry):
    folder.load({"mcpServers": {"files": {"command": "x", **entry}}})
    assert not caplog.records


@pytest.mark.req("FR-002")
def test_an_input_of_vs_code_is_told_apart_from_a_variable(folder):
    document = {"servers": {"s": {"command": "x", "env": {"K": "${input:key}"}}}}
    (problem,) = folder.problems(document)
    assert "asked from a person" in problem.message
    assert problem.variable == "input:key"
