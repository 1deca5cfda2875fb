"""What is said of a failed server, made fit for everybody."""

import pytest

from mcp_junction.config.servers import ServerDefinition
from mcp_junction.errors import EraError, Phase, ServerError
from mcp_junction.upstream.confidences import secrets_of
from mcp_junction.upstream.discretion import LONGEST, discreet, plain

REMOTE = ServerDefinition(
    "s",
    "http",
    url="https://x.example/mcp?api_key=qwertyuiop&page=second",
    headers={"authorization": "Bearer abcdefgh", "x-tenant": "acme-corp"},
)
LOCAL = ServerDefinition(
    "s",
    "stdio",
    command="run",
    args=("--token=zxcvbnm", "--level=verbose"),
    env={"TOKEN": "/a/secret/path", "HOME": "/home/ann", "MODE": "x", "PLACE": "some:where"},
)


def test_secrets_are_what_a_server_was_given_to_keep():
    found = secrets_of(REMOTE)
    plain = {"Bearer abcdefgh", "abcdefgh", "acme-corp", "qwertyuiop"}
    assert set(found) == plain | {"Bearer+abcdefgh", "Bearer%20abcdefgh"}
    assert found[0] == "Bearer%20abcdefgh", "the longest first"
    assert {"zxcvbnm", "/a/secret/path", "some:where"} == {
        secret for secret in secrets_of(LOCAL) if "%" not in secret
    }


def test_an_error_keeps_its_kind_and_loses_the_secrets():
    error = EraError("s", Phase.STARTUP, "no abcdefgh", exit_code=3, stderr_tail="a abcdefgh\nb")
    told = discreet(error, REMOTE)
    assert isinstance(told, EraError)
    assert (told.message, told.exit_code, told.phase) == ("no ***", 3, Phase.STARTUP)
    assert told.stderr_tail == "a ***\nb"


def test_nothing_is_hidden_where_there_is_nothing_to_hide():
    error = ServerError("s", Phase.RUNTIME, "connection refused: /home/ann")
    assert discreet(error, LOCAL).message == "connection refused: /home/ann"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("as it is, é", "as it is, é"),
        ("two\nlines", "two lines"),
        ("\0\x1b[2J\u202e", "\ufffd\ufffd[2J\ufffd"),
        ("x" * (LONGEST + 5), "x" * LONGEST + "…"),
    ],
)
def test_words_are_one_line_of_what_can_be_read(text, said):
    assert plain(text) == said
