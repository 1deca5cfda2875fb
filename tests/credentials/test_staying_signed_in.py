"""Staying signed in: tokens are renewed once, in time, and outages do not cost them."""

import asyncio
import time

import pytest
from tests.credentials.world import entry, running, text_of, until
from tests.fakes.issuer import FakeIssuer, Fault

from mcp_junction.credentials import source as sources
from mcp_junction.credentials.source import AuthState
from mcp_junction.protocol.versions import SERVER_UNAVAILABLE, SIGN_IN_NEEDED
from mcp_junction.upstream.tokens import AccessToken

pytestmark = pytest.mark.timeout(60)
ERAS = ("2025-11-25", "2026-07-28")


@pytest.fixture
async def issuer():
    async with FakeIssuer() as one:
        yield one


@pytest.fixture(params=ERAS)
async def of_era(request):
    async with FakeIssuer(era=request.param) as one:
        yield one


async def test_a_plain_entry_is_signed_in_to_and_called(of_era, store):
    async with running(store, {"crm": entry(of_era)}) as world:
        await world.settled()
        source = world.source()
        assert source.state is AuthState.NEEDS_SIGN_IN
        refused = await world.call()
        assert refused.code in (SIGN_IN_NEEDED, -32602)
        await world.sign_in()
        await world.connected()
        assert text_of(await world.call()) == "alice"
        assert source.state is AuthState.SIGNED_IN
        assert source.issuer == of_era.issuer


async def test_a_signed_out_server_is_left_alone_until_somebody_signs_in(issuer, store):
    async with running(store, {"crm": entry(issuer)}) as world:
        await world.settled()
        asked = issuer.count("401")
        for _ in range(40):
            await asyncio.sleep(0.01)
        assert issuer.count("401") == asked <= 2
        assert world.junction.servers["crm"].error.refuses_credentials


async def flood(world, issuer, calls, width):
    """Make many calls, a few at a time; how long each took, and those that failed."""
    gate = asyncio.Semaphore(width)
    failed = []

    async def one(nonce):
        async with gate:
            outcome = await world.call(nonce=nonce)
            if outcome.kind.value != "result":
                failed.append(outcome.message)

    async with asyncio.TaskGroup() as group:
        for nonce in range(calls):
            group.create_task(one(nonce))
    return failed


@pytest.mark.req("NFR-SEC3")
async def test_calls_across_three_expiries_all_succeed_with_one_refresh_each(of_era, store):
    async with running(store, {"crm": entry(of_era)}) as world:
        await world.settled()
        await world.sign_in()
        await world.connected()
        failed = []
        for _ in range(3):
            refreshed = of_era.count("refresh")
            of_era.revoke_access()
            failed += await flood(world, of_era, 334, 32)
            assert of_era.count("refresh") == refreshed + 1
        assert failed == []
        assert of_era.count("reuse") == 0
        assert (
            len({nonce for kind, what in of_era.ledger if kind == "call" for nonce in [what]}) > 900
        )


@pytest.mark.req("NFR-SEC3")
async def test_a_token_is_renewed_ahead_of_its_end_and_no_call_waits(issuer, store):
    issuer.life = 1.0
    async with running(store, {"crm": entry(issuer)}) as world:
        await world.settled()
        await world.sign_in()
        await world.connected()
        issuer.faults["/token"] = Fault(delay=0.1)
        refused = issuer.count("401")
        end = time.monotonic() + 2.5
        while time.monotonic() < end:
            assert text_of(await world.call()) == "alice"
            await asyncio.sleep(0.01)
        assert issuer.count("refresh") >= 2
        assert issuer.count("401") == refused
        assert issuer.count("reuse") == 0


async def test_after_a_restart_an_expired_token_is_renewed_before_anything_is_sent(issuer, store):
    async with running(store, {"crm": entry(issuer)}) as world:
        await world.settled()
        issuer.life = 0.05
        await world.sign_in()
    await until(lambda: time.time() > world.source().expires_at)
    issuer.life = 3600.0
    issuer.ledger.clear()
    async with running(store, {"crm": entry(issuer)}) as world:
        await world.connected()
        assert text_of(await world.call()) == "alice"
    assert issuer.count("401") == 0
    assert issuer.count("refresh") == 1, issuer.ledger


async def test_an_ended_grant_asks_for_a_new_sign_in_and_says_so(issuer, store):
    async with running(store, {"crm": entry(issuer)}) as world:
        await world.settled()
        await world.sign_in()
        await world.connected()
        issuer.revoke_access()
        issuer.refresh.clear()
        refused = await world.call()
        assert refused.code == SIGN_IN_NEEDED
        assert refused.delivery.value == "not_sent"
        assert "/oauth/start/" in refused.message
        assert "invalid_grant" in world.source().reason
        assert world.junction.servers["crm"].link is not None  # what runs there goes on
        again = await world.call()
        assert again.code == SIGN_IN_NEEDED
        assert issuer.count("refresh refused") == 1
        await world.sign_in()
        assert text_of(await world.call()) == "alice"


