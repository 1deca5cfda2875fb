"""Entries of ``mcpServers``: what is read from them, and what is said when they are wrong."""

import pytest

from mcp_junction.errors import ProblemCode


@pytest.mark.req("FR-001", "FR-013")
def test_every_entry_of_a_plain_file_is_read(folder):
    config = folder.load(
        {
            "mcpServers": {
                "files": {"command": "npx", "args": ["-y", "files", "/tmp"]},
                "git": {"command": "uvx", "args": ["git"], "env": {"A": "1"}, "cwd": "/srv"},
            }
        }
    )
    files, git = config.servers
    assert (files.key, files.transport, files.command) == ("files", "stdio", "npx")
    assert files.args == ("-y", "files", "/tmp")
    assert (git.args, git.env, git.cwd) == (("git",), {"A": "1"}, "/srv")
    assert (files.env, files.cwd, files.timeout_ms, files.restart) == ({}, None, 0, None)


@pytest.mark.req("FR-001")
def test_the_other_clients_name_for_the_member_is_understood(folder):
    (server,) = folder.load({"servers": {"a": {"type": "stdio", "command": "x"}}}).servers
    assert server.command == "x"


@pytest.mark.req("FR-001")
def test_servers_stay_in_the_order_of_the_file(folder):
    keys = ["z", "a", "m", "10", "2"]
    config = folder.load({"mcpServers": {key: {"command": "x"} for key in keys}})
    assert [server.key for server in config.servers] == keys


@pytest.mark.req("FR-002", "SC-004", "US1-3")
def test_variables_are_replaced_in_every_string(folder):
    environ = {"BIN": "/opt", "ARG": "a b", "KEY": "k", "DIR": "/d", "HOST": "h", "TOKEN": "t"}
    config = folder.load(
        {
            "mcpServers": {
                "child": {
                    "command": "$BIN/run",
                    "args": ["--x=${ARG}", "$$ARG"],
                    "env": {"API_KEY": "${KEY}", "BOTH": "$KEY-$DIR"},
                    "cwd": "${DIR}/x",
                },
                "remote": {
                    "url": "https://${HOST}/mcp",
                    "headers": {"Authorization": "Bearer $TOKEN"},
                },
            }
        },
        environ,
    )
    child, remote = config.servers
    assert (child.command, child.args) == ("/opt/run", ("--x=a b", "$ARG"))
    assert (child.env, child.cwd) == ({"API_KEY": "k", "BOTH": "k-/d"}, "/d/x")
    assert (remote.url, remote.headers) == ("https://h/mcp", {"Authorization": "Bearer t"})


@pytest.mark.req("FR-002", "J-ENV-ALL", "EDGE-ENV", "SC-004", "US1-5")
def test_all_missing_variables_are_named_at_once_with_their_places(folder):
    problems = folder.problems(
        {
            "mcpServers": {
                "a": {"command": "$BIN/x", "args": ["ok", "${ARG}"]},
                "my b": {"command": "x", "env": {"KEY": "${env:SECRET}"}},
                "c": {"url": "http://$HOST/", "headers": {"X-Key": "$SECRET"}},
            }
        }
    )
    assert {problem.code for problem in problems} == {ProblemCode.MISSING_ENV_VAR}
    assert [(problem.variable, problem.path) for problem in problems] == [
        ("BIN", "$.mcpServers.a.command"),
        ("ARG", "$.mcpServers.a.args[1]"),
        ("SECRET", '$.mcpServers["my b"].env.KEY'),
        ("HOST", "$.mcpServers.c.url"),
        ("SECRET", "$.mcpServers.c.headers.X-Key"),
    ]
    assert all(problem.variable in problem.message for problem in problems)


def test_variables_may_stand_in_a_dotenv_beside_the_file(folder):
    (folder.path / ".env").write_text("NAME=from-file\nBOTH=from-file\n")
    entry = {"command": "x", "args": ["$NAME", "$BOTH"]}
    config = folder.load({"mcpServers": {"s": entry}}, {"BOTH": "from-environment"})
    assert config.servers[0].args == ("from-file", "from-environment")


