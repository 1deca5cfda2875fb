"""A canary through what can go wrong with a server that works: it is nowhere to be read."""

import logging

import pytest
from tests.api.test_discretion import CANARY, everything
from tests.plugin_rest import SERVERS, registration, stdio_config
from tests.registry.toolbox import Toolbox, until

pytestmark = pytest.mark.req("S-07")

DYING = """
import json, os, sys
token = os.environ["API_TOKEN"]
for line in sys.stdin:
    asked = json.loads(line)
    if "id" not in asked: continue
    method = asked["method"]
    said = {"error": {"code": -32601, "message": f"no {method} for {token}"}}
    if method == "initialize":
        said = {"result": {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}},
                           "serverInfo": {"name": "x", "version": "1"}}}
    elif method == "tools/list":
        tools = [{"name": n, "inputSchema": {"type": "object"}} for n in ("die", "fail", "noise")]
        said = {"result": {"tools": tools}}
    elif method == "tools/call" and asked["params"]["name"] == "die":
        print(f"Error: {token} is not accepted", file=sys.stderr, flush=True)
        sys.exit(2)
    elif method == "tools/call" and asked["params"]["name"] == "noise":
        print(f"what is no JSON: {token}", flush=True)
        said = {"result": {"content": [], "note": token}}
    elif method == "tools/call":
        said = {"error": {"code": -32000, "message": f"cannot use {token}"}}
    print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], **said}), flush=True)
"""


@pytest.mark.parametrize("tool", ["die", "fail", "noise"])
async def test_what_a_working_server_says_at_a_call_is_recorded_without_its_secret(
    served, caplog, tool
):
    caplog.set_level(logging.DEBUG)
    command = stdio_config()["command"]
    config = {"command": command, "args": ["-c", DYING], "env": {"API_TOKEN": CANARY}}
    await served.register("parrot", connection_config=config)
    answer = await served.call(f"parrot.{tool}")
    if tool == "die":
        assert "exited with code 2; it said: Error: *** is not accepted" in answer.text
        assert CANARY not in answer.text
    assert CANARY not in await everything(served)
    assert CANARY not in caplog.text


@pytest.mark.parametrize("broken", ["status", "away"])
async def test_a_failing_health_check_tells_nothing_of_its_url(gateway, caplog, broken):
    caplog.set_level(logging.DEBUG)
    served = await gateway(health_interval_ms=100, health_timeout_ms=500)
    async with Toolbox() as box, Toolbox() as checked:
        url = f"http://127.0.0.1:{checked.port}/health?token={CANARY}"
        if broken == "away":
            await checked.stop()
        await served.register(
            "parrot",
            transport_type="HTTP",
            connection_config={"url": box.url},
            health_check_url=url,
        )
        await until(lambda: "its health check" in caplog.text)
        shown = (await served.client().get(f"{SERVERS}/parrot")).json()
        assert shown["health_check_url"].endswith("token=***")
        assert CANARY not in await everything(served)
    assert CANARY not in caplog.text


async def test_a_refused_registration_repeats_no_value(served, caplog):
    caplog.set_level(logging.DEBUG)
    bad = [
        {"url": f"ftp://{CANARY}/x", "headers": {"X": f"{CANARY}\r\n"}},
        {"url": f"http://10.0.0.1/{CANARY}"},
        {"command": f"../{CANARY}", "env": {"A": f"${{JUNCTION_STORE}}{CANARY}"}},
        {"command": "sh", "args": ["-c", CANARY]},
        {"command": "x", "args": [f"{CANARY}\0"], "unknown": CANARY},
        CANARY,
    ]
    for config in bad:
        for kind in ("HTTP", "STDIO", CANARY):
            body = registration("parrot", transport_type=kind, connection_config=config)
            answer = await served.client().post(SERVERS, json=body)
            assert answer.status_code == 422
            assert CANARY not in answer.text
    assert CANARY not in await everything(served)
    assert CANARY not in caplog.text