@pytest.mark.parametrize(
    "fault",
    [
        Fault(503),
        Fault(reset=True),
        Fault(200, body="<html>down</html>", kind="text/html"),
        Fault(400, body={"error": "temporarily_unavailable"}),
        Fault(200, body={"error": "invalid_grant"}),
        Fault(delay=60.0),
    ],
    ids=["503", "reset", "html", "400", "200 with error", "timeout"],
)
async def test_an_outage_of_the_issuer_keeps_the_tokens_and_is_named(
    issuer, store, fault, monkeypatch
):
    monkeypatch.setattr(sources, "_RETRY_LEAST", 0.05)
    async with running(store, {"crm": entry(issuer)}) as world:
        await world.settled()
        await world.sign_in()
        await world.connected()
        monkeypatch.setattr("mcp_junction.credentials.http.TIMEOUT", 0.5 if fault.delay else 10.0)
        issuer.faults["/token"] = fault
        issuer.revoke_access()
        refused = await world.call()
        assert refused.code == SERVER_UNAVAILABLE
        assert "token request at 127.0.0.1" in refused.message
        assert world.source().state in (AuthState.REFRESH_FAILING, AuthState.UNAVAILABLE)
        del issuer.faults["/token"]
        await until(lambda: world.source().state is AuthState.SIGNED_IN)
        await world.connected()
        assert text_of(await world.call()) == "alice"
        assert issuer.count("authorize") == 1


async def test_one_retry_is_planned_however_often_a_renewal_fails(issuer, store):
    async with running(store, {"crm": entry(issuer)}) as world:
        await world.settled()
        await world.sign_in()
        await world.connected()
        source = world.source()
        issuer.faults["/token"] = Fault(503)
        await source.refresh_now()
        assert source.state is AuthState.REFRESH_FAILING
        planned = len(source._timers)
        for _ in range(4):
            await source.refresh_now()
        assert len(source._timers) == planned


async def test_an_issuer_that_rotates_nothing_keeps_its_refresh_token(issuer, store):
    issuer.rotates = False
    async with running(store, {"crm": entry(issuer)}) as world:
        await world.settled()
        await world.sign_in()
        await world.connected()
        for _ in range(2):
            issuer.revoke_access()
            assert text_of(await world.call()) == "alice"
        sent = {what for kind, what in issuer.ledger if kind == "refresh"}
        assert len(sent) == 1


async def test_a_token_without_a_lifetime_is_used_until_it_is_refused(issuer, store):
    issuer.life = None
    async with running(store, {"crm": entry(issuer)}) as world:
        await world.settled()
        await world.sign_in()
        await world.connected()
        assert world.source().expires_at is None
        issuer.revoke_access()
        assert text_of(await world.call()) == "alice"
        assert issuer.count("refresh") == 1


async def test_calls_in_flight_do_not_wait_for_a_refresh_of_others(issuer, store):
    async with running(store, {"crm": entry(issuer)}) as world:
        await world.settled()
        await world.sign_in()
        await world.connected()
        issuer.faults["/token"] = Fault(delay=0.5)
        renewing = asyncio.ensure_future(world.source().refresh_now())
        began = issuer.count("call")
        await asyncio.gather(*(world.call(nonce=n) for n in range(32)))
        assert not renewing.done()
        assert issuer.count("call") == began + 32
        await renewing


class _MovingServer(FakeIssuer):
    """Refuses each call, and has another token adopted before its refusal arrives."""

    world = None

    def _serve_mcp(self, request):
        if b'"tools/call"' not in request.body:
            return super()._serve_mcp(request)
        self.ledger.append(("refused call", request.headers["authorization"]))
        source = self.world.source()
        source.current = AccessToken(source.current.version + 1, source.current.line)
        return 401, {}, {"www-authenticate": "Bearer"}


@pytest.mark.req("R-RETRY")
async def test_a_call_is_sent_again_once_however_often_its_token_moves_on(store):
    async with _MovingServer() as issuer, running(store, {"crm": entry(issuer)}) as world:
        issuer.world = world
        await world.settled()
        await world.sign_in()
        await world.connected()
        ended = await world.call()
        assert issuer.count("refused call") == 2
        assert (ended.code, ended.delivery.value) == (SERVER_UNAVAILABLE, "not_sent")
        assert ended.attempts == 2
