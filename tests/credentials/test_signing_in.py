"""Signing in: REST, our pages, and who may go on."""

import asyncio
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from tests.api.mcp_client import Stateless
from tests.credentials.world import fetch
from tests.fakes.issuer import FakeIssuer, Fault
from tests.keyring import grant_all
from tests.plugin_rest import SERVERS

from mcp_junction.policy.principal import Role
from mcp_junction.protocol.versions import SIGN_IN_NEEDED

pytestmark = pytest.mark.timeout(60)
BODY = {"name": "crm", "transport_type": "HTTP"}


@pytest.fixture
async def issuer():
    async with FakeIssuer() as one:
        yield one


async def register(served, issuer, **auth):
    config = {"url": issuer.url, **({"auth": auth} if auth else {})}
    answer = await served.client().post(SERVERS, json={**BODY, "connection_config": config})
    assert answer.status_code == 201, answer.text
    await asyncio.wait_for(served.junction.servers["crm"].settled.wait(), 20)


def auth(path=""):
    return f"{SERVERS}/crm/auth{path}"


async def follow(client, url, times=5):
    """GET as a browser does, with cookies; the last response."""
    for _ in range(times):
        answer = await client.get(url)
        if answer.status_code not in (302, 303):
            return answer
        url = answer.headers["location"]
    raise AssertionError("too many redirects")


async def test_a_sign_in_by_rest_and_our_page_makes_the_server_work(served, issuer):
    await register(served, issuer)
    shown = (await served.client().get(f"{SERVERS}/crm")).json()
    assert shown["status"] == "ERROR"
    assert (shown["reachable"], shown["authenticated"]) == (True, False)
    assert shown["auth"]["state"] == "needs_sign_in"
    begun = await served.client().post(auth("/login"), json={})
    assert begun.status_code == 201, begun.text
    login = begun.json()
    assert login["url"].startswith(f"{served.url}/oauth/start/")
    async with httpx.AsyncClient(trust_env=False) as browser:
        page = await browser.get(login["url"])
        assert "key" in page.text  # keys were made here: whoever opens it shows one
        assert page.headers["cache-control"] == "no-store"
        assert "frame-ancestors 'none'" in page.headers["content-security-policy"]
        page = await browser.post(
            login["url"], data={"key": served.keys["admin"]}, follow_redirects=True
        )
        assert "crm" in page.text
        assert "everybody" in page.text
        gone = await browser.post(login["url"], data={"go": "1"})
        assert gone.status_code == 302
        done = await follow(browser, gone.headers["location"])
    assert "Signed in" in done.text
    assert (await served.client().get(auth(f"/logins/{login['login_id']}"))).json()[
        "status"
    ] == "completed"
    shown = await served.until("crm", "CONNECTED")
    assert shown["authenticated"] is True
    assert shown["auth"]["state"] == "signed_in"
    assert shown["auth"]["issuer"] == issuer.issuer
    called = await served.call("crm:whoami")
    assert called.status_code == 200, called.text
    await served.bus.flush()
    told = await served.context.store.events.after(0, limit=1000, types=("server.auth_changed",))
    assert [one.data["state"] for one in told][-1] == "signed_in"


async def test_the_link_of_an_agent_is_for_that_agent_alone(served, issuer):
    await register(served, issuer, type="oauth", per="agent")
    for agent in ("ann", "bob"):
        await grant_all(served.context.store, agent)
    ann = (await served.ring.create(Role.AGENT, "ann", "test"))[1]
    bob = (await served.ring.create(Role.AGENT, "bob", "test"))[1]
    await served.service.refresh_keys()
    as_ann = {"authorization": f"Bearer {ann}"}
    async with httpx.AsyncClient(base_url=served.url, trust_env=False) as client:
        begun = await client.post(auth("/login"), json={}, headers=as_ann)
        assert begun.status_code == 201, begun.text
        url = begun.json()["url"]
        foreign = await client.post(auth("/login"), json={"agent": "bob"}, headers=as_ann)
        assert foreign.status_code == 403
        refused = await client.post(url, data={"key": bob}, follow_redirects=True)
        assert refused.status_code == 403
        assert "ann" in refused.text
        page = await client.post(url, data={"key": "jct_000000000000_wrong"}, follow_redirects=True)
        assert page.status_code == 401
        page = await client.post(url, data={"key": ann}, follow_redirects=True)
        assert "the agent <code>ann</code>" in page.text
        gone = await client.post(url, data={"go": "1"})
        state = parse_qs(urlsplit(gone.headers["location"]).query)["state"][0]
        answer = (await fetch(gone.headers["location"]))[1]["location"]
    async with httpx.AsyncClient(trust_env=False) as stranger:
        assert (await stranger.get(answer)).status_code == 403
        cookie = {"cookie": "junction-sign-in=" + "x" * len(state)}
        assert (await stranger.get(answer, headers=cookie)).status_code == 403
    async with httpx.AsyncClient(trust_env=False) as same:
        cookie = {"cookie": f"junction-sign-in={state}"}
        assert (await same.get(answer, headers=cookie)).status_code == 200
        assert (await same.get(answer, headers=cookie)).status_code == 404  # used up
    sources = served.context.credentials.sources_of(served.junction.servers["crm"].definition)
    assert {one.subject: one.state.value for one in sources}["agent:ann"] == "signed_in"


