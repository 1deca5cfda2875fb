"""Servers as they are registered: what is accepted, what is refused, and where."""

import copy
import json
from typing import Any

import pytest

from mcp_junction.config.registration import (
    Registration,
    definition_of,
    parse_body,
    read_change,
    read_registration,
)
from mcp_junction.config.settings import Limits, Settings
from mcp_junction.errors import ProblemCode

STDIO = {
    "name": "files",
    "transport_type": "STDIO",
    "connection_config": {
        "command": "npx",
        "args": ["-y", "server", "two\nlines"],
        "env": {"TOKEN": "${TOKEN}"},
        "cwd": "/srv/files",
    },
}
SSE = {
    "name": "github-mcp",
    "description": "GitHub MCP Server for repository operations",
    "transport_type": "SSE",
    "connection_config": {
        "url": "https://github-mcp.example.com/sse",
        "headers": {"Authorization": "Bearer ${GITHUB_TOKEN}"},
    },
    "auto_connect": True,
    "health_check_url": "https://github-mcp.example.com/health",
}
HTTP = {
    "name": "h",
    "transport_type": "http",
    "connection_config": {"base_url": "http://127.0.0.1:8000/mcp"},
    "auto_connect": False,
    "allow_private": True,
    "pin": "strict",
    "isolation": "per-session",
    "timeout_ms": 1500,
}


def good(body: Any) -> Registration:
    made, problems = read_registration(body)
    assert problems == []
    assert made is not None
    return made


def wrong(body: Any) -> dict[str, str]:
    """What is wrong, by its place."""
    made, problems = read_registration(body)
    assert made is None
    assert {problem.code for problem in problems} == {ProblemCode.INVALID_SCHEMA}
    return {problem.path: problem.message for problem in problems}


