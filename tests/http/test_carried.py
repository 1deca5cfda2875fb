"""What calls carry for Junction, over HTTP in both eras: it is used here, and goes nowhere else."""

import asyncio
import json
import logging
from typing import Any

import pytest
from tests.http.fronts import EVERYTHING, HttpFront
from tests.http.peer_http import HttpPeer
from tests.http.test_batches import call
from tests.http.test_doors import post
from tests.keyring import Keys
from tests.plugin_http import stdio_entry

from mcp_junction.policy.principal import Role
from mcp_junction.protocol.versions import CAPABILITIES_KEY, LATEST_STATELESS, VERSION_KEY

CANARY = "c4n4ry"
TOKEN = f"jtk_{CANARY}id_{CANARY}secret"
SECRETS = {
    "junction/agent-id": f"{CANARY}-agent",
    "junction/ticket-id": f"{CANARY}-ticket",
    "junction/task-id": f"{CANARY}-task",
    "junction/idempotency-key": f"{CANARY}-key",
    "junction/token": TOKEN,
    "junction/timeout-ms": 19_999,
}
BAD = [
    {"junction/token": CANARY},
    {"junction/token": {"is": CANARY}},
    {"junction/token": TOKEN, "junction/agent-id": 7},
    {"junction/token": TOKEN, "junction/tokn": CANARY},
    {"junction/token": TOKEN, "junction/timeout-ms": CANARY},
]
METHODS = [
    ("prompts/get", {"name": "p.greet", "arguments": {"who": "x"}}),
    ("resources/read", {"uri": "note://1"}),
    ("completion/complete", {"ref": {"type": "ref/prompt", "name": "p.greet"},
                             "argument": {"name": "who", "value": ""}}),
    ("tools/list", {}),
    ("tools/call", {"name": "p.nosuch"}),
    ("tools/call", {}),
    ("tools/call", {"name": "p.fail"}),
    ("no/such", {}),
    ("tools/list", {"cursor": "wrong"}),
    ("logging/setLevel", {"level": "wrong"}),
    ("ping", {}),
]  # fmt: skip
ERAS = ["handshake", "stateless"]
Message = dict[str, Any]


class Caller:
    """A client of either era, request by request."""

    def __init__(self, gateway: Any, era: str, session: HttpFront | None, key: str) -> None:
        self.gateway = gateway
        self.era = era
        self._session = session
        self._key = f"Bearer {key}"

    def message(self, method: str, params: Message, frame_id: Any = 1) -> Message:
        meta = params.get("_meta", {})
        if self.era == "stateless":
            meta = {VERSION_KEY: LATEST_STATELESS, CAPABILITIES_KEY: {}, **meta}
        params = {**params, "_meta": meta} if meta else params
        return {"jsonrpc": "2.0", "id": frame_id, "method": method, "params": params}

    def headers(self, method: str, params: Message) -> dict[str, str]:
        if self._session is not None:
            return self._session.headers
        name = params.get("name") or params.get("uri")
        headers = {"mcp_protocol_version": LATEST_STATELESS, "mcp_method": method}
        headers["authorization"] = self._key
        return headers | ({"mcp_name": name} if name else {})

    async def post(self, method: str, params: Message, **headers: str):
        body = json.dumps(self.message(method, params)).encode()
        return await post(self.gateway, body, **(self.headers(method, params) | headers))

    async def echo(self, _meta: Message | None = None, **headers: str):
        params: Message = {"name": "p.echo", "arguments": {}}
        return await self.post(
            "tools/call", params | ({"_meta": _meta} if _meta else {}), **headers
        )


def echoed(response: Any) -> Message:
    """The params that the server got."""
    return json.loads(response.json["result"]["content"][0]["text"])


@pytest.fixture
async def peer():
    async with HttpPeer() as found:
        yield found


@pytest.fixture
def key(tmp_path) -> str:
    """That of an administrator, who may call for an agent."""
    return Keys(tmp_path / "data").create(Role.ADMIN, "root")[1]


@pytest.fixture(params=ERAS)
async def caller(request, serving, peer, key):
    gateway = await serving({"p": {"url": peer.url}})
    await gateway.settled()
    front = await gateway.front(key=key, listens=False) if request.param == "handshake" else None
    return Caller(gateway, request.param, front, key)


@pytest.fixture(autouse=True)
def everything_logged(caplog):
    """The log, with all that is ever written to it; before a gateway is made."""
    caplog.set_level(logging.DEBUG)
    return caplog


def visits(peer: HttpPeer) -> str:
    return json.dumps([visit.message for visit in peer.visits], default=str)


