"""Hostile servers and issuers: addresses, redirects, metadata, and secrets that must not show."""

import logging

import pytest
from tests.credentials.world import entry, running, text_of
from tests.fakes.issuer import FakeIssuer, Fault

from mcp_junction.config.servers import ServerDefinition
from mcp_junction.credentials.flow import OAuthFlow
from mcp_junction.credentials.http import OAuthHttp, find_permissions
from mcp_junction.errors import NotFound, OAuthError
from mcp_junction.oauth.discovery import BearerChallenge
from mcp_junction.oauth.registration import OAuthClient
from mcp_junction.protocol.versions import SIGN_IN_NEEDED
from mcp_junction.store import credentials as tables
from mcp_junction.upstream.http.dialer import Dialer
from mcp_junction.upstream.http.fetch import MAX_BODY

pytestmark = pytest.mark.timeout(60)
INSIDE = (
    "http://127.0.0.1:9/x", "https://localhost:9/x", "https://[::1]:9/x", "https://10.0.0.7/x",
    "https://192.168.1.1/x", "https://169.254.169.254/latest", "https://[fd00:ec2::254]/x",
    "https://[::ffff:127.0.0.1]/x", "https://0.0.0.0/x", "http://203.0.113.9/x",
)  # fmt: skip


@pytest.fixture
async def issuer():
    async with FakeIssuer() as one:
        yield one


async def public(host, port):
    return ["93.184.216.34"]


@pytest.mark.req("S-05")
@pytest.mark.parametrize("url", INSIDE)
async def test_what_a_remote_server_names_is_never_asked_for_on_our_side(url):
    """Every address of OAuth goes this way: metadata, registration, tokens, revocation."""
    definition = ServerDefinition("far", "http", url="https://far.example/mcp", allow_private=True)
    permissions = await find_permissions(definition, is_named=False, resolve=public)
    connected = []

    async def connect(make, address, place):
        connected.append(address)
        raise ConnectionRefusedError

    async def to_loopback(host, port):
        return ["127.0.0.1"]

    http = OAuthHttp(Dialer(permissions, to_loopback, connect))
    for send in (
        http.get("step", url),
        http.post_form("step", url, {}, {}),
        http.post_json("step", url, {}),
    ):
        with pytest.raises(OAuthError):
            await send
    assert connected == []


@pytest.mark.req("S-05")
@pytest.mark.parametrize(
    ("host", "addresses", "allowed", "loopback", "private"),
    [
        ("127.0.0.1", None, False, True, True),
        ("localhost", ["127.0.0.1", "::1"], False, True, True),
        ("10.1.2.3", None, True, False, True),
        ("crm.corp.example", ["10.1.2.3"], True, False, True),
        ("crm.corp.example", ["10.1.2.3"], False, False, False),  # its name was rebound
        ("name.example", ["127.0.0.1"], True, False, True),
        ("name.example", ["127.0.0.1"], False, False, False),  # its name was rebound
        ("name.example", ["93.184.216.34"], True, False, False),
        ("name.example", ["127.0.0.1", "93.184.216.34"], True, False, False),
        ("name.example", [], True, False, False),
    ],
)
async def test_issuers_may_be_where_their_server_says_it_is(
    host, addresses, allowed, loopback, private
):
    async def resolve(host, port):
        return addresses

    url = f"https://{host}/mcp"
    definition = ServerDefinition("x", "http", url=url, allow_private=allowed)
    found = await find_permissions(definition, is_named=False, resolve=resolve)
    assert (found.allow_loopback, found.allow_private) == (loopback, private)
    named = await find_permissions(definition, is_named=True, resolve=resolve)
    assert named.allow_loopback


async def ask_everything(flow, found, issuer):
    await flow.discover(BearerChallenge(f"{issuer.origin}/meta"))
    await flow.register(found, "n", "http://127.0.0.1/cb")
    await flow.request_token(found.issuer.token_endpoint, OAuthClient("c"), {})


@pytest.mark.parametrize(
    "path", ["/meta", "/.well-known/oauth-authorization-server", "/register", "/token"]
)
async def test_no_redirect_is_followed(issuer, path):
    async with FakeIssuer() as canary:
        definition = ServerDefinition("x", "http", url=issuer.url)
        flow = OAuthFlow(definition)
        found = await flow.discover(BearerChallenge(f"{issuer.origin}/meta"))
        issuer.faults[path] = Fault(302, body="", kind=f"text/html\r\nlocation: {canary.url}")
        with pytest.raises(OAuthError):
            await ask_everything(flow, found, issuer)
        assert canary.ledger == []


