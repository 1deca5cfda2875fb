"""Servers are registered, shown, changed and removed over REST, on either store."""

import json
import sys
from pathlib import Path

import pytest
from tests.plugin_rest import SERVERS, registration, stdio_config

CONTRACT = {
    "id", "name", "description", "transport_type", "connection_config", "status", "enabled",
    "reachable", "authenticated", "healthy", "health_check_url", "last_health_check",
    "response_time_ms", "error_rate", "tool_count", "error_message", "origin", "isolation", "pin",
    "registered_at", "connected_at", "updated_at",
}  # fmt: skip


@pytest.mark.req("AG-US1-AC1", "AG-US1-AC5")
async def test_a_registration_is_answered_with_the_server_and_connects_behind_it(served):
    answer = await served.client().post(SERVERS, json=registration(description="a peer"))
    assert answer.status_code == 201
    shown = answer.json()
    assert shown.keys() >= CONTRACT
    assert shown["status"] == "CONNECTING"
    assert (shown["name"], shown["description"], shown["origin"]) == ("peer", "a peer", "api")
    assert answer.headers["etag"] == '"1"'
    assert answer.headers["location"] == f"{SERVERS}/{shown['id']}"
    connected = await served.until("peer", "CONNECTED")
    assert connected["id"] == shown["id"]
    by_id = (await served.client().get(f"{SERVERS}/{shown['id']}")).json()
    assert by_id["name"] == "peer"


@pytest.mark.req("AG-US1-AC5")
async def test_without_auto_connect_a_server_is_disconnected(served):
    answer = await served.client().post(SERVERS, json=registration(auto_connect=False))
    assert (answer.status_code, answer.json()["status"]) == (201, "DISCONNECTED")
    assert served.junction.servers["peer"].link is None


@pytest.mark.req("AG-US1-AC2")
async def test_a_stdio_server_is_connected_through_its_childs_pipes(served):
    await served.register(connection_config=stdio_config(mark="by pipe"))
    said = (await served.call("peer.about")).json()["content"][0]["text"]
    assert json.loads(said)["context"] == ['{"mark": "by pipe"}']


@pytest.mark.req("AG-US1-AC3", "AG-US1-AC4")
@pytest.mark.parametrize("transport", ["sse", "http"])
async def test_a_remote_server_is_connected_by_its_transport(served, remote, transport):
    config = await remote(transport)
    await served.register("far", transport_type=transport.upper(), connection_config=config)
    answer = await served.call("far.echo", {"a": 1})
    assert answer.status_code == 200
    assert json.loads(answer.json()["content"][0]["text"])["arguments"] == {"a": 1}


@pytest.mark.req("AG-US1-AC8", "NFR-P1")
async def test_a_registration_does_not_wait_for_a_server_that_never_answers(served):
    silent = {"command": "sleep", "args": ["600"]}
    answer = await served.client().post(SERVERS, json=registration(connection_config=silent))
    assert (answer.status_code, answer.json()["status"]) == (201, "CONNECTING")


@pytest.mark.req("AG-US1-AC7")
async def test_a_name_that_is_taken_is_a_conflict(served):
    await served.client().post(SERVERS, json=registration(auto_connect=False))
    again = await served.client().post(SERVERS, json=registration(auto_connect=False))
    assert again.status_code == 409
    assert again.json()["error_code"] == "SERVER_ALREADY_EXISTS"
    assert (await served.client().get(SERVERS)).json()["total"] == 1


