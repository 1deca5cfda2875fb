"""OpenTelemetry: one trace from the caller through the gateway to the server, off the hot path."""

import asyncio
import json
import sys
from contextlib import AsyncExitStack

import httpx
import pytest
from tests.api.mcp_client import ACCEPTED, HELLO, META, NEWER, Handshake, last_frame
from tests.plugin_rest import CALL, SERVERS
from tests.registry.toolbox import BOUND, Toolbox, tool

from mcp_junction.telemetry.otlp import read_traceparent

TRACE, CALLER = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
PARENT = f"00-{TRACE}-{CALLER}-01"
STDIO_SERVER = """
import json, sys
for line in sys.stdin:
    asked = json.loads(line)
    method, number = asked.get("method"), asked.get("id")
    if method == "initialize":
        told = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}},
                "serverInfo": {"name": "s", "version": "1"}}
    elif method == "tools/list":
        told = {"tools": [{"name": "meta", "inputSchema": {"type": "object"}}]}
    elif method == "tools/call":
        told = {"content": [{"type": "text", "text": json.dumps(asked["params"].get("_meta"))}]}
    else:
        if number is not None:
            error = {"code": -32601, "message": "no"}
            print(json.dumps({"jsonrpc": "2.0", "id": number, "error": error}), flush=True)
        continue
    print(json.dumps({"jsonrpc": "2.0", "id": number, "result": told}), flush=True)
"""


class Collector:
    """An OTLP receiver."""

    def __init__(self) -> None:
        self.spans: list[dict] = []
        self.metrics: list[dict] = []
        self.status = 200

    async def __aenter__(self):
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_):
        self._server.close()

    async def _serve(self, reader, writer):
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        length = int(head.split("content-length: ")[1].split("\r\n")[0])
        body = json.loads(await reader.readexactly(length))
        if head.startswith("post /v1/traces"):
            for one in body["resourceSpans"]:
                self.spans += [s for scoped in one["scopeSpans"] for s in scoped["spans"]]
        else:
            assert head.startswith("post /v1/metrics"), head
            for one in body["resourceMetrics"]:
                self.metrics += [m for scoped in one["scopeMetrics"] for m in scoped["metrics"]]
        writer.write(b"HTTP/1.1 %d X\r\ncontent-length: 2\r\n\r\n{}" % self.status)
        writer.close()


def attributes(span: dict) -> dict[str, str]:
    return {one["key"]: next(iter(one["value"].values())) for one in span["attributes"]}


@pytest.fixture
async def traced(gateway, tmp_path):
    program = tmp_path / "server.py"
    program.write_text(STDIO_SERVER)
    async with AsyncExitStack() as stack:
        collector = await stack.enter_async_context(Collector())
        box = await stack.enter_async_context(Toolbox([tool("echo")]))
        served = await gateway(otlp_endpoint=collector.url, otlp_sample=1.0)
        for body in (
            {"name": "box", "transport_type": "HTTP", "connection_config": {"url": box.url}},
            {
                "name": "pipe",
                "transport_type": "STDIO",
                "connection_config": {"command": sys.executable, "args": [str(program)]},
            },
        ):
            assert (await served.client().post(SERVERS, json=body)).status_code == 201
            await served.until(body["name"], "CONNECTED")
        served.collector, served.box = collector, box
        yield served


async def by_handshake(served, name: str, meta: dict) -> dict:
    session = await Handshake.open(served, "agent")
    params = {"name": name, "arguments": {}, "_meta": meta}
    return (await session.send("tools/call", params))["result"]


async def by_stateless(served, name: str, meta: dict) -> dict:
    params = {"name": name, "arguments": {}, "_meta": {**META, **meta}}
    headers = {"mcp-protocol-version": NEWER, "mcp-method": "tools/call", "mcp-name": name}
    message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    answer = await served.client("agent").post(
        "/mcp", json=message, headers={**ACCEPTED, **headers}
    )
    return last_frame(answer)["result"]


async def by_rest(served, name: str, meta: dict) -> dict:
    answer: httpx.Response = await served.client("agent").post(
        CALL, json={"name": name, "arguments": {}}, headers=meta
    )
    assert answer.status_code == 200, answer.text
    return answer.json()


FRONTS = {"handshake": by_handshake, "stateless": by_stateless, "rest": by_rest}


async def spans_of(served) -> tuple[dict, dict]:
    """Have the spans sent; that of the call, and that of its attempt."""
    async with asyncio.timeout(BOUND):
        await served.junction.tracing.sender.send_spans()
    (call,) = [one for one in served.collector.spans if one["kind"] == 2]
    (attempt,) = [one for one in served.collector.spans if one["kind"] == 3]
    return call, attempt


