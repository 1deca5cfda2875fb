"""`GET /api/v1/mcp/audit`: who reads which rows, found by what, page by page."""

import base64
from urllib.parse import parse_qs, urlsplit

import pytest
from tests.api.scope_door import Hiding

from mcp_junction.api.conventions import write_cursor
from mcp_junction.protocol.names import Pair

pytestmark = pytest.mark.req("REQ-MCP-OBS-002")
AUDIT = "/api/v1/mcp/audit"


async def read(served, role="admin", **asked) -> list[dict]:
    """All rows that a role is shown, page by page."""
    served.audit.denials.flush()
    await served.audit.flush()
    rows, url, params = [], AUDIT, asked
    while url is not None:
        answer = await served.client(role).get(url, params=params)
        assert answer.status_code == 200, answer.text
        rows += answer.json()
        url, params = answer.links.get("next", {}).get("url"), None
    return rows


async def test_a_call_is_found_by_what_it_tells(served):
    await served.register()
    assert (await served.call("peer.echo", {"token": "canary-5ecret"})).status_code == 200
    await served.call("peer.nothing")
    (row,) = await read(served, tool_name="echo")
    assert (row["principal"], row["agent_id"], row["role"]) == ("the-admin", "the-admin", "admin")
    assert (row["server_id"], row["tool_name"], row["target"]) == ("peer", "echo", "peer.echo")
    assert (row["decision"], row["outcome"], row["attempts"]) == ("ALLOW", "ok", 1)
    assert len(row["params_sha256"]) == 64
    assert row["latency_ms"] > 0
    for asked in (
        {"agent_id": "the-admin", "tool_name": "echo"},
        {"server_id": "peer", "tool_name": "peer.echo"},
        {"correlation_id": row["correlation_id"]},
        {"agent_id": "the-admin", "server_id": "peer", "since": row["at"], "decision": "ALLOW"},
    ):
        assert [one["id"] for one in await read(served, **asked) if one["kind"] == "call"] == [
            row["id"]
        ], asked
    assert [one["target"] for one in await read(served, decision="unknown")] == ["peer.nothing"]
    assert await read(served, until="2001-01-01T00:00:00Z") == []
    assert await read(served, agent_id="nobody") == []
    assert "canary-5ecret" not in str(await read(served))


async def test_a_list_is_read_page_by_page_to_its_end(served):
    await served.register()
    for _ in range(7):
        await served.call("peer.echo")
    whole = await read(served)
    assert await read(served, limit=3) == whole
    assert len({row["id"] for row in whole}) == len(whole)
    paged = await read(served, limit=2, tool_name="echo")
    assert paged == [row for row in whole if row["tool_name"] == "echo"]
    assert len(paged) == 7


@pytest.mark.parametrize(
    "asked",
    [
        {"cursor": "x"},
        {"since": "soon"},
        {"decision": "maybe"},
        {"limit": 0},
        {"cursor": "WzFd"},
        {"cursor": write_cursor((10**400, "a", 1))},
    ],
    ids=lambda asked: str(asked)[:40],
)
async def test_what_cannot_be_asked_is_refused(gateway, asked):
    answer = await (await gateway()).client().get(AUDIT, params=asked)
    assert answer.status_code == 400
    assert answer.json()["error"]["type"] == "BadRequestError"


@pytest.mark.req("S-07")
async def test_an_agent_reads_its_own_calls_and_nothing_of_what_is_hidden(gateway):
    served = await gateway(policy=Hiding(frozenset({("tools", Pair("peer", "fail"))})))
    await served.register()
    await served.call("peer.echo")
    await served.call("peer.echo", role="agent")
    for name in ("peer.fail", "peer.nope") * 3:
        await served.call(name, role="agent")
    rows = [row for row in await read(served, "agent") if row["kind"] == "call"]
    assert {row["principal"] for row in rows} == {"the-agent"}
    by_name = {
        name: [r for r in rows if r["target"] == name] for name in ("peer.fail", "peer.nope")
    }
    for one, two in zip(*by_name.values(), strict=True):
        changing = {"id", "at", "target", "correlation_id"}
        for row in (one, two):
            row["detail"].pop("since", None)
        assert {k: v for k, v in one.items() if k not in changing} == {
            k: v for k, v in two.items() if k not in changing
        }
    assert sum(row["detail"]["count"] for row in by_name["peer.fail"]) == 3
    for asked in ({"decision": "DENY"}, {"tool_name": "fail"}, {"agent_id": "the-admin"}):
        assert await read(served, "agent", **asked) == [], asked
    denied = await read(served, decision="DENY", tool_name="fail")
    assert {(row["target"], row["rule"], row["outcome"]) for row in denied} == {
        ("peer.fail", "default", "denied")
    }
    assert sum(row["detail"]["count"] for row in denied) == 3
    for role in ("viewer", "orchestrator"):
        assert len(await read(served, role)) >= len(await read(served))


@pytest.mark.req("S-07")
async def test_an_agent_cannot_count_what_others_do(gateway):
    served = await gateway(audit="strict")
    await served.register()
    for _ in range(3):
        await served.call("peer.echo", role="agent")
        await served.call("peer.echo")
    whole = await read(served)
    own = [row for row in whole if row["principal"] == "the-agent"]
    shown = await read(served, "agent", limit=2)
    assert [row["correlation_id"] for row in shown] == [row["correlation_id"] for row in own]
    answer = await served.client("agent").get(AUDIT, params={"limit": 2})
    (cursor,) = parse_qs(urlsplit(answer.links["next"]["url"]).query)["cursor"]
    sealed = cursor.rpartition(".")[2]
    secrets = {part for row in whole for part in row["id"].split(":") if len(part) > 4}
    opened = base64.urlsafe_b64decode(sealed + "=" * (-len(sealed) % 4))
    told = answer.text + answer.headers["link"] + str(opened)
    assert not [secret for secret in secrets if secret in told]
    ids = {row["id"] for row in shown}
    assert len(ids) == 6
    assert all(len(one) == 24 and one.isalnum() for one in ids)
    closed = {row["closes"] for row in shown} - {None}
    assert len(closed) == 3
    assert closed < ids, "an outcome still leads to its intent"
    refused = await served.client().get(AUDIT, params={"cursor": cursor})
    assert refused.status_code == 400, "a cursor is good for whom it was made"
