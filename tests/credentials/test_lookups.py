"""Looking for metadata, registering and asking for scopes, over HTTP: in order, and with an end."""

import asyncio
import time

import pytest
from tests.credentials.world import entry, running, text_of
from tests.fakes.issuer import FakeIssuer, Fault

from mcp_junction.config.servers import ServerDefinition
from mcp_junction.credentials import sign_ins
from mcp_junction.credentials.flow import OAuthFlow
from mcp_junction.credentials.source import AuthState
from mcp_junction.errors import NotFound, OAuthError
from mcp_junction.oauth.discovery import BearerChallenge
from mcp_junction.protocol.versions import DENIED, SIGN_IN_NEEDED
from mcp_junction.store.database import Query
from mcp_junction.store.store import open_store
from mcp_junction.vault.vault import Vault

pytestmark = pytest.mark.timeout(60)
WELL = "/.well-known"
OF_SERVER = ["/meta", f"{WELL}/oauth-protected-resource/mcp", f"{WELL}/oauth-protected-resource"]
OF_ISSUER = [
    f"{WELL}/oauth-authorization-server/t",
    f"{WELL}/openid-configuration/t",
    f"/t{WELL}/openid-configuration",
]
PLACES = [(OF_SERVER, n) for n in range(3)] + [(OF_ISSUER, n) for n in range(3)]


@pytest.fixture
async def issuer():
    async with FakeIssuer(issuer_path="/t") as one:
        yield one


async def discover(issuer):
    flow = OAuthFlow(ServerDefinition("x", "http", url=issuer.url))
    return await flow.discover(BearerChallenge(f"{issuer.origin}/meta"))


def asked(issuer):
    return [what for kind, what in issuer.ledger if kind == "fault"]


@pytest.mark.parametrize(("places", "last"), PLACES)
async def test_metadata_is_found_at_the_first_place_that_has_it(issuer, places, last):
    own = issuer._own_metadata()
    document = {"resource": issuer.url, "authorization_servers": [issuer.issuer]}
    found = document if places is OF_SERVER else own
    for place in places[:last]:
        issuer.faults[place] = Fault(404)
    issuer.faults[places[last]] = Fault(200, body=found)
    for place in places[last + 1 :]:
        issuer.faults[place] = Fault(500)
    assert (await discover(issuer)).issuer.issuer == issuer.issuer
    assert asked(issuer) == places[: last + 1]


@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize(("places", "last"), PLACES)
async def test_an_outage_is_not_taken_for_metadata_that_is_not_there(issuer, places, last, status):
    for place in places[:last]:
        issuer.faults[place] = Fault(404)
    issuer.faults[places[last]] = Fault(status)
    with pytest.raises(OAuthError, match=f"it answered HTTP {status}"):
        await discover(issuer)
    assert asked(issuer) == places[: last + 1]


async def test_the_issuer_of_an_older_server_is_at_its_own_origin():
    async with FakeIssuer() as issuer:
        for place in OF_SERVER:
            issuer.faults[place] = Fault(404)
        found = await discover(issuer)
        assert (found.issuer.issuer, found.resource) == (issuer.origin, "")


async def test_a_client_whose_secret_ends_and_one_for_another_redirect_are_registered_anew(
    issuer, store
):
    issuer.metadata = {"token_endpoint_auth_methods_supported": ["client_secret_basic"]}
    async with running(store, {"crm": entry(issuer)}) as world:
        await world.settled()
        await world.begin(world.source())
        logins, _ = await world.begin(world.source())
        assert issuer.count("register") == 1, "a client that is good is used again"
        await logins.begin(world.source(), "http://127.0.0.1:2/other")
        assert issuer.count("register") == 2
        issuer.registered = {"client_secret_expires_at": time.time() + 5}
        for _ in range(2):
            await logins.begin(world.source(), "http://127.0.0.1:3/ends")
        assert issuer.count("register") == 4


