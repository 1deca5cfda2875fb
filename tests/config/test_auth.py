"""`auth` of a server: what may be written, and what it means."""

import pytest

from mcp_junction.config.auth import ServerAuth, effective_auth, read_auth
from mcp_junction.config.registration import read_registration


def read(value):
    faults = []
    found = read_auth(value, lambda text, _: text, lambda *fault: faults.append(fault))
    return found, [where for where, _ in faults]


@pytest.mark.parametrize(
    ("value", "found"),
    [
        (None, None),
        ("oauth", ServerAuth()),
        ("a-token", ServerAuth("bearer", token="a-token")),
        ({}, ServerAuth()),
        ({"CLIENT_ID": "x", "scopes": "a b"}, ServerAuth(client_id="x", scopes=("a", "b"))),
        (
            {"type": "key", "per": "agent", "header": "X-Key"},
            ServerAuth("key", "agent", header="X-Key"),
        ),
    ],
)
def test_auth_is_read_as_we_and_others_write_it(value, found):
    assert read(value) == (found, [])


@pytest.mark.parametrize(
    ("value", "wrong"),
    [
        (7, [""]),
        ({"type": "magic"}, ["type"]),
        ({"per": "session"}, ["per"]),
        ({"other": 1}, ["other"]),
        ({"client_id": 7}, ["client_id"]),
        ({"scopes": [7]}, ["scopes"]),
        ({"type": "bearer"}, ["token"]),
        ({"type": "client_credentials"}, ["client_id", "client_secret"]),
        ({"type": "bearer", "token": "t", "per": "agent"}, ["per"]),
        ({"method": "tls"}, ["method"]),
    ],
)
def test_what_is_wrong_is_named_with_its_place(value, wrong):
    assert read(value)[1] == wrong


def test_a_fixed_header_is_all_there_is():
    assert effective_auth(None, {"Authorization": "x"}) is None
    assert effective_auth(None, {"X-Other": "x"}) == ServerAuth()
    assert effective_auth(ServerAuth("none"), {}) is None


def test_a_registration_is_checked_alike_and_shows_no_secret():
    body = {
        "name": "crm",
        "transport_type": "HTTP",
        "connection_config": {"url": "https://x.example/mcp", "auth": {"type": "magic"}},
    }
    made, problems = read_registration(body)
    assert made is None
    assert [problem.path for problem in problems] == ["$.connection_config.auth.type"]
    assert "s3cret" not in repr(ServerAuth(client_secret="s3cret", token="s3cret"))