@pytest.mark.parametrize("front", FRONTS)
@pytest.mark.req("P-6")
async def test_caller_gateway_and_http_server_are_one_trace(traced, front):
    await FRONTS[front](traced, "box.echo", {"traceparent": PARENT})
    call, attempt = await spans_of(traced)
    assert {call["traceId"], attempt["traceId"]} == {TRACE}
    assert (call["parentSpanId"], attempt["parentSpanId"]) == (CALLER, call["spanId"])
    sent = json.loads(traced.box.bodies[-1])["params"]["_meta"]["traceparent"]
    assert read_traceparent(sent).header == f"00-{TRACE}-{attempt['spanId']}-01"
    told = attributes(attempt)
    assert attempt["name"] == "tools/call box.echo"
    assert (told["mcp.method.name"], told["gen_ai.tool.name"]) == ("tools/call", "box.echo")
    assert (told["network.transport"], told["gen_ai.operation.name"]) == ("tcp", "execute_tool")
    assert int(attempt["endTimeUnixNano"]) >= int(attempt["startTimeUnixNano"])


@pytest.mark.parametrize("front", FRONTS)
@pytest.mark.req("P-6")
async def test_a_server_on_stdio_continues_the_trace(traced, front):
    result = await FRONTS[front](traced, "pipe.meta", {"traceparent": PARENT})
    content = result.get("content") or result["result"]["content"]
    sent = json.loads(content[0]["text"])["traceparent"]
    _, attempt = await spans_of(traced)
    assert sent == f"00-{TRACE}-{attempt['spanId']}-01"
    assert attributes(attempt)["network.transport"] == "pipe"


UNSAMPLED = f"00-{TRACE}-{CALLER}-00"


@pytest.mark.parametrize("front", FRONTS)
async def test_the_context_of_a_caller_that_does_not_sample_is_passed_on_as_it_is(traced, front):
    await FRONTS[front](traced, "box.echo", {"traceparent": UNSAMPLED})
    await traced.junction.tracing.sender.send_spans()
    assert traced.collector.spans == []
    meta = json.loads(traced.box.bodies[-1])["params"]["_meta"]
    assert meta["traceparent"] == UNSAMPLED


@pytest.mark.req("P-6")
async def test_what_is_not_sampled_is_sent_as_it_came(traced):
    """Byte by byte, with what is no context of anybody."""
    traced.junction.tracing._share = 0.0
    meta = b'{ "other" : 1.50, "traceparent" : "nonsense\\r\\nx: y" }'
    session = await Handshake.open(traced, "agent")
    params = b'{"name": "box.echo", "arguments": {}, "_meta": %s}' % meta
    body = b'{"jsonrpc": "2.0", "id": 9, "method": "tools/call", "params": %s}' % params
    headers = {**ACCEPTED, "mcp-session-id": session.session, "content-type": "application/json"}
    answer = await traced.client("agent").post("/mcp", content=body, headers=headers)
    assert answer.status_code == 200, answer.text
    assert meta in traced.box.bodies[-1]
    assert not traced.junction.tracing.sender.queue


async def test_spans_say_what_the_conventions_want(traced):
    session = await Handshake.open(traced, "agent")
    params = {"name": "box.echo", "arguments": {}}
    assert "result" in await session.send("tools/call", params)
    call, attempt = await spans_of(traced)
    told, sent = attributes(call), attributes(attempt)
    assert told["mcp.session.id"] == session.session
    assert told["mcp.protocol.version"] == HELLO["protocolVersion"]
    assert sent["mcp.protocol.version"] == "2025-11-25"
    assert (sent["network.protocol.name"], sent["junction.attempt"]) == ("http", "1")
    assert "error.type" not in told
    await by_stateless(traced, "box.echo", {})
    await traced.junction.tracing.sender.send_spans()
    told = attributes([one for one in traced.collector.spans if one["kind"] == 2][-1])
    assert "mcp.session.id" not in told
    assert told["mcp.protocol.version"] == NEWER


@pytest.mark.parametrize(
    "text", ["", "nonsense", f"00-{'0' * 32}-{CALLER}-01", PARENT + "-x", "x" * 999]
)
async def test_a_context_that_is_not_valid_begins_another_trace(traced, text):
    await by_rest(traced, "box.echo", {"traceparent": text})
    call, _ = await spans_of(traced)
    assert call["traceId"] != TRACE
    assert "parentSpanId" not in call


async def test_durations_of_all_calls_are_sent_as_metrics(traced):
    for _ in range(3):
        await by_rest(traced, "box.echo", {"traceparent": f"00-{TRACE}-{CALLER}-00"})
    await traced.junction.tracing.sender.send_metrics()
    found = {one["name"]: one["histogram"]["dataPoints"] for one in traced.collector.metrics}
    assert set(found) == {"mcp.server.operation.duration", "mcp.client.operation.duration"}
    (point,) = found["mcp.client.operation.duration"]
    assert point["count"] == "3"
    assert sum(map(int, point["bucketCounts"])) == 3
    assert attributes(point)["gen_ai.tool.name"] == "box.echo"


async def test_a_collector_that_fails_costs_spans_and_nothing_else(traced):
    traced.collector.status = 500
    await by_rest(traced, "box.echo", {})
    await traced.junction.tracing.sender.send_spans()
    assert traced.junction.tracing.sender.dropped == 2
    assert await by_rest(traced, "box.echo", {})


async def test_without_an_endpoint_nothing_is_traced(gateway):
    served = await gateway()
    assert served.junction.tracing is None
