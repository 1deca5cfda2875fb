"""What a server was given to keep, wherever it stands and however it is spelled."""

import json
from urllib.parse import quote

import pytest

from mcp_junction.config.servers import EntryReader, Options, ServerDefinition
from mcp_junction.config.settings import DEFAULTS
from mcp_junction.errors import Phase, ServerError
from mcp_junction.redaction.secrets import secrets_of
from mcp_junction.redaction.texts import keep_tail, redact_error

TOKEN = "sk-from-the-shell-7"
PEM = "-----BEGIN KEY-----\nMIIEfirstline\nMIIEsecondline\nAb==\n-----END KEY-----"


def definition(variables=None, **entry):
    """A server as it is read from a file."""
    reader = EntryReader("s", "$.s", {"TOK": TOKEN, **(variables or {})})
    found = reader.read({"command": "run", **entry}, Options({}, "$"), DEFAULTS)
    assert found is not None, reader.problems
    return found


def told(words, of):
    """What is shown of a server's last words."""
    return redact_error(
        ServerError("s", Phase.STARTUP, "exited", stderr_tail=words), of
    ).stderr_tail


@pytest.mark.parametrize("name", ["PRIVATE_KEY", "SETTINGS"])
@pytest.mark.parametrize("indent", ["", "  | "])
@pytest.mark.parametrize("given", [PEM, PEM.replace("\n", "\\n")])
def test_a_value_of_many_lines_is_hidden_line_by_line(name, indent, given):
    server = definition(env={name: given})
    said = told("cannot parse:\n" + "\n".join(indent + line for line in PEM.split("\n")), server)
    assert "MIIE" not in said
    assert said.startswith("cannot parse:\n")


@pytest.mark.parametrize(
    "args",
    [
        ["--api-key", "${TOK}"],
        ["--api-key=${TOK}"],
        ["--header", "Authorization: Bearer ${TOK}"],
        ["--header", "Authorization:${TOK}"],
        ["--header=X-Tenant: $TOK"],
        ["postgres://u:${TOK}@h/db"],
        ["${TOK}"],
        ["-c", "connect with ${TOK} please"],
        ["${UNSET:-}", "x${TOK}y"],
    ],
)
def test_a_variable_in_the_arguments_is_hidden(args):
    server = definition(args=args, variables={"UNSET": ""})
    assert TOKEN not in told(f"argv was {' '.join(server.args)}, i.e. {TOKEN}", server)


@pytest.mark.parametrize(
    "args",
    [
        ["--api-key", TOKEN],
        ["--db-pass", TOKEN],
        ["-e", f"API_KEY={TOKEN}"],
        [f"--env=API_KEY={TOKEN}"],
        ["-H", f"X-Tenant: {TOKEN}"],
        [f"Authorization: Bearer {TOKEN}"],
        [f"https://{TOKEN}@h/x"],
        [f"https://u:{TOKEN}@h/x?a@b"],
        [f"Server=h;Password={TOKEN};Timeout=5"],
        [f"https://h/x?page=2&access_token={TOKEN}#top"],
    ],
)
def test_what_is_written_into_the_arguments_under_a_telling_name_is_hidden(args):
    assert TOKEN not in told(f"it is {TOKEN}!", definition(args=args))


@pytest.mark.parametrize(
    "entry",
    [
        {"env": {"OPENAPI_MCP_HEADERS": '{"Authorization": "Bearer %s", "Version": "2022-06-28"}'}},
        {"env": {"AUTH_HEADER": "Bearer %s"}},
        {"env": {"GOOGLE": '{"type":"service","private_key" : "%s"}'}},
        {"env": {"KEYS": "first-0815,%s"}},
        {"env": {"OPTIONS": "--verbose --api-key %s"}},
        {"args": ["--config", '{"apiKey":"%s"}']},
        {"args": ["--config", '"{\\"apiKey\\":\\"%s\\"}"']},
        {"args": ["--headers", '{"x":1,"Authorization":"Basic %s"}']},
        {"args": ["-c", "srv --api-key %s --verbose"]},
        {"args": ["-c", "srv --api-key '%s' --verbose"]},
        {"args": ["-c", 'srv --header "Authorization: Bearer %s"']},
        {"args": ["-c", 'srv --header="Authorization: Bearer %s"']},
        {"args": ["-c", "srv --token=%s; exit 1"]},
        {"args": ["-c", "exec\tsrv\n--token\n%s"]},
        {"args": ["--auth", "Bearer %s"]},
    ],
    ids=str,
)
@pytest.mark.parametrize("token", ["ntn_4711secret", "sk-abcdef99", "hunter2222"])
def test_a_token_is_hidden_by_itself_in_whatever_it_was_wrapped(entry, token):
    text = json.dumps(entry)
    server = definition(**json.loads(text.replace("%s", token)))
    assert told(f"verbose: bad token\n{token}", server) == "verbose: bad token\n***"