async def test_a_token_is_not_sent_after_a_redirect_of_the_server(issuer, store):
    async with FakeIssuer() as canary:
        async with running(store, {"crm": entry(issuer)}) as world:
            await world.settled()
            await world.sign_in()
            await world.connected()
            issuer.faults["/mcp"] = Fault(307, body="", kind=f"text/html\r\nlocation: {canary.url}")
            assert (await world.call()).kind.value == "error"
        assert canary.ledger == []


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"resource_metadata": {"resource": "https://other.example/mcp"}}, "another resource"),
        ({"metadata": {"issuer": "https://other.example"}}, "another issuer"),
        ({"metadata": {"code_challenge_methods_supported": None}}, "PKCE"),
        ({"metadata": {"registration_endpoint": None}}, "client_id"),
        ({"metadata": {"authorization_endpoint": "javascript:alert(1)"}}, "makes no sense"),
        ({"resource_metadata": {"authorization_servers": []}}, "names no authorization server"),
    ],
)
async def test_nobody_is_sent_to_a_browser_with_metadata_that_is_wrong(issuer, store, change, why):
    for name, value in change.items():
        setattr(issuer, name, value)
    async with running(store, {"crm": entry(issuer)}) as world:
        await world.settled()
        with pytest.raises(OAuthError, match=why):
            await world.begin(world.source())
    assert issuer.count("authorize") == 0


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"iss": "https://evil.example"}, "another issuer"),
        ({"code": None}, "no code"),
        ({"code": None, "error": "access_denied"}, "access_denied"),
    ],
)
async def test_an_answer_that_is_wrong_leaves_nobody_signed_in(issuer, store, fields, why):
    async with running(store, {"crm": entry(issuer)}) as world:
        await world.settled()
        issuer.answer_fields = fields
        with pytest.raises(OAuthError, match=why):
            await world.sign_in()
        assert issuer.count("issued") == 0
        assert (await world.call()).kind.value == "error"


async def test_more_scopes_are_asked_for_together_with_those_of_before(issuer, store):
    issuer.needs_scope = {"write": "files:write"}
    issuer.resource_metadata = {"scopes_supported": ["files:read"]}
    async with running(store, {"crm": entry(issuer)}) as world:
        await world.settled()
        await world.sign_in()
        await world.connected()
        refused = await world.call("crm:write")
        assert refused.code == SIGN_IN_NEEDED
        assert text_of(await world.call()) == "alice"  # the others go on
        await world.sign_in()
        assert text_of(await world.call("crm:write")) == "alice"
        asked = [what["scope"] for kind, what in issuer.ledger if kind == "authorize"]
        assert asked == ["files:read", "files:read files:write"]
        issuer.needs_scope = {"write": "files:write other"}
        issuer.access.values()
        final = await world.call("crm:write")
        assert final.kind.value == "error"


async def test_a_server_that_moves_to_another_issuer_is_signed_in_to_there(issuer, store):
    async with FakeIssuer() as other, running(store, {"crm": entry(issuer)}) as world:
        await world.settled()
        await world.sign_in()
        await world.connected()
        issuer.resource_metadata = {"authorization_servers": [other.issuer]}
        issuer.access.clear()
        issuer.refresh.clear()
        assert (await world.call()).code == SIGN_IN_NEEDED
        _, started = await world.begin(world.source())
        assert started.authorization_url.startswith(other.origin)
        assert other.count("register") == 1


async def test_a_server_cannot_have_the_operators_secret_sent_to_an_issuer_of_its_choice(
    issuer, store
):
    issuer.clients["c"] = {"secret": "s3cret-of-c"}
    given = {"type": "oauth", "client_id": "c", "client_secret": "s3cret-of-c"}
    async with FakeIssuer() as evil, running(store, {"crm": entry(issuer, **given)}) as world:
        await world.settled()
        await world.sign_in()
        await world.connected()
        issuer.resource_metadata = {"authorization_servers": [evil.issuer]}
        issuer.access.clear()
        issuer.refresh.clear()
        assert (await world.call()).code == SIGN_IN_NEEDED
        with pytest.raises(OAuthError, match="another issuer than before"):
            await world.begin(world.source())
        assert evil.ledger == []


