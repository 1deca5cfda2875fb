"""Our pages take access tokens of the door's issuer as they take keys, while those hold."""

from contextlib import AsyncExitStack

import pytest
from tests.api.test_approval_pages import Browser
from tests.api.test_approvals import World
from tests.api.test_door import open_door
from tests.fakes.issuer import Fault
from tests.fakes.signed_tokens import signing_key
from tests.plugin_rest import SERVERS
from tests.registry.toolbox import Toolbox, tool

from mcp_junction.config.door import DoorConfig
from mcp_junction.identity.issuer_keys import IssuerKeys
from mcp_junction.identity.tokens import AccessTokens
from mcp_junction.store.audit_records import AuditQuery
from mcp_junction.store.keys import RevokedSubject

pytestmark = pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)


@pytest.fixture
async def doored(opener):
    async with AsyncExitStack() as stack:
        yield await open_door(stack, opener)


@pytest.fixture
async def world(doored):
    async with Toolbox([tool("delete")]) as box:
        config = {"name": "box", "transport_type": "HTTP", "connection_config": {"url": box.url}}
        assert (await doored.served.client().post(SERVERS, json=config)).status_code == 201
        await doored.served.until("box", "CONNECTED")
        made = World(doored.served, box)
        await made.grant()
        yield made


@pytest.mark.req("P-4")
async def test_an_administrator_decides_with_an_access_token(world, doored):
    approval_id = await world.ask()
    async with Browser(world, approval_id) as browser:
        asked = (await browser.http.get(browser.path)).text
        assert doored.issuer.issuer in asked
        shown = await browser.show_key(doored.show("ann", "junction.admin"))
        assert "/tmp/a" in shown.text
        token = world.served.keys["ann"]
        assert token not in str(browser.http.cookies)
        assert "Approved" in (await browser.press("approve", note="by token")).text
    decided = await world.show(approval_id)
    assert (decided["decided_by"], decided["note"]) == ("corp:ann", "by token")
    assert await world.passes()


@pytest.mark.parametrize("what", ["role", "audience", "expired", "signature", "nonsense"])
async def test_other_tokens_decide_nothing_and_that_is_on_record(world, doored, what):
    if what == "role":
        who, status, words = doored.show("bob"), 403, "This is not for you"
    elif what == "audience":
        who = doored.show("bob", "junction.admin", aud="https://other.example/mcp")
        status, words = 401, "it is meant for somebody else"
    elif what == "expired":
        who, status, words = doored.show("bob", "junction.admin", exp=1_000_000_000), 401, "expired"
    elif what == "signature":
        foreign = doored.issuer.token(
            f"{world.served.url}/mcp", signing_key("RS256", "unknown"), scope="junction.admin"
        )
        who, status, words = doored.bring("bob", foreign), 401, "signature"
    else:
        who, status, words = doored.bring("bob", "a.b.c"), 401, "not accepted"
    approval_id = await world.ask()
    async with Browser(world, approval_id) as browser:
        refused = await browser.show_key(who)
        assert refused.status_code == status
        assert words in refused.text
        assert world.served.keys["bob"] not in refused.text
        assert "/tmp/a" not in refused.text
        assert 'type="password"' in refused.text, "another can be shown"
        await browser.press("approve", form="00")
    assert not await world.passes()
    await world.served.audit.flush()
    rows = await world.served.context.store.audit.rows(AuditQuery(limit=100))
    actors = {row.actor for row in rows if row.target == f"/approvals/{approval_id}"}
    assert actors == {"corp:bob" if what == "role" else "anonymous"}
    assert world.served.keys["bob"] not in str(rows)


async def test_while_the_issuer_is_away_nobody_is_let_in_and_told_why(world, doored):
    for path in ("/jwks", "/tenant/jwks", "/.well-known/openid-configuration"):
        doored.issuer.faults[path] = Fault(503)
    world.served.ring.tokens.keys._keys.clear()
    approval_id = await world.ask()
    async with Browser(world, approval_id) as browser:
        refused = await browser.show_key(doored.show("ann", "junction.admin"))
        assert refused.status_code == 503
        assert 'role="alert"' in refused.text


async def test_a_session_ends_with_its_token(world, doored, monkeypatch):
    tokens: AccessTokens = world.served.ring.tokens
    async with Browser(world, await world.ask()) as browser:

        async def is_known() -> bool:
            return "/tmp/a" in (await browser.http.get(browser.path)).text

        await browser.show_key(doored.show("ann", "junction.admin"))
        assert await is_known()
        tokens.verified.clear()  # as in another process, or after a restart
        tokens._tokens.clear()
        tokens._kept.clear()
        assert await is_known()
        now = tokens._now
        monkeypatch.setattr(tokens, "_now", lambda: now() + 3_700)
        assert not await is_known()
        monkeypatch.undo()
        row = RevokedSubject(doored.issuer.issuer, "ann", now() + 60, "the-admin")
        await world.served.context.store.revoked_subjects.revoke(row)
        await world.served.service.refresh_keys()
        assert not await is_known()


async def test_a_door_with_other_roles_does_not_know_the_sessions_of_the_former(world, doored):
    """After a restart: what a token gives may be less now."""
    async with Browser(world, await world.ask()) as browser:
        await browser.show_key(doored.show("ann", "junction.admin"))
        door = DoorConfig(doored.issuer.issuer, "corp", roles={"junction.admin": "viewer"})
        world.served.ring.tokens = AccessTokens(door, IssuerKeys(door))
        assert "/tmp/a" not in (await browser.http.get(browser.path)).text
        world.served.ring.tokens = None
        assert "/tmp/a" not in (await browser.http.get(browser.path)).text
