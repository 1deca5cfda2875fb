"""X-Forwarded-*: believed from trusted proxies, and from nobody else."""

import logging

import pytest
from tests.http.test_doors import PING, opened, post
from tests.keyring import Keys

from mcp_junction.listener.http.forwarded import Forwarded
from mcp_junction.policy.principal import Role

FROM_OUTSIDE = {"x_forwarded_host": "junction.example", "x_forwarded_for": "203.0.113.9"}


@pytest.fixture
def key(tmp_path) -> dict[str, str]:
    """A header with a key: what a proxy passes on is never the owner's."""
    _, text = Keys(tmp_path / "data").create(Role.ADMIN, "admin")
    return {"authorization": f"Bearer {text}"}


async def believed(proxies: list[str], peer: str, *headers: tuple[bytes, bytes]) -> dict:
    """What the app behind is shown of a request."""
    shown = {}

    async def app(scope, receive, send):
        shown.update(scope)

    scope = {"type": "http", "scheme": "http", "client": (peer, 1234)}
    scope["headers"] = [(b"host", b"inner"), *headers]
    await Forwarded(app, proxies)(scope, None, None)
    return shown


async def client(proxies: list[str], peer: str, *hops: str) -> str:
    headers = [(b"x-forwarded-for", hop.encode("latin-1")) for hop in hops]
    return (await believed(proxies, peer, *headers))["client"][0]


# -- before a whole gateway


async def test_the_host_a_trusted_proxy_names_is_the_one_that_is_checked(serving, key):
    gateway = await serving(
        {}, trusted_proxies=["127.0.0.0/8"], allowed_hosts="junction.example", allowed_origins=""
    )
    passed_on = {**FROM_OUTSIDE, **key}
    session = await opened(gateway, host="backend:8420", **passed_on)
    assert (await post(gateway, PING, **session)).status == 200
    evil = {"x_forwarded_host": "evil.example"}
    assert (await post(gateway, host="127.0.0.1", **evil)).status == 403
    assert (await post(gateway, host="backend:8420")).status == 403
    assert (await post(gateway, origin="https://junction.example", **passed_on)).status == 200
    assert (await post(gateway, origin="https://evil.example", **passed_on)).status == 403


@pytest.mark.parametrize("proxies", [[], ["10.0.0.0/8", "::1"]])
async def test_of_anyone_else_it_is_not_even_read(serving, key, proxies):
    gateway = await serving({}, trusted_proxies=proxies, allowed_hosts="junction.example")
    assert (await post(gateway, host="backend", **FROM_OUTSIDE)).status == 403
    assert (await post(gateway, x_forwarded_host="evil.example", **key)).status == 200


async def test_the_other_headers_of_the_kind_are_never_read(serving):
    gateway = await serving({}, trusted_proxies=["127.0.0.1"], allowed_hosts="junction.example")
    for name in ("forwarded", "x_forwarded_server", "x_original_host", "x_real_ip"):
        headers = {name: "host=junction.example" if name == "forwarded" else "junction.example"}
        assert (await post(gateway, host="backend", **headers)).status == 403


async def test_two_hosts_stay_two_behind_a_proxy(serving):
    gateway = await serving({}, trusted_proxies=["127.0.0.1"], allowed_hosts="junction.example")
    wire = await gateway.wire()
    wire.send(b"GET /healthz HTTP/1.1\r\nhost: a\r\nhost: b\r\n")
    wire.send(b"x-forwarded-host: junction.example\r\n\r\n")
    assert (await wire.response()).status == 403


async def test_the_client_in_the_log_is_the_one_before_the_proxy(serving, tmp_path, caplog):
    Keys(tmp_path / "data").create(Role.AGENT, "bot")
    caplog.set_level(logging.INFO, "mcp_junction.http")
    gateway = await serving({}, trusted_proxies="127.0.0.1", allowed_hosts="junction.example")
    assert (await post(gateway, x_forwarded_proto="https", **FROM_OUTSIDE)).status == 401
    assert (await post(gateway)).status == 401
    said = [record.getMessage() for record in caplog.records if record.name.endswith("http")]
    assert said == ["401 for 203.0.113.9 by https", "401 for 127.0.0.1 by http"]


async def test_the_flag_is_the_setting(serve):
    program = await serve({}, "--trusted-proxies", "127.0.0.1", allowed_hosts="junction.example")
    forwarded = {"host": "backend", "x_forwarded_host": "junction.example"}
    assert (await program.get("/healthz", **forwarded)).status == 200


# -- which hop


async def test_the_client_is_the_nearest_hop_that_is_no_proxy():
    proxies = ["10.0.0.0/8", "fd00::/8"]
    assert await client(proxies, "10.0.0.1", "203.0.113.9") == "203.0.113.9"
    assert await client(proxies, "10.0.0.1", "6.6.6.6, 203.0.113.9, 10.0.0.2") == "203.0.113.9"
    assert await client(proxies, "10.0.0.1", "6.6.6.6", "203.0.113.9") == "203.0.113.9"
    assert await client(proxies, "10.0.0.1", "10.0.0.3, 10.0.0.2") == "10.0.0.3"
    assert await client(proxies, "fd00::1", "2001:db8::7") == "2001:db8::7"
    assert await client(proxies, "::ffff:10.0.0.1", "203.0.113.9") == "203.0.113.9"
    assert await client(proxies, "192.0.2.1", "203.0.113.9") == "192.0.2.1"


@pytest.mark.parametrize("hop", ["203.0.113.9:4711", "[2001:db8::7]:4711", "[2001:db8::7]"])
async def test_a_hop_may_have_a_port(hop):
    assert await client(["10.0.0.1"], "10.0.0.1", hop) in ("203.0.113.9", "2001:db8::7")


@pytest.mark.parametrize("hop", ["", "unknown", "_hidden", "1.2.3", "1.2.3.4.5", "\xff", "a" * 99])
async def test_a_hop_that_is_no_address_ends_the_search(hop):
    assert await client(["10.0.0.0/8"], "10.0.0.1", hop) == "10.0.0.1"
    assert await client(["10.0.0.0/8"], "10.0.0.1", f"6.6.6.6, {hop}, 10.0.0.2") == "10.0.0.2"


async def test_the_last_host_of_a_list_counts_and_only_known_schemes():
    shown = await believed(
        ["10.0.0.1"],
        "10.0.0.1",
        (b"x-forwarded-host", b"first.example, last.example"),
        (b"x-forwarded-proto", b"HTTPS"),
    )
    assert (b"host", b"last.example") in shown["headers"]
    assert shown["scheme"] == "https"
    shown = await believed(["10.0.0.1"], "10.0.0.1", (b"x-forwarded-proto", b"gopher"))
    assert shown["scheme"] == "http"


async def test_peers_are_not_remembered_without_end():
    async def app(scope, receive, send):
        pass

    forwarded = Forwarded(app, ["10.0.0.0/8"])
    for number in range(3000):
        assert not forwarded._trusts(f"192.168.{number // 256}.{number % 256}")
    assert len(forwarded._cache) <= 1024