STDIO = stdio_config()
BAD = {
    "no name": ({"transport_type": "STDIO", "connection_config": STDIO}, "$"),
    "no transport": ({"name": "x", "connection_config": STDIO}, "$"),
    "no connection": ({"name": "x", "transport_type": "STDIO"}, "$"),
    "no command": (registration("x", connection_config={}), "$.connection_config.command"),
    "no url": (
        registration("x", transport_type="HTTP", connection_config={}),
        "$.connection_config.url",
    ),
    "a foreign transport": (registration("x", transport_type="SMTP"), "$.transport_type"),
    "an unknown field": (registration("x", colour="red"), "$.colour"),
    "an unknown field within": (
        registration("x", connection_config={**STDIO, "shell": True}),
        "$.connection_config.shell",
    ),
    "a wrong type": (registration("x", auto_connect="yes"), "$.auto_connect"),
    "a wrong type within": (
        registration("x", connection_config={"command": ["sh"]}),
        "$.connection_config.command",
    ),
    "a name that goes up": (registration("../etc"), "$.name"),
    "a name with a control character": (registration("a\x07b"), "$.name"),
    "a name that looks like another": (registration("pеer"), "$.name"),  # a Cyrillic е
    "a name in capitals": (registration("Peer"), "$.name"),
    "a name like an id": (registration("a1b2c3d4-0000-4000-8000-000000000000"), "$.name"),
    "a long name": (registration("a" * 64), "$.name"),
    "a command that goes up": (
        registration("x", connection_config={"command": "../../bin/sh"}),
        "$.connection_config.command",
    ),
    "a description that hides something": (
        registration("x", description="safe\u202e\u200b"),
        "$.description",
    ),
    "a negative time": (registration("x", timeout_ms=-1), "$.timeout_ms"),
    "a health check that is no address": (
        registration("x", health_check_url="file:///etc/passwd"),
        "$.health_check_url",
    ),
    "a list": ([], "$"),
    "nothing": (None, "$"),
}


@pytest.mark.req("AG-US1-AC6")
async def test_a_bad_registration_is_refused_with_its_place_and_changes_nothing(gateway):
    served = await gateway()
    for what, (body, place) in BAD.items():
        answer = await served.client().post(SERVERS, json=body)
        assert answer.status_code == 422, what
        told = answer.json()
        assert told["error_code"] == "VALIDATION_ERROR", what
        assert place in [problem["path"] for problem in told["context"]["problems"]], what
        assert (await served.client().get(SERVERS)).json()["total"] == 0, what


@pytest.mark.req("AG-US1-AC6")
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b'{"name": "a", "name": "b"}',
        b'{"timeout_ms": NaN}',
        b'{"name": "\xff"}',
        b"[" * 5_000,
        b'{"timeout_ms": ' + b"9" * 5_000 + b"}",
    ],
    ids=["empty", "half", "twice", "nan", "latin", "deep", "long number"],
)
async def test_a_body_that_is_no_json_is_refused(gateway, body):
    served = await gateway()
    kind = {"content-type": "application/json"}
    answer = await served.client().post(SERVERS, content=body, headers=kind)
    assert (answer.status_code, answer.json()["error_code"]) == (422, "VALIDATION_ERROR")


async def test_a_body_of_ten_megabytes_is_refused_and_changes_nothing(served):
    body = registration(description="x" * 10_000_000)
    answer = await served.client().post(SERVERS, json=body)
    assert (answer.status_code, answer.json()["error_code"]) == (413, "PAYLOAD_TOO_LARGE")
    assert (await served.client().get(SERVERS)).json()["total"] == 0


async def test_a_body_without_an_end_is_refused_where_the_limit_is(gateway):
    served = await gateway(max_body_bytes=100_000)

    async def endless():
        yield b'{"name": "'
        for _ in range(1_000):
            yield b"x" * 1_000

    kind = {"content-type": "application/json"}
    answer = await served.client().post(SERVERS, content=endless(), headers=kind)
    assert (answer.status_code, answer.json()["error_code"]) == (413, "PAYLOAD_TOO_LARGE")
    assert (await served.client().get(SERVERS)).json()["total"] == 0


async def test_secrets_are_masked_and_a_masked_value_means_as_before(served):
    config = {**stdio_config(), "env": {"API_TOKEN": "hunter2"}}
    body = registration(connection_config=config, auto_connect=False)
    answer = await served.client().post(SERVERS, json=body)
    shown = answer.json()
    assert "hunter2" not in answer.text
    assert shown["connection_config"]["env"] == {"API_TOKEN": "***"}
    change = {"description": "new", "connection_config": shown["connection_config"]}
    answer = await served.client().patch(f"{SERVERS}/peer", json=change)
    assert (answer.status_code, answer.json()["description"]) == (200, "new")
    assert "hunter2" not in answer.text
    kept = served.registry.find("peer").connection_config
    assert kept["env"] == {"API_TOKEN": "hunter2"}


