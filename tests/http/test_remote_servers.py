"""Remote servers behind a gateway: what its config says of them, and what becomes of them."""

import asyncio
import datetime
import ipaddress
import ssl
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from tests.http.origin import BOUND, Origin
from tests.http.peer_http import HttpPeer, SsePeer

from mcp_junction.errors import ConfigError


async def tools_of(gateway, server: str) -> list[str]:
    await gateway.settled()
    client = await gateway.front(listens=False)
    return [name for name in await client.names() if name.startswith(f"{server}.")]


def why(gateway, server: str) -> str:
    error = gateway.junction.servers[server].error
    return "" if error is None else error.message


# -- headers and urls of the config


async def test_headers_are_sent_with_their_variables_replaced(serving):
    async with HttpPeer() as peer:
        entry = {
            "url": "http://127.0.0.1:${PORT}/mcp",
            "headers": {"Authorization": "Bearer ${TOKEN}", "X-Team": "${TEAM:-none}"},
        }
        environ = {"PORT": str(peer.port), "TOKEN": "t0ps3cret"}
        gateway = await serving({"far": entry}, environ=environ)
        assert await tools_of(gateway, "far")
        for visit in peer.visits:
            assert visit.headers["authorization"] == "Bearer t0ps3cret"
            assert visit.headers["x-team"] == "none"


async def test_a_variable_cannot_smuggle_a_header_in(serving):
    async with HttpPeer() as peer:
        entry = {"url": peer.url, "headers": {"X-Key": "${KEY}"}}
        with pytest.raises(ConfigError, match="X-Key: has a value that cannot be sent") as caught:
            await serving({"far": entry}, environ={"KEY": "t0ps3cret\r\nX-Admin: yes"})
        assert "t0ps3cret" not in str(caught.value)
        assert peer.connections == 0


async def test_the_clients_own_key_is_not_passed_on(serving, tmp_path):
    from tests.keyring import Keys

    from mcp_junction.policy.principal import Role

    _, key = Keys(tmp_path / "data").create(Role.AGENT, "bot")
    async with HttpPeer() as peer:
        gateway = await serving({"far": {"url": peer.url}})
        client = await gateway.front(key=key)
        await client.told("far.echo")
        assert all("authorization" not in visit.headers for visit in peer.visits)
        assert all(key not in visit.body.decode() for visit in peer.visits)


# -- which transport


@pytest.mark.parametrize("status", [400, 404, 405])
async def test_a_server_that_refuses_the_newer_transport_is_asked_for_the_older(serving, status):
    async with SsePeer() as peer:
        refusing = peer.handler

        async def older_only(visit):
            if visit.method == "POST" and visit.path == "/sse":
                visit.answer(status)
            else:
                await refusing(visit)

        peer.handler = older_only
        gateway = await serving({"old": {"type": "http", "url": peer.url}})
        assert await tools_of(gateway, "old")
        client = await gateway.front()
        assert await client.told("old.steps", count=1) == "done"


async def test_a_server_that_refuses_both_transports_is_named(serving):
    async def refuse(visit):
        visit.answer(404)

    async with Origin(refuse) as origin:
        gateway = await serving({"none": {"url": origin.url}})
        await gateway.settled()
        assert "HTTP 404" in why(gateway, "none")


async def test_a_refused_credential_is_told_apart_from_an_older_transport(serving):
    async def closed(visit):
        visit.answer(401)

    async with Origin(closed) as origin:
        gateway = await serving({"closed": {"url": origin.url}})
        await gateway.settled()
        assert "HTTP 401; check the headers or credentials" in why(gateway, "closed")
        assert all(visit.method == "POST" for visit in origin.visits)


# -- TLS


