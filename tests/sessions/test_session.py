"""A session: what the client is asked and told, and what becomes of it in the end."""

import asyncio
import json

import pytest
from msgspec import Raw

from mcp_junction.calls.call import Snapshot, tool_call
from mcp_junction.catalog.catalog import Catalog
from mcp_junction.policy.principal import LOCAL_OWNER
from mcp_junction.protocol import encode, envelope, frames, names
from mcp_junction.protocol.versions import INVALID_PARAMS, LOG_LEVELS, METHOD_NOT_FOUND
from mcp_junction.sessions.session import Session
from mcp_junction.tasks import TaskScope
from mcp_junction.upstream.outcome import OutcomeKind

BOUND = 30.0
QUESTIONS = {
    "sampling/createMessage": "sampling",
    "elicitation/create": "elicitation",
    "roots/list": "roots",
}


class Client:
    """The other side: what it was sent, for sure or if it reads."""

    def __init__(self, *capabilities: str) -> None:
        self.sent: list[dict] = []
        self.offered: list[dict] = []
        self.session = Session(
            LOCAL_OWNER,
            names.STDIO,
            lambda line: self.sent.append(json.loads(line)),
            lambda line: self.offered.append(json.loads(line)),
        )
        self.session.capabilities = {name: Raw(b"{}") for name in capabilities}
        self.tasks = TaskScope("questions")

    async def asked(self, method: str, params: bytes = b'{"x":1.0}') -> asyncio.Task:
        task = self.tasks.spawn(self.session.ask(method, Raw(params)))
        await asyncio.sleep(0)
        return task

    def answer(self, frame_id: str, rest: str = '"result":{"ok":1.0}') -> None:
        text = f'{{"jsonrpc":"2.0","id":{json.dumps(frame_id)},{rest}}}'
        self.session.take_answer(frames.decode(text.encode()))


def test_a_session_is_open_when_a_version_is_agreed():
    session = Client().session
    assert not session.is_open
    session.protocol_version = "2025-06-18"
    assert session.is_open


async def test_a_client_without_urls_is_not_sent_to_one():
    client = Client("elicitation")
    asked = await client.asked("elicitation/create", b'{"mode":"url","url":"https://x/"}')
    assert (await asked).code == INVALID_PARAMS
    assert client.sent == []


@pytest.mark.parametrize(("method", "capability"), QUESTIONS.items())
async def test_a_client_that_can_is_asked_and_its_answer_brought_back(method, capability):
    client = Client(capability)
    task = await client.asked(method)
    (question,) = client.sent
    assert (question["method"], question["params"]) == (method, {"x": 1.0})
    client.answer(question["id"])
    outcome = await asyncio.wait_for(task, BOUND)
    assert (outcome.kind, bytes(outcome.payload)) == (OutcomeKind.RESULT, b'{"ok":1.0}')


@pytest.mark.parametrize("method", [*QUESTIONS, "tools/call", "x"])
async def test_a_client_that_cannot_is_not_asked(method):
    client = Client()
    outcome = await client.session.ask(method, Raw(b"{}"))
    assert json.loads(bytes(outcome.payload))["code"] == METHOD_NOT_FOUND
    assert client.sent == []


async def test_a_clients_refusal_is_brought_back_as_it_is():
    client = Client("sampling")
    task = await client.asked("sampling/createMessage")
    client.answer(client.sent[0]["id"], '"error":{"code":-1,"message":"no","x":1.0}')
    outcome = await asyncio.wait_for(task, BOUND)
    assert outcome.kind is OutcomeKind.ERROR
    assert bytes(outcome.payload) == b'{"code":-1,"message":"no","x":1.0}'


async def test_answers_find_their_questions_in_any_order():
    client = Client("roots")
    tasks = [await client.asked("roots/list") for _ in range(3)]
    ids = [question["id"] for question in client.sent]
    assert len(set(ids)) == 3
    for number in (2, 0, 1):
        client.answer(ids[number], f'"result":{{"n":{number}}}')
    outcomes = await asyncio.wait_for(asyncio.gather(*tasks), BOUND)
    assert [bytes(outcome.payload) for outcome in outcomes] == [b'{"n":0}', b'{"n":1}', b'{"n":2}']


async def test_an_answer_to_nothing_or_twice_is_dropped():
    client = Client("roots")
    task = await client.asked("roots/list")
    client.answer("junction-999")
    client.answer(client.sent[0]["id"], '"result":{"n":1}')
    client.answer(client.sent[0]["id"], '"result":{"n":2}')
    assert bytes((await asyncio.wait_for(task, BOUND)).payload) == b'{"n":1}'
    client.answer(client.sent[0]["id"])


async def test_a_question_nobody_waits_for_any_more_is_taken_back():
    client = Client("roots")
    task = await client.asked("roots/list")
    task.cancel()
    await asyncio.wait({task}, timeout=BOUND)
    (notice,) = client.offered
    assert notice["method"] == "notifications/cancelled"
    assert notice["params"]["requestId"] == client.sent[0]["id"]


