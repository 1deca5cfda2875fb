"""From a path to a Config: one report of everything that is wrong, and no value in it."""

import json

import pytest

from mcp_junction.config.load import load
from mcp_junction.errors import ConfigError, ProblemCode

CANARY = "s3cr3t-c4n4ry"


def error(path: object) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        load(str(path), {}, {})
    return caught.value


@pytest.mark.req("FR-010", "SC-005")
def test_a_file_that_is_not_there_is_said_to_be_missing(tmp_path):
    found = error(tmp_path / "none.json")
    assert found.code is ProblemCode.FILE_NOT_FOUND
    assert "none.json" in str(found)
    assert "--config" in str(found), "it says what to do"


def test_a_folder_is_no_config_file(tmp_path):
    found = error(tmp_path)
    assert found.code is ProblemCode.FILE_NOT_FOUND
    assert "directory" in str(found)


def test_a_file_that_cannot_be_read_is_said_to_be_so(tmp_path):
    found = error(tmp_path / ("x" * 300))
    assert found.code is ProblemCode.FILE_NOT_FOUND
    assert "File name too long" in str(found)


@pytest.mark.req("US1-4")
def test_a_file_that_is_not_text_is_invalid_json(folder):
    folder.file.write_bytes(b'{"mcpServers": {"\xff": 1}}')
    found = error(folder.file)
    assert found.code is ProblemCode.INVALID_JSON
    assert "UTF-8" in str(found)


@pytest.mark.req("US1-4", "FR-010")
def test_broken_json_says_where(folder):
    folder.write('{"mcpServers": {\n  "a": {"command": "x",,}\n}}')
    found = error(folder.file)
    assert found.code is ProblemCode.INVALID_JSON
    assert "line 2" in str(found)


@pytest.mark.req("FR-010", "SC-005")
@pytest.mark.parametrize(
    ("content", "path"),
    [
        ([], "$"),
        ("5", "$"),
        ({}, "$.mcpServers"),
        ({"mcpServers": []}, "$.mcpServers"),
        ({"mcpServers": None}, "$.mcpServers"),
        ({"servers": 5}, "$.servers"),
        ({"mcpServers": {}, "junction": [1]}, "$.junction"),
    ],
)
def test_a_document_of_another_shape_says_what_is_expected(folder, content, path):
    (problem,) = folder.problems(content)
    assert (problem.code, problem.path) == (ProblemCode.INVALID_SCHEMA, path)


def test_a_file_without_servers_is_valid(folder):
    assert folder.load({"mcpServers": {}}).servers == ()


@pytest.mark.req("J-CONFIG-REPORT", "FR-010", "SC-005")
def test_all_problems_come_in_one_report(folder):
    problems = folder.problems(
        {
            "mcpServers": {
                "a": {"command": 5, "args": ["$MISSING"], "env": {"X": 1}},
                "b": "nothing",
                "c": {"url": "ftp://x"},
            },
            "junction": {"page_size": "many", "prefix": "sometimes", "servers": {"d": {}}},
        }
    )
    assert {problem.path for problem in problems} == {
        "$.mcpServers.a.command",
        "$.mcpServers.a.args[0]",
        "$.mcpServers.a.env.X",
        "$.mcpServers.b",
        "$.mcpServers.c.url",
        "$.junction.page_size",
        "$.junction.prefix",
        "$.junction.servers.d",
    }
    assert {problem.code for problem in problems} == {
        ProblemCode.INVALID_SCHEMA,
        ProblemCode.MISSING_ENV_VAR,
    }


@pytest.mark.req("J-CONFIG-REPORT")
def test_a_report_shows_code_path_and_message(folder):
    (problem,) = folder.problems({"mcpServers": {"a": {"command": "$NOPE"}}})
    assert str(problem).startswith("[missing_env_var] $.mcpServers.a.command: ")
    assert "NOPE" in str(problem)