@pytest.mark.parametrize("place", ["inline", "entry", "beside"])
def test_a_disabled_server_is_left_out_whatever_else_is_wrong_with_it(folder, place):
    entry = {"command": "$NOT_SET", "args": 5}
    document = {"mcpServers": {"off": entry, "on": {"command": "x"}}}
    if place == "entry":
        entry["disabled"] = True
    elif place == "inline":
        entry["junction"] = {"disabled": True}
    else:
        document["junction"] = {"servers": {"off": {"disabled": True}}}
    assert [server.key for server in folder.load(document).servers] == ["on"]


@pytest.mark.req("J-STDIO-ONLY")
@pytest.mark.parametrize(
    ("entry", "transport"),
    [
        ({"url": "https://x/mcp"}, "http"),
        ({"url": "HTTPS://x", "type": "http"}, "http"),
        ({"url": "http://x", "type": "streamable-http"}, "http"),
        ({"url": "http://x", "type": "streamableHttp"}, "http"),
        ({"url": "http://x", "transport": "sse"}, "sse"),
        ({"url": "http://x", "command": "y", "type": "sse"}, "sse"),
        ({"url": "http://x", "command": "y", "type": "stdio"}, "stdio"),
        ({"command": "y", "type": "STDIO"}, "stdio"),
        ({"command": "y", "type": None}, "stdio"),
    ],
)
def test_the_transport_is_what_the_entry_says_or_shows(server, entry, transport):
    assert server(entry).transport == transport


@pytest.mark.req("FR-014", "J-STDIO-ONLY")
def test_with_stdio_only_a_remote_server_is_an_error_that_names_it(folder):
    document = {"mcpServers": {"far": {"url": "https://x"}, "near": {"command": "x"}}}
    (problem,) = folder.problems(document, stdio_only=True)
    assert problem.path == "$.mcpServers.far"
    assert "--stdio-only" in problem.message


@pytest.mark.req("J-CONFIG-LENIENT", "FR-013")
def test_unknown_keys_are_other_programs_business(folder):
    document = {
        "$schema": "x",
        "globalShortcut": "Ctrl+Space",
        "mcpServers": {
            "a": {"command": "x", "autoApprove": ["y"], "alwaysAllow": 5, "icon": None, "env": None}
        },
        "junction": {"later": {"some": "setting"}},
    }
    (server,) = folder.load(document).servers
    assert server.command == "x"


@pytest.mark.parametrize(
    ("document", "timeout", "restart"),
    [
        ({"timeout": 500}, 500, None),
        ({"timeout": 500, "junction": {"timeout": 700, "restart": True}}, 700, True),
        ({"junction": {"restart": False}}, 0, False),
        ({}, 0, None),
    ],
)
def test_options_of_a_server_may_stand_in_its_entry(server, document, timeout, restart):
    found = server({"command": "x", **document})
    assert (found.timeout_ms, found.restart) == (timeout, restart)


def test_options_of_a_server_may_stand_beside_the_servers_and_win(folder):
    config = folder.load(
        {
            "mcpServers": {"a b": {"command": "x", "timeout": 1, "junction": {"restart": True}}},
            "junction": {"servers": {"a b": {"timeout": 9, "restart": False}}},
        }
    )
    assert (config.servers[0].timeout_ms, config.servers[0].restart) == (9, False)


