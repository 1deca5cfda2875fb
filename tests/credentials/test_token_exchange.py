"""Callers' access tokens, exchanged at the issuer for tokens for one server (RFC 8693)."""

import asyncio
import time
from contextlib import AsyncExitStack

import pytest
from tests.api.mcp_client import ERAS, client_of
from tests.fakes.issuer import FakeIssuer, Fault
from tests.fakes.signed_tokens import signing_key
from tests.plugin_rest import _SqliteOpener, serve_api

from mcp_junction.config.door import DoorConfig
from mcp_junction.config.load import without_file
from mcp_junction.config.registration import read_registration
from mcp_junction.errors import ConfigError
from mcp_junction.store.keys import RevokedSubject

pytestmark = pytest.mark.timeout(60)

SECRET = "canary-Secret-7Zt"
CALL = {"name": "crm.whoami", "arguments": {}}


class Exchanging:
    """A gateway with a door, whose server takes exchanged tokens; and the issuer of all."""

    def __init__(self, served, issuer):
        self.served = served
        self.issuer = issuer

    def show(self, name, scope="all", **claims):
        """Let ``name`` call with a new access token."""
        audience = f"{self.served.url}/mcp"
        given = {"sub": name, "scope": scope, "jti": str(time.monotonic_ns()), **claims}
        self.served.keys[name] = token = self.issuer.token(audience, **given)
        self.served.client(name).headers["authorization"] = f"Bearer {token}"
        return token

    async def call(self, name, era="stateless"):
        client = await client_of(era).open(self.served, name)
        answer = await client.send("tools/call", CALL)
        if "error" in answer:
            return answer["error"]["message"]
        return answer["result"]["content"][0]["text"]

    @property
    def exchanges(self):
        return [what for kind, what in self.issuer.ledger if kind == "exchange"]


@pytest.fixture(params=["2025-11-25", "2026-07-28"])
async def exchanging(request, tmp_path, vault):
    async with AsyncExitStack() as stack:
        issuer = FakeIssuer(signing_key(), era=request.param)
        await stack.enter_async_context(issuer)
        issuer.clients["j"] = {"secret": SECRET}
        auth = {"type": "token_exchange", "issuer": issuer.issuer, "scopes": ["crm"]}
        entry = {"url": issuer.url, "auth": {**auth, "client_id": "j", "client_secret": SECRET}}
        door = DoorConfig(issuer.issuer, "corp", grants={"all": ("crm.*",), "some": ("crm.*",)})
        config = without_file({}, {}, {"crm": entry})._replace(door=door)
        opener = _SqliteOpener(stack, tmp_path / "data", vault)
        served = await serve_api(stack, opener, config, grants=False)
        await served.until("crm", "CONNECTED")
        yield Exchanging(served, issuer)


@pytest.mark.parametrize("era", ERAS)
async def test_each_caller_calls_with_what_its_own_token_is_exchanged_for(exchanging, era):
    tokens = {name: exchanging.show(name) for name in ("alice", "bob")}
    for _ in range(3):
        found = await asyncio.gather(*(exchanging.call(name, era) for name in tokens))
        assert found == ["alice", "bob"]
    assert len(exchanging.exchanges) == 2, "once for each caller"
    form = exchanging.exchanges[0]
    assert form["subject_token"] in tokens.values()
    assert (form["resource"], form["scope"]) == (exchanging.issuer.url, "crm")
    used = {what[2] for kind, what in exchanging.issuer.ledger if kind == "call"}
    assert len(used) == 2
    assert not used & set(tokens.values()), "a caller's own token goes to no server"
    shown = {what for kind, what in exchanging.issuer.ledger if kind == "401"}
    assert not shown & set(tokens.values())


async def test_what_was_exchanged_ends_with_the_callers_token(exchanging):
    exchanging.show("alice", exp=int(time.time()) + 50)
    assert await exchanging.call("alice") == "alice"
    credentials = exchanging.served.context.credentials
    (source,) = [one for (_, name), one in credentials._sources.items() if "alice" in name]
    assert source.expires_at <= time.time() + 50
    source._expire()
    assert source not in credentials._sources.values(), "nothing is kept of who is gone"


async def test_a_narrower_token_does_not_call_with_what_a_wider_one_gave(exchanging):
    wide = exchanging.show("alice", "all crm.write crm.read")
    assert await exchanging.call("alice") == "alice"
    narrow = exchanging.show("alice", "all")
    assert await exchanging.call("alice") == "alice"
    assert [one["subject_token"] for one in exchanging.exchanges] == [wide, narrow]


async def test_without_a_token_of_the_issuer_nobody_calls_as_another(exchanging):
    exchanging.show("alice")
    assert await exchanging.call("alice") == "alice"
    body = {"agent_id": "the-agent", "server_id": "crm", "tool_name": "*"}
    granted = await exchanging.served.client().post("/api/v1/mcp/policies/grant", json=body)
    assert granted.status_code == 201
    assert "with an access token" in await exchanging.call("agent")
    assert len(exchanging.exchanges) == 1


async def test_revoked_tokens_take_what_they_were_exchanged_for_with_them(exchanging):
    exchanging.show("alice")
    assert await exchanging.call("alice") == "alice"
    context = exchanging.served.context
    row = RevokedSubject(exchanging.issuer.issuer, "alice", time.time() + 1, "test")
    await context.store.revoked_subjects.revoke(row)
    (source,) = [one for (_, n), one in context.credentials._sources.items() if "alice" in n]
    async with asyncio.timeout(20):
        while source.current.line:
            await source.wait_for_change()


async def test_a_refused_exchange_is_told_and_not_tried_again_with_the_same_token(exchanging):
    exchanging.issuer.faults["/token"] = Fault(400, body={"error": "invalid_target"})
    token = exchanging.show("alice")
    for _ in range(3):
        told = await exchanging.call("alice")
        assert "invalid_target" in told
        assert token not in told
    assert exchanging.issuer.count("fault") == 1
    del exchanging.issuer.faults["/token"]
    exchanging.served.ring.tokens._forget(f"Bearer {token}".encode())  # as when it expires
    exchanging.show("alice", "all")
    assert await exchanging.call("alice") == "alice"


def test_where_callers_tokens_go_is_not_for_rest_to_say():
    auth = {"Type": "token_exchange", "issuer": "https://evil.example", "client_id": "x"}
    config = {"url": "https://web.example/mcp", "auth": {**auth, "client_secret": "s"}}
    body = {"name": "web", "transport_type": "HTTP", "connection_config": config}
    _, problems = read_registration(body)
    assert [one.path for one in problems] == ["$.connection_config.auth.type"]


@pytest.mark.parametrize("missing", ["issuer", "client_id", "client_secret"])
def test_what_an_exchange_needs_is_said(missing):
    given = {"issuer": "https://id.example", "client_id": "x", "client_secret": "s"}
    del given[missing]
    entry = {"url": "https://web.example/mcp", "auth": {"type": "token_exchange", **given}}
    with pytest.raises(ConfigError, match=rf"auth\.{missing}: is missing"):
        without_file({}, {}, {"web": entry})
