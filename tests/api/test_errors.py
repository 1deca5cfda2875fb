"""What is answered when something below the API goes wrong."""

import json

import pytest
from tests.plugin_rest import SERVERS, registration, stdio_config

from mcp_junction.api.errors import MCP_STATUS, MCP_TYPES, STATUS, to_answer
from mcp_junction.config.load import load
from mcp_junction.errors import CursorError, NotFound, RequestError, StoreUnavailable


async def test_a_server_of_the_config_file_is_changed_there(gateway, tmp_path):
    path = tmp_path / "mcp.json"
    path.write_text(json.dumps({"mcpServers": {"filed": stdio_config()}}))
    served = await gateway(load(str(path), {}, {}))
    shown = (await served.client().get(f"{SERVERS}/filed")).json()
    assert shown["origin"] == "file"
    for answer in (
        await served.client().patch(f"{SERVERS}/filed", json={"description": "x"}),
        await served.client().delete(f"{SERVERS}/filed"),
    ):
        assert (answer.status_code, answer.json()["error_code"]) == (409, "SERVER_OWNED_BY_FILE")
    await served.until("filed", "CONNECTED")
    assert (await served.call("filed.echo")).status_code == 200


@pytest.mark.req("J-ABSENT")
async def test_a_server_that_the_file_does_not_name_is_shown_when_asked_for_and_can_be_removed(
    gateway, tmp_path
):
    path = tmp_path / "mcp.json"
    path.write_text(json.dumps({"mcpServers": {"filed": stdio_config()}}))
    served = await gateway(load(str(path), {}, {}))
    known = await served.until("filed", "CONNECTED")
    assert known["absent"] is False
    path.write_text(json.dumps({"mcpServers": {}}))
    await served.registry.reload(load(str(path), {}, {}))
    client = served.client()
    assert (await client.get(SERVERS)).json()["items"] == []
    assert (await client.get(f"{SERVERS}/filed")).status_code == 404
    asked = {"include_absent": "true"}
    (listed,) = (await client.get(SERVERS, params=asked)).json()["items"]
    shown = (await client.get(f"{SERVERS}/filed", params=asked)).json()
    alone = ("instructions", "last_heartbeat")
    assert listed == {name: value for name, value in shown.items() if name not in alone}
    assert (shown["id"], shown["absent"], shown["status"]) == (known["id"], True, "DISCONNECTED")
    connected = await client.get(SERVERS, params={**asked, "status": "connected"})
    assert connected.json()["total"] == 0
    taken = await client.post(SERVERS, json=registration("filed"))
    assert (taken.status_code, taken.json()["error_code"]) == (409, "SERVER_ALREADY_EXISTS")
    assert "servers remove filed" in taken.json()["detail"]
    viewer = await served.client("viewer").delete(f"{SERVERS}/filed")
    assert viewer.status_code == 403
    assert (await client.delete(f"{SERVERS}/filed")).status_code == 204
    assert (await client.get(SERVERS, params=asked)).json()["total"] == 0
    assert (await client.post(SERVERS, json=registration("filed"))).status_code == 201


async def test_a_store_that_takes_nothing_is_told_of_and_nothing_has_changed(gateway, monkeypatch):
    served = await gateway()

    async def away(*_, **__):
        raise StoreUnavailable("the store cannot be written to now")

    monkeypatch.setattr(served.registry._context.store.servers, "add", away)
    answer = await served.client().post(SERVERS, json=registration(auto_connect=False))
    assert (answer.status_code, answer.json()["error_code"]) == (503, "STORE_UNAVAILABLE")
    assert answer.headers["retry-after"]
    assert (await served.client().get(SERVERS)).json()["total"] == 0


async def test_a_fault_of_ours_is_answered_without_what_it_was(gateway, monkeypatch, caplog):
    served = await gateway()

    def broken():
        raise RuntimeError("hunter2")

    monkeypatch.setattr(served.registry, "state", broken)
    answer = await served.client().get("/api/v1/aggregator/state")
    assert (answer.status_code, answer.json()["error_code"]) == (500, "INTERNAL_ERROR")
    assert "hunter2" not in answer.text
    assert "a request failed inside Junction" in caplog.text


async def test_routes_that_cannot_be_loaded_are_a_fault_that_is_answered(gateway, monkeypatch):
    from mcp_junction.api import app

    def broken(_):
        raise RuntimeError("no")

    monkeypatch.setattr(app, "make_app", broken)
    served = await gateway()
    answer = await served.client().get(SERVERS)
    assert (answer.status_code, answer.json()["error_code"]) == (500, "INTERNAL_ERROR")


