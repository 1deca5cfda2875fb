"""Servers' instructions reach clients of either era, at each endpoint those of its servers."""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.http.origin import Origin, Visit

from mcp_junction.protocol.versions import CAPABILITIES_KEY, LATEST_STATELESS, VERSION_KEY

SERVER = Path(__file__).parent.parent / "upstream" / "dual_server.py"
MANY = {"one": "Count with care.", "two": "Ask\u202e twice.", "mute": ""}


def entry(folder: Path, instructions: str) -> dict[str, Any]:
    args = ["-E", "-S", str(SERVER), str(folder / "starts"), instructions]
    return {"command": sys.executable, "args": args}


@pytest.fixture
async def gateway(serving, tmp_path):
    """A gateway before servers that say these."""

    async def start(said: dict[str, str], **settings: Any) -> Any:
        found = await serving({k: entry(tmp_path, v) for k, v in said.items()}, **settings)
        await found.settled()
        return found

    return start


async def greeted(gateway: Any, era: str, path: str = "/mcp") -> str | None:
    """The instructions that a client is given."""
    wire = await gateway.wire()
    meta = {VERSION_KEY: LATEST_STATELESS, CAPABILITIES_KEY: {}}
    hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "x"}}
    method, params, headers = "initialize", hello, {}
    if era == "newer":
        method, params = "server/discover", {"_meta": meta}
        headers = {"mcp_protocol_version": LATEST_STATELESS, "mcp_method": method}
    message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    wire.request("POST", path, json.dumps(message).encode(), **headers)
    answer = (await wire.response()).json["result"]
    return answer.get("instructions")


@pytest.mark.parametrize("era", ["older", "newer"])
async def test_each_endpoint_has_the_instructions_of_its_servers(gateway, era):
    served = await gateway(MANY, endpoints={"some": ["two", "mute"]})
    both = "## one\n\nCount with care.\n\n## two\n\nAsk twice."
    assert await greeted(served, era) == both
    assert await greeted(served, era, "/mcp/one") == "Count with care."
    assert await greeted(served, era, "/mcp/two") == "Ask twice."
    assert await greeted(served, era, "/mcp/mute") is None
    assert await greeted(served, era, "/mcp/some") == "## two\n\nAsk twice."


@pytest.mark.parametrize("era", ["older", "newer"])
async def test_with_one_server_its_instructions_are_passed_on_as_they_are(gateway, era):
    served = await gateway({"one": "# Mine\n\nCount with care."})
    assert await greeted(served, era) == "# Mine\n\nCount with care."


async def test_together_they_stay_within_the_budget_that_is_set(gateway):
    served = await gateway({"one": "x " * 3000, "two": "Ask."}, instructions_tokens=200)
    found = await greeted(served, "older")
    assert len(found.encode()) <= 800
    assert "## two\n\nAsk." in found
    assert "length: one;" in found


async def test_a_server_that_comes_back_with_others_is_quoted_anew(serving):
    words = ["Old."]

    async def handle(visit: Visit) -> None:
        if visit.rpc == "initialize":
            about = {"protocolVersion": "2025-11-25", "capabilities": {}, "instructions": words[-1]}
            visit.result(about)
        elif visit.method == "POST" and "id" in visit.message:
            visit.json({"jsonrpc": "2.0", "id": visit.message["id"], "error": {"code": -32601,
                        "message": "no"}}, 200)  # fmt: skip
        elif visit.method == "POST":
            visit.accepted()
        else:
            visit.answer(405)

    async with Origin(handle) as origin:
        served = await serving({"far": {"url": origin.url}})
        await served.settled()
        assert await greeted(served, "older") == "Old."
        words.append("New.")
        server = served.junction.servers["far"]
        before = server.link
        server.give_up("so that it connects anew")
        async with asyncio.timeout(20):
            while server.link is None or server.link is before:  # noqa: ASYNC110 - nobody says it
                await asyncio.sleep(0.01)
        assert await greeted(served, "older") == "New."


async def test_in_stdio_mode_initialize_waits_a_moment_for_them(piped, tmp_path):
    client = await piped({"one": entry(tmp_path, "Count with care.")})
    answer = next(m for m in client.messages if "serverInfo" in m.get("result", {}))
    assert answer["result"]["instructions"] == "Count with care."


async def test_a_server_that_does_not_start_holds_up_initialize_no_longer(piped):
    waiting = {"command": sys.executable, "args": ["-c", "import sys; sys.stdin.read()"]}
    client = await piped({"one": waiting}, settings={"instructions_wait_ms": 50})
    answer = next(m for m in client.messages if "serverInfo" in m.get("result", {}))
    assert "instructions" not in answer["result"]
