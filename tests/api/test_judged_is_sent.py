"""What validation and idempotency saw of arguments is what the server got, or it got nothing."""

import json

import pytest
from tests.api.mcp_client import ACCEPTED, ERAS, META, NEWER, Handshake, last_frame
from tests.plugin_rest import CALL, Served
from tests.policy.test_arguments import KEPT, REFUSED
from tests.registry.toolbox import Toolbox, tool

INVOKE = "/api/v1/mcp/invoke"
SERVERS = "/api/v1/aggregator/servers"
JSON = {"content-type": "application/json"}


def encode(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def as_objects(texts: list[str]) -> list[str]:
    """The texts as arguments: what is no object stands in one."""
    wrapped = (text if text.startswith("{") else f'{{"x":{text}}}' for text in texts if text)
    return sorted(set(wrapped))


class Fronts:
    """Sends the bytes of arguments over each way there is to call a tool."""

    def __init__(self, served: Served, session: Handshake) -> None:
        self._served = served
        self._session = session
        self.denials: tuple[int, ...] = ()
        """With what a call may be denied; nothing denies one without conditions."""

    async def send(self, front: str, arguments: bytes, key: str) -> bool:
        """Call a tool with these arguments; whether it has a result."""
        return await getattr(self, f"_{front}")(arguments, key)

    async def _invoke(self, arguments: bytes, key: str) -> bool:
        body = b'{"server_id":"box","tool_name":"echo","params":%b,"idempotency_key":"%b"}'
        return await self._rest(INVOKE, body % (arguments, key.encode()), {})

    async def _call(self, arguments: bytes, key: str) -> bool:
        body = b'{"name":"box.echo","arguments":%b}' % arguments
        return await self._rest(CALL, body, {"idempotency-key": key})

    async def _rest(self, path: str, body: bytes, headers: dict[str, str]) -> bool:
        client = self._served.client("agent")
        answer = await client.post(path, content=body, headers={**JSON, **headers})
        assert answer.status_code in (200, 400, 409, 422, *self.denials), answer.text
        return answer.status_code == 200

    async def _handshake(self, arguments: bytes, key: str) -> bool:
        meta = json.dumps({"junction/idempotency-key": key})
        return await self._mcp(arguments, meta, {"mcp-session-id": self._session.session})

    async def _stateless(self, arguments: bytes, key: str) -> bool:
        meta = json.dumps({**META, "junction/idempotency-key": key})
        headers = {"mcp-protocol-version": NEWER, "mcp-method": "tools/call"}
        return await self._mcp(arguments, meta, {**headers, "mcp-name": "box.echo"})

    async def _mcp(self, arguments: bytes, meta: str, headers: dict[str, str]) -> bool:
        body = (
            b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":'
            b'{"name":"box.echo","arguments":%b,"_meta":%b}}' % (arguments, meta.encode())
        )
        given = {**JSON, **ACCEPTED, **headers}
        answer = await self._served.client("agent").post("/mcp", content=body, headers=given)
        return "result" in last_frame(answer)


@pytest.fixture
async def fronts(gateway):
    async with Toolbox([tool("echo")]) as box:
        served = await gateway()
        config = {"name": "box", "transport_type": "HTTP", "connection_config": {"url": box.url}}
        assert (await served.client().post(SERVERS, json=config)).status_code == 201
        await served.until("box", "CONNECTED")
        made = Fronts(served, await Handshake.open(served, "agent"))
        made.box, made.served = box, served
        yield made


FRONTS = ("invoke", "call", *ERAS)


def share_of(front: str, texts: list[str]) -> list[str]:
    """Half of the texts: each goes over two of the fronts."""
    return as_objects(texts)[FRONTS.index(front) % 2 :: 2]


@pytest.mark.req("REQ-MCP-CALL-001")
@pytest.mark.parametrize("front", FRONTS)
async def test_what_can_be_read_in_two_ways_reaches_no_server(fronts, front):
    texts = share_of(front, REFUSED)
    for number, text in enumerate(texts):
        assert not await fronts.send(front, encode(text), f"refused-{number}"), text
    assert fronts.box.bodies == []


@pytest.mark.req("REQ-MCP-CALL-001", "REQ-MCP-CALL-003")
@pytest.mark.parametrize("front", FRONTS)
async def test_what_is_accepted_is_bound_and_sent_as_it_is_written(fronts, front):
    """The key is bound to the number that was written, so the next one up is a conflict."""
    texts = share_of(front, KEPT)
    for number, text in enumerate(texts):
        before = len(fronts.box.bodies)
        assert await fronts.send(front, encode(text), f"kept-{number}"), text
        assert encode(text) in fronts.box.bodies[before], text
        assert await fronts.send(front, encode(text), f"kept-{number}"), "from its record"
        assert len(fronts.box.bodies) == before + 1
    for one, other in (
        ("9007199254740993", "9007199254740992"),
        ("1e400", "1e401"),
        ("0.1", "0.10"),
    ):
        key = f"bound-{one}"
        assert await fronts.send(front, encode(f'{{"n":{one}}}'), key)
        assert not await fronts.send(front, encode(f'{{"n":{other}}}'), key)


WHEN = "size(args) <= 1 && (!has(args.x) || args.x != 0.1)"


def passes(text: str) -> bool:
    """Whether arguments meet WHEN, by another parser: numbers beyond CEL's are errors."""
    found = json.loads(text, parse_float=_read_float)
    return len(found) <= 1 and not _has_huge(found) and found.get("x") != 0.1


def _read_float(text: str) -> float | int:
    number = float(text)
    return number if abs(number) != float("inf") else 2**99


def _has_huge(value: object) -> bool:
    if isinstance(value, dict | list):
        return any(map(_has_huge, value.values() if isinstance(value, dict) else value))
    return isinstance(value, int) and not -(2**63) <= value < 2**63


@pytest.mark.req("REQ-MCP-CALL-001", "P-1")
@pytest.mark.parametrize("front", FRONTS)
async def test_a_condition_decides_about_what_the_server_gets_or_nothing_is_sent(fronts, front):
    served, admin = fronts.served, fronts.served.client()
    (whole,) = (await admin.get("/api/v1/mcp/policies/the-agent")).json()
    assert (await admin.delete(f"/api/v1/mcp/policies/{whole['id']}")).status_code == 204
    given = {"agent_id": "the-agent", "server_id": "box", "tool_name": "echo", "when": WHEN}
    assert (await admin.post("/api/v1/mcp/policies/grant", json=given)).status_code == 201
    fronts._session = await Handshake.open(served, "agent")
    fronts.denials = (401, 403)
    sent = 0
    for number, text in enumerate(share_of(front, [*REFUSED, *KEPT])):
        before = len(fronts.box.bodies)
        has_result = await fronts.send(front, encode(text), f"judged-{number}")
        assert len(fronts.box.bodies) - before == has_result, text
        if text in as_objects(REFUSED):
            assert not has_result, text
            continue
        assert has_result is passes(text), text
        assert not has_result or encode(text) in fronts.box.bodies[before]
        sent += has_result
    assert sent > 5