async def test_a_sign_in_is_completed_with_the_address_the_browser_ended_at(served, issuer):
    await register(served, issuer)
    wanted = {"redirect_uri": "http://127.0.0.1:9/callback"}
    begun = (await served.client().post(auth("/login"), json=wanted)).json()
    assert begun["url"].startswith(f"{issuer.origin}/authorize?")
    ended = (await fetch(begun["url"]))[1]["location"]
    complete = auth(f"/logins/{begun['login_id']}/complete")
    wrong = await served.client().post(complete, json={"callback_url": ended + "x&state=y"})
    assert wrong.status_code in (404, 422)
    done = await served.client().post(complete, json={"callback_url": ended})
    assert done.status_code == 200, done.text
    await served.until("crm", "CONNECTED")
    kinds = {"grant_types", "redirect_uris", "application_type"}
    asked = next(what for kind, what in issuer.ledger if kind == "register")
    assert kinds <= asked.keys()
    assert asked["application_type"] == "native"


@pytest.mark.parametrize(
    "redirect", ["https://evil.example/cb", "http://10.0.0.1/cb", "http://127.0.0.1.evil.example/"]
)
async def test_no_answer_goes_to_another_machine(served, issuer, redirect):
    await register(served, issuer)
    answer = await served.client().post(auth("/login"), json={"redirect_uri": redirect})
    assert answer.status_code == 422
    assert issuer.count("register") == 0


@pytest.mark.parametrize(
    ("path", "fault", "step"),
    [
        ("/meta", Fault(503), "protected-resource metadata"),
        ("/.well-known/oauth-authorization-server", Fault(503), "authorization-server metadata"),
        ("/register", Fault(403, body={"error": "access_denied"}), "client registration"),
    ],
)
async def test_what_fails_is_named_with_its_step_and_host(served, issuer, path, fault, step):
    await register(served, issuer)
    issuer.faults[path] = fault
    answer = await served.client().post(auth("/login"), json={})
    assert answer.status_code == 502, answer.text
    assert answer.json()["error_code"] == "SIGN_IN_FAILED"
    assert answer.json()["context"]["step"] == step
    assert answer.json()["context"]["host"] == "127.0.0.1"
    assert issuer.count("authorize") == 0


async def test_signing_out_revokes_and_asks_again(served, issuer):
    await register(served, issuer)
    wanted = {"redirect_uri": "http://127.0.0.1:9/callback"}
    begun = (await served.client().post(auth("/login"), json=wanted)).json()
    ended = (await fetch(begun["url"]))[1]["location"]
    complete = auth(f"/logins/{begun['login_id']}/complete")
    await served.client().post(complete, json={"callback_url": ended})
    await served.until("crm", "CONNECTED")
    renewed = await served.client().post(auth("/refresh"), json={})
    assert renewed.json()["state"] == "signed_in"
    assert issuer.count("refresh") == 1
    assert (await served.client().delete(auth())).status_code == 204
    assert issuer.count("revoke") == 2
    refused = await served.call("crm:whoami")
    assert refused.status_code == 401
    assert refused.json()["error_code"] == "SIGN_IN_NEEDED"
    assert "www-authenticate" not in refused.headers
    shown = (await served.client().get(f"{SERVERS}/crm")).json()
    assert shown["authenticated"] is False
    await served.audit.flush()
    rows = await served.client().get("/api/v1/mcp/audit?limit=100")
    acts = {row["action"] for row in rows.json()}
    assert {"auth.login_started", "auth.login_completed", "auth.refreshed", "auth.logout"} <= acts
    assert "auth.revocation_failed" not in acts


async def test_a_sign_out_that_the_issuer_refuses_is_told_and_the_tokens_are_gone_here(
    served, issuer
):
    await register(served, issuer)
    wanted = {"redirect_uri": "http://127.0.0.1:9/callback"}
    begun = (await served.client().post(auth("/login"), json=wanted)).json()
    ended = (await fetch(begun["url"]))[1]["location"]
    complete = auth(f"/logins/{begun['login_id']}/complete")
    await served.client().post(complete, json={"callback_url": ended})
    await served.until("crm", "CONNECTED")
    issuer.faults["/revoke"] = Fault(400, body={"error": "invalid_request"})
    assert (await served.client().delete(auth())).status_code == 204
    assert (await served.call("crm:whoami")).json()["error_code"] == "SIGN_IN_NEEDED"
    await served.audit.flush()
    rows = (await served.client().get("/api/v1/mcp/audit?limit=100")).json()
    (failed, _) = [row for row in rows if row["action"] == "auth.revocation_failed"]
    assert "revocation at 127.0.0.1: it answered HTTP 400" in str(failed)


