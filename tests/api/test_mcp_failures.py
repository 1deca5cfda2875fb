"""Circuits and escalations over REST: who sees them, resets them and acknowledges them."""

import pytest

from mcp_junction.governance.failures import FailedCall
from mcp_junction.resilience.failures import Failure, FailureKind
from mcp_junction.upstream.events import ServerChange

CIRCUITS = "/api/v1/mcp/circuit-breakers"
ESCALATIONS = "/api/v1/mcp/escalations"
ROW = {
    "server_id",
    "tool_name",
    "circuit_key",
    "state",
    "failure_count",
    "success_count",
    "last_failure_time",
    "opened_at",
    "retry_at",
}


@pytest.fixture
async def governed(served):
    """A gateway with circuits and escalations, and one server."""
    served.server_id = (await served.register("peer"))["id"]
    return served


def fail(governed, tool: str, kind: FailureKind = FailureKind.TIMEOUT, times: int = 5) -> None:
    circuits = governed.junction.governance.circuits
    for _ in range(times):
        pair = circuits.breakers.pair(governed.server_id, tool)
        permit = circuits.breakers.admit(pair, "a", 1_000.0)
        circuits.breakers.end(permit, Failure(kind), 1_000.0)
    circuits.announce_changes()


@pytest.mark.req("REQ-MCP-CALL-005", "MCP-GET-circuit-breakers")
async def test_circuits_are_listed_by_server_and_tool(governed):
    fail(governed, "dir/tool")
    fail(governed, "other", times=2)
    rows = (await governed.client().get(CIRCUITS)).json()
    assert [set(row) for row in rows] == [ROW] * 3
    assert [row["circuit_key"] for row in rows] == ["peer:*", "peer:dir/tool", "peer:other"]
    assert [row["state"] for row in rows] == ["CLOSED", "OPEN", "CLOSED"]
    assert rows[1]["opened_at"] == "1970-01-01T00:16:40.000Z"
    assert rows[1]["retry_at"] == "1970-01-01T00:17:40.000Z"
    for query, found in (
        ({"tool_name": "dir/tool"}, ["dir/tool"]),
        ({"server_id": "peer", "tool_name": "*"}, ["*"]),
        ({"server_id": governed.server_id, "limit": 1}, ["*"]),
    ):
        answer = await governed.client().get(CIRCUITS, params=query)
        assert [row["tool_name"] for row in answer.json()] == found
    missing = await governed.client().get(CIRCUITS, params={"server_id": "nobody"})
    assert missing.status_code == 404
    assert missing.json()["error"]["type"] == "ServerNotFoundError"


@pytest.mark.req("REQ-MCP-CALL-005")
@pytest.mark.parametrize("tool", ["dir/tool", "plain", "*"])
async def test_a_circuit_is_reset_by_the_name_of_its_tool(governed, tool):
    for name in ("dir/tool", "plain"):
        fail(governed, name)
    answer = await governed.client("orchestrator").post(f"{CIRCUITS}/peer/{tool}/reset")
    assert answer.status_code == 200, answer.text
    assert {row["state"] for row in answer.json()} == {"CLOSED"}
    rows = (await governed.client("viewer").get(CIRCUITS)).json()
    left = {row["tool_name"] for row in rows if row["state"] == "OPEN"}
    assert left == {"dir/tool", "plain"} - ({tool} if tool != "*" else {"dir/tool", "plain"})


async def test_only_who_may_sees_and_resets_circuits(governed):
    reset = f"{CIRCUITS}/peer/plain/reset"
    statuses = {
        role: (
            (await governed.client(role).get(CIRCUITS)).status_code,
            (await governed.client(role).post(reset)).status_code,
        )
        for role in ("admin", "orchestrator", "agent", "viewer")
    }
    assert statuses == {
        "admin": (200, 200),
        "orchestrator": (200, 200),
        "agent": (403, 403),
        "viewer": (200, 403),
    }
    for path in (f"{CIRCUITS}/peer/plain", f"{CIRCUITS}/peer/reset"):
        assert (await governed.client().post(path)).status_code == 404


async def test_a_change_of_the_connection_resets_the_circuits(governed):
    fail(governed, "plain")
    upstream = governed.junction.servers["peer"]
    circuits = governed.junction.governance.circuits
    from mcp_junction.upstream.events import ServerChanged

    circuits.follow(ServerChanged(upstream, ServerChange.REPLACED, upstream.state))
    rows = (await governed.client().get(CIRCUITS)).json()
    assert {row["state"] for row in rows} == {"CLOSED"}


@pytest.mark.req("REQ-MCP-CALL-004")
async def test_escalations_are_listed_and_acknowledged(governed):
    escalations = governed.junction.governance.escalations
    for number in range(3):
        failed = FailedCall(
            "a", governed.server_id, f"t{number}", "timeout", "late", "unknown", 3, "c"
        )
        escalations.escalate(failed)
    first = await governed.client().get(ESCALATIONS, params={"limit": 2})
    rest = await governed.client().get(first.links["next"]["url"])
    found = [*first.json(), *rest.json()]
    assert [one["tool_name"] for one in found] == ["t2", "t1", "t0"]
    assert "next" not in rest.links
    assert {one["server_id"] for one in found} == {"peer"}
    path = f"{ESCALATIONS}/{found[0]['id']}/acknowledge"
    answer = await governed.client("orchestrator").post(path, json={"note": "seen to"})
    assert answer.status_code == 200, answer.text
    assert (answer.json()["note"], answer.json()["count"]) == ("seen to", 1)
    assert (await governed.client().post(path)).json()["note"] == "seen to", "the first one counts"
    left = await governed.client("viewer").get(ESCALATIONS, params={"acknowledged": "false"})
    assert [one["tool_name"] for one in left.json()] == ["t1", "t0"]


async def test_an_agent_sees_the_escalations_of_its_own_calls(governed):
    escalations = governed.junction.governance.escalations
    own = "the-agent"
    for agent in (own, "another"):
        failed = FailedCall(agent, governed.server_id, "t", "timeout", "late", "unknown", 3, "c")
        escalations.escalate(failed)
    client = governed.client("agent")
    assert [one["agent_id"] for one in (await client.get(ESCALATIONS)).json()] == [own]
    for query in ({"agent_id": "another"}, {"server_id": "nobody"}):
        assert (await client.get(ESCALATIONS, params=query)).json() == []


async def test_bad_requests_about_escalations_are_told_what_is_wrong(governed):
    client = governed.client()
    missing = await client.post(f"{ESCALATIONS}/nothing/acknowledge")
    assert missing.status_code == 404
    assert missing.json()["error"]["type"] == "EscalationNotFoundError"
    assert (await client.get(ESCALATIONS, params={"cursor": "x"})).status_code == 400
    assert (await client.get(ESCALATIONS, params={"cursor": "WyJ4IiwieSJd"})).status_code == 400
    assert (await governed.client("viewer").post(f"{ESCALATIONS}/x/acknowledge")).status_code == 403
    long = {"note": "x" * 2_001}
    assert (await client.post(f"{ESCALATIONS}/x/acknowledge", json=long)).status_code == 400