SECRETIVE = [
    {"mcpServers": {"a": {"command": [CANARY], "args": CANARY, "env": CANARY, "cwd": [CANARY]}}},
    {"mcpServers": {"a": {"command": "x", "env": {"K": [CANARY]}, "type": CANARY}}},
    {"mcpServers": {"a": {"command": "x", "args": [{"k": CANARY}, "a\0" + CANARY, "$NOT_SET"]}}},
    {"mcpServers": {"a": {"url": CANARY, "headers": {"Authorization": [CANARY]}}}},
    {"mcpServers": {"a": {"url": "$CANARY", "headers": {"X": "$CANARY$NOT_SET"}}}},
    {"mcpServers": {"a": {"command": "$CANARY", "cwd": "$CANARY$NOT_SET", "timeout": CANARY}}},
    {"mcpServers": {"a": CANARY}, "junction": {"page_size": CANARY, "prefix": CANARY}},
    {"mcpServers": CANARY, "junction": CANARY},
    CANARY,
    json.dumps({"mcpServers": {"a": {"env": {"K": CANARY}}}})[:-3],
    '{"mcpServers": {"a": {"env": {"K": "X", "K": "X"}}}}'.replace("X", CANARY),
    '{"mcpServers": {"a": {"env": {"K": X}}}}'.replace("X", CANARY),
]


@pytest.mark.req("J-CONFIG-REPORT")
@pytest.mark.parametrize("content", SECRETIVE)
def test_no_value_of_the_file_or_the_environment_is_ever_quoted(folder, content):
    environ = {"CANARY": CANARY, "JUNCTION_TIMEOUT": CANARY, "JUNCTION_RESTART": CANARY}
    for problem in folder.problems(content, environ):
        assert CANARY not in repr(problem)


@pytest.mark.req("J-CONFIG-REPORT")
def test_a_definition_does_not_show_its_secrets(folder):
    entry = {"command": "x", "env": {"KEY": CANARY}}
    config = folder.load(
        {"mcpServers": {"a": entry, "b": {"url": "http://x", "headers": {"K": CANARY}}}}
    )
    assert CANARY not in repr(config)


@pytest.mark.req("EDGE-CIRCULAR")
def test_a_file_is_known_again_by_whatever_path(folder, tmp_path, monkeypatch):
    identity = folder.load({"mcpServers": {}}).identity
    (tmp_path / "link.json").symlink_to(folder.file)
    monkeypatch.chdir(tmp_path)
    assert load("mcp.json", {}, {}).identity == identity
    assert load("./link.json", {}, {}).identity == identity
    (tmp_path / "copy.json").write_text('{"mcpServers": {}}')
    assert load("copy.json", {}, {}).identity != identity


@pytest.mark.req("EDGE-CIRCULAR")
@pytest.mark.parametrize(
    "entry",
    [
        {"command": "mcp-junction", "args": ["--config", "FILE"]},
        {"command": "env", "args": ["-i", "/opt/bin/mcp-junction", "--config", "FILE"]},
        {"command": "sh", "args": ["-c", "exec env -i mcp-junction stdio --config='FILE' 2>x"]},
        {"command": "python3", "args": ["-m", "mcp_junction", "--config=FILE"]},
        {"command": "uvx", "args": ["mcp-junction@1.0", "--config", "link.json"], "cwd": "FOLDER"},
        {"command": "mcp-junction", "args": ["--config", "FOLDER/my link.json"]},
        {"command": "mcp-junction", "args": ["--config=FOLDER/my link.json"]},
    ],
)
def test_an_entry_that_serves_its_own_file_is_at_fault_whatever_stands_before(folder, entry):
    (folder.path / "link.json").symlink_to(folder.file)
    (folder.path / "my link.json").symlink_to(folder.file)
    text = json.dumps({"mcpServers": {"again": entry, "fine": {"command": "x"}}})
    text = text.replace("FILE", str(folder.file)).replace("FOLDER", str(folder.path))
    again, fine = folder.load(text).servers
    assert again.fault.startswith("circular reference: ")
    assert fine.fault == ""


@pytest.mark.req("EDGE-CIRCULAR")
@pytest.mark.parametrize(
    ("command", "args"),
    [
        ("env", ["mcp-junction", "--config", "other.json"]),
        ("env", ["cat", "FILE"]),
        ("env", ["my-mcp-junction", "--config", "FILE"]),
        ("python3", ["server.py", "/src/mcp-junction", "FILE"]),
        ("ssh", ["box", "mcp-junction", "--config", "FILE"]),
        ("sh", ["-c", "ssh box mcp-junction --config FILE"]),
        ("docker", ["run", "-i", "example/mcp-junction", "--config", "FILE"]),
    ],
)
def test_an_entry_that_serves_another_file_or_only_reads_this_one_is_fine(folder, command, args):
    entry = {"command": command, "args": [arg.replace("FILE", str(folder.file)) for arg in args]}
    (server,) = folder.load({"mcpServers": {"s": entry}}).servers
    assert server.fault == ""