# -- nothing of it reaches the server, a log or an answer


async def test_the_server_gets_the_call_without_it(caller, peer, everything_logged):
    response = await caller.echo({**SECRETS, "progressToken": "t", "traceparent": "00-1"})
    params = echoed(response)
    assert params["_meta"]["traceparent"] == "00-1"
    assert "progressToken" in params["_meta"]
    assert CANARY not in response.body.decode() + str(response.headers)
    assert CANARY not in visits(peer)
    assert "tools/call" in everything_logged.text
    assert CANARY not in everything_logged.text


async def test_a_meta_that_carried_nothing_else_is_not_sent(caller):
    assert "_meta" not in echoed(await caller.echo(SECRETS))


async def test_what_is_wrong_is_refused_without_repeating_it(caller, peer, everything_logged):
    for bad in BAD:
        response = await caller.echo(bad)
        assert response.json["error"]["code"] == -32602, bad
        assert response.status == (200 if caller.era == "handshake" else 400)
        assert CANARY not in response.body.decode() + str(response.headers)
    assert CANARY not in visits(peer) + everything_logged.text


async def test_every_method_takes_it_out(caller, peer, everything_logged):
    for method, params in METHODS:
        response = await caller.post(method, params | {"_meta": SECRETS})
        assert response.json["id"] == 1, method
        assert CANARY not in response.body.decode() + str(response.headers)
    assert CANARY not in visits(peer) + everything_logged.text


async def test_escaped_names_are_taken_out_too(caller, peer):
    body = json.dumps(caller.message("tools/call", {"name": "p.echo", "_meta": SECRETS}))
    body = body.replace("junction/", "\\u006aunction\\/")
    headers = caller.headers("tools/call", {"name": "p.echo"})
    response = await post(caller.gateway, body.encode(), **headers)
    assert response.json["result"]
    assert CANARY not in visits(peer)


async def test_a_call_that_streams_takes_it_out(caller, peer, everything_logged):
    wire = await caller.gateway.wire()
    params = {
        "name": "p.steps",
        "arguments": {"count": 2},
        "_meta": {**SECRETS, "progressToken": 1},
    }
    body = json.dumps(caller.message("tools/call", params)).encode()
    wire.request("POST", "/mcp", body, **caller.headers("tools/call", params))
    response = await wire.response()
    events = await wire.rest()
    assert response.is_stream
    assert response.headers["x-correlation-id"].startswith("j")
    assert [event.message["params"]["progress"] for event in events if "method" in event.data][
        -1
    ] == 2
    assert CANARY not in str(events) + visits(peer) + everything_logged.text


async def test_notifications_are_passed_on_without_it(serving, peer):
    gateway = await serving({"p": {"url": peer.url}})
    client = await gateway.front(capabilities=EVERYTHING)
    client.notify("notifications/roots/list_changed", {"_meta": {**SECRETS, "a": 1}})
    async with asyncio.timeout(20):
        while "roots/list_changed" not in (seen := json.dumps(await client.read("p.seen"))):
            pass
    assert CANARY not in seen
    assert '\\"a\\": 1' in seen or '"a": 1' in seen


async def test_the_parts_of_a_batch_are_taken_one_by_one(serving, peer, everything_logged, key):
    gateway = await serving({"p": {"url": peer.url}})
    client = await gateway.front(key=key, version="2025-03-26", listens=False)
    one, two, three = call(1, "p.echo"), call(2, "p.echo"), call(3, "p.echo")
    one["params"]["_meta"] = SECRETS
    two["params"]["_meta"] = {"junction/token": CANARY}
    batch = json.dumps([one, two, three]).encode()
    response = await post(gateway, batch, **client.headers)
    answers = {answer["id"]: answer for answer in response.json}
    assert "_meta" not in json.loads(answers[1]["result"]["content"][0]["text"])
    assert answers[2]["error"]["data"]["correlation_id"].startswith("j")
    assert answers[3]["result"]
    assert CANARY not in response.body.decode() + visits(peer) + everything_logged.text


async def test_stdio_passes_it_on_to_a_junction_behind_it(piped):
    client = await piped({"p": stdio_entry()})
    frame_id = client.ask("tools/call", {"name": "p:echo", "arguments": {}, "_meta": SECRETS})
    answer = await client.answer(frame_id)
    assert json.loads(answer["result"]["content"][0]["text"])["_meta"] == SECRETS