async def test_a_change_is_made_only_to_the_version_that_was_read(served):
    await served.client().post(SERVERS, json=registration(auto_connect=False))
    url = f"{SERVERS}/peer"
    tag = (await served.client().get(url)).headers["etag"]
    mine = {"if-match": tag}
    first = await served.client().patch(url, json={"description": "one"}, headers=mine)
    assert first.status_code == 200
    assert first.headers["etag"] != tag
    second = await served.client().patch(url, json={"description": "two"}, headers=mine)
    assert (second.status_code, second.json()["error_code"]) == (412, "VERSION_CONFLICT")
    gone = await served.client().delete(url, headers=mine)
    assert gone.status_code == 412
    assert (await served.client().get(url)).json()["description"] == "one"
    odd = await served.client().patch(url, json={}, headers={"if-match": "W/nonsense"})
    assert odd.status_code == 422


async def test_a_bad_change_is_refused_and_changes_nothing(gateway):
    served = await gateway()
    await served.client().post(SERVERS, json=registration(auto_connect=False))
    for change in ({"id": "x"}, {"status": "CONNECTED"}, {"name": "../x"}, {"pin": "never"}, []):
        answer = await served.client().patch(f"{SERVERS}/peer", json=change)
        told = answer.status_code, answer.json()["error_code"]
        assert told == (422, "VALIDATION_ERROR"), change
        assert (await served.client().get(f"{SERVERS}/peer")).json()["version"] == 1, change


@pytest.mark.req("J-STATES")
async def test_servers_are_listed_by_pages_and_by_status(gateway):
    served = await gateway()
    for name in ("b", "c", "a"):
        await served.client().post(SERVERS, json=registration(name, auto_connect=False))
    first = (await served.client().get(SERVERS, params={"limit": 2})).json()
    assert [one["name"] for one in first["items"]] == ["a", "b"]
    assert first["servers"] == first["items"]
    assert first["total"] == 3
    more = {"limit": 2, "cursor": first["next_cursor"]}
    second = (await served.client().get(SERVERS, params=more)).json()
    assert [one["name"] for one in second["items"]] == ["c"]
    assert second["next_cursor"] is None
    for status in ("disconnected", "DISCONNECTED", "Disconnected", "stopped"):
        found = (await served.client().get(SERVERS, params={"status": status})).json()
        assert found["total"] == 3
        assert {one["status"] for one in found["items"]} == {"DISCONNECTED"}
    assert (await served.client().get(SERVERS, params={"status": "error"})).json()["total"] == 0
    for bad in ({"status": "asleep"}, {"limit": 0}, {"limit": "x"}, {"cursor": "!"}):
        answer = await served.client().get(SERVERS, params=bad)
        assert (answer.status_code, answer.json()["error_code"]) == (422, "VALIDATION_ERROR"), bad


async def test_a_server_is_shown_with_the_instructions_it_gives_clients(gateway, tmp_path):
    served = await gateway()
    program = Path(__file__).parent.parent / "upstream" / "dual_server.py"
    args = ["-E", "-S", str(program), str(tmp_path / "starts"), "Count with care."]
    await served.register("peer", connection_config={"command": sys.executable, "args": args})
    shown = (await served.client("viewer").get(f"{SERVERS}/peer")).json()
    assert shown["instructions"] == "Count with care."
    (listed,) = (await served.client().get(SERVERS)).json()["items"]
    assert "instructions" not in listed


@pytest.mark.req("S-07")
async def test_instructions_that_repeat_what_a_server_is_given_are_shown_without_it(
    gateway, tmp_path
):
    served = await gateway()
    program = Path(__file__).parent.parent / "upstream" / "dual_server.py"
    args = ["-E", "-S", str(program), str(tmp_path / "starts"), "Log in\nwith Zq8-canary-77."]
    config = {"command": sys.executable, "args": args, "env": {"API_KEY": "Zq8-canary-77"}}
    await served.register("peer", connection_config=config)
    shown = await served.client("viewer").get(f"{SERVERS}/peer")
    assert "canary" not in shown.text
    assert shown.json()["instructions"] == "Log in\nwith ***."
