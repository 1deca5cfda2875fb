"""On a connection that it keeps, a stateless client is answered as it would be on a new one.

From its second request on, a head that was seen before takes a short way through the listener.
"""

import json

import pytest
from tests.http.wire import Wire
from tests.keyring import Keys

from mcp_junction.policy.principal import Role
from mcp_junction.protocol.versions import LATEST_STATELESS

META = {
    "io.modelcontextprotocol/protocolVersion": LATEST_STATELESS,
    "io.modelcontextprotocol/clientCapabilities": {},
    "io.modelcontextprotocol/clientInfo": {"name": "keeper", "version": "1"},
}


def message(method: str, frame_id: int | None = 7, meta=META, **params) -> bytes:
    said = {"jsonrpc": "2.0", "id": frame_id, "method": method, "params": {**params, "_meta": meta}}
    if frame_id is None:
        del said["id"]
    return json.dumps(said).encode()


def call(name: str) -> bytes:
    return message("tools/call", name=name, arguments={"text": "hi"})


BODIES = {
    "a call": call("up.echo"),
    "a call of another tool": call("up.about"),
    "an unknown tool": call("up.missing"),
    "without an envelope": message("tools/call", meta={}, name="up.echo", arguments={}),
    "an older version": message("tools/list", meta={**META, next(iter(META)): "2025-11-25"}),
    "another method": message("tools/list"),
    "a greeting": message("server/discover"),
    "initialize": message("initialize"),
    "an unknown method": message("tools/burn"),
    "a notification": message("notifications/cancelled", None, requestId=1),
    "a listen": message("subscriptions/listen", notifications={}),
    "a batch": b"[%b]" % call("up.echo"),
    "no JSON": b"{",
    "no frame": b"{}",
}


async def answer(wire: Wire, key: str, method: str, body: bytes) -> tuple[int, bytes]:
    headers = {
        "authorization": f"Bearer {key}",
        "accept": "application/json",
        "mcp_protocol_version": LATEST_STATELESS,
        "mcp_method": method,
        "mcp_name": "up.echo",
    }
    wire.request("POST", "/mcp", body, **headers)
    response = await wire.response()
    told = response.headers.get("x-correlation-id", "no id")
    return response.status, response.body.replace(told.encode(), b"its id")


@pytest.mark.req("J-ERA-HEADERS")
@pytest.mark.parametrize("method", ["tools/call", "tools/list"])
async def test_a_kept_connection_changes_no_answer(serving, upstream, tmp_path, method):
    _, key = Keys(tmp_path / "data").create(Role.ADMIN, "admin")
    served = await serving({"up": await upstream("http")})
    await served.settled()
    statuses = set()
    for name, body in BODIES.items():
        wire = await served.wire()
        first, *others = [await answer(wire, key, method, body) for _ in range(3)]
        assert others == [first, first], name
        statuses.add(first[0])
    assert {200, 202, 400} <= statuses