def self_signed(folder: Path) -> ssl.SSLContext:
    """A server's context with a certificate that nobody vouches for."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.datetime.now(datetime.UTC)
    address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([address]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    (folder / "cert.pem").write_bytes(certificate.public_bytes(pem))
    plain = serialization.NoEncryption()
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain)
    (folder / "key.pem").write_bytes(private)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "cert.pem", folder / "key.pem")
    return context


class TlsPeer(HttpPeer):
    def __init__(self, context: ssl.SSLContext) -> None:
        super().__init__()
        self._tls = context


@pytest.mark.req("NFR-SEC2")
async def test_a_certificate_that_nobody_vouches_for_is_refused(serving, tmp_path):
    async with TlsPeer(self_signed(tmp_path)) as peer:
        gateway = await serving({"far": {"url": peer.url, "headers": {"x-key": "t0ps3cret"}}})
        await gateway.settled()
        assert "certificate verify failed" in why(gateway, "far").lower()
        assert not peer.visits


async def test_a_certificate_that_is_vouched_for_is_accepted(serving, tmp_path, monkeypatch):
    context = self_signed(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "cert.pem"))
    async with TlsPeer(context) as peer:
        gateway = await serving({"far": {"url": peer.url}})
        client = await gateway.front()
        assert await client.told("far.steps", count=2) == "done"


@pytest.mark.req("NFR-SEC2")
async def test_a_version_of_tls_that_is_too_old_is_refused(serving, tmp_path, monkeypatch):
    context = self_signed(tmp_path)
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        context.maximum_version = ssl.TLSVersion.TLSv1_1
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "cert.pem"))
    async with TlsPeer(context) as peer:
        gateway = await serving({"far": {"url": peer.url}})
        await gateway.settled()
        assert why(gateway, "far")
        assert not peer.visits


# -- down, and back


@pytest.mark.parametrize("kind", [HttpPeer, SsePeer])
async def test_a_server_that_is_down_is_named_and_the_others_serve(serving, kind):
    gone = kind()
    await gone.listen()
    await gone.close()
    async with HttpPeer() as peer:
        transport = "http" if kind is HttpPeer else "sse"
        servers = {"gone": {"url": gone.url, "type": transport}, "here": {"url": peer.url}}
        gateway = await serving(servers)
        await gateway.settled()
        client = await gateway.front()
        assert {name.partition(".")[0] for name in await client.names()} == {"here"}
        assert await client.told("here.steps", count=1) == "done"
        assert "connection refused" in why(gateway, "gone")

        await gone.listen()
        await client.heard("notifications/tools/list_changed")
        assert "gone.echo" in await client.names()
        assert await client.told("gone.steps", count=1) == "done"
        await gone.close()


@pytest.mark.parametrize("kind", [HttpPeer, SsePeer])
async def test_a_server_that_goes_away_takes_its_tools_and_brings_them_back(serving, kind):
    async with kind() as peer:
        transport = "http" if kind is HttpPeer else "sse"
        gateway = await serving({"far": {"url": peer.url, "type": transport}})
        client = await gateway.front()
        assert await client.names()
        await peer.close()
        await client.heard("notifications/tools/list_changed")
        assert await client.names() == []
        await peer.listen()
        await client.heard("notifications/tools/list_changed", times=2)
        assert "far.echo" in await client.names()


async def test_a_call_made_moments_after_a_loss_waits_for_the_server(serving):
    async with HttpPeer() as peer:
        gateway = await serving({"far": {"url": peer.url}})
        client = await gateway.front()
        await client.names()
        await peer.close()
        await client.heard("notifications/tools/list_changed")
        call = client.begin("far.steps", count=1)
        await peer.listen()
        answer = await client.answer(call)
        assert answer.get("result") or answer["error"]["data"]["delivery"] == "not_sent"


async def test_a_server_that_forgot_us_is_told_again_what_it_was_told(serving):
    async with HttpPeer() as peer:
        gateway = await serving({"far": {"url": peer.url}})
        client = await gateway.front()
        await client.result("resources/subscribe", {"uri": "note://1"})
        await client.result("logging/setLevel", {"level": "error"})
        await client.told("far.steps", count=1)
        peer.forget()
        assert await client.told("far.steps", count=1) == "done"
        await peer.until(lambda: len(peer.told("resources/subscribe")) == 2)
        await peer.until(
            lambda: peer.told("logging/setLevel")[-1].headers["mcp-session-id"] == "s2"
        )
        assert peer.session.conversation.subscribed == {"note://1"}
        await client.told("far.touch", uri="note://1")
        await client.heard("notifications/resources/updated")


async def test_a_server_that_came_back_with_other_tools_shows_them(serving):
    async with HttpPeer() as peer:
        gateway = await serving({"far": {"url": peer.url}})
        client = await gateway.front()
        await client.names()
        peer.forget()
        opening = peer.handler

        async def grown(visit):
            await opening(visit)
            if visit.rpc == "initialize":
                tool = {"name": "brand-new", "inputSchema": {"type": "object"}}
                peer.session.conversation.lists["tools"].append(tool)

        peer.handler = grown
        await client.told("far.steps", count=1)
        await client.heard("notifications/tools/list_changed")
        assert "far.brand-new" in await client.names()


async def test_the_session_is_ended_when_the_gateway_ends(serving):
    async with HttpPeer() as peer:
        gateway = await serving({"far": {"url": peer.url}})
        await gateway.settled()
        assert peer.sessions
        await asyncio.wait_for(gateway.junction.close(), BOUND)
        assert not peer.sessions