async def test_a_client_of_its_own_shows_its_secret_to_one_issuer(issuer):
    issuer.clients["c"] = {"secret": "s3cret-of-c"}
    given = {"type": "client_credentials", "client_id": "c", "client_secret": "s3cret-of-c"}
    async with FakeIssuer() as evil, running(None, {"crm": entry(issuer, **given)}) as world:
        await world.connected()
        issuer.resource_metadata = {"authorization_servers": [evil.issuer]}
        issuer.revoke_access()
        refused = await world.call()
        assert "another issuer than before" in refused.message
        assert evil.ledger == []


@pytest.mark.parametrize(
    ("path", "fault", "why"),
    [
        ("/meta", Fault(200, body="x" * (MAX_BODY + 1)), f"over the limit of {MAX_BODY} bytes"),
        (
            "/.well-known/oauth-authorization-server",
            Fault(200, body="[" * 100_000),
            "not a JSON object",
        ),
        ("/.well-known/oauth-authorization-server", Fault(delay=60.0), "no answer within"),
        ("/register", Fault(201, body={"client_id": 5}), "no client_id"),
    ],
    ids=["huge", "deep", "slow", "odd"],
)
async def test_metadata_without_end_or_sense_ends_a_sign_in_by_name(
    issuer, store, path, fault, why, monkeypatch
):
    monkeypatch.setattr("mcp_junction.credentials.http.TIMEOUT", 0.5)
    async with running(store, {"crm": entry(issuer)}) as world:
        await world.settled()
        issuer.faults[path] = fault
        with pytest.raises(OAuthError, match=why) as failed:
            await world.begin(world.source())
        assert "xxx" not in str(failed.value)
        assert "[[[" not in str(failed.value)


async def test_one_subject_leaves_only_so_many_sign_ins_open(issuer, store, monkeypatch):
    monkeypatch.setattr(tables, "MOST_LOGINS", 3)
    async with running(store, {"crm": entry(issuer)}) as world:
        await world.settled()
        begun = [await world.begin(world.source()) for _ in range(5)]
        logins = begun[0][0]
        with pytest.raises(NotFound):
            await logins.find(begun[0][1].id)
        kept = [await logins.find(started.id) for _, started in begun[2:]]
        assert len(kept) == 3


async def test_a_registration_that_the_issuer_forgot_is_made_again(issuer, store):
    async with running(store, {"crm": entry(issuer)}) as world:
        await world.settled()
        await world.sign_in()
        await world.connected()
        issuer.clients.clear()
        issuer.revoke_access()
        assert (await world.call()).code == SIGN_IN_NEEDED
        await world.sign_in()
        assert issuer.count("register") == 2
        await world.connected()
        assert text_of(await world.call()) == "alice"


@pytest.mark.req("S-07")
async def test_no_token_code_state_or_secret_is_in_a_log_or_an_error(issuer, store, caplog):
    caplog.set_level(logging.DEBUG)
    issuer.metadata = {"token_endpoint_auth_methods_supported": ["client_secret_basic"]}
    said = []
    async with running(store, {"crm": entry(issuer)}) as world:
        world.credentials.listeners.append(lambda *told: said.append(str(told[1:])))
        await world.settled()
        await world.sign_in()
        await world.connected()
        issuer.revoke_access()
        assert text_of(await world.call()) == "alice"
        secrets = {what for kind, what in issuer.ledger if kind in ("issued", "refresh")}
        echo = " ".join(issuer.access)
        issuer.faults["/mcp"] = Fault(500, body=f"you sent {echo}", kind="text/plain")
        failed = await world.call()
        issuer.faults["/token"] = Fault(400, body={"error": echo[:50]})
        issuer.faults.pop("/mcp")
        issuer.revoke_access()
        again = await world.call()
        _, started = await world.begin(world.source())
        facts = str(world.source().facts)
    codes = [what["code_challenge"] for kind, what in issuer.ledger if kind == "authorize"]
    secrets |= {client["secret"] for client in issuer.clients.values()}
    secrets |= {what["code"] for kind, what in issuer.ledger if kind == "code"}
    secrets |= {what["code_verifier"] for kind, what in issuer.ledger if kind == "code"}
    secrets |= {started.state, *codes}
    shown = [caplog.text, failed.message, again.message, facts, *said]
    rows = await store.credentials.all()
    shown.append(repr(rows))
    for secret in secrets:
        for text in shown:
            assert secret not in text, text[:2000]
