"""What is refused over HTTP leaves rows in the audit, whoever is refused and by whichever front."""

import json

import pytest
from tests.api.mcp_client import ERAS, Handshake, client_of, frame, post
from tests.plugin_rest import SERVERS, registration

from mcp_junction.store.audit_records import AuditQuery

pytestmark = pytest.mark.req("NFR-SEC4")


async def rows_of(served, **query):
    """The denials that are in the audit, oldest first, with their details."""
    served.audit.denials.flush()
    await served.audit.flush()
    trail = served.audit._trail
    found = await trail.rows(AuditQuery(limit=10_000, **query))
    return [(row, json.loads(row.detail)) for row in found[::-1] if row.decision == "DENY"]


@pytest.mark.parametrize("era", ERAS)
async def test_a_call_that_is_denied_leaves_a_row_and_more_of_them_a_count(gateway, era):
    served = await gateway()
    record = await served.register()
    client = await client_of(era).open(served, "viewer")
    for _ in range(4):
        secret = {"name": "peer.echo", "arguments": {"password": "canary-5ecret"}}
        assert "error" in await client.send("tools/call", secret)
    await client.send("resources/read", {"uri": "note://0"})
    rows = await rows_of(served, actor="the-viewer")
    told = [(row.kind, row.action, row.target, detail["count"]) for row, detail in rows]
    assert sorted(told) == [
        ("call", "resources/read", rows[1][0].target, 1),
        ("call", "tools/call", "peer.echo", 1),
        ("call", "tools/call", "peer.echo", 3),
    ]
    first, detail = rows[0]
    assert (first.role, first.outcome, first.server_id) == ("viewer", "denied", record["id"])
    assert detail["reason"].startswith("the role viewer may not call")
    assert "canary-5ecret" not in str(rows)


@pytest.mark.req("S-07")
async def test_a_key_that_somebody_puts_into_a_path_or_a_name_is_not_in_the_audit(gateway):
    served = await gateway()
    key = served.keys["agent"]
    assert (await served.client(None).get(f"{SERVERS}/{key}")).status_code == 401
    assert (await served.client("viewer").delete(f"{SERVERS}/{key}")).status_code == 403
    assert (await served.call(key)).status_code == 404
    await served.audit.flush()
    rows = await served.audit._trail.rows(AuditQuery(limit=100))
    assert [row.target for row in rows if "***" in (row.target or "")][::-1] == [
        f"{SERVERS}/***",
        f"{SERVERS}/***",
        "***",
    ]
    assert key not in str(rows)


async def test_a_route_that_is_denied_leaves_a_row(gateway):
    served = await gateway()
    for _ in range(3):
        answer = await served.client("agent").post(SERVERS, json=registration())
        assert answer.status_code == 403
    assert (await served.client("agent").get("/metrics")).status_code == 403
    rows = await rows_of(served, actor="the-agent")
    told = [(row.kind, row.action, row.target, detail["count"]) for row, detail in rows]
    assert told == [
        ("request", "POST", SERVERS, 1),
        ("request", "GET", "/metrics", 1),
        ("request", "POST", SERVERS, 2),
    ]


async def test_a_401_leaves_a_row_with_the_address_and_no_key(gateway):
    served = await gateway()
    shown = {"authorization": "Bearer jct_x_canary-5ecret"}
    for headers in ({}, shown, shown):
        assert (
            await served.client(None).get(f"{SERVERS}?q=canary-5ecret", headers=headers)
        ).status_code == 401
        assert (await post(served, None, frame("tools/list"), **headers)).status_code == 401
    rows = await rows_of(served, actor="anonymous")
    told = [(row.action, row.target, detail["count"]) for row, detail in rows]
    assert told == [
        ("GET", SERVERS, 1),
        ("POST", "/mcp", 1),
        ("GET", SERVERS, 2),
        ("POST", "/mcp", 2),
    ]
    assert {detail["address"] for _, detail in rows} == {"127.0.0.1"}
    assert "canary-5ecret" not in str(rows)


async def test_a_foreign_host_or_origin_leaves_a_row(gateway):
    served = await gateway()
    for path in ("/mcp", SERVERS):
        answer = await served.client().get(path, headers={"origin": "http://evil.example"})
        assert answer.status_code == 403
    rows = await rows_of(served, actor="anonymous")
    assert [(row.target, detail["reason"]) for row, detail in rows] == [
        ("/mcp", "this Host or Origin is not let in"),
        (SERVERS, "this Host or Origin is not let in"),
    ]


@pytest.mark.bulk
async def test_a_flood_of_401s_is_a_few_rows_that_count_all_of_it(gateway):
    served = await gateway()
    for number in range(1_500):
        path = f"/api/v1/x{number}"
        assert (await served.client(None).get(path)).status_code == 401
    rows = await rows_of(served, actor="anonymous")
    assert len(rows) == 1_001
    assert sum(detail["count"] for _, detail in rows) == 1_500
    last, detail = rows[-1]
    assert (last.kind, detail["network"], len(detail["samples"])) == ("denials", "127.0.0.0/24", 20)


async def test_what_is_allowed_leaves_no_denial(gateway):
    served = await gateway()
    await served.register()
    client = await Handshake.open(served, "agent")
    assert "result" in await client.send("tools/call", {"name": "peer.echo", "arguments": {}})
    assert (await served.client("viewer").get(SERVERS)).status_code == 200
    assert await rows_of(served) == []
