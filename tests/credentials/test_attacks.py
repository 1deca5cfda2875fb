"""Attacks: servers and issuers that lie, agents that want another's account, links that leak."""

import httpx
import pytest
from tests.certificates import Authority
from tests.credentials.test_signing_in import auth, follow, register
from tests.credentials.world import entry, fetch, running, text_of, until
from tests.fakes.issuer import FakeIssuer, Fault
from tests.http.test_tls import server_context
from tests.keyring import grant_all

from mcp_junction.config.auth import ServerAuth
from mcp_junction.config.servers import ServerDefinition
from mcp_junction.credentials import source as sources
from mcp_junction.credentials.flow import OAuthFlow
from mcp_junction.credentials.sign_ins import is_loopback_redirect
from mcp_junction.credentials.source import AuthState
from mcp_junction.errors import OAuthError
from mcp_junction.oauth.discovery import BearerChallenge
from mcp_junction.policy.principal import Principal, Role
from mcp_junction.protocol.versions import SERVER_UNAVAILABLE
from mcp_junction.store import credentials as tables

pytestmark = pytest.mark.timeout(60)
HUGE = int("1" + "0" * 400)
PER_AGENT = {"type": "oauth", "per": "agent"}


@pytest.fixture
async def issuer():
    async with FakeIssuer() as one:
        yield one


# -- a server or an issuer that lies


@pytest.mark.req("S-05")
async def test_naming_an_issuer_does_not_open_this_machine_to_the_server(issuer):
    """The issuer may be here, because the operator says so; what the server names may not."""
    own = ServerAuth(issuer=issuer.issuer)
    async with FakeIssuer() as inside:
        inside.faults["/meta"] = Fault(503)  # which would be in its ledger
        flow = OAuthFlow(ServerDefinition("far", "http", url="https://192.0.2.7/mcp", auth=own))
        with pytest.raises(OAuthError, match="it may not be connected to"):
            await flow.discover(BearerChallenge(f"{inside.origin}/meta"))
        assert inside.ledger == []


@pytest.mark.parametrize("life", [0, -1])
async def test_tokens_that_have_ended_already_are_not_renewed_without_end(
    issuer, store, life, monkeypatch
):
    monkeypatch.setattr(sources, "_RETRY_LEAST", 20.0)
    issuer.life = life
    async with running(store, {"crm": entry(issuer)}) as world:
        await world.settled()
        await world.sign_in()
        await until(lambda: world.source().state is AuthState.UNAVAILABLE)
        assert "have ended already" in world.source().reason
        for _ in range(20):
            await world.source().prepare()
        assert issuer.count("refresh") == 1
        issuer.life = 3600.0
        await world.source().refresh_now()
        await world.connected()
        assert text_of(await world.call()) == "alice"


async def test_numbers_without_end_in_a_token_answer_are_only_long(issuer, store):
    issuer.token_fields = {"expires_in": HUGE}
    issuer.registered = {"client_secret_expires_at": HUGE}
    async with running(store, {"crm": entry(issuer)}) as world:
        await world.settled()
        await world.sign_in()
        await world.connected()
        assert text_of(await world.call()) == "alice"


async def test_the_metadata_of_a_server_is_read_under_the_servers_own_authority(tmp_path):
    authority = Authority(tmp_path)
    secured = FakeIssuer()
    secured.tls = server_context(authority.issue("web", "127.0.0.1"))
    async with secured as issuer:
        assert issuer.url.startswith("https://")
        for ca, why in ((authority.file, ""), ("", "certificate verify failed")):
            flow = OAuthFlow(ServerDefinition("own", "http", url=issuer.url, tls_ca=ca))
            challenge = BearerChallenge(f"{issuer.origin}/meta")
            if why:
                with pytest.raises(OAuthError, match=why):
                    await flow.discover(challenge)
            else:
                assert (await flow.discover(challenge)).issuer.issuer == issuer.issuer


