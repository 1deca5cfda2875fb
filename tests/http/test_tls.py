"""TLS with certificates of our own: to servers, and at the service."""

import asyncio
import ssl

import pytest
from tests.certificates import Authority
from tests.http.peer_http import HttpPeer
from tests.http.wire import BOUND

from mcp_junction.config.registration import read_registration
from mcp_junction.errors import UsageError
from mcp_junction.listener.http.server import ServerCertificate, make_certificate

pytestmark = pytest.mark.req("NFR-SEC2")

HOST = "127.0.0.1"


@pytest.fixture
def authority(tmp_path) -> Authority:
    return Authority(tmp_path)


def server_context(certificate: tuple[str, str], client_ca: str = "") -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*certificate)
    if client_ca:
        context.load_verify_locations(client_ca)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


async def state_of(serving, peer: HttpPeer, **options) -> tuple[str, str]:
    """Connect to a peer with these options; how that went."""
    gateway = await serving({"web": {"url": peer.url, "junction": options}})
    server = gateway.junction.servers["web"]
    await asyncio.wait_for(server.settled.wait(), BOUND)
    return server.state.name, str(server.error or "")


async def test_a_server_is_verified_by_its_own_authority(serving, authority):
    peer = HttpPeer()
    peer._tls = server_context(authority.issue("web", HOST))
    async with peer:
        assert await state_of(serving, peer, tls_ca=authority.file) == ("CONNECTED", "")
        assert peer.told("initialize")


async def test_another_authority_and_the_systems_do_not_vouch_for_it(serving, authority, tmp_path):
    other = Authority(tmp_path, "other")
    peer = HttpPeer()
    peer._tls = server_context(authority.issue("web", HOST))
    async with peer:
        for options in ({}, {"tls_ca": other.file}):
            state, why = await state_of(serving, peer, **options)
            assert state != "CONNECTED"
            assert "certificate verify failed for '127.0.0.1'" in why
    assert not peer.visits, "nothing was sent"


async def test_a_certificate_for_another_name_is_refused(serving, authority):
    peer = HttpPeer()
    peer._tls = server_context(authority.issue("web", "127.0.0.9"))
    async with peer:
        _, why = await state_of(serving, peer, tls_ca=authority.file)
    assert "IP address mismatch" in why


async def test_a_server_that_asks_is_shown_our_certificate(serving, authority, tmp_path):
    clients = Authority(tmp_path, "clients")
    certificate, key = clients.issue("junction", HOST)
    peer = HttpPeer()
    peer._tls = server_context(authority.issue("web", HOST), clients.file)
    async with peer:
        how = {"tls_ca": authority.file, "tls_cert": certificate, "tls_key": key}
        assert (await state_of(serving, peer, **how))[0] == "CONNECTED"
        before = len(peer.visits)
        assert (await state_of(serving, peer, tls_ca=authority.file))[0] != "CONNECTED"
        assert len(peer.visits) == before


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"tls_ca": "gone.pem"}, "gone.pem cannot be used: No such file"),
        ({"tls_cert": "gone.pem"}, "gone.pem cannot be used: No such file"),
        ({"tls_key": "key.pem"}, "tls_key needs tls_cert"),
        ({"tls_ca": "mcp.json"}, "tls_ca"),
    ],
)
async def test_a_file_that_cannot_be_used_is_named(serving, authority, options, words):
    peer = HttpPeer()
    peer._tls = server_context(authority.issue("web", HOST))
    async with peer:
        state, why = await state_of(serving, peer, **options)
    assert state != "CONNECTED"
    assert words in why


@pytest.mark.parametrize("path", ["relative.pem", "/etc/../x.pem", "$HOME/x.pem", "/x\0.pem"])
def test_a_registered_file_must_be_a_full_path(path):
    config = {"url": "https://web.example/mcp"}
    body = {"name": "web", "transport_type": "HTTP", "connection_config": config, "tls_ca": path}
    made, problems = read_registration(body)
    assert made is None
    assert problems[0].path == "$.tls_ca"


def test_a_file_that_is_sent_to_an_issuer_cannot_be_registered():
    auth = {"type": "wif", "assertion_file": "/var/lib/junction/credential.key"}
    config = {"url": "https://web.example/mcp", "auth": auth}
    body = {"name": "web", "transport_type": "HTTP", "connection_config": config}
    _, problems = read_registration(body)
    assert [one.path for one in problems] == ["$.connection_config.auth.assertion_file"]


# -- at the service


async def shown_by(port: int, authority: Authority) -> str:
    """The name in the certificate that the service shows."""
    context = ssl.create_default_context(cafile=authority.file)
    _, writer = await asyncio.open_connection(HOST, port, ssl=context)
    try:
        subject = dict(pair for (pair,) in writer.get_extra_info("peercert")["subject"])
        return subject["commonName"]
    finally:
        writer.transport.abort()


async def test_the_service_speaks_https_and_shows_a_new_certificate_when_its_files_change(
    serving, authority, monkeypatch
):
    monkeypatch.setattr("mcp_junction.listener.http.server.CERTIFICATE_EVERY", 0.02)
    certificate, key = authority.issue("first", HOST, file="own")
    gateway = await serving({}, tls_cert=certificate, tls_key=key)
    assert gateway.service.public_url == f"https://{HOST}:{gateway.port}"
    assert await shown_by(gateway.port, authority) == "first"
    context = ssl.create_default_context(cafile=authority.file)
    reader, writer = await asyncio.open_connection(HOST, gateway.port, ssl=context)
    authority.issue("second", HOST, file="own")
    async with asyncio.timeout(BOUND):
        while await shown_by(gateway.port, authority) != "second":  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        writer.write(b"GET /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")
        assert b"200" in await reader.readline(), "an open connection goes on"
    writer.transport.abort()


async def test_plain_http_and_old_tls_get_nothing_from_it(serving, authority):
    certificate, key = authority.issue("own", HOST)
    gateway = await serving({}, tls_cert=certificate, tls_key=key)
    reader, writer = await asyncio.open_connection(HOST, gateway.port)
    writer.write(b"GET /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")
    assert b"HTTP/1.1 200" not in await asyncio.wait_for(reader.read(), BOUND)
    writer.transport.abort()
    context = ServerCertificate(certificate, key).context
    assert context.minimum_version is ssl.TLSVersion.TLSv1_2


def test_files_that_do_not_fit_are_refused_at_the_start_and_ignored_later(
    authority, tmp_path, caplog
):
    certificate, key = authority.issue("own", HOST)
    _, other_key = authority.issue("other", HOST)
    with pytest.raises(UsageError, match="cannot be used"):
        make_certificate(certificate, other_key)
    with pytest.raises(UsageError, match="belong together"):
        make_certificate(certificate, "")
    with pytest.raises(UsageError, match="No such file"):
        make_certificate(str(tmp_path / "gone.pem"), key)
    running = ServerCertificate(certificate, key)
    (tmp_path / "own.key").write_text("nonsense", "utf-8")
    assert not running.refresh()
    assert not running.refresh()
    assert caplog.text.count("the certificate before it stays") == 1
    authority.issue("third", HOST, file="own")
    assert running.refresh()
