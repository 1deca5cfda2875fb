"""Credentials without a person: a client of its own, a fixed token, keys of agents."""

import pytest
from tests.credentials.world import entry, running, text_of
from tests.fakes.issuer import FakeIssuer
from tests.fakes.protected_server import IssuedToken

from mcp_junction.credentials.source import AuthState
from mcp_junction.policy.principal import Principal, Role
from mcp_junction.protocol.versions import SIGN_IN_NEEDED

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
async def issuer():
    async with FakeIssuer() as one:
        yield one


@pytest.mark.parametrize("method", ["client_secret_basic", "client_secret_post"])
async def test_a_client_gets_tokens_for_itself_by_its_secret(issuer, method):
    issuer.clients["j"] = {"secret": "s3:cret&more"}
    auth = {
        "type": "client_credentials",
        "client_id": "j",
        "client_secret": "s3:cret&more",
        "method": method,
        "scopes": ["read"],
    }
    async with running(None, {"crm": entry(issuer, **auth)}) as world:
        await world.connected()
        assert text_of(await world.call()) == "j"
        issuer.revoke_access()
        assert text_of(await world.call()) == "j"
        assert issuer.count("client_credentials") == 2
        asked = [what for kind, what in issuer.ledger if kind == "client_credentials"]
        assert {one["scope"] for one in asked} == {"read"}
        assert {one["resource"] for one in asked} == {issuer.url}


async def test_a_client_proves_itself_by_its_private_key(issuer, tmp_path):
    from joserfc.jwk import ECKey

    key = ECKey.generate_key("P-256")
    file = tmp_path / "key.pem"
    file.write_bytes(key.as_pem(private=True))
    issuer.clients["j"], issuer.client_keys["j"] = {}, key
    auth = {"type": "client_credentials", "client_id": "j", "private_key_file": str(file)}
    async with running(None, {"crm": entry(issuer, **auth)}) as world:
        await world.connected()
        assert text_of(await world.call()) == "j"


async def test_a_client_that_is_refused_is_not_tried_again_and_again(issuer):
    auth = {"type": "client_credentials", "client_id": "j", "client_secret": "wrong"}
    async with running(None, {"crm": entry(issuer, **auth)}) as world:
        await world.settled()
        assert world.source().state is AuthState.REFUSED
        assert "invalid_client" in world.source().reason
        assert issuer.count("token refused") == 1


async def test_a_workload_shows_the_token_that_its_platform_has_written_last(issuer, tmp_path):
    file = tmp_path / "token"
    file.write_text("e.f.first\n", "utf-8")
    issuer.clients[""], issuer.workloads = {}, {"e.f.first": "pod-1", "e.f.second": "pod-2"}
    auth = {"type": "wif", "assertion_file": str(file), "scopes": ["read"]}
    async with running(None, {"crm": entry(issuer, **auth)}) as world:
        await world.connected()
        assert text_of(await world.call()) == "pod-1"
        file.write_text("e.f.second", "utf-8")
        issuer.revoke_access()
        assert text_of(await world.call()) == "pod-2"
        asked = [what for kind, what in issuer.ledger if kind == "jwt-bearer"]
        assert [one["assertion"] for one in asked] == ["e.f.first", "e.f.second"]
        assert {(one["scope"], one["resource"]) for one in asked} == {("read", issuer.url)}
        assert all("client_id" not in one for one in asked)


@pytest.mark.parametrize(
    ("text", "reason"), [("e.f.bad", "invalid_grant"), ("a b", "no token"), ("a" * 44, "no token")]
)
async def test_a_workload_that_is_refused_is_told_so_and_asks_no_more(
    issuer, tmp_path, text, reason
):
    file = tmp_path / "token"
    file.write_text(text, "utf-8")
    issuer.clients[""] = {}
    auth = {"type": "wif", "assertion_file": str(file)}
    async with running(None, {"crm": entry(issuer, **auth)}) as world:
        await world.settled()
        assert reason in world.source().reason
        assert text not in world.source().reason
        assert issuer.count("jwt-bearer") == (reason == "invalid_grant")


async def test_a_fixed_token_is_sent_and_its_refusal_is_named(issuer):
    issuer.access["fixed"] = IssuedToken("robot", "", "", "", 10.0**10)
    async with running(None, {"crm": entry(issuer, type="bearer", token="fixed")}) as world:
        await world.connected()
        assert text_of(await world.call()) == "robot"
        issuer.access.clear()
        refused = await world.call()
        assert refused.code == SIGN_IN_NEEDED
        assert "fixed" not in refused.message


async def test_a_row_that_was_read_too_early_does_not_undo_a_newer_one(issuer, store, monkeypatch):
    from mcp_junction.store.credentials import CredentialTables

    find = CredentialTables.find
    auth = {"type": "key", "header": "X-Api-Key"}
    async with running(store, {"crm": entry(issuer, **auth)}) as world:
        await world.settled()
        source = world.source()

        async def find_early(self, *which):
            found = await find(self, *which)
            await world.credentials.set_key(source, "newer")
            return found

        monkeypatch.setattr(CredentialTables, "find", find_early)
        await source.reload()
        assert b"newer" in source.current.line
        assert source.state is AuthState.SIGNED_IN


async def test_each_agent_sends_its_own_key(issuer, store):
    for name in ("shared", "ann", "bob"):
        issuer.access[f"key-of-{name}"] = IssuedToken(name, "", "", "", 10.0**10)
    auth = {"type": "key", "per": "agent", "header": "X-Api-Key"}
    async with running(store, {"crm": entry(issuer, **auth)}) as world:
        await world.credentials.set_key(world.source(), "key-of-shared")
        await world.connected()
        callers = {}
        for name in ("ann", "bob"):
            agent = Principal(name, Role.AGENT)
            callers[name] = world.session_of(agent)
            refused = await world.call(caller=callers[name])
            assert refused.code == SIGN_IN_NEEDED
            await world.credentials.set_key(world.source(principal=agent), f"key-of-{name}")
        for name, caller in callers.items():
            assert text_of(await world.call(caller=caller)) == name
        assert text_of(await world.call()) == "shared"