async def test_while_it_ends_nothing_new_is_begun(gateway):
    served = await gateway()
    served.context.drain()
    answer = await served.client().get(SERVERS)
    told = answer.json()
    assert (answer.status_code, told["error_code"]) == (503, "SERVER_UNAVAILABLE")
    assert told["context"]["delivery"] == "not_sent"


@pytest.mark.parametrize("secret", ["hunter2"])
async def test_a_refused_secret_is_not_quoted(gateway, secret):
    served = await gateway()
    config = {"command": "x", "env": {"A B": secret}, "headers": {"x": secret}}
    answer = await served.client().post(SERVERS, json=registration(connection_config=config))
    assert answer.status_code == 422
    assert secret not in answer.text


@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        (RequestError("VALIDATION_ERROR", "x"), 400, "BadRequestError"),
        (CursorError("x"), 400, "BadRequestError"),
        (RequestError("UNAUTHENTICATED", "x"), 401, "AuthorizationError"),
        (RequestError("DENIED", "x"), 401, "AuthorizationError"),
        (RequestError("FORBIDDEN", "x"), 403, "ForbiddenError"),
        (RequestError("TOOL_NOT_FOUND", "x"), 404, "ToolNotFoundError"),
        (NotFound("x"), 404, "ServerNotFoundError"),
        (RequestError("TOOL_DISABLED", "x"), 409, "ToolDisabledError"),
        (RequestError("RATE_LIMITED", "x"), 429, "RateLimitError"),
        (RequestError("EXECUTION_FAILED", "x"), 500, "ToolInvocationError"),
        (RequestError("CIRCUIT_OPEN", "x"), 503, "CircuitOpenError"),
        (RequestError("SERVER_UNAVAILABLE", "x"), 503, "ServerUnavailableError"),
        (StoreUnavailable("x"), 503, "StoreUnavailableError"),
        (RequestError("TIMEOUT", "x"), 504, "TimeoutError"),
    ],
    ids=str,
)
def test_an_error_under_mcp_has_the_type_of_the_table(error, status, kind):
    answer = to_answer(error, "/api/v1/mcp/invoke")
    assert (answer.status, json.loads(answer.body)["error"]["type"]) == (status, kind)
    is_challenge = "www-authenticate" in answer.headers
    assert is_challenge is (getattr(error, "code", "") == "UNAUTHENTICATED")
    assert ("retry-after" in answer.headers) is (status == 429 or kind == "StoreUnavailableError")


def test_the_context_of_an_error_under_mcp_stands_beside_it():
    error = RequestError("TIMEOUT", "it took too long", {"delivery": "unknown", "attempts": 3})
    assert json.loads(to_answer(error, "/api/v1/mcp/invoke").body) == {
        "error": {"type": "TimeoutError", "message": "it took too long"},
        "delivery": "unknown",
        "attempts": 3,
    }
    assert json.loads(to_answer(error, "/api/v1/mcpx").body)["error_code"] == "TIMEOUT"


def test_every_code_has_a_type_and_a_status_under_mcp():
    assert set(MCP_TYPES) == set(MCP_STATUS) == set(STATUS)


@pytest.mark.req("J-HTTP-ERRORS")
async def test_a_bad_body_is_told_with_code_and_context_but_under_mcp_with_a_type(gateway):
    served = await gateway()
    outside = await served.client().post(SERVERS, json={"name": 7})
    assert (outside.status_code, outside.json()["error_code"]) == (422, "VALIDATION_ERROR")
    assert outside.json().keys() == {"detail", "error_code", "context"}
    inside = await served.client().post("/api/v1/mcp/invoke", json={"tool_name": 7})
    assert (inside.status_code, inside.json()["error"]["type"]) == (400, "BadRequestError")


@pytest.mark.req("J-HTTP-ERRORS")
async def test_errors_have_a_type_under_mcp_before_a_route_is_found(gateway):
    served = await gateway()
    for role, given, status, kind in (
        (None, {}, 401, "AuthorizationError"),
        ("admin", {}, 404, "NotFoundError"),
        ("admin", {"host": "evil.example"}, 403, "ForbiddenError"),
    ):
        answer = await served.client(role).get("/api/v1/mcp/nothing", headers=given)
        assert (answer.status_code, answer.json()["error"]["type"]) == (status, kind)
        assert answer.json().keys() == {"error"}
