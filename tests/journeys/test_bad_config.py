"""A file that cannot be used: one clear report, exit status 2, and nothing was started."""

import re

import pytest
from tests.plugin_journeys import scripted

pytestmark = pytest.mark.preloaded

SERVING = [(), ("stdio",)]
COMMANDS = [*SERVING, ("inspect",), ("call", "one:echo")]


@pytest.fixture
def complaint(program, config, tmp_path):
    """What is said about a config, given as text or as servers; no child may have been started."""
    starts = tmp_path / "starts"

    def say(content, *options, env=None, command=()):
        if isinstance(content, dict):
            content = {"witness": scripted("echo", starts=str(starts)), **content}
            path = config(content)
        else:
            path = config.text(content)
        said = program.refused(*command, "--config", path, *options, env=env or {})
        assert said.startswith(f"mcp-junction: {path}: ")
        assert not starts.exists(), "a child was started"
        return said

    return say


@pytest.mark.req("FR-001", "SC-005", "J-CONFIG-REPORT")
@pytest.mark.parametrize("command", COMMANDS)
def test_a_file_that_is_not_there_is_named(program, tmp_path, command):
    path = tmp_path / "absent.json"
    said = program.refused(*command, "--config", path)
    assert "[file_not_found]" in said
    assert str(path) in said
    assert "check the path given with --config" in said


@pytest.mark.req("SC-005")
def test_a_folder_instead_of_a_file_is_named(program, tmp_path):
    said = program.refused("--config", tmp_path)
    assert "[file_not_found]" in said
    assert "is a directory" in said


@pytest.mark.req("US1-4", "FR-010", "SC-005")
@pytest.mark.parametrize("command", COMMANDS)
def test_a_file_that_is_not_json_is_refused_with_line_and_column(complaint, command):
    said = complaint('{\n  "mcpServers": {\n    "one": nonsense\n  }\n}', command=command)
    assert "[invalid_json] $: line 3, column 12" in said


@pytest.mark.req("US1-4", "SC-005")
@pytest.mark.parametrize("text", ["", "{", '{"mcpServers": {}} {}', "{'mcpServers': {}}", "\x00"])
def test_every_kind_of_broken_json_has_its_place(complaint, text):
    assert re.search(r"\[invalid_json\] \$: line \d+, column \d+", complaint(text))


@pytest.mark.req("FR-010", "SC-005", "J-CONFIG-REPORT")
@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("[]", "$:"),
        ("{}", "$.mcpServers: is missing"),
        ('{"mcpServers": []}', "$.mcpServers: must be an object"),
        ('{"mcpServers": {"a": 1}}', "$.mcpServers.a: must be an object"),
        ('{"mcpServers": {"a": {}}}', "$.mcpServers.a.command: is missing"),
        ('{"mcpServers": {"a": {"command": 5}}}', "$.mcpServers.a.command: must be a string"),
        ('{"mcpServers": {"a": {"command": ""}}}', "$.mcpServers.a.command: is empty"),
        ('{"mcpServers": {"a": {"command": "x", "args": "y"}}}', "$.mcpServers.a.args: must be"),
        ('{"mcpServers": {"a": {"command": "x", "args": [1]}}}', "$.mcpServers.a.args[0]: must be"),
        ('{"mcpServers": {"a": {"command": "x", "env": []}}}', "$.mcpServers.a.env: must be"),
        (
            '{"mcpServers": {"a b": {"command": "x", "env": {"N": 1}}}}',
            '$.mcpServers["a b"].env.N:',
        ),
        ('{"mcpServers": {"": {"command": "x"}}}', '$.mcpServers[""]: '),
        ('{"mcpServers": {"a": {"command": "x", "timeout": "5"}}}', "$.mcpServers.a.timeout: must"),
        (
            '{"mcpServers": {}, "junction": {"prefix": "maybe"}}',
            "$.junction.prefix: must be one of",
        ),
        ('{"mcpServers": {}, "junction": {"drain_ms": -1}}', "$.junction.drain_ms: must be"),
    ],
)
def test_what_does_not_fit_is_named_by_its_place(complaint, text, path):
    said = complaint(text)
    assert "[invalid_schema]" in said
    assert path in said


@pytest.mark.req("J-CONFIG-REPORT", "FR-010", "SC-005")
def test_all_problems_come_in_one_report(complaint):
    said = complaint(
        {
            "a": {},
            "b": {"command": "x", "args": [1, "$NOT_SET_1"], "env": {"T": "${NOT_SET_2}"}},
            "c": {"command": "x", "timeout": -1},
        }
    )
    lines = said.splitlines()
    assert lines[0].endswith(": 5 problems")
    assert len(lines) == 6
    for place in ("a.command", "b.args[0]", "b.args[1]", "b.env.T", "c.timeout"):
        assert f"$.mcpServers.{place}: " in said


@pytest.mark.req("US1-5", "FR-002", "EDGE-ENV", "SC-004")
@pytest.mark.parametrize("command", SERVING)
def test_a_missing_variable_is_named_with_its_place(complaint, command):
    servers = {"db": {"command": "x", "env": {"URL": "${DATABASE_URL}"}}}
    said = complaint(servers, env={"DATABASE_URL": None}, command=command)
    assert "[missing_env_var] $.mcpServers.db.env.URL: " in said
    assert "DATABASE_URL is not set" in said