def changed(body: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    made = copy.deepcopy(body)
    *way, last = path.split(".")
    spot = made
    for step in way:
        spot = spot[step]
    spot[last] = value
    return made


def test_the_body_of_the_story_is_accepted():
    made = good(SSE)
    assert (made.name, made.transport_type, made.auto_connect) == ("github-mcp", "SSE", True)
    assert made.connection_config.headers == {"Authorization": "Bearer ${GITHUB_TOKEN}"}
    assert (made.allow_private, made.allow_http, made.pin) == (False, False, "warn")


def test_each_transport_becomes_a_definition():
    made, problems = definition_of(good(STDIO), {"TOKEN": "t0p"})
    assert problems == []
    assert (made.key, made.transport, made.command) == ("files", "stdio", "npx")
    assert made.args == ("-y", "server", "two\nlines")
    assert (made.env, made.cwd) == ({"TOKEN": "t0p"}, "/srv/files")
    made, _ = definition_of(good(SSE), {"GITHUB_TOKEN": "t0p"})
    assert (made.transport, made.url) == ("sse", "https://github-mcp.example.com/sse")
    assert made.headers == {"Authorization": "Bearer t0p"}
    assert (made.allow_private, made.allow_http) == (False, False)
    made, _ = definition_of(good(HTTP), {}, Settings(max_calls_per_server=7))
    assert (made.transport, made.url) == ("http", "http://127.0.0.1:8000/mcp")
    assert (made.allow_private, made.pin, made.isolation) == (True, "strict", "per-session")
    assert (made.timeout_ms, made.restart) == (1500, True)
    assert made.limits == Limits(calls=7)


def test_a_variable_that_is_not_set_is_named_when_it_is_needed():
    made, problems = definition_of(good(SSE), {})
    assert made.missing == ("GITHUB_TOKEN",)
    assert made.fault.endswith("the environment variable GITHUB_TOKEN is not set")
    (problem,) = problems
    assert problem.code is ProblemCode.MISSING_ENV_VAR
    assert problem.variable == "GITHUB_TOKEN"
    assert problem.path == "$.connection_config.headers.Authorization"


@pytest.mark.parametrize("name", ["a", "a-b_c9", "x" * 63])
def test_names_that_are_names(name):
    assert good({**STDIO, "name": name}).name == name


@pytest.mark.parametrize(
    "name",
    ["", "A", "9a", "-a", "_a", "x" * 64, "a b", "a.b", "..", "../a", "a/../b", "a\n", "a\0",
     "gіthub", "ａbc", "a\u200bb", "a\u202eb", "a:b", "ä", "a\x7f"],
)  # fmt: skip
def test_names_that_are_none(name):
    assert set(wrong({**STDIO, "name": name})) == {"$.name"}


@pytest.mark.parametrize(
    ("body", "path", "value", "where"),
    [
        (STDIO, "transport_type", "PIGEON", "$.transport_type"),
        (STDIO, "transport_type", 7, "$.transport_type"),
        (STDIO, "connection_config", None, "$.connection_config"),
        (STDIO, "connection_config", [], "$.connection_config"),
        (STDIO, "connection_config.command", "", "$.connection_config.command"),
        (STDIO, "connection_config.command", " ", "$.connection_config.command"),
        (STDIO, "connection_config.command", None, "$.connection_config.command"),
        (STDIO, "connection_config.command", "a/../b", "$.connection_config.command"),
        (STDIO, "connection_config.command", "a\nb\x1b", "$.connection_config.command"),
        (STDIO, "connection_config.command", "nр\u202ex", "$.connection_config.command"),
        (STDIO, "connection_config.cwd", "work", "$.connection_config.cwd"),
        (STDIO, "connection_config.cwd", "/srv/../etc", "$.connection_config.cwd"),
        (STDIO, "connection_config.args", "x", "$.connection_config.args"),
        (STDIO, "connection_config.args", ["a", 1], "$.connection_config.args[1]"),
        (STDIO, "connection_config.args", ["a", "b\0"], "$.connection_config.args[1]"),
        (STDIO, "connection_config.args", ["x"] * 1001, "$.connection_config"),
        (STDIO, "connection_config.env", {"A=B": "x"}, '$.connection_config.env["A=B"]'),
        (STDIO, "connection_config.env", {"": "x"}, '$.connection_config.env[""]'),
        (STDIO, "connection_config.env", {"A": "x\ud800"}, "$.connection_config.env.A"),
        (STDIO, "connection_config.env", {"A": "${JUNCTION_STORE}"}, "$.connection_config.env.A"),
        (STDIO, "connection_config.env", {"A": "x$PGPASSWORD"}, "$.connection_config.env.A"),
        (STDIO, "connection_config.env", {"A": "${pgPassword:-x}"}, "$.connection_config.env.A"),
        (
            STDIO,
            "connection_config.env",
            {"A": "${env:junction_admin_key}"},
            "$.connection_config.env.A",
        ),
        (
            STDIO,
            "connection_config.env",
            {"A": "${Mcp_Credential_Key}"},
            "$.connection_config.env.A",
        ),
        (STDIO, "connection_config.url", "https://x/", "$.connection_config.url"),
        (STDIO, "connection_config.shell", True, "$.connection_config.shell"),
        (SSE, "connection_config.base_url", "https://x/", "$.connection_config.base_url"),
        (SSE, "connection_config.command", "x", "$.connection_config.command"),
        (SSE, "connection_config.url", "", "$.connection_config.url"),
        (SSE, "connection_config.url", "ftp://x/", "$.connection_config.url"),
        (SSE, "connection_config.url", "https://u:p@x/", "$.connection_config.url"),
        (SSE, "connection_config.url", "https://0x7f.1/", "$.connection_config.url"),
        (SSE, "connection_config.url", "https://${HOST}:0/", "$.connection_config.url"),
        (SSE, "connection_config.headers", {"Host": "x"}, "$.connection_config.headers.Host"),
        (SSE, "connection_config.headers", {"a b": "x"}, '$.connection_config.headers["a b"]'),
        (SSE, "connection_config.headers", {"a": "x\r\nb: y"}, "$.connection_config.headers.a"),
        (HTTP, "connection_config", {}, "$.connection_config.url"),
        (HTTP, "connection_config.url", "https://x/", "$.connection_config"),
        (HTTP, "health_check_url", "nowhere", "$.health_check_url"),
        (HTTP, "health_check_url", "${URL}", "$.health_check_url"),
        (HTTP, "health_check_url", "https://${HOST}/", "$.health_check_url"),
        (HTTP, "health_check_url", 5, "$.health_check_url"),
        (HTTP, "description", "Zero\u200bwidth", "$.description"),
        (HTTP, "description", "x" * 40_000, "$.description"),
        (HTTP, "description", None, "$.description"),
        (HTTP, "auto_connect", "yes", "$.auto_connect"),
        (HTTP, "pin", "maybe", "$.pin"),
        (HTTP, "isolation", "none", "$.isolation"),
        (HTTP, "timeout_ms", -1, "$.timeout_ms"),
        (HTTP, "timeout_ms", 1.5, "$.timeout_ms"),
        (HTTP, "timeout_ms", True, "$.timeout_ms"),
        (HTTP, "autoconnect", True, "$.autoconnect"),
        (HTTP, "is\nodd", True, '$["is\\nodd"]'),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_with_its_place(body, path, value, where):
    assert where in wrong(changed(body, path, value))


@pytest.mark.parametrize("missing", ["name", "transport_type", "connection_config"])
def test_what_is_needed_is_needed(missing):
    found = wrong({key: value for key, value in STDIO.items() if key != missing})
    assert [message for message in found.values() if missing in message or "object" in message]


@pytest.mark.parametrize("body", [None, [], "x", 5, [STDIO]])
def test_a_body_that_is_no_object_is_refused(body):
    assert wrong(body) == {"$": "must be an object"}


def test_everything_that_is_wrong_is_said_at_once():
    found = wrong({"name": "A", "transport_type": "HTTP", "connection_config": {}, "pin": "x"})
    assert set(found) == {"$.name", "$.pin", "$.connection_config.url"}


def test_no_value_is_quoted():
    secret = "s3cret\x00"
    for path in ("connection_config.url", "connection_config.base_url", "health_check_url", "pin"):
        assert "s3cret" not in json.dumps(wrong(changed(SSE, path, secret)))
    body = changed(SSE, "connection_config.headers", {"a": secret, "host": secret})
    assert "s3cret" not in json.dumps(wrong(body))
    assert "s3cret" not in repr(good(changed(SSE, "connection_config.headers", {"a": "s3cret"})))


@pytest.mark.parametrize(
    "url", ["${BASE}/mcp", "https://${HOST}:${PORT}/mcp?k=${KEY}", "$BASE", "https://$HOST/x"]
)
def test_variables_may_stand_in_a_url(url):
    assert good(changed(SSE, "connection_config.url", url)).connection_config.url == url


def test_a_change_keeps_the_rest_and_is_checked_as_a_whole():
    current = good(SSE)
    made, problems = read_change(current, {"name": "renamed", "allow_http": True})
    assert problems == []
    assert made == good({**SSE, "name": "renamed", "allow_http": True})
    made, _ = read_change(current, {"health_check_url": None})
    assert made is not None
    assert made.health_check_url is None


@pytest.mark.parametrize(
    ("body", "where"),
    [
        ({"name": "../x"}, "$.name"),
        ({"transport_type": "HTTP"}, "$.transport_type"),
        ({"connection_config": {"command": "x"}}, "$.connection_config.command"),
        ({"connection_config": {"url": "https://x/", "x": 1}}, "$.connection_config.x"),
        ({"id": "other"}, "$.id"),
        ([], "$"),
    ],
)
def test_a_change_that_is_wrong_changes_nothing(body, where):
    made, problems = read_change(good(SSE), body)
    assert made is None
    assert where in [problem.path for problem in problems]


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b'{"name": "a", "name": "b"}', b'{"a": NaN}', b"\xff", b"[" * 100_000, b'{"a": }'],
)
def test_a_body_that_can_be_read_in_two_ways_or_none_is_refused(body):
    value, problems = parse_body(body)
    assert value is None
    assert [problem.code for problem in problems] == [ProblemCode.INVALID_JSON]


def test_a_body_that_is_json_is_read():
    assert parse_body(json.dumps(SSE).encode()) == (SSE, [])