async def test_the_way_to_a_sign_in_is_listed_and_nothing_of_it_is_stored(served, issuer):
    await register(served, issuer)
    admin = await Stateless.open(served, "admin")
    tools = (await admin.send("tools/list"))["result"]["tools"]
    assert [tool["name"] for tool in tools] == ["crm.sign_in"]
    refused = await admin.send("tools/call", {"name": "crm.sign_in", "arguments": {}})
    assert refused["error"]["code"] == SIGN_IN_NEEDED
    assert "/oauth/start/" in refused["error"]["message"]
    agent = await Stateless.open(served, "agent")  # may use everything, but all share the sign-in
    refused = await agent.send("tools/call", {"name": "crm.sign_in", "arguments": {}})
    assert "/oauth/" not in str(refused)
    shown = (await served.client().get(f"{SERVERS}/crm")).json()
    assert shown["tool_count"] == 0
    _, stranger = await served.ring.create(Role.AGENT, "nobody", "test")
    served.keys["nobody"] = stranger
    nothing = await (await Stateless.open(served, "nobody")).send("tools/list")
    assert nothing["result"]["tools"] == [], "who may not use the server does not see it"


async def test_a_server_that_nobody_signs_in_to_says_so(served, issuer):
    issuer.access["fixed"] = None
    config = {"url": issuer.url, "headers": {"Authorization": "Bearer fixed"}}
    await served.client().post(SERVERS, json={**BODY, "connection_config": config})
    answer = await served.client().post(auth("/login"), json={})
    assert answer.status_code == 409
    assert answer.json()["error_code"] == "NOT_INTERACTIVE"


async def test_agents_do_not_see_servers_by_their_sign_ins(served, issuer):
    await register(served, issuer)
    (await served.ring.create(Role.AGENT, "eve", "test"))[1]
    key = (await served.ring.create(Role.AGENT, "eve", "test"))[1]
    await served.service.refresh_keys()
    headers = {"authorization": f"Bearer {key}"}
    async with httpx.AsyncClient(base_url=served.url, trust_env=False) as client:
        for path, send in (("", client.get), ("/login", client.post), ("/refresh", client.post)):
            hidden = await send(auth(path), headers=headers)
            unknown = await send(f"{SERVERS}/none/auth{path}", headers=headers)
            assert (hidden.status_code, unknown.status_code) == (404, 404)


async def test_our_client_is_described_to_issuers(served):
    answer = await served.client(None).get("/oauth/client.json")
    assert answer.status_code == 200
    assert answer.json()["client_id"] == f"{served.url}/oauth/client.json"
    assert answer.json()["redirect_uris"] == [f"{served.url}/oauth/callback"]


@pytest.mark.req("S-07")
async def test_nothing_secret_is_in_rest_events_audit_or_pages(served, issuer):
    issuer.metadata = {"token_endpoint_auth_methods_supported": ["client_secret_basic"]}
    config = {"type": "oauth", "client_id": "known", "client_secret": "canary-Secret-9Xq"}
    issuer.clients["known"] = {"secret": "canary-Secret-9Xq"}
    await register(served, issuer, **config)
    begun = (await served.client().post(auth("/login"), json={})).json()
    async with httpx.AsyncClient(trust_env=False) as browser:
        pages = [
            await browser.post(
                begun["url"], data={"key": served.keys["admin"]}, follow_redirects=True
            )
        ]
        gone = await browser.post(begun["url"], data={"go": "1"})
        pages.append(await follow(browser, gone.headers["location"]))
    assert "Signed in" in pages[-1].text
    await served.until("crm", "CONNECTED")
    issuer.revoke_access()
    shown = [page.text for page in pages]
    shown.append((await served.call("crm:whoami")).text)
    echoed = " ".join([*issuer.access, *issuer.refresh])
    issuer.faults["/mcp"] = Fault(500, body=f"you sent {echoed}", kind="text/plain")
    shown.append((await served.call("crm:whoami")).text)
    await served.audit.flush()
    await served.bus.flush()
    for path in (SERVERS, f"{SERVERS}/crm", auth(), "/api/v1/mcp/audit?limit=500", "/metrics"):
        shown.append((await served.client().get(path)).text)
    told = await served.context.store.events.after(0, limit=1000)
    shown += [str(one.data) for one in told]
    secrets = {*issuer.access, "canary-Secret-9Xq", served.keys["admin"]}
    for kind, what in issuer.ledger:
        if kind == "code":
            secrets |= {what["code"], what["code_verifier"]}
        if kind == "authorize":
            secrets |= {what["state"], what["code_challenge"]}
    for secret in secrets:
        for text in shown:
            assert secret not in text, text[:1000]