@pytest.mark.req("J-ENV-ALL", "EDGE-ENV", "FR-002")
def test_all_missing_variables_are_named_at_once(complaint):
    servers = {
        "db": {"command": "$NOPE_ONE", "args": ["a", "${NOPE_TWO}"]},
        "web": {"command": "x", "env": {"KEY": "b $NOPE_THREE c"}, "cwd": "$HOME"},
        "far": {"url": "https://${NOPE_FOUR}/mcp", "headers": {"Authorization": "Bearer $NOPE_5"}},
    }
    said = complaint(servers, env={"HOME": "/root"})
    expected = {
        "$.mcpServers.db.command": "NOPE_ONE",
        "$.mcpServers.db.args[1]": "NOPE_TWO",
        "$.mcpServers.web.env.KEY": "NOPE_THREE",
        "$.mcpServers.far.url": "NOPE_FOUR",
        "$.mcpServers.far.headers.Authorization": "NOPE_5",
    }
    for place, variable in expected.items():
        assert re.search(
            rf"\[missing_env_var\] {re.escape(place)}: .*\b{variable}\b.* is not set", said
        )
    assert "HOME" not in said


@pytest.mark.req("J-CONFIG-REPORT")
def test_a_report_holds_no_value_of_the_file(complaint):
    secret = "s3cr3t-v4lue"
    said = complaint(
        {"a": {"command": "x", "args": secret, "env": {"K": [secret], "L": "$NOT_SET" + secret}}}
    )
    assert secret not in said


@pytest.mark.req("J-CONFIG-DUPLICATE")
@pytest.mark.parametrize(
    ("text", "path"),
    [
        ('{"mcpServers": {"a": {"command": "x"}, "a": {"command": "y"}}}', "$.mcpServers.a"),
        ('{"mcpServers": {}, "mcpServers": {}}', "$.mcpServers"),
        ('{"mcpServers": {"a": {"command": "x", "env": {"K": "1", "K": "2"}}}}', "a.env.K"),
    ],
)
def test_a_key_that_stands_twice_is_refused(complaint, text, path):
    said = complaint(text)
    assert "[invalid_schema]" in said
    assert f"{path}: this key stands twice" in said


@pytest.mark.req("FR-014", "J-STDIO-ONLY")
def test_with_stdio_only_a_remote_server_is_an_error_that_names_it(complaint):
    servers = {
        "far away": {"url": "https://mcp.invalid/mcp"},
        "also": {"type": "sse", "url": "http://127.0.0.1:1/sse"},
        "near": {"type": "stdio", "command": "x"},
    }
    said = complaint(servers, "--stdio-only")
    assert '[invalid_schema] $.mcpServers["far away"]: ' in said
    assert "[invalid_schema] $.mcpServers.also: " in said
    assert "--stdio-only" in said
    assert "near" not in said


@pytest.mark.req("J-STDIO-ONLY")
async def test_without_stdio_only_a_remote_server_is_no_error_of_the_file(junction):
    servers = {"far": {"url": "http://127.0.0.1:1/mcp"}, "near": scripted("echo")}
    client = await junction(servers)
    assert list(await client.tools()) == ["near:echo"]
    await client.complaint("server 'far' failed")


@pytest.mark.req("J-CONFIG-LENIENT", "FR-013", "FR-001")
async def test_comments_trailing_commas_and_unknown_keys_are_accepted(launch, config):
    entry = scripted("echo")
    arguments = entry["args"][-1].replace("\\", "\\\\").replace('"', '\\"')
    path = config.text(
        f"""\ufeff// what my editor wrote
        {{
          "globalShortcut": "Ctrl+Space", /* not ours */
          "mcpServers": {{
            "one": {{
              "command": "{entry["command"]}", // with "quotes" and /* stars */
              "args": ["-S", "{entry["args"][2]}", "{arguments}",],
              "type": "stdio",
              "alwaysAllow": ["echo"], "x": {{"y": [1, 2,],}},
            }},
          }},
        }}"""
    )
    client = await launch(path)
    await client.introduce()
    assert list(await client.tools()) == ["one:echo"]


@pytest.mark.req("J-CONFIG-DUPLICATE", "J-CONFIG-REPORT", "SC-005")
def test_a_key_that_stands_twice_hides_no_other_problem(complaint):
    said = complaint(
        '{"mcpServers": {"a": {"command": 1, "env": {"K": "1", "K": "2"}}, "a": {"command": "z"},'
        ' "b": {"args": 5, "args": []}, "c": {"url": "http://a b/"}}, "junction": {"prefix": 1}}'
    )
    assert said.splitlines()[0].endswith(": 7 problems")
    for words in (
        "$.mcpServers.a: this key stands twice",
        "$.mcpServers.a.env.K: this key stands twice",
        "$.mcpServers.b.args: this key stands twice",
        "$.mcpServers.a.command: must be a string",
        "$.mcpServers.b.command: is missing",
        "$.mcpServers.c.url: the url",
        "$.junction.prefix: must be",
    ):
        assert words in said


@pytest.mark.req("FR-010", "SC-005")
@pytest.mark.parametrize("command", COMMANDS)
def test_a_remote_server_that_cannot_be_reached_as_written_is_named_before_anything_starts(
    complaint, command
):
    servers = {
        "user": {"url": "https://ann:hunter22@h h/"},
        "port": {"type": "sse", "url": "http://x:99999/"},
        "head": {"url": "http://127.0.0.1:1", "headers": {"a b": "c", "X": "hunter22\nb"}},
    }
    said = complaint(servers, command=command)
    places = ("user.url", "port.url", 'head.headers["a b"]', "head.headers.X")
    assert all(f"[invalid_schema] $.mcpServers.{place}: " in said for place in places)
    assert "hunter22" not in said
