"""High-risk calls: on record before they are sent, by a grant that the store still has."""

import asyncio

import pytest
from tests.calls.judged_world import ADMIN, NOW, JudgedWorld, grant, token_of
from tests.calls.world import BOUND, body

from mcp_junction.calls.stages.admit import AdmitCalls
from mcp_junction.calls.stages.audit import CallAudit
from mcp_junction.governance.admission import Admission
from mcp_junction.policy.risk import RiskLevel
from mcp_junction.policy.tokens import TokenMode
from mcp_junction.policy.tool_settings import ToolSetting
from mcp_junction.protocol.versions import DENIED, SERVER_UNAVAILABLE
from mcp_junction.store.audit_records import AuditQuery
from mcp_junction.store.grants import AgentRecord
from mcp_junction.testing.link import FakeUpstream
from mcp_junction.upstream.outcome import OutcomeKind

HIGH = ToolSetting("id-one", "echo", risk=RiskLevel.HIGH)
RESULT = OutcomeKind.RESULT


class Admitting:
    """Worlds over one store, each with its own writer of the audit."""

    def __init__(self, store, opener) -> None:
        self.store = store
        self._opener = opener

    async def world(self, *, settings=(HIGH,), **stages) -> JudgedWorld:
        one = FakeUpstream("one", ("echo", "look"))
        log = await self._opener.log(self.store)
        audit = CallAudit(log)
        admission = Admission(self.store.policy, self.store.approvals, lambda: world.time)
        world = JudgedWorld(one, settings=settings, admit=AdmitCalls(audit, admission), **stages)
        world.one, world.log = one, log
        return world

    async def give(self, given, token=None, *worlds) -> None:
        """Store a grant and its token, and let these worlds know of it."""
        agent = AgentRecord(given.agent_id)
        done = await self.store.policy.grant(given, agent, lambda _: token)
        for world in worlds:
            world.give(done.grant, tokens=() if done.token is None else (done.token,))

    async def rows(self, world, **asked) -> list:
        await world.log.flush()
        return await self.store.audit.rows(AuditQuery(limit=1_000, **asked))


@pytest.fixture
async def admitting(store, opener) -> Admitting:
    return Admitting(store, opener)


def refusal(outcome) -> str:
    told = body(outcome)
    assert told["code"] == DENIED, told
    assert told["data"]["delivery"] == "not_sent"
    return told["message"]


@pytest.mark.req("R-AUDIT")
async def test_a_high_risk_call_is_on_record_before_it_is_sent(admitting):
    sent = asyncio.get_running_loop().create_future()
    world = await admitting.world()
    given = grant("echo", server="*", token_mode=TokenMode.NONE)
    await admitting.give(given, None, world)
    call = world.ask()
    world.one.wire.script = lambda flight: sent.set_result(call.intent)
    running = world.start(call)
    intent = await asyncio.wait_for(sent, BOUND)
    (row,) = await admitting.rows(world, kind="intent")
    assert f"{row.writer}:{row.seq}" == intent
    assert row.rule == f"grant:{given.id}"
    running.cancel()


async def test_a_call_of_low_risk_writes_no_intent(admitting):
    world = await admitting.world(settings=())
    await admitting.give(grant("*", server="*"), None, world)
    assert (await world.run(world.ask())).kind is RESULT
    assert await admitting.rows(world, kind="intent") == []


@pytest.mark.req("R-AUDIT")
async def test_without_the_audit_no_high_risk_call_is_made_and_others_go_on(admitting):
    world = await admitting.world()
    await admitting.give(grant("*", server="*", token_mode=TokenMode.NONE), None, world)
    await world.log.__aexit__(None, None, None)
    refused = await world.run(world.ask())
    assert body(refused)["code"] == SERVER_UNAVAILABLE
    assert world.one.wire.flights == []
    assert (await world.run(world.ask("one:look"))).kind is RESULT


@pytest.mark.req("R-REVOKE")
async def test_a_grant_revoked_in_the_store_refuses_a_high_risk_call_at_once(admitting):
    """As on a replica that has not heard of it yet."""
    world = await admitting.world()
    given = grant("echo", server="*", token_mode=TokenMode.NONE)
    await admitting.give(given, None, world)
    assert (await world.run(world.ask())).kind is RESULT
    await admitting.store.policy.revoke(given.id, NOW)
    assert "revoked" in refusal(await world.run(world.ask()))
    assert len(world.one.wire.flights) == 1


async def test_a_grant_whose_terms_changed_refuses_until_they_are_known(admitting):
    world = await admitting.world()
    given = grant("echo", server="*", token_mode=TokenMode.NONE)
    await admitting.give(given, None, world)
    await admitting.give(given, token_of(given)[0])
    assert "make the call again" in refusal(await world.run(world.ask()))


async def test_a_forged_grant_is_none(admitting, dump):
    world = await admitting.world()
    given = grant("echo", server="*", token_mode=TokenMode.NONE)
    await admitting.give(given, None, world)
    await dump.run(f"UPDATE grants SET tool_name = '*' WHERE id = '{given.id}'")
    assert "revoked" in refusal(await world.run(world.ask()))


