"""Who is let in, and what every wrong request is answered: on the wire, before a whole gateway."""

import asyncio
import json

import pytest
from tests.http.peer_http import HttpPeer
from tests.keyring import Keys

from mcp_junction.listener.http.guard import Guard, is_loopback
from mcp_junction.policy.principal import Role

HELLO = json.dumps({
    "jsonrpc": "2.0", "id": 1, "method": "initialize",
    "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t"}},
}).encode()  # fmt: skip
PING = b'{"jsonrpc":"2.0","id":2,"method":"ping"}'


@pytest.fixture
async def gateway(serving):
    return await serving({}, max_body_bytes=10_000)


@pytest.fixture
def keys(tmp_path) -> Keys:
    return Keys(tmp_path / "data")


async def post(gateway, body: bytes = HELLO, path: str = "/mcp", **headers):
    wire = await gateway.wire()
    wire.request("POST", path, body, **headers)
    return await wire.response()


async def opened(gateway, path: str = "/mcp", **headers) -> dict[str, str]:
    """The headers that name a new session."""
    response = await post(gateway, path=path, **headers)
    assert response.status == 200, response
    return {"mcp_session_id": response.headers["mcp-session-id"], **headers}


# -- Host and Origin


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1:8420", "LOCALHOST:1", "[::1]:8420"])
async def test_a_host_of_this_machine_is_let_in(gateway, host):
    assert (await post(gateway, host=host)).status == 200


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:8420", "127.0.0.1.evil.example", "10.0.0.1", "", None,
     "localhost:port", "a@localhost", "localhost/x", "127.0.0.1:8420,evil", "[::2]", "[::1"],
)  # fmt: skip
async def test_a_foreign_host_is_not_let_in(gateway, host):
    for path in ("/mcp", "/healthz", "/readyz", "/nowhere"):
        response = await post(gateway, path=path, host=host)
        assert response.status == 403
        assert "Host or Origin" in response.words


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("http://localhost:3000", 200),
        ("https://127.0.0.1", 200),
        ("http://evil.example", 403),
        ("http://localhost.evil.example", 403),
        ("http://evil.example#localhost", 403),
        ("http://localhost@evil.example", 403),
        ("null", 403),
        ("file://", 403),
        ("chrome-extension://abcdef", 403),
        ("localhost", 403),
    ],
)
async def test_a_page_of_a_foreign_origin_is_not_let_in(gateway, origin, status):
    assert (await post(gateway, origin=origin)).status == status


async def test_hosts_and_origins_of_the_config_are_let_in(serving, keys):
    _, text = keys.create(Role.ADMIN, "admin")
    gateway = await serving(
        {},
        allowed_hosts="junction.example, other.example",
        allowed_origins="https://app.example vscode-webview://x",
        public_url="https://public.example/j",
    )
    key = {"authorization": f"Bearer {text}"}
    assert (await post(gateway, host="Junction.Example:443", **key)).status == 200
    assert (await post(gateway, host="public.example", **key)).status == 200
    assert (await post(gateway, origin="https://app.example")).status == 200
    assert (await post(gateway, origin="vscode-webview://x")).status == 200
    assert (await post(gateway, host="third.example")).status == 403
    assert (await post(gateway, origin="https://app.example.evil")).status == 403


def test_a_guard_that_listens_everywhere_knows_addresses_but_no_foreign_names():
    guard = Guard("0.0.0.0", [], [])
    assert guard.admits(b"192.168.1.7:8420", b"")
    assert guard.admits(b"[fe80::1]:8420", b"http://192.168.1.7")
    assert not guard.admits(b"evil.example", b"")
    assert not guard.admits(b"192.168.1.7", b"http://evil.example")


def test_a_guard_does_not_remember_without_end():
    guard = Guard("127.0.0.1", [], [])
    for number in range(5000):
        assert not guard.admits(b"host-%d.example" % number, b"")
    assert len(guard._cache) <= 1024