def with_sets(endpoints: object) -> dict[str, object]:
    return {"mcpServers": {"git": {"command": "x"}}, "junction": {"endpoints": endpoints}}


def test_named_sets_are_read_in_their_order(folder):
    config = folder.load(with_sets({"b": ["git", "git.read_*"], "a.1": []}))
    found = [(name, chosen.entries, chosen.names) for name, chosen in config.endpoints.items()]
    assert found == [("b", ("git", "git.read_*"), None), ("a.1", (), None)]


def test_a_set_may_say_how_names_are_written(folder):
    config = folder.load(with_sets({"chat": {"servers": ["git"], "names": "strict"}}))
    assert config.endpoints["chat"].entries == ("git",)
    assert config.endpoints["chat"].names == "strict"


def test_without_sets_there_are_none(folder):
    assert folder.load({"mcpServers": {}}).endpoints == {}
    assert folder.load(with_sets(None)).endpoints == {}


@pytest.mark.req("J-CONFIG-REPORT")
@pytest.mark.parametrize(
    ("endpoints", "path"),
    [
        ([], "$.junction.endpoints"),
        ("x", "$.junction.endpoints"),
        ({"git": ["git"]}, "$.junction.endpoints.git"),
        ({"mine": "git"}, "$.junction.endpoints.mine"),
        ({"mine": [5]}, "$.junction.endpoints.mine"),
        ({"mine": [""]}, "$.junction.endpoints.mine"),
        ({"-mine": ["git"]}, '$.junction.endpoints["-mine"]'),
        ({"a/b": ["git"]}, '$.junction.endpoints["a/b"]'),
        ({"x" * 65: ["git"]}, f"$.junction.endpoints.{'x' * 65}"),
        ({"": ["git"]}, '$.junction.endpoints[""]'),
    ],
)
def test_a_set_that_cannot_have_an_address_is_a_problem(folder, endpoints, path):
    (problem,) = folder.problems(with_sets(endpoints))
    assert (problem.code, problem.path) == (ProblemCode.INVALID_SCHEMA, path)


@pytest.mark.req("J-EXPOSURE")
def test_what_agents_and_clients_are_listed_is_read(folder):
    rules = {
        "agents": {"bot": {"exposure": "search", "favourites": ["git.log"]}},
        "clients": {"Claude-Code": {"exposure": "all"}},
        "endpoints": {"few": {"servers": ["git"], "favourites": ["git"]}},
    }
    config = folder.load({"mcpServers": {"git": {"command": "x"}}, "junction": rules})
    assert config.agents == {"bot": ("search", ("git.log",))}
    assert config.clients == {"claude-code": ("all", ())}
    assert config.endpoints["few"].favourites == ("git",)


@pytest.mark.req("J-EXPOSURE", "J-CONFIG-REPORT")
@pytest.mark.parametrize(
    ("rules", "path"),
    [
        ({"agents": ["bot"]}, "$.junction.agents"),
        ({"agents": {"bot": "search"}}, "$.junction.agents.bot"),
        ({"clients": {"c": {"exposure": "some"}}}, "$.junction.clients.c.exposure"),
        ({"clients": {"c": {"favourites": "git"}}}, "$.junction.clients.c.favourites"),
        (
            {"endpoints": {"e": {"servers": [], "result_tokens": -1}}},
            "$.junction.endpoints.e.result_tokens",
        ),
        ({"llm_provider": "openai"}, "$.junction.llm_provider"),
        ({"llm_base_url": "ftp://x"}, "$.junction.llm_base_url"),
    ],
)
def test_a_wrong_rule_of_what_is_listed_is_a_problem(folder, rules, path):
    (problem,) = folder.problems({"mcpServers": {}, "junction": rules})
    assert (problem.code, problem.path) == (ProblemCode.INVALID_SCHEMA, path)


def test_which_servers_are_disabled_is_known(folder):
    entry = {"command": "x"}
    servers = {"git": entry, "off": {**entry, "disabled": True}}
    config = folder.load({"mcpServers": servers})
    assert [server.key for server in config.servers] == ["git"]
    assert config.disabled == {"off"}
