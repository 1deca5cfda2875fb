"""Who is the owner: whoever asks without a key is, only where nobody else can be."""

import asyncio
import ipaddress
import os
import socket
from contextlib import contextmanager, nullcontext

import pytest
from tests.http.test_doors import HELLO, PING, post
from tests.http.wire import Wire
from tests.keyring import Keys

from mcp_junction.errors import UsageError
from mcp_junction.listener.http import owner as peers
from mcp_junction.listener.http.guard import is_local_host
from mcp_junction.listener.http.owner import is_own_peer, uid_of_peer
from mcp_junction.policy.principal import Role

pytestmark = pytest.mark.req("S-13")

NOBODY = 65534
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
FORWARDING = {
    "x_forwarded_for": "203.0.113.9",
    "x_forwarded_host": "localhost",
    "x_forwarded_proto": "https",
    "forwarded": "for=203.0.113.9",
    "x_real_ip": "203.0.113.9",
    "via": "1.1 proxy",
    "x_forwarded_port": "443",
    "x_forwarded_prefix": "/junction",
    "x_original_forwarded_for": "203.0.113.9",
    "cf_connecting_ip": "203.0.113.9",
    "cdn_loop": "cloudflare",
    "true_client_ip": "203.0.113.9",
    "x_client_ip": "203.0.113.9",
    "x_envoy_external_address": "203.0.113.9",
    "tailscale_user_login": "ann@example.com",
}


@pytest.fixture
def keys(tmp_path) -> Keys:
    return Keys(tmp_path / "data")


@contextmanager
def somebody_else():
    """Sockets that are made here are another user's."""
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


# -- (a) no key for anybody else was ever made


@pytest.mark.parametrize("role", [Role.AGENT, Role.ORCHESTRATOR, Role.VIEWER])
async def test_revoking_the_last_key_does_not_reopen_the_door(serving, keys, role):
    key, _ = keys.create(role, "bot")
    keys.revoke(key.id)
    gateway = await serving({})
    assert (await post(gateway)).status == 401


async def test_administrators_keys_leave_it_open(serving, keys):
    key, _ = keys.create(Role.ADMIN, "admin")
    gateway = await serving({})
    assert (await post(gateway)).status == 200
    keys.revoke(key.id)
    assert (await post(gateway)).status == 200


async def test_the_door_closes_while_it_runs_and_stays_closed(serving, keys):
    gateway = await serving({})
    assert (await post(gateway)).status == 200
    key, _ = keys.create(Role.VIEWER, "vi")
    async with asyncio.timeout(20):
        while (await post(gateway)).status == 200:  # noqa: ASYNC110 - keys are polled
            await asyncio.sleep(0.02)
    keys.revoke(key.id)
    generation = gateway.service._keys.generation
    async with asyncio.timeout(20):
        while gateway.service._keys.generation == generation:  # noqa: ASYNC110 - it is polled
            await asyncio.sleep(0.02)
    assert (await post(gateway)).status == 401


async def test_the_owner_can_ask_to_be_let_in_nevertheless(serving, keys, caplog):
    keys.create(Role.AGENT, "bot")
    gateway = await serving({}, owner_without_key=True)
    assert (await post(gateway)).status == 200
    assert "--owner-without-key was given" in caplog.text
    assert (await post(gateway, x_forwarded_for="203.0.113.9")).status == 401


async def test_that_is_not_asked_for_together_with_keys_for_all(serving):
    with pytest.raises(UsageError, match="--owner-without-key"):
        await serving({}, owner_without_key=True, require_key=True)


# -- (b) the connection and the Host are the loopback's, and no proxy speaks


@pytest.mark.parametrize("proxies", [[], ["127.0.0.0/8"]], ids=["no proxy", "trusted"])
@pytest.mark.parametrize("header", FORWARDING)
async def test_what_a_proxy_passes_on_is_not_the_owners(serving, keys, header, proxies):
    _, text = keys.create(Role.ADMIN, "admin")
    gateway = await serving({}, trusted_proxies=proxies)
    passed_on = {header: FORWARDING[header]}
    assert (await post(gateway, **passed_on)).status == 401
    assert (await post(gateway, authorization=f"Bearer {text}", **passed_on)).status == 200


@pytest.mark.parametrize("hops", ["127.0.0.1", "203.0.113.9, 127.0.0.1", "::1, 127.0.0.1", "x"])
async def test_a_chain_of_proxies_is_not_the_owner_whatever_it_says(serving, hops):
    gateway = await serving({}, trusted_proxies=["127.0.0.0/8", "::1"])
    assert (await post(gateway, x_forwarded_for=hops)).status == 401
    assert (await post(gateway)).status == 401, "a trusted proxy that does not say for whom"


async def test_a_name_that_is_allowed_is_not_the_loopbacks(serving, keys):
    _, text = keys.create(Role.ADMIN, "admin")
    gateway = await serving({}, allowed_hosts="junction.example 192.0.2.1")
    for host in ("junction.example", "192.0.2.1:8420"):
        assert (await post(gateway, host=host)).status == 401
        assert (await post(gateway, host=host, authorization=f"Bearer {text}")).status == 200
    for host in ("localhost", "127.0.0.1:8420", "[::1]"):
        assert (await post(gateway, host=host)).status == 200


@pytest.mark.parametrize(
    ("host", "is_local"),
    [
        (b"localhost", True),
        (b"LOCALHOST:80", True),
        (b"127.0.0.1", True),
        (b"127.1.2.3:8420", True),
        (b"[::1]:8420", True),
        (b"[::ffff:127.0.0.1]", True),
        (b"[::ffff:192.0.2.1]", False),
        (b"localhost.example", False),
        (b"junction.example", False),
        (b"0.0.0.0", False),
        (b"", False),
        (b"user@localhost", False),
        (b"\xff", False),
    ],
)
def test_only_the_loopbacks_own_names_are_local(host, is_local):
    assert is_local_host(host) is is_local