async def test_an_agents_sign_in_does_not_show_the_operators_secret_to_another_issuer(
    issuer, store
):
    """The issuer that anybody has signed in at is the one that the client belongs to."""
    issuer.clients["c"] = {"secret": "s3cret-of-c"}
    given = {**PER_AGENT, "client_id": "c", "client_secret": "s3cret-of-c"}
    async with FakeIssuer() as evil, running(store, {"crm": entry(issuer, **given)}) as world:
        await world.settled()
        await world.sign_in()
        await world.connected()
        issuer.resource_metadata = {"authorization_servers": [evil.issuer]}
        with pytest.raises(OAuthError, match="another issuer than before"):
            await world.begin(world.source(principal=Principal("ann", Role.AGENT)))
        assert evil.ledger == []


# -- an agent that wants more


@pytest.mark.parametrize(
    "redirect",
    [
        "http://evil.example\\@127.0.0.1/cb",  # a browser goes to evil.example
        "http://evil.example\\@localhost:9/cb",
        "http://x@127.0.0.1/cb",
        "http://127.0.0.1:80@evil.example/",
        "http://127.0.0.1\t.evil.example/",
        "http://127.0.0.1/a\\b",
        "http://127.0.0.1/a b",
        "http://127.0.0.1/\r\nx: y",
        "http://127.0.0.1?x",
        "http://127.0.0.1#x",
        "https://127.0.0.1/cb",
        "//127.0.0.1/cb",
    ],
)
def test_a_redirect_that_can_be_read_as_another_machine_is_refused(redirect):
    assert not is_loopback_redirect(redirect)


@pytest.mark.parametrize(
    "redirect",
    [
        "http://127.0.0.1:9/callback",
        "http://localhost/cb",
        "http://[::1]:9/x?a=b",
        "http://127.0.0.1",
    ],
)
def test_a_redirect_to_this_machine_is_taken(redirect):
    assert is_loopback_redirect(redirect)


async def test_an_agent_gets_no_code_by_a_redirect_that_a_browser_reads_otherwise(served, issuer):
    await register(served, issuer, **PER_AGENT)
    wanted = {"redirect_uri": "http://evil.example\\@127.0.0.1/cb"}
    answer = await served.client("agent").post(auth("/login"), json=wanted)
    assert answer.status_code == 422
    assert issuer.count("register") == 0


async def test_redirects_of_many_ports_leave_only_so_many_clients(issuer, store, monkeypatch):
    monkeypatch.setattr(tables, "MOST_CLIENTS", 3)
    async with running(store, {"crm": entry(issuer)}) as world:
        await world.settled()
        await world.sign_in()
        await world.connected()
        logins = await world.logins()
        redirects = [f"http://127.0.0.1:{port}/cb" for port in range(1, 9)]
        for redirect in redirects:
            await logins.begin(world.source(), redirect)
        kept = [await store.credentials.find_client(issuer.issuer, one) for one in redirects]
        assert 0 < sum(one is not None for one in kept) <= 3
        issuer.revoke_access()
        assert text_of(await world.call()) == "alice", "what was signed in to stays so"
        assert issuer.count("refresh") == 1


# -- a link that somebody else opens


@pytest.fixture
async def owned(gateway, issuer):
    """A gateway whose owner needs no key on this machine, and a server with an own sign-in each."""
    served = await gateway(only=("admin",))
    await register(served, issuer, **PER_AGENT)
    await grant_all(served.context.store, "eve")
    return served


def link_of(served, agent=""):
    server = served.junction.servers["crm"].definition.id
    return f"{served.url}/oauth/start/{server}" + (f"?agent={agent}" if agent else "")


