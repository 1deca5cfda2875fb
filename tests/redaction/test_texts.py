"""What is said of a failed server, made fit for everybody."""

from base64 import b64encode

import pytest

from mcp_junction.config.servers import ServerDefinition
from mcp_junction.errors import EraError, Phase, ServerError
from mcp_junction.redaction.secrets import secrets_of
from mcp_junction.redaction.texts import LONGEST, redact, redact_error, to_plain_line

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
    assert plain | {"Bearer+abcdefgh", "Bearer%20abcdefgh"} <= set(found)
    assert list(found) == sorted(found, key=len, reverse=True), "the longest first"
    assert not {"second", "page", "Bearer", "x.example"} & set(found)
    kept = set(secrets_of(LOCAL))
    assert {"zxcvbnm", "/a/secret/path", "some:where"} <= kept
    assert not {"/home/ann", "verbose", "x", "run"} & kept


@pytest.mark.parametrize("before", ["", "u", "us", "me:", "user:"])
def test_a_secret_is_known_in_base64_whatever_stands_before_it(before):
    sent = b64encode(f"{before}abcdefgh!".encode()).decode()
    for text in (sent, sent.replace("+", "-").replace("/", "_"), b"abcdefgh".hex()):
        error = ServerError("s", Phase.RUNTIME, f"no {text}")
        assert "***" in redact_error(error, REMOTE).message, text


def test_what_is_left_of_a_secret_that_was_cut_is_hidden():
    secret = "sk-" + "x1" * 40
    assert redact(f"it is {secret[:30]}", (secret,), is_cut=True) == "it is ***"
    assert redact(f"it is {secret[:30]}", (secret,)) == f"it is {secret[:30]}"


def test_an_error_keeps_its_kind_and_loses_the_secrets():
    error = EraError("s", Phase.STARTUP, "no abcdefgh", exit_code=3, stderr_tail="a abcdefgh\nb")
    told = redact_error(error, REMOTE)
    assert isinstance(told, EraError)
    assert (told.message, told.exit_code, told.phase) == ("no ***", 3, Phase.STARTUP)
    assert told.stderr_tail == "a ***\nb"


def test_nothing_is_hidden_where_there_is_nothing_to_hide():
    error = ServerError("s", Phase.RUNTIME, "connection refused: /home/ann")
    assert redact_error(error, LOCAL).message == "connection refused: /home/ann"


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
    assert to_plain_line(text) == said