# -- (c) the peer's socket belongs to our own user


@pytest.mark.parametrize("uid", [os.geteuid() + 1, None], ids=["another", "unknown"])
async def test_another_user_of_the_machine_is_not_the_owner(serving, keys, monkeypatch, uid):
    _, text = keys.create(Role.ADMIN, "admin")
    gateway = await serving({})
    monkeypatch.setattr(peers, "uid_of_peer", lambda *_: uid)
    assert (await post(gateway)).status == 401
    assert (await post(gateway, authorization=f"Bearer {text}")).status == 200


@needs_root
async def test_the_kernel_says_whose_a_socket_is(serving):
    gateway = await serving({})
    for whose, status in ((somebody_else, 401), (nullcontext, 200)):
        with whose():
            theirs = socket.socket()
        theirs.connect(("127.0.0.1", gateway.port))
        wire = Wire(*await asyncio.open_connection(sock=theirs))
        wire.request("POST", "/mcp", HELLO)
        assert (await wire.response()).status == status
        wire.reset()


async def test_it_is_asked_once_a_connection_and_not_for_a_key(serving, keys, monkeypatch):
    _, text = keys.create(Role.ADMIN, "admin")
    gateway = await serving({})
    asked = []
    monkeypatch.setattr(peers, "uid_of_peer", lambda *ends: asked.append(ends) or os.geteuid())
    wire = await gateway.wire()
    wire.request("POST", "/mcp", PING, authorization=f"Bearer {text}")
    assert (await wire.response()).status == 400
    assert asked == []
    for _ in range(3):
        wire.request("POST", "/mcp", HELLO)
        assert (await wire.response()).status == 200
    assert len(asked) == 1


async def test_on_ipv6_the_same_holds(serving, monkeypatch):
    gateway = await serving({}, host="::1")

    async def status(host: str, **headers: str) -> int:
        reader, writer = await asyncio.open_connection("::1", gateway.port)
        wire = Wire(reader, writer)
        wire.request("POST", "/mcp", HELLO, host=host, **headers)
        found = (await wire.response()).status
        wire.reset()
        return found

    assert await status("[::1]:1") == 200
    assert await status("localhost") == 200
    assert await status("[::1]", x_forwarded_for="::1") == 401
    monkeypatch.setattr(peers, "uid_of_peer", lambda *_: os.geteuid() + 1)
    assert await status("[::1]") == 401


@pytest.mark.parametrize(
    ("listens", "calls"),
    [("127.0.0.1", "127.0.0.1"), ("::1", "::1"), ("::ffff:127.0.0.1", "127.0.0.1"),
     ("::ffff:127.0.0.1", "::ffff:127.0.0.1")],
)  # fmt: skip
def test_a_socket_is_found_by_netlink_and_in_the_tables(listens, calls):
    with connected(listens, calls) as (client, accepted):
        ours, theirs = accepted.getsockname(), accepted.getpeername()
        assert is_own_peer(ours, theirs)
        ends = [(peers._address(end), end[1]) for end in (ours, theirs)]
        assert uid_of_peer(*ends) == os.geteuid()
        assert peers._uid_by_netlink(*ends) == peers._uid_in_tables(*ends) == os.geteuid()
        client.close()
        assert uid_of_peer(*ends) is None, "the kernel calls it root's, whoever it was"
        assert not is_own_peer(ours, theirs)


@needs_root
def test_a_socket_of_somebody_else_is_found_as_theirs():
    with connected("127.0.0.1", "127.0.0.1", somebody_else) as (_, accepted):
        ours, theirs = accepted.getsockname(), accepted.getpeername()
        ends = [(ipaddress.ip_address(end[0]), end[1]) for end in (ours, theirs)]
        assert peers._uid_by_netlink(*ends) == peers._uid_in_tables(*ends) == NOBODY
        assert not is_own_peer(ours, theirs)


def test_without_netlink_the_tables_are_read_and_without_both_nobody_is_the_owner(
    monkeypatch, tmp_path, caplog
):
    def refused(*_):
        raise PermissionError("no netlink here")

    monkeypatch.setattr(peers, "_uid_by_netlink", refused)
    with connected("127.0.0.1", "127.0.0.1") as (_, accepted):
        ends = accepted.getsockname(), accepted.getpeername()
        assert is_own_peer(*ends)
        monkeypatch.setattr(peers, "_TABLES", (tmp_path / "tcp", tmp_path / "tcp6"))
        assert not is_own_peer(*ends)
        assert "cannot be found out here" in caplog.text


@pytest.mark.parametrize(
    "ends",
    [
        (("192.0.2.1", 1), ("127.0.0.1", 2)),
        (("127.0.0.1", 1), ("192.0.2.1", 2)),
        (("127.0.0.1", 1), ("fe80::1%eth0", 2)),
        (None, None),
        ("/run/socket", ""),
    ],
)
def test_what_does_not_come_from_this_machine_is_nobodys(ends):
    assert not is_own_peer(*ends)


@contextmanager
def connected(listens: str, calls: str, whose=nullcontext):
    """Both ends of a connection."""
    family = socket.AF_INET6 if ":" in listens else socket.AF_INET
    with socket.socket(family) as listener:
        listener.bind((listens, 0))
        listener.listen()
        with whose():
            client = socket.socket(socket.AF_INET6 if ":" in calls else socket.AF_INET)
        with client:
            client.connect((calls, listener.getsockname()[1]))
            accepted, _ = listener.accept()
            with accepted:
                yield client, accepted