async def test_what_was_carried_is_in_no_cache(caller):
    for number in range(20):
        meta = {**SECRETS, "junction/idempotency-key": f"{CANARY}{number}"}
        assert (await caller.echo(meta)).json["result"]
    if caller.era == "stateless":
        cache = caller.gateway.service._stateless.client_cache
        assert len(cache) == 2  # one sender, one client
        assert CANARY not in repr(cache._known) + repr(cache.last)
        assert CANARY not in repr(list(caller.gateway.junction.snapshot.route_cache))


async def test_the_program_writes_it_neither_to_its_store_nor_to_its_log(
    serve, tmp_path, peer, key
):
    servers = {"p": {"url": peer.url}}
    program = await serve(servers, "--debug", audit="strict", classifier="off")
    await program.ready()
    front = await program.front(key=key, listens=False)
    for era in ERAS:
        caller = Caller(program, era, front if era == "handshake" else None, key)
        secret = {key: SECRETS[key] for key in ("junction/token", "junction/timeout-ms")}
        assert (await caller.echo(secret)).json["result"]
        for bad in BAD:
            assert (await caller.echo(bad)).json["error"]
    assert await program.stop() == 0
    assert "p.echo" in program.errors
    kept = b"".join(path.read_bytes() for path in (tmp_path / "data").rglob("*") if path.is_file())
    assert b"echo" in kept
    assert CANARY.encode() not in kept + program.errors.encode()
    assert CANARY not in visits(peer)


# -- correlation ids


async def test_the_callers_correlation_id_comes_back(caller):
    response = await caller.echo({"junction/correlation-id": "mine-1"})
    assert response.headers["x-correlation-id"] == "mine-1"
    response = await caller.echo(x_correlation_id="mine-2")
    assert response.headers["x-correlation-id"] == "mine-2"
    response = await caller.echo({"junction/correlation-id": "a"}, x_correlation_id="a")
    assert response.headers["x-correlation-id"] == "a"


async def test_a_call_without_one_is_given_one_of_ours(caller):
    ids = {(await caller.echo()).headers["x-correlation-id"] for _ in range(3)}
    assert len(ids) == 3
    assert all(one.startswith("j") for one in ids)


async def test_only_calls_have_one(caller):
    response = await caller.post("tools/list", {}, x_correlation_id="mine")
    assert response.json["result"]["tools"]
    assert "x-correlation-id" not in response.headers


async def test_errors_of_ours_name_it(caller):
    for params in ({"name": "p.nosuch"}, {"name": 5}, {}):
        response = await caller.post("tools/call", params, x_correlation_id="mine")
        error = response.json["error"]
        assert error["data"]["correlation_id"] == "mine" == response.headers["x-correlation-id"]
        if isinstance(params.get("name"), str):
            assert error["data"]["delivery"] == "not_sent"


async def test_an_error_of_the_server_is_left_as_it_is(caller):
    response = await caller.post("tools/call", {"name": "p.fail"}, x_correlation_id="mine")
    assert "data" not in response.json["error"]
    assert response.headers["x-correlation-id"] == "mine"


# -- headers


async def test_a_header_that_differs_from_the_member_is_refused(caller, peer):
    before = len(peer.visits)
    response = await caller.echo({"junction/agent-id": "ann"}, x_agent_id="bob")
    assert response.json["error"]["code"] == -32602
    assert "the X-Agent-Id header is not what params._meta has" in response.words
    assert len(peer.visits) == before


async def test_a_wrong_header_is_refused_for_calls_only(caller):
    response = await caller.echo(x_correlation_id="has spaces")
    assert "the X-Correlation-Id header must be" in response.words
    assert response.headers["x-correlation-id"].startswith("j")
    listed = await caller.post("tools/list", {}, x_correlation_id="has spaces")
    assert listed.json["result"]


async def test_a_repeated_header_is_refused(caller):
    params = {"name": "p.echo"}
    body = json.dumps(caller.message("tools/call", params)).encode()
    headers = caller.headers("tools/call", params)
    response = await post(caller.gateway, body, **headers, x_agent_id="ann\r\nx-agent-id: bob")
    assert response.status == 400
    assert "x-agent-id header appears more than once" in response.words


# -- deadlines


async def test_a_call_ends_when_its_time_is_over(caller):
    params = {"name": "p.hold", "_meta": {"junction/timeout-ms": 1}}
    error = (await caller.post("tools/call", params)).json["error"]
    assert error["code"] == -32001
    assert error["data"]["delivery"] == "unknown"
    late = await caller.post("tools/call", {"name": "p.hold"}, x_timeout_ms="1")
    assert late.json["error"]["code"] == -32001