@pytest.mark.req("FR-010", "SC-005", "J-CONFIG-REPORT")
@pytest.mark.parametrize(
    ("entry", "path"),
    [
        (5, "$.mcpServers.s"),
        ([], "$.mcpServers.s"),
        ({}, "$.mcpServers.s.command"),
        ({"command": ""}, "$.mcpServers.s.command"),
        ({"command": "$EMPTY"}, "$.mcpServers.s.command"),
        ({"command": 5}, "$.mcpServers.s.command"),
        ({"command": ["x"]}, "$.mcpServers.s.command"),
        ({"command": "a\0b"}, "$.mcpServers.s.command"),
        ({"command": "a\ud800b"}, "$.mcpServers.s.command"),
        ({"command": "x", "args": "y"}, "$.mcpServers.s.args"),
        ({"command": "x", "args": ["y", 8080]}, "$.mcpServers.s.args[1]"),
        ({"command": "x", "args": [None]}, "$.mcpServers.s.args[0]"),
        ({"command": "x", "env": []}, "$.mcpServers.s.env"),
        ({"command": "x", "env": {"PORT": 8080}}, "$.mcpServers.s.env.PORT"),
        ({"command": "x", "env": {"A=B": "1"}}, '$.mcpServers.s.env["A=B"]'),
        ({"command": "x", "env": {"": "1"}}, '$.mcpServers.s.env[""]'),
        ({"command": "x", "cwd": 5}, "$.mcpServers.s.cwd"),
        ({"command": "x", "cwd": ""}, "$.mcpServers.s.cwd"),
        ({"command": "x", "url": "http://y"}, "$.mcpServers.s"),
        ({"command": "x", "type": "carrier-pigeon"}, "$.mcpServers.s.type"),
        ({"command": "x", "type": 5}, "$.mcpServers.s.type"),
        ({"url": "ftp://x"}, "$.mcpServers.s.url"),
        ({"url": 5}, "$.mcpServers.s.url"),
        ({"type": "http"}, "$.mcpServers.s.url"),
        ({"url": "http://x", "headers": {"A": 1}}, "$.mcpServers.s.headers.A"),
        ({"command": "x", "timeout": "5"}, "$.mcpServers.s.timeout"),
        ({"command": "x", "timeout": -5}, "$.mcpServers.s.timeout"),
        ({"command": "x", "timeout": True}, "$.mcpServers.s.timeout"),
        ({"command": "x", "disabled": "yes"}, "$.mcpServers.s.disabled"),
        ({"command": "x", "junction": []}, "$.mcpServers.s.junction"),
        ({"command": "x", "junction": {"timeout": 1.5}}, "$.mcpServers.s.junction.timeout"),
        ({"command": "x", "junction": {"restart": 1}}, "$.mcpServers.s.junction.restart"),
    ],
)
def test_a_wrong_entry_is_reported_where_it_is_wrong(folder, entry, path):
    problems = folder.problems({"mcpServers": {"s": entry}}, {"EMPTY": ""})
    assert [problem.path for problem in problems] == [path]
    assert problems[0].code is ProblemCode.INVALID_SCHEMA


@pytest.mark.parametrize(
    ("extra", "path"),
    [
        ([], "$.junction.servers"),
        ({"s": 5}, "$.junction.servers.s"),
        ({"s": {"timeout": "1"}}, "$.junction.servers.s.timeout"),
        ({"s": {"restart": "no"}}, "$.junction.servers.s.restart"),
        ({"s": {"disabled": 1}}, "$.junction.servers.s.disabled"),
        ({"other": {}}, "$.junction.servers.other"),
    ],
)
def test_wrong_options_beside_the_servers_are_reported_where_they_are(folder, extra, path):
    document = {"mcpServers": {"s": {"command": "x"}}, "junction": {"servers": extra}}
    assert [problem.path for problem in folder.problems(document)] == [path]


@pytest.mark.req("EDGE-KEYS")
@pytest.mark.parametrize("key", ["a b", "ключ", "😀", 'q"', "\n", "../..", ":", "x" * 500])
def test_any_text_is_a_key(folder, key):
    (server,) = folder.load({"mcpServers": {key: {"command": "x"}}}).servers
    assert server.key == key


@pytest.mark.parametrize("key", ["", "\ud800"])
def test_what_is_no_text_is_no_key(folder, key):
    (problem,) = folder.problems({"mcpServers": {key: {"command": "x"}}})
    assert "key" in problem.message