async def test_more_scopes_are_asked_for_three_times_and_then_no_more(issuer, store):
    async with running(store, {"crm": entry(issuer)}) as world:
        await world.settled()
        await world.sign_in()
        await world.connected()
        codes = []
        for number in range(5):
            issuer.needs_scope = {"write": f"scope-{number}"}
            codes.append((await world.call("crm:write")).code)
        assert codes == [SIGN_IN_NEEDED] * 3 + [DENIED] * 2
        assert text_of(await world.call()) == "alice"


async def test_a_sign_in_that_is_not_finished_in_time_is_over(issuer, store, monkeypatch):
    monkeypatch.setattr(sign_ins, "LIFE", -1.0)
    async with running(store, {"crm": entry(issuer)}) as world:
        await world.settled()
        with pytest.raises(NotFound, match="this sign-in is over"):
            await world.sign_in()
        assert issuer.count("code") == 0


@pytest.mark.req("S-10", "NFR-SEC1")
async def test_a_dump_shows_no_token_secret_verifier_or_state(issuer, store, dump):
    issuer.metadata = {"token_endpoint_auth_methods_supported": ["client_secret_basic"]}
    async with running(store, {"crm": entry(issuer)}) as world:
        await world.settled()
        await world.sign_in()
        _, started = await world.begin(world.source())
        await world.source().refresh_now()
        shown = await dump()
    secrets = {*issuer.access, *issuer.refresh, started.state}
    secrets |= {client["secret"] for client in issuer.clients.values()}
    secrets |= {what["code_verifier"] for kind, what in issuer.ledger if kind == "code"}
    assert len(secrets) >= 7
    assert [one for one in secrets if one.encode() in shown] == []
    assert issuer.issuer.encode() in shown, "what is no secret is there to be read"


@pytest.mark.req("S-10", "NFR-SEC1")
@pytest.mark.parametrize(
    "change",
    [
        "UPDATE credentials SET issuer = 'https://evil.example'",
        "UPDATE credentials SET version = version + 1",
        "UPDATE credentials SET id = 'other'",
        "UPDATE credentials SET sealed = (SELECT sealed FROM logins WHERE sealed IS NOT NULL)",
    ],
    ids=["issuer", "version", "id", "swapped"],
)
async def test_a_credential_whose_row_was_edited_does_not_open(issuer, store, change):
    async with running(store, {"crm": entry(issuer)}) as world:
        await world.settled()
        await world.sign_in()
        await world.begin(world.source())

    def script():
        yield Query(change)

    await store.credentials._database.write(script())
    issuer.ledger.clear()
    async with running(store, {"crm": entry(issuer)}) as world:
        await world.settled()
        assert world.source().state is AuthState.NEEDS_SIGN_IN
        assert world.source().current.line == b""
    assert {what for kind, what in issuer.ledger if kind == "401"} <= {""}
    assert issuer.count("refresh") == 0


OLD, NEW = bytes(range(32)), bytes(range(1, 33))


@pytest.mark.req("S-10", "NFR-SEC1")
async def test_tokens_are_renewed_while_the_vaults_key_is_replaced(issuer, opener):
    """What is sealed anew and what is renewed meanwhile do not undo each other."""
    async with (
        await open_store(opener.url, Vault([NEW, OLD])) as turning,
        await open_store(opener.url, Vault([OLD, NEW])) as store,
        running(store, {"crm": entry(issuer)}) as world,
    ):
        await world.settled()
        await world.sign_in()
        await world.connected()

        async def renew_tokens():
            for _ in range(20):
                issuer.revoke_access()
                assert text_of(await world.call()) == "alice"

        renewing, sealed = asyncio.ensure_future(renew_tokens()), 0
        while not renewing.done():
            sealed += sum(one.renewed for one in await turning.protected.renew())
        await renewing
        await turning.protected.renew()
    assert sealed, "some were sealed anew while tokens were renewed"
    assert (issuer.count("refresh"), issuer.count("reuse")) == (20, 0)
    issuer.revoke_access()
    async with (
        await open_store(opener.url, Vault([NEW])) as store,
        running(store, {"crm": entry(issuer)}) as world,
    ):
        await world.connected()
        assert text_of(await world.call()) == "alice"
    assert issuer.count("authorize") == 1
