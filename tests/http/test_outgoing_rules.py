"""Every way out obeys the rules: both links, what the older one is told, and health checks."""

import asyncio
import ssl

import pytest
from tests.http.links import Ears, definition, fly, landed, sse_link
from tests.http.origin import BOUND, Origin, Visit
from tests.http.test_remote_servers import self_signed
from tests.http.test_sse_link import Older
from tests.policy.corpus import World, urls

from mcp_junction.errors import AddressRefused, ServerError
from mcp_junction.policy.outgoing import STRICT, Permissions
from mcp_junction.protocol.versions import DEFAULT_LIMIT
from mcp_junction.upstream.http.dialer import Dialer, dialer_for, resolve
from mcp_junction.upstream.http.fetch import fetch_status
from mcp_junction.upstream.http.link import HttpLink
from mcp_junction.upstream.http.sse_link import SseLink
from mcp_junction.upstream.outcome import Delivery


async def tried(world: World, url: str, kind: str) -> None:
    """Use a url in one of the ways in which urls are used."""
    dialer = Dialer(STRICT, world.resolve, world.connect)
    try:
        if kind == "health":
            await fetch_status(url, dialer)
        elif kind == "sse":
            await SseLink(definition(url, "sse"), Ears(), DEFAULT_LIMIT, dialer).start()
        else:
            link = HttpLink(definition(url), Ears(), DEFAULT_LIMIT, dialer)
            assert (await landed(fly(link))).delivery is Delivery.NOT_SENT
            await link.end(0.0)
    except (ValueError, OSError, ServerError, AddressRefused):
        pass


@pytest.mark.req("S-05")
@pytest.mark.parametrize("kind", ["http", "sse", "health"])
async def test_no_url_of_the_corpus_is_reached(kind):
    world = World()
    for url in urls():
        await tried(world, url, kind)
    assert world.reached == []
    await tried(world, "https://ok.test/", kind)
    assert world.reached == ["93.184.215.14"], "the canary sings"


@pytest.mark.req("S-05")
async def test_no_url_of_the_corpus_is_posted_to_when_a_server_names_it():
    async with Origin(server := Older()) as origin:
        for url in [u for u in urls() if u.startswith(("http", "//", "ftp"))][::9]:
            server.endpoint = "".join(url.splitlines())
            try:
                async with asyncio.timeout(BOUND), sse_link(origin):
                    pass
            except ServerError:
                continue
            pytest.fail(f"{url} was taken for an address of the server's own")
        assert {visit.method for visit in origin.visits} == {"GET"}


async def answer_ok(visit: Visit) -> None:
    visit.answer(200, b"fine")


async def test_the_connection_goes_to_the_address_and_the_request_to_the_name():
    async def home(host: str, port: int) -> list[str]:
        return ["10.0.0.1", "127.0.0.1"]

    async with Origin(answer_ok) as origin:
        url = f"http://far.test:{origin.port}/health?x=1"
        assert await fetch_status(url, Dialer(STRICT, home)) == 200
        assert origin.visits[0].headers["host"] == f"far.test:{origin.port}"
        assert origin.visits[0].path == "/health?x=1"


async def test_the_tls_handshake_names_the_name(tmp_path):
    context, seen = self_signed(tmp_path), []
    context.sni_callback = lambda _, name, __: seen.append(name)

    async def home(host: str, port: int) -> list[str]:
        return ["127.0.0.1"]

    server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0, ssl=context)
    async with server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(ssl.SSLCertVerificationError):
            await fetch_status(f"https://far.test:{port}/", Dialer(STRICT, home))
    assert seen == ["far.test"]


async def test_a_redirect_is_an_answer_and_no_way():
    async def elsewhere(visit: Visit) -> None:
        visit.answer(302, location="http://169.254.169.254/latest/")

    async with Origin(elsewhere) as origin:
        assert await fetch_status(origin.url, Dialer()) == 302
        assert len(origin.visits) == 1


async def test_a_health_check_that_is_cut_off_says_so():
    async def hang_up(visit: Visit) -> None:
        visit.raw(b"HTTP/1.1 2")
        visit.link.writer.close()

    async with Origin(hang_up) as origin:
        with pytest.raises(OSError, match="closed the connection"):
            await fetch_status(origin.url, Dialer())


async def test_a_refused_server_says_why_and_what_would_help():
    world = World()
    for strict, word in ((False, "connection refused"), (True, "allow_private")):
        allowed = Permissions(allow_private=not strict)
        dialer = Dialer(allowed, world.resolve, world.connect)
        link = HttpLink(definition("https://inside.attacker.test/"), Ears(), 1000, dialer)
        outcome = await landed(fly(link))
        assert word in outcome.message
        assert "10.0.0.1" not in outcome.message
        await link.end(0.0)
    assert world.reached == ["10.0.0.1"]


async def test_the_systems_resolver_is_asked_for_names():
    assert "127.0.0.1" in await resolve("localhost", 80) or "::1" in await resolve("localhost", 80)


@pytest.mark.req("NFR-SEC2")
async def test_plain_http_off_loopback_is_refused_unless_allowed():
    world = World()
    for allowed in (False, True):
        dialer = Dialer(Permissions(allow_http=allowed), world.resolve, world.connect)
        link = HttpLink(definition("http://ok.test/"), Ears(), 1000, dialer)
        message = (await landed(fly(link))).message
        assert ("plain http" in message) is not allowed
        await link.end(0.0)
    assert world.reached == ["93.184.215.14"]


async def test_a_servers_own_permissions_are_used(server_entry):
    from_file = server_entry({"url": "http://ok.test/"})
    assert (from_file.allow_private, from_file.allow_http) == (True, True)
    strict = server_entry({"url": "https://x/", "junction": {"allow_private": False}})
    with pytest.raises(AddressRefused, match="private"):
        await fetch_status("https://10.0.0.1/", dialer_for(strict))


@pytest.fixture
def server_entry(tmp_path):
    import json

    from mcp_junction.config.load import load

    def read(entry):
        (tmp_path / "c.json").write_text(json.dumps({"mcpServers": {"s": entry}}))
        return load(str(tmp_path / "c.json"), {}, {}).servers[0]

    return read