async def test_when_the_session_ends_open_questions_are_answered():
    client = Client("roots")
    task = await client.asked("roots/list")
    client.session.close("the client is gone")
    outcome = await asyncio.wait_for(task, BOUND)
    assert outcome.kind is OutcomeKind.ERROR
    assert "the client is gone" in outcome.message


async def test_when_the_session_ends_its_calls_are_ended():
    client = Client()

    async def handle(call):
        raise AssertionError

    call = tool_call(client.session, Snapshot(Catalog(), handle, handle), "x", {})
    client.session.calls[b"1"] = call
    client.session.close("the client is gone")
    assert call.ended_by is not None


async def test_a_cancel_reaches_the_call_with_that_id_and_no_other():
    client = Client()

    async def handle(call):
        raise AssertionError

    calls = {
        key: tool_call(client.session, Snapshot(Catalog(), handle, handle), "x", {})
        for key in (b"1", b'"1"')
    }
    client.session.calls = dict(calls)
    client.session.cancel_call(b'"1"', "enough")
    client.session.cancel_call(b"2", "nobody")
    assert calls[b"1"].ended_by is None
    assert calls[b'"1"'].ended_by.kind is OutcomeKind.CANCELLED


@pytest.mark.parametrize("chosen", LOG_LEVELS)
def test_a_client_gets_the_log_levels_it_asked_for_and_above(chosen):
    client = Client()
    client.session.log_level = LOG_LEVELS.index(chosen)
    wants = client.session.wants_log
    passed = [level for level in LOG_LEVELS if wants(Raw(b'{"level":"%b"}' % level.encode()))]
    assert passed == list(LOG_LEVELS[LOG_LEVELS.index(chosen) :])


def test_a_log_message_that_is_everyones_is_read_once_and_filtered_for_each():
    clients = [Client() for _ in LOG_LEVELS]
    message = Raw(b'{"level":"warning","data":"x"}')
    line = encode.notification("notifications/message", message)
    for least, client in enumerate(clients):
        client.session.protocol_version = "2025-11-25"
        client.session.log_level = least
        client.session.offer_log(envelope.level_rank(message), line)
    told = [len(client.offered) for client in clients]
    warning = LOG_LEVELS.index("warning")
    assert told == [1] * (warning + 1) + [0] * (len(LOG_LEVELS) - warning - 1)
    assert clients[0].offered == [json.loads(line)]
    stranger = Client()
    stranger.session.offer_log(envelope.level_rank(message), line)
    assert stranger.offered == [], "who has not said hello"


def test_a_level_we_do_not_know_is_passed_on():
    client = Client()
    client.session.log_level = LOG_LEVELS.index("emergency")
    assert client.session.wants_log(Raw(b'{"level":"trace"}'))


def test_notices_may_be_dropped_and_answers_may_not():
    client = Client()
    client.session.notify("notifications/tools/list_changed")
    assert client.sent == []
    assert client.offered == [{"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}]


@pytest.mark.parametrize("params", [b"[]", b"5"])
def test_a_log_message_that_is_no_object_is_not_passed_on(params):
    client = Client()
    assert not client.session.wants_log(Raw(params))


async def test_a_question_goes_out_on_the_wire_of_its_call():
    client, other = Client("roots"), Client()
    task = client.tasks.spawn(client.session.ask("roots/list", Raw(b"{}"), other.session))
    await asyncio.sleep(0)
    assert client.sent == []
    (question,) = other.sent
    client.answer(question["id"])
    assert (await asyncio.wait_for(task, BOUND)).kind is OutcomeKind.RESULT


def test_a_server_of_the_clients_own_is_told_what_can_be_relayed_to_it():
    session = Client("roots", "sampling", "experimental").session
    session.protocol_version = "2025-06-18"
    hello = session.hello()
    assert hello.protocol_version == "2025-06-18"
    assert json.loads(hello.capabilities) == {"roots": {}, "sampling": {}}


def test_stateless_servers_are_told_what_the_client_said_last():
    session = Client("sampling", "unheard/of").session
    session.client_info = Raw(b'{"name":"one"}')
    said = {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": {"name": "one"},
        "io.modelcontextprotocol/clientCapabilities": {"sampling": {}},
    }
    assert json.loads(bytes(session.envelope)) == said
    assert session.envelope is session.envelope
    session.log_level = LOG_LEVELS.index("warning")
    level = {"io.modelcontextprotocol/logLevel": "warning"}
    assert json.loads(bytes(session.envelope)) == {**said, **level}
    session.client_info, session.capabilities = Raw(b'{"name":"two"}'), {}
    told = json.loads(bytes(session.envelope))
    assert told["io.modelcontextprotocol/clientInfo"] == {"name": "two"}
    assert told["io.modelcontextprotocol/clientCapabilities"] == {}