def test_a_word_alone_is_a_secret_behind_a_scheme_or_a_telling_name():
    for env in ({"H": "Bearer swordfish"}, {"H": '{"Authorization":"Bearer swordfish"}'}):
        assert told("no swordfish", definition(env=env)) == "no ***"
    for name in (
        "PASSWORD",
        "APIKEY",
        "apiKey",
        "DB_PASS",
        "TOKEN2",
        "SESSION_COOKIES",
        "MNEMONIC",
    ):
        assert told("no swordfish", definition(env={name: "swordfish"})) == "no ***", name


def test_a_password_is_hidden_as_it_was_before_it_went_into_a_url():
    password = "pa/ss#wo@rd"
    server = definition(args=[f"postgres://u:{quote(password, safe='')}@h/db"])
    assert told(f"no {password}", server) == "no ***"
    assert told(f"no {password}", definition(args=[f"postgres://u:{password}@h/db"])) == "no ***"


def test_what_is_plainly_no_secret_stays():
    server = definition(
        variables={
            "HOME": "/home/ann", "USER": "annabel", "PORT": "8080", "DEBUG": "true",
            "DATA": "~/data", "KEY_CHECK": "false", "LC_ALL": "en_GB.UTF-8",
        },
        args=["$HOME/x", "$USER", "$PORT", "$DEBUG", "$DATA", "--use-keys", "--verbose",
              "--key-check", "$KEY_CHECK", "$LC_ALL", "rotate-keys", "staging", "ssh://git@h/x"],
        env={"USE_TOKENS": "true"},
    )  # fmt: skip
    assert not secrets_of(server)


@pytest.mark.parametrize(
    "value",
    [
        "localhost", "production", "server", "us-east-1", "europe-west4", "./data", "../x1y2z3",
        "~/x/y/z", "C:\\Users\\me\\x", "/var/lib/x", "WARNING", "Europe/Berlin", "read-only",
        "db01.example.com", "localhost:5432", "127.0.0.1:8080", "2022-06-28", "1000000",
        "v1.22.333", "https://api.example.com/v1/items?page=2", "redis://localhost:6379/0",
        "hello from the server", "application/json", "30000ms",
        '{"level": "verbose", "cache": "memory"}',
    ],
)  # fmt: skip
def test_what_a_message_is_about_stays(value):
    server = definition(env={"NODE_ENV": value}, variables={"GIVEN": value}, args=["$GIVEN"])
    assert told(f"no {value}", server) == f"no {value}"


@pytest.mark.parametrize(
    "value",
    ["a1b2c3d4", "AbCdEfGhIjKl", "hunter22", "abcdefghijklmnopqrst", "sk-abcdef99", "me:hunter",
     "https://hooks.example.com/T04711AB/xyz", "https://h.example/x?code=4f5a6b7c8d", "p@ssword!",
     "https://me@h.example/x", "12345678901234567890", "x1.y2z3w4v5"],
)  # fmt: skip
def test_what_may_be_a_secret_is_hidden_though_nothing_says_so(value):
    assert told(f"no {value}", definition(env={"NODE_ENV": value})) == "no ***"


@pytest.mark.parametrize(
    "flag", ["--keyspace", "--tokenizer", "--keyboard-layout", "--monkeypatch"]
)
def test_a_flag_is_telling_when_a_word_of_it_is(flag):
    assert told("no server", definition(args=[flag, "server"])) == "no server"
    assert told("no server", definition(args=[flag + "-key", "server"])) == "no ***"


def test_a_variable_that_is_a_secret_by_name_counts_wherever_it_stands():
    server = definition(variables={"MY_TOKEN": "/a/b"}, cwd="/x/${MY_TOKEN}")
    assert told("no /a/b", server) == "no ***"


@pytest.mark.parametrize(
    ("env", "said"),
    [
        ({"API_TOKEN": "pw123"}, "bad ***"),
        ({"API_TOKEN": "pw12"}, "bad ***3"),
        ({"API_TOKEN": "pw1"}, "bad pw123"),
        ({"LEVEL": "pw123"}, "bad pw123"),
    ],
)
def test_what_a_name_calls_a_secret_counts_from_four_characters_on(env, said):
    assert told("bad pw123", definition(env=env)) == said


