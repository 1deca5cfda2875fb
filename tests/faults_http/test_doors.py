"""Every route under every foreign Host and Origin, and without a key: nothing behind is reached."""

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
from tests.faults_http.wire import Client, frame, read_head
from tests.keyring import Keys
from tests.plugin_faults_http import Gateway, HttpRig

from mcp_junction.policy.principal import Role

pytestmark = pytest.mark.preloaded

PATHS = ["/mcp", "/mcp/", "/mcp/led", "/mcp/set", "/healthz", "/readyz", "/", "/no/such"]
METHODS = ["GET", "POST", "DELETE", "HEAD", "OPTIONS", "PUT"]
ROUTES = list(itertools.product(METHODS, PATHS))
CALL = frame("tools/call", {"name": "led:record", "arguments": {"nonce": "reached"}}, 1)

HOSTS = [
    "evil.example",
    "evil.example:{port}",
    "127.0.0.1.evil.example",
    "localhost.evil.example:{port}",
    "evil.example@127.0.0.1:{port}",
    "127.0.0.1:{port}@evil.example",
    "user:pass@localhost",
    "localhost/evil.example",
    "localhost?evil.example",
    "localhost, evil.example",
    "localhost evil.example",
    "evil.example#localhost",
    "127.0.0.1:notaport",
    "127.0.0.1:99999999",
    "0.0.0.0:{port}",
    "10.0.0.1",
    "169.254.169.254",
    "[::2]:{port}",
    "[::1",
    "2130706433",
    "0x7f.1",
    "127.1",
    "localhost.",
    "ｌocalhost",
    "xn--localhost-1",
    "\x01localhost",
    "*",
    "null",
    "",
    None,
]
ORIGINS = [
    "https://evil.example",
    "http://evil.example:{port}",
    "http://127.0.0.1.evil.example",
    "http://localhost.evil.example",
    "http://evil.example@127.0.0.1",
    "http://127.0.0.1@evil.example",
    "https://localhost/evil",
    "http://localhost?x",
    "file://",
    "file://localhost",
    "chrome-extension://localhost",
    "javascript://localhost",
    "ftp://localhost",
    "//localhost",
    "localhost",
    "null",
    "*",
    "http://",
    "http://[::2]",
    "http://0.0.0.0:{port}",
    "http://localhost http://evil.example",
    "http://localhost, http://evil.example",
]


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[HttpRig, Gateway, str]]:
    rig = HttpRig(tmp_path_factory.mktemp("doors"))
    rig.add("led")
    rig.settings["endpoints"] = {"set": ["led"]}
    _, secret = Keys(rig.folder / "data").create(Role.AGENT, "tester")
    gateway = rig.serve("--require-key")
    yield rig, gateway, secret
    assert not rig.tear_down()


def refused_all(statuses: dict[Any, int], *allowed: int) -> None:
    assert {what: status for what, status in statuses.items() if status not in allowed} == {}


@pytest.mark.parametrize("host", HOSTS)
async def test_a_foreign_host_is_refused_on_every_route(
    house: tuple[HttpRig, Gateway, str], host: str | None
) -> None:
    rig, gateway, secret = house
    client = Client(gateway.port, key=secret)
    await client.open()
    text = host.format(port=gateway.port) if host is not None else None
    statuses = {}
    for method, path in ROUTES:
        response = await client.send(method, CALL, {":path": path, "host": text})
        statuses[method, path] = response.status
        client.close()  # a HEAD has no body, a refusal by the parser no next request
    refused_all(statuses, 403, 400)  # 400: it is no HTTP
    assert set(statuses.values()) != {400} or "\x01" in (text or "")
    assert rig.ledger().runs() == {}


@pytest.mark.parametrize("origin", ORIGINS)
async def test_a_foreign_origin_is_refused_on_every_route(
    house: tuple[HttpRig, Gateway, str], origin: str
) -> None:
    rig, gateway, secret = house
    client = Client(gateway.port, key=secret)
    await client.open()
    statuses = {}
    for method, path in ROUTES:
        headers = {":path": path, "origin": origin.format(port=gateway.port)}
        statuses[method, path] = (await client.send(method, CALL, headers)).status
        client.close()
    refused_all(statuses, 403)
    assert rig.ledger().runs() == {}


@pytest.mark.parametrize("name", ["host", "origin"])
@pytest.mark.parametrize("order", [1, -1])
async def test_two_hosts_or_origins_are_refused_on_every_route(
    house: tuple[HttpRig, Gateway, str], name: str, order: int
) -> None:
    rig, gateway, secret = house
    client = Client(gateway.port, key=secret)
    await client.open()
    ours = {"host": f"127.0.0.1:{gateway.port}", "origin": "http://localhost"}[name]
    foreign = {"host": "evil.example", "origin": "http://evil.example"}[name]
    twice = "\r\n".join(f"{name}: {value}" for value in [ours, foreign][::order]).encode()
    statuses = {}
    for method, path in ROUTES:
        head = client.head(method, len(CALL), {":path": path, name: ours})
        head = head.replace(f"{name}: {ours}".encode(), twice)
        pair = await client.connect()
        pair[1].write(head + CALL)
        statuses[method, path] = (await read_head(pair)).status
    refused_all(statuses, 403, 400)
    assert rig.ledger().runs() == {}


@pytest.mark.parametrize(
    "authorization",
    [
        None,
        "",
        "Bearer",
        "Bearer ",
        "Bearer null",
        "Basic dXNlcjpwYXNz",
        "Bearer jct_x_y",
        "{key}",
        "Basic {key}",
        "Bearer {key}x",
        "Bearer {cut}",
        "Bearer {key}, Bearer {key}",
        "Bearer \x00{key}",
    ],
)
async def test_without_a_key_nothing_but_the_health_of_the_house_is_told(
    house: tuple[HttpRig, Gateway, str], authorization: str | None
) -> None:
    rig, gateway, secret = house
    client = Client(gateway.port, key=secret)
    await client.open()
    text = authorization
    if text is not None:
        text = text.replace("{key}", secret).replace("{cut}", secret[:-1])
    statuses = {}
    for method, path in ROUTES:
        if path.startswith("/mcp"):  # even with the id of a session that is open
            response = await client.send(method, CALL, {":path": path, "authorization": text})
            statuses[method, path] = response.status
            client.close()
    refused_all(statuses, 401, 400)
    assert 401 in statuses.values() or "\x00" in (text or "")
    assert rig.ledger().runs() == {}


async def test_our_own_names_are_let_in(house: tuple[HttpRig, Gateway, str]) -> None:
    _, gateway, secret = house
    for host in ("localhost", "127.0.0.1", "[::1]", "LOCALHOST:1", f"127.0.0.1:{gateway.port}"):
        for origin in (None, "http://localhost:3000", "https://127.0.0.1", "http://[::1]:5"):
            client = Client(gateway.port, key=secret)
            headers = {":path": "/healthz", "host": host, "origin": origin}
            assert (await client.request("GET", headers=headers)).status == 200
