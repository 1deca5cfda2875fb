"""A shared stdio server that speaks both eras is one process, whichever clients come."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.http.fronts import EVERYTHING
from tests.http.wire import Wire

from mcp_junction.protocol.versions import CAPABILITIES_KEY, LATEST_STATELESS, VERSION_KEY

SERVER = Path(__file__).parent.parent / "upstream" / "dual_server.py"


@pytest.fixture
def starts(tmp_path) -> Path:
    return tmp_path / "starts"


def entry(starts: Path, **more: Any) -> dict[str, Any]:
    return {"command": sys.executable, "args": ["-E", "-S", str(SERVER), str(starts)], **more}


def count(starts: Path) -> int:
    return len(starts.read_text("utf-8").splitlines())


async def stateless(wire: Wire, method: str, name: str, **params: Any) -> Any:
    """The result of a call of a stateless client."""
    meta = {VERSION_KEY: LATEST_STATELESS, CAPABILITIES_KEY: {"elicitation": {}}}
    message = {"jsonrpc": "2.0", "id": 1, "method": method}
    message["params"] = {"name": name, "arguments": {}, "_meta": meta, **params}
    headers = {"mcp_protocol_version": LATEST_STATELESS, "mcp_method": method, "mcp_name": name}
    wire.request("POST", "/mcp", json.dumps(message).encode(), **headers)
    return (await wire.response()).json["result"]


def said(result: Any) -> Any:
    return json.loads(result["content"][0]["text"])


async def test_in_the_service_it_runs_once_in_its_newest_era(serving, starts):
    gateway = await serving({"p": entry(starts)})
    older = await gateway.front(capabilities=EVERYTHING)
    wire = await gateway.wire()
    assert await older.read("p.count") == [1, "newer"]
    assert said(await stateless(wire, "tools/call", "p.count")) == [2, "newer"]
    assert await older.read("p.count") == [3, "newer"]
    call = older.begin("p.ask")
    older.respond(await older.heard("elicitation/create"), {"action": "decline"})
    assert said((await older.answer(call))["result"]) == {"action": "decline"}
    assert count(starts) == 1
    assert gateway.junction.servers["p"].extra_links.every == []


async def test_in_the_service_a_stateless_client_asks_it_as_it_is(serving, starts):
    gateway = await serving({"p": entry(starts)})
    wire = await gateway.wire()
    asked = await stateless(wire, "tools/call", "p.ask")
    assert asked["resultType"] == "input_required"
    (key,) = asked["inputRequests"]
    answers = {"inputResponses": {key: {"action": "decline"}}}
    if "requestState" in asked:
        answers["requestState"] = asked["requestState"]
    assert said(await stateless(wire, "tools/call", "p.ask", **answers)) == {"action": "decline"}
    assert count(starts) == 1


async def test_in_stdio_mode_it_runs_once_in_the_clients_era(piped, starts):
    client = await piped({"p": entry(starts)}, capabilities=EVERYTHING)
    (name,) = [name for name in await client.names() if name.endswith("count")]
    assert await client.read(name) == [1, "older"]
    assert count(starts) == 1


async def test_with_a_link_each_a_client_has_a_process_in_its_own_era(serving, starts):
    gateway = await serving({"p": entry(starts, junction={"isolation": "per-session"})})
    await gateway.settled()
    older = await gateway.front()
    assert await older.read("p.count") == [1, "older"]
    assert count(starts) > 1