async def test_the_owner_is_asked_before_an_agent_gets_the_owners_account(owned, issuer):
    """An agent's link that the owner opens would else give the agent the owner's account."""
    async with httpx.AsyncClient(trust_env=False) as browser:
        page = await browser.get(link_of(owned, "eve"))
        assert page.status_code == 200
        assert "the agent <code>eve</code>" in page.text
        assert "location" not in page.headers
        assert issuer.count("authorize") == 0
        gone = await browser.post(link_of(owned, "eve"), data={"go": "1"})
        assert "Signed in" in (await follow(browser, gone.headers["location"])).text
    assert issuer.count("authorize") == 1


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
async def test_a_site_cannot_have_the_owners_browser_sign_in(owned, issuer, site):
    async with httpx.AsyncClient(trust_env=False) as browser:
        page = await browser.get(link_of(owned), headers={"sec-fetch-site": site})
        assert page.status_code == 200
        assert "everybody who calls it here" in page.text
        foreign = {"origin": "https://evil.example", "sec-fetch-site": site}
        refused = await browser.post(link_of(owned), data={"go": "1"}, headers=foreign)
        assert refused.status_code == 403
        assert issuer.count("authorize") == 0
        gone = await browser.get(link_of(owned), headers={"sec-fetch-site": "none"})
        assert gone.status_code == 302
        assert "Signed in" in (await follow(browser, gone.headers["location"])).text


async def test_the_answer_of_an_issuer_is_good_in_the_browser_that_was_sent_there_alone(
    owned, issuer
):
    """Who gets hold of the address that a browser was sent to cannot have it completed."""
    async with httpx.AsyncClient(trust_env=False) as browser:
        gone = await browser.get(link_of(owned))
        answer = (await fetch(gone.headers["location"]))[1]["location"]
        async with httpx.AsyncClient(trust_env=False) as other:
            assert (await other.get(answer)).status_code == 403
        assert issuer.count("issued") == 0
        assert "Signed in" in (await browser.get(answer)).text


async def test_links_for_agents_that_nobody_knows_leave_nothing_behind(served, issuer):
    """Anybody can open a link and change the agent in it."""
    await register(served, issuer, **PER_AGENT)
    await grant_all(served.context.store, "eve")
    key = (await served.ring.create(Role.AGENT, "eve", "test"))[1]
    await served.service.refresh_keys()
    known = set(served.context.credentials._sources)
    as_eve = {"authorization": f"Bearer {key}"}
    async with httpx.AsyncClient(base_url=served.url, trust_env=False) as client:
        for number in range(5):
            link = link_of(served, f"made-up-{number}")
            assert "show the key of the agent" in (await client.get(link)).text
            shown = await client.post(link, data={"key": key}, follow_redirects=True)
            assert shown.status_code == 403
            client.cookies.clear()
            wanted = {"agent": f"made-up-{number}"}
            answer = await client.post(auth("/login"), json=wanted, headers=as_eve)
            assert answer.status_code == 403
        strange = await client.get(f"{served.url}/oauth/start/no-such-server?agent=x")
        assert strange.status_code == 200, "who shows no key does not learn which servers there are"
    assert set(served.context.credentials._sources) == known


# -- a dead issuer


async def test_a_dead_issuer_is_named_and_the_stored_tools_of_its_server_stay_listed(
    served, issuer, monkeypatch
):
    monkeypatch.setattr(sources, "_RETRY_LEAST", 20.0)
    await register(served, issuer)
    wanted = {"redirect_uri": "http://127.0.0.1:9/callback"}
    begun = (await served.client().post(auth("/login"), json=wanted)).json()
    ended = (await fetch(begun["url"]))[1]["location"]
    complete = auth(f"/logins/{begun['login_id']}/complete")
    await served.client().post(complete, json={"callback_url": ended})
    await served.until("crm", "CONNECTED")
    issuer.faults["/token"] = Fault(reset=True)
    issuer.revoke_access()
    refused = await served.call("crm:whoami")
    assert "token request at 127.0.0.1" in refused.text
    served.junction.servers["crm"].link.mark_lost("the test")
    await until(lambda: served.junction.servers["crm"].link is None)
    shown = (await served.client().get("/api/v1/aggregator/servers/crm")).json()
    assert (shown["auth"]["state"], shown["authenticated"]) == ("refresh_failing", False)
    assert "token request at 127.0.0.1" in shown["auth"]["reason"]
    assert shown["tool_count"] == 2
    again = await served.call("crm:whoami")
    assert str(SERVER_UNAVAILABLE) in again.text or "token request" in again.text