@pytest.mark.req("FR-001", "FR-010", "SC-005")
@pytest.mark.parametrize("transport", ["http", "sse"])
@pytest.mark.parametrize(
    "url",
    [
        "http://",
        "http://a b/",
        "http://x:99999/",
        "http://x:0/",
        "http://[::1",
        "https://ann:hunter22@h h/",
        "http://0x7f.1/",
        "http:///path",
        "ftp://x",
        "notaurl",
    ],
)
def test_an_address_that_cannot_be_connected_to_is_refused_when_it_is_read(folder, transport, url):
    (problem,) = folder.problems({"mcpServers": {"s": {"type": transport, "url": url}}})
    assert (problem.code, problem.path) == (ProblemCode.INVALID_SCHEMA, "$.mcpServers.s.url")
    assert "hunter22" not in problem.message


@pytest.mark.req("FR-010")
@pytest.mark.parametrize(
    "url", ["http://x", "HTTPS://h:8443/mcp?a=b#c", "http://[::1]:80/", "http://127.0.0.1/"]
)
def test_an_address_that_can_be_connected_to_is_taken(server, url):
    assert server({"url": url}).url == url


@pytest.mark.req("FR-010", "SC-005")
def test_all_that_is_wrong_with_a_remote_server_is_said_at_once(folder):
    headers = {
        "a b": "hunter22", "": "c", "X": "hunter22\nb", "Z": "a\r\nEvil: hunter22", "Q": "\u20ac",
        "n": "$NOT_SET", "Y": "é", "Authorization": "Bearer fine",
    }  # fmt: skip
    problems = folder.problems(
        {"mcpServers": {"s": {"url": "http://x:99999", "headers": headers, "timeout": -1}}}
    )
    root = "$.mcpServers.s"
    assert {problem.path for problem in problems} == {
        f"{root}.url", f"{root}.timeout", f'{root}.headers["a b"]', f'{root}.headers[""]',
        f"{root}.headers.X", f"{root}.headers.Z", f"{root}.headers.Q", f"{root}.headers.n",
    }  # fmt: skip
    assert len(problems) == 8, "each is said once"
    assert "hunter22" not in str(problems)


@pytest.mark.parametrize(
    "url", ["https://münchen.example/mcp", "https://x/?q=ä", "https://user:pass@x/mcp"]
)
def test_an_address_that_others_take_and_we_do_not_is_no_fault_of_the_file(server, url):
    assert server({"url": url}).url == url


@pytest.mark.parametrize("entry", [{"url": "", "command": "x"}, {"url": None, "command": "x"}])
def test_what_is_empty_beside_a_command_is_not_there(server, entry):
    assert server(entry).transport == "stdio"


@pytest.mark.parametrize("command", ["", None])
def test_what_is_empty_beside_an_address_is_not_there(server, command):
    assert server({"url": "http://x/", "command": command}).transport == "http"


def test_an_argument_may_name_a_variable_of_its_own_entry(server):
    entry = {
        "command": "npx",
        "args": ["mcp-remote", "--header", "Authorization:${AUTH_HEADER}", "$HOME"],
        "env": {"AUTH_HEADER": "Bearer $$x", "HOME": "/elsewhere"},
    }
    found = server(entry, {"HOME": "/home"})
    assert found.args[-2:] == ("Authorization:Bearer $x", "/home")


def test_a_header_that_is_ours_to_set_is_no_fault_of_the_file(server):
    """Other programs' files have it: only the server that it stands at is told."""
    assert server({"url": "http://x/", "headers": {"Accept": "*/*"}}).headers == {"Accept": "*/*"}


@pytest.mark.req("FR-010")
def test_a_variable_that_is_not_set_is_the_only_fault_of_an_address_and_a_header(folder):
    entry = {"url": "${NOT_SET}", "headers": {"X": "${NOT\nSET}"}}
    problems = folder.problems({"mcpServers": {"s": entry}})
    assert [problem.code for problem in problems] == [ProblemCode.MISSING_ENV_VAR] * 2


@pytest.mark.req("FR-010")
def test_what_a_variable_holds_is_checked_too(folder):
    entry = {"url": "http://${H}/", "headers": {"X": "$V"}}
    problems = folder.problems({"mcpServers": {"s": entry}}, {"H": "a b", "V": "a\nb"})
    assert [problem.path for problem in problems] == [
        "$.mcpServers.s.url",
        "$.mcpServers.s.headers.X",
    ]
