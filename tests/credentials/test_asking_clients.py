"""How clients are asked to sign in: four kinds of them see the link, and then succeed."""

import asyncio
import json

import pytest
from msgspec import Raw
from tests.credentials.world import entry, running, text_of, until
from tests.fakes.issuer import FakeIssuer

from mcp_junction.calls.call import tool_call
from mcp_junction.catalog.endpoints import EVERYTHING
from mcp_junction.catalog.items import TOOLS
from mcp_junction.policy.principal import LOCAL_OWNER, Principal, Role
from mcp_junction.protocol.versions import SIGN_IN_NEEDED, URL_ELICITATION_REQUIRED
from mcp_junction.sessions.stateless import StatelessClient

pytestmark = pytest.mark.timeout(60)
ANN = Principal("ann", Role.AGENT)
CANDIDATES = ("crm:sign_in", "crm:whoami", "crm:write")
BY_URL = {"elicitation": Raw(b'{"url":{}}')}


@pytest.fixture(params=["2025-11-25", "2026-07-28"])
async def issuer(request):
    async with FakeIssuer(era=request.param) as one:
        yield one


@pytest.fixture
async def world(issuer, store):
    """A gateway whose server was signed in to once, so that its tools are known."""
    async with running(store, {"crm": entry(issuer)}) as one:
        await one.settled()
        await one.sign_in()
        await one.connected()
        issuer.access.clear()
        issuer.refresh.clear()
        yield one


def stateless(world, capabilities, principal=LOCAL_OWNER):
    spelling = world.junction.spelling(EVERYTHING, principal)
    return StatelessClient(principal, EVERYTHING, spelling, capabilities, Raw(b"{}"))


async def test_a_client_that_cannot_be_asked_gets_the_link_in_the_message(world):
    for caller in (world.session, stateless(world, {})):
        refused = await world.call(caller=caller)
        assert refused.code == SIGN_IN_NEEDED
        data = json.loads(bytes(refused.payload))["data"]
        assert data["sign_in"].startswith("http://127.0.0.1:1/oauth/start/")
        assert data["sign_in"] in refused.message
        assert data["delivery"] == "not_sent"


async def test_an_older_client_is_named_the_link_and_told_when_it_was_used(world):
    heard = []
    session = world.junction.open_session(heard.append)
    session.capabilities = BY_URL
    refused = await world.call(caller=session)
    assert refused.code == URL_ELICITATION_REQUIRED
    (question,) = json.loads(bytes(refused.payload))["data"]["elicitations"]
    assert question["mode"] == "url"
    assert question["url"].startswith("http://127.0.0.1:1/oauth/start/")
    await world.sign_in()
    await until(lambda: heard)
    told = json.loads(heard[0])
    assert told["method"] == "notifications/elicitation/complete"
    assert told["params"]["elicitationId"] == question["elicitationId"]
    assert text_of(await world.call(caller=session)) == "alice"


async def test_a_client_that_was_asked_twice_is_told_of_the_question_it_has_now(world):
    heard = []
    session = world.junction.open_session(heard.append)
    session.capabilities = BY_URL
    for _ in range(2):
        refused = await world.call(caller=session)
        (question,) = json.loads(bytes(refused.payload))["data"]["elicitations"]
    await world.sign_in()
    await until(lambda: heard)
    (told,) = [json.loads(line) for line in heard if b"elicitation/complete" in line]
    assert told["params"]["elicitationId"] == question["elicitationId"]


async def again(world, caller, result, action, name="crm:whoami"):
    answers = {"sign_in": {"action": action}}
    params = {
        "name": Raw(json.dumps(name).encode()),
        "arguments": Raw(b"{}"),
        "requestState": Raw(json.dumps(result["requestState"]).encode()),
        "inputResponses": Raw(json.dumps(answers).encode()),
    }
    call = tool_call(caller, world.junction.snapshot, name, params)
    return await asyncio.wait_for(call.snapshot.handle(call), 20)


async def test_a_newer_client_comes_back_and_its_call_goes_on(world):
    caller = stateless(world, BY_URL)
    asked = json.loads(bytes((await world.call(caller=caller)).payload))
    assert asked["resultType"] == "input_required"
    question = asked["inputRequests"]["sign_in"]
    assert question["method"] == "elicitation/create"
    assert question["params"]["mode"] == "url"
    coming = asyncio.ensure_future(again(world, caller, asked, "accept"))
    await world.sign_in()
    assert text_of(await coming) == "alice"
    replayed = await again(world, caller, asked, "accept")
    assert replayed.kind.value == "error"  # a state is good once


async def test_a_client_that_declines_ends_its_call(world):
    caller = stateless(world, BY_URL)
    asked = json.loads(bytes((await world.call(caller=caller)).payload))
    declined = await again(world, caller, asked, "decline")
    assert declined.code == SIGN_IN_NEEDED
    assert "declined" in declined.message


async def test_agents_get_no_link_to_a_sign_in_that_all_share(world):
    agent = Principal("ann", Role.AGENT)
    for caller in (world.session_of(agent), stateless(world, BY_URL, agent)):
        refused = await world.call(caller=caller)
        assert refused.code == SIGN_IN_NEEDED
        assert "/oauth/" not in bytes(refused.payload).decode()


def tools_of(world):
    caller = world.session
    view = world.junction.snapshot.catalog.show(caller.spelling, TOOLS, caller.scope)
    return [name for name in CANDIDATES if view.find(name) is not None]


async def test_a_server_whose_tools_are_not_known_lists_the_way_to_its_sign_in(issuer, store):
    async with running(store, {"crm": entry(issuer)}) as world:
        await world.settled()
        assert tools_of(world) == ["crm:sign_in"]
        refused = await world.call("crm:sign_in")
        assert refused.code == SIGN_IN_NEEDED
        assert "/oauth/start/" in refused.message
        caller = stateless(world, BY_URL)
        asked = json.loads(bytes((await world.call("crm:sign_in", caller=caller)).payload))
        assert asked["inputRequests"]["sign_in"]["params"]["mode"] == "url"
        coming = asyncio.ensure_future(again(world, caller, asked, "accept", "crm:sign_in"))
        await world.sign_in()
        await world.connected()
        await until(lambda: tools_of(world) == ["crm:whoami", "crm:write"])
        assert "Signed in" in text_of(await coming)
        assert "Signed in" in text_of(await world.call("crm:sign_in"))
        assert issuer.count("call") == 0, "the server never hears of it"


async def test_known_tools_stay_listed_while_nobody_is_signed_in(issuer, store):
    async with running(store, {"crm": entry(issuer)}) as world:
        await world.settled()
        await world.sign_in()
        await world.connected()
        await until(lambda: len(tools_of(world)) == 2)
        await world.credentials.log_out(world.source())
        upstream = world.junction.servers["crm"]
        upstream.link.mark_lost("the test")
        await until(lambda: upstream.error is not None and upstream.error.refuses_credentials)
        assert tools_of(world) == ["crm:whoami", "crm:write"]
        assert (await world.call()).code == SIGN_IN_NEEDED


async def test_agents_are_not_sent_to_the_operators_own_sign_in(issuer, store):
    async with running(store, {"crm": entry(issuer, type="oauth", per="agent")}) as world:
        await world.settled()
        refused = await world.call("crm:sign_in", caller=world.session_of(ANN))
        assert refused.code == SIGN_IN_NEEDED
        assert "/oauth/" not in bytes(refused.payload).decode()
