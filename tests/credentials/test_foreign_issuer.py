"""An issuer that is not ours: the official SDK's, by its own rules about every request."""

import asyncio

import pytest
from tests.credentials.sdk_issuer import SCOPES, SdkIssuer
from tests.credentials.world import entry, running, text_of

from mcp_junction.credentials.source import AuthState
from mcp_junction.protocol.versions import SIGN_IN_NEEDED

pytestmark = pytest.mark.timeout(60)


@pytest.mark.req("NFR-SEC3")
async def test_the_sdks_issuer_signs_us_in_renews_and_forgets_us(store):
    async with SdkIssuer() as issuer, running(store, {"crm": entry(issuer)}) as world:
        provider, source = issuer.provider, world.source()
        await world.settled()
        assert source.state is AuthState.NEEDS_SIGN_IN
        await world.sign_in()
        await world.connected()
        assert text_of(await world.call()) == "alice"
        (token,) = provider.access.values()
        assert (token.resource, token.scopes) == (issuer.url, SCOPES)

        provider.access.clear()
        outcomes = await asyncio.gather(*(world.call() for _ in range(32)))
        assert {text_of(outcome) for outcome in outcomes} == {"alice"}
        assert (issuer.count("refresh"), issuer.count("authorize")) == (1, 1)

        await world.credentials.log_out(source)
        assert (issuer.count("revoke refresh"), issuer.count("revoke access")) == (1, 1)
        assert (provider.access, provider.refresh) == ({}, {})
        assert (await world.call()).code == SIGN_IN_NEEDED


async def test_a_sign_in_that_the_sdks_issuer_has_revoked_is_asked_for_anew(store):
    async with SdkIssuer() as issuer, running(store, {"crm": entry(issuer)}) as world:
        await world.settled()
        await world.sign_in()
        await world.connected()
        issuer.provider.access.clear()
        issuer.provider.refresh.clear()
        assert (await world.call()).code == SIGN_IN_NEEDED
        assert "invalid_grant" in world.source().reason
        await world.sign_in()
        assert text_of(await world.call()) == "alice"
        assert issuer.count("register") == 1