@pytest.mark.parametrize(
    ("host", "loopback"),
    [("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("localhost", True),
     ("0.0.0.0", False), ("::", False), ("192.168.0.1", False), ("a.example", False), ("", False)],
)  # fmt: skip
def test_only_the_loopback_is_this_machine_alone(host, loopback):
    assert is_loopback(host) is loopback


# -- keys


async def test_without_keys_the_loopback_is_open_to_its_owner(gateway):
    assert (await post(gateway)).status == 200


async def test_with_a_key_made_everyone_needs_one(serving, keys):
    key, text = keys.create(Role.AGENT, "bot")
    revoked, revoked_text = keys.create(Role.AGENT, "old")
    keys.revoke(revoked.id)
    gateway = await serving({})
    wrong = [
        None,
        "",
        "Bearer",
        "Bearer ",
        f"Basic {text}",
        text,
        f"Bearer {text}x",
        f"Bearer {text[:-1]}",
        f"Bearer jct_{key.id}_",
        f"Bearer xyz_{text[4:]}",
        f"Bearer jct_nosuchkey_{text.rpartition('_')[2]}",
        f"Bearer {revoked_text}",
        "Bearer \xff\xfe",
    ]
    for authorization in wrong:
        response = await post(gateway, authorization=authorization)
        assert response.status == 401, authorization
        assert response.headers["www-authenticate"] == 'Bearer realm="mcp-junction"'
    for scheme in ("Bearer", "bearer", "BEARER"):
        assert (await post(gateway, authorization=f"{scheme} {text}")).status == 200


async def test_a_key_can_be_asked_for_on_the_loopback_too(serving):
    gateway = await serving({}, require_key=True)
    assert (await post(gateway)).status == 401


async def test_health_is_told_without_a_key(serving):
    gateway = await serving({}, require_key=True)
    wire = await gateway.wire()
    for path in ("/healthz", "/readyz"):
        wire.request("GET", path)
        assert (await wire.response()).status == 200


async def test_a_session_is_its_principals_alone(serving, keys):
    texts = [keys.create(Role.AGENT, agent)[1] for agent in ("one", "two")]
    gateway = await serving({})
    session = await opened(gateway, authorization=f"Bearer {texts[0]}")
    assert (await post(gateway, PING, **session)).status == 200
    stranger = session | {"authorization": f"Bearer {texts[1]}"}
    for method in ("POST", "GET", "DELETE"):
        wire = await gateway.wire()
        body = PING if method == "POST" else b""
        wire.request(method, "/mcp", body, **({"accept": "text/event-stream"} | stranger))
        assert (await wire.response()).status == 404
    assert (await post(gateway, PING, **session)).status == 200


async def test_a_revoked_key_ends_what_it_had_open(serving, keys):
    key, text = keys.create(Role.AGENT, "bot")
    _, other = keys.create(Role.AGENT, "other")
    async with HttpPeer() as peer:
        gateway = await serving({"p": {"url": peer.url}})
        client = await gateway.front(key=text)
        kept = await gateway.front(key=other)
        call = await client.under_way("p.hold")
        keys.revoke(key.id)
        error = (await client.answer(call))["error"]
        assert error["message"] == "the key was revoked"
        await peer.visited("notifications/cancelled")
        assert (await post(gateway, PING, **client.headers)).status == 401
        assert await kept.told("p.steps", count=1) == "done"


# -- wrong requests


async def test_a_body_over_the_limit_is_refused(gateway):
    body = PING[:-1] + b" " * 10_000 + b"}"
    response = await post(gateway, body)
    assert response.status == 413
    assert "limit of 10000 bytes" in response.words
    wire = await gateway.wire()
    wire.request("POST", "/mcp", transfer_encoding="chunked")
    for _ in range(20):
        wire.send(b"3e8\r\n" + b"x" * 1000 + b"\r\n")
    wire.send(b"0\r\n\r\n")
    assert (await wire.response()).status == 413
    wire.request("POST", "/mcp", HELLO)
    assert (await wire.response()).status == 200


@pytest.mark.parametrize(
    ("content_type", "status"),
    [
        ("application/json", 200),
        ("Application/JSON; charset=utf-8", 200),
        ("text/plain", 415),
        ("application/x-www-form-urlencoded", 415),
        ("multipart/form-data; boundary=x", 415),
        (None, 415),
    ],
)
async def test_only_json_is_taken(gateway, content_type, status):
    assert (await post(gateway, content_type=content_type)).status == status


@pytest.mark.parametrize(
    ("body", "code", "words"),
    [
        (b"", -32700, ""),
        (b"{", -32700, ""),
        (b"[]", -32600, "batches are not part of MCP"),
        (b"[" + PING + b"," + PING + b"]", -32600, "batches are not part of MCP"),
        (b'"ping"', -32600, "not a JSON-RPC message"),
        (b'{"jsonrpc":"2.0"}', -32600, "neither a method"),
        (b'{"jsonrpc":"2.0","id":1,"id":2,"method":"ping"}', -32600, "repeated"),
        (b"\xff\xfe", -32700, "UTF-8"),
        (b'{"id":1,"method":"ping","params":' + b"[" * 90 + b"]" * 90 + b"}", -32700, "nested"),
    ],
)
async def test_what_is_no_frame_is_refused(gateway, body, code, words):
    response = await post(gateway, body)
    assert response.status == 400
    assert response.json["error"]["code"] == code
    assert words in response.words


async def test_the_id_of_a_broken_frame_is_named_where_it_can_be(gateway):
    response = await post(gateway, b'{"jsonrpc":"2.0","id":77,"method":"ping","params":7}')
    assert (response.status, response.json["id"]) == (400, 77)


async def test_a_session_must_be_named(gateway):
    response = await post(gateway, PING)
    assert response.status == 400
    assert "send initialize first" in response.words


@pytest.mark.parametrize("session", ["no-such", "", "a" * 5000, "\xff"])
async def test_a_session_must_be_known(gateway, session):
    response = await post(gateway, PING, mcp_session_id=session)
    assert response.status == 404
    assert "send initialize again" in response.words


async def test_a_session_is_of_one_endpoint(serving):
    async with HttpPeer() as peer:
        gateway = await serving({"p": {"url": peer.url}})
        session = await opened(gateway)
        assert (await post(gateway, PING, path="/mcp/p", **session)).status == 404
        assert (await post(gateway, PING, path="/mcp/", **session)).status == 200


@pytest.mark.parametrize("version", ["2023-01-01", "1.0"])
async def test_a_version_must_be_one_we_speak(gateway, version):
    session = await opened(gateway)
    response = await post(gateway, PING, mcp_protocol_version=version, **session)
    assert response.status == 400
    assert "2025-11-25" in response.words


@pytest.mark.parametrize("method", ["PUT", "PATCH", "OPTIONS", "HEAD", "TRACE"])
async def test_other_methods_are_not_allowed(gateway, method):
    wire = await gateway.wire()
    wire.request(method, "/mcp")
    response = await wire.response(bodiless=method == "HEAD")
    assert response.status == 405
    assert response.headers["allow"] == "GET, POST, DELETE"


@pytest.mark.parametrize("accept", [None, "application/json", "*/*"])
async def test_a_get_is_for_a_stream(gateway, accept):
    session = await opened(gateway)
    wire = await gateway.wire()
    wire.request("GET", "/mcp", accept=accept, **session)
    assert (await wire.response()).status == 406


@pytest.mark.parametrize("path", ["/", "/mcp2", "/mcp/nobody", "/mcp/p/x", "/api", "/../mcp"])
async def test_there_is_nothing_anywhere_else(gateway, path):
    wire = await gateway.wire()
    for method in ("GET", "POST", "DELETE", "PUT"):
        wire.request(method, path, PING if method == "POST" else b"")
        assert (await wire.response()).status == 404


async def test_a_refused_request_leaves_nothing_behind(gateway):
    for _ in range(20):
        assert (
            await post(gateway, b'{"jsonrpc":"2.0","id":1,"method":"initialize"}')
        ).status == 400
    assert not gateway.junction.clients.sessions


# -- health


async def test_it_is_ready_when_every_server_is_up_or_has_failed(serving):
    gate = asyncio.Event()
    async with HttpPeer() as peer:
        answering = peer.handler

        async def slowly(visit):
            if visit.rpc == "tools/list":
                await gate.wait()
            await answering(visit)

        peer.handler = slowly
        gateway = await serving({"p": {"url": peer.url}, "gone": {"url": "http://127.0.0.1:1/"}})
        await peer.visited("tools/list")
        wire = await gateway.wire()
        wire.request("GET", "/healthz")
        assert (await wire.response()).json == {"status": "ok"}
        wire.request("GET", "/readyz")
        response = await wire.response()
        assert (response.status, response.json) == (503, {"status": "not ready", "down": []})
        gate.set()
        await gateway.settled()
        wire.request("GET", "/readyz")
        response = await wire.response()
        assert (response.status, response.json) == (200, {"status": "ready"})
        wire.request("HEAD", "/healthz")
        assert (await wire.response(bodiless=True)).status == 200