@pytest.mark.parametrize(
    "spelled", [repr, ascii, json.dumps, lambda v: json.dumps({"a": v}, ensure_ascii=False), quote]
)
@pytest.mark.parametrize(
    "value", ["abc'\\def\"ghi", 'quo"ted-it', "it's-mine", "a\\back\\slash", "tab\tbed é ü", PEM]
)
def test_a_quoted_value_is_hidden_too(spelled, value):
    server = definition(env={"API_TOKEN": value})
    said = told(f"env {spelled(value)}", server)
    assert "***" in said
    assert not any(part in said for part in ("def", "ted", "mine", "slash", "bed", "MIIE"))


def test_a_value_that_is_not_text_does_no_harm():
    server = definition(env={"API_TOKEN": "\udcff\udcfe-binary"})
    assert told("x -binary", server) == "x -binary"
    assert keep_tail(b"abc", 2, server) == "bc"


def test_the_tail_begins_behind_a_secret_that_it_would_cut():
    server = definition(env={"API_TOKEN": "0123456789-SUFFIX", "OTHER_KEY": "FIX-and-more"})
    written = b"first 0123456789-SUFFIX-and-more, last"
    end = len(b", last")
    for size in range(end, len(written) + 5):
        said = told(keep_tail(written, size, server), server)
        assert not any(part in said for part in ("9-S", "SUF", "and", "more")), size
        assert said.endswith(", last")
    assert keep_tail(written, 1000, server) == written.decode()


LONG = 1_000_000


@pytest.mark.parametrize(
    "text",
    [
        "a" * LONG,
        "a://" + "b" * LONG,
        "a://" + "b" * 50_000,
        "a://" + "b:" * 25_000,
        "://" * 20_000,
        "a://b:@" * 9_000,
        "x=" * 30_000,
        "key=" * 15_000,
        "k:" * 30_000,
        '"' * 60_000,
        '"a":' * 12_000,
        '"key":"\\"' * 6_000,
        "'" * 59_999 + ' "',
        "-" * 60_000,
        "a-" * 30_000,
        "a." * 30_000 + " ",
        "1-" * 30_000,
    ],
    ids=lambda text: f"{text[:12]}-{len(text)}",
)
@pytest.mark.bulk
@pytest.mark.timeout(60)
def test_a_long_text_takes_no_long_time(text):
    """Each takes minutes, or memory without end, where its square is gone through."""
    server = ServerDefinition("s", "stdio", env={"A": text}, args=(f"x {text}", text), url=text)
    assert told("it is said", server) == "it is said"


@pytest.mark.bulk
@pytest.mark.timeout(60)
def test_many_secrets_take_no_long_time():
    """Nor do these, where each is looked for at each place."""
    env = {f"V{i}": f"value-{i:05d}x" for i in range(20_000)} | {"KEY": "aaaaaa"}
    server = ServerDefinition("s", "stdio", env=env)
    assert keep_tail(b"a" * 32_768, 8_192, server) == ""
    assert told("a" * LONG + "value-00017x", server) == "***"


def test_secrets_are_looked_for_once_per_server():
    server = definition(env={"API_TOKEN": "once-and-for-all"})
    found = secrets_of(server)
    assert secrets_of(server._replace(id="7")) is found
    assert secrets_of(server._replace(env={"API_TOKEN": "another"})) != found


def test_the_name_of_a_variable_is_no_secret_and_what_else_is_given_stays_one():
    entry = {
        "command": "run",
        "args": ["--token", "${MY_API_TOKEN}", "-k", "${OTHER_KEY}x-0815-x"],
        "env": {"API_KEY": "$SHELL_TOKEN", "SECRET": "pa$$WORD", "PASSWORD": "${SET_KEY}"},
    }
    reader = EntryReader("s", "$.s", {"SET_KEY": "hunter2-hunter2"})
    server = reader.read(entry, Options({}, "$"), DEFAULTS, lenient=True)
    assert server is not None
    for name in ("MY_API_TOKEN", "OTHER_KEY", "SHELL_TOKEN"):
        words = f"the environment variable {name} is not set"
        assert words in server.fault
        assert told(words, server) == words
    assert told("no x-0815-x, pa$WORD, hunter2-hunter2", server) == "no ***, ***, ***"