@pytest.mark.req("REQ-MCP-AUTH-003")
async def test_the_token_of_the_window_is_looked_for_in_the_store(admitting):
    world = await admitting.world()
    given = grant("echo", server="*")
    await admitting.give(given, token_of(given)[0], world)
    assert (await world.run(world.ask())).kind is RESULT
    await admitting.store.policy.revoke_tokens(given.id, NOW)
    assert "have it renewed" in refusal(await world.run(world.ask()))


@pytest.mark.req("REQ-MCP-AUTH-003")
async def test_a_presented_token_is_looked_for_in_the_store_and_stays_good(admitting):
    world = await admitting.world()
    given = grant("echo", server="*", token_mode=TokenMode.PRESENT)
    token, text = token_of(given)
    await admitting.give(given, token, world)
    for _ in range(2):
        assert (await world.run(world.ask(token=text))).kind is RESULT
    await admitting.store.policy.revoke_tokens(given.id, NOW)
    assert "renewed" in refusal(await world.run(world.ask(token=text)))


@pytest.mark.req("REQ-MCP-AUTH-003")
async def test_of_fifty_racing_calls_with_one_single_use_token_one_passes(admitting):
    """In two processes, as far as the store can tell: each has its own writer."""
    worlds = [await admitting.world(), await admitting.world()]
    given = grant("echo", server="*", token_mode=TokenMode.SINGLE_USE)
    token, text = token_of(given)
    await admitting.give(given, token, *worlds)
    calls = [(world, world.ask(token=text)) for world in worlds for _ in range(25)]
    outcomes = await asyncio.gather(*(world.run(call) for world, call in calls))
    assert [outcome.kind for outcome in outcomes].count(RESULT) == 1
    assert sum(len(world.one.wire.flights) for world in worlds) == 1
    for outcome in outcomes:
        if outcome.kind is not RESULT:
            assert "was used before" in refusal(outcome)


async def test_a_lost_race_refuses_only_its_own_call(admitting):
    world = await admitting.world()
    given = grant("echo", server="*", token_mode=TokenMode.SINGLE_USE)
    (spent, spent_text), (good, good_text) = token_of(given), token_of(given)
    await admitting.give(given, spent, world)
    assert (await world.run(world.ask(token=spent_text))).kind is RESULT
    await admitting.give(given, good)
    (stored,) = await admitting.store.policy.grants.all()
    world.give(stored, tokens=(spent, good))  # it has not heard yet that one was used
    one, other = await asyncio.gather(
        world.run(world.ask(token=spent_text)), world.run(world.ask(token=good_text))
    )
    assert "was used before" in refusal(one)
    assert other.kind is RESULT


async def test_a_call_refused_by_the_store_closes_its_intent_as_denied(admitting):
    world = await admitting.world()
    given = grant("echo", server="*", token_mode=TokenMode.NONE)
    await admitting.give(given, None, world)
    await admitting.store.policy.revoke(given.id, NOW)
    refusal(await world.run(world.ask()))
    CallAudit(world.log).record(world.sink.calls[-1])
    (row,) = await admitting.rows(world, kind="outcome")
    assert (row.decision, row.outcome) == ("DENY", "denied")
    assert await admitting.store.audit.open_intents([world.log.writer]) == []


@pytest.mark.req("REQ-MCP-AUTH-003")
async def test_a_used_token_with_an_idempotency_key_is_never_sent(admitting):
    world = await admitting.world()
    given = grant("echo", server="*", token_mode=TokenMode.SINGLE_USE)
    token, text = token_of(given, used_at=NOW)
    await admitting.give(given, token, world)
    call = world.ask(token=text, idempotency_key="again")
    assert "no result is kept" in refusal(await world.run(call))
    assert call.intent is None


async def test_attempts_of_one_call_spend_one_token(admitting):
    async def twice(call, following):
        await following(call)
        return await following(call)

    world = await admitting.world(retry=twice)
    given = grant("echo", server="*", token_mode=TokenMode.SINGLE_USE)
    token, text = token_of(given)
    await admitting.give(given, token, world)
    assert (await world.run(world.ask(token=text))).kind is RESULT
    assert len(world.one.wire.flights) == 2
    assert len(await admitting.rows(world, kind="intent")) == 1


async def test_an_administrator_needs_no_grant_but_is_on_record(admitting):
    world = await admitting.world()
    assert (await world.run(world.ask(principal=ADMIN))).kind is RESULT
    (row,) = await admitting.rows(world, kind="intent")
    assert (row.actor, row.rule) == ("root", "role")


async def test_one_more_grant_lets_a_call_pass_when_the_first_is_gone(admitting):
    world = await admitting.world()
    wide = grant("*", server="*", token_mode=TokenMode.NONE)
    narrow = grant("echo", server="*", token_mode=TokenMode.NONE)
    for given in (wide, narrow):
        await admitting.give(given, None)
    world.give(*await admitting.store.policy.grants.all())
    await admitting.store.policy.revoke(min(wide.id, narrow.id), NOW)
    assert (await world.run(world.ask())).kind is RESULT
