"""CallAudit: what the audit is told of a call: who, in whose name, by which decision, the end."""

import pytest
from tests.calls.world import World

from mcp_junction.audit.denials import Denials
from mcp_junction.audit.entries import Entry
from mcp_junction.calls.call import Carried
from mcp_junction.calls.pipeline import compose
from mcp_junction.calls.stages.audit import CallAudit
from mcp_junction.calls.stages.record import RecordCall
from mcp_junction.calls.stages.resolve import find_hidden, resolve
from mcp_junction.catalog.scope import Scopes
from mcp_junction.policy.decision import PolicyDecision
from mcp_junction.policy.principal import Principal, Role
from mcp_junction.protocol import names
from mcp_junction.sessions.session import Session
from mcp_junction.testing.link import FakeUpstream
from mcp_junction.upstream import outcome as outcomes
from mcp_junction.upstream.outcome import SUSPENDED, Outcome


class Log:
    def __init__(self) -> None:
        self.entries: list[Entry] = []

    def record(self, entry: Entry) -> None:
        self.entries.append(entry)


@pytest.mark.req("J-REQUEST-STATE")
async def test_a_question_is_told_without_what_the_client_comes_back_with():
    world, log = World(FakeUpstream("one")), Log()
    asked = b'{"resultType":"input_required","inputRequests":{"q1":{}},"requestState":"sealed"}'

    async def ask(call):  # its flight is that of the parked call
        return Outcome(SUSPENDED, asked, attempts=1)

    await compose([RecordCall(world.clock, world.deadlines, [CallAudit(log).record])], ask)(
        world.call()
    )
    (entry,) = log.entries
    assert (entry.outcome, entry.attempts) == ("input_required", 1)
    assert entry.result == b'{"resultType":"input_required","inputRequests":{"q1":{}}}'


async def test_a_call_that_was_never_sent_has_no_attempt():
    world, log = World(FakeUpstream("one")), Log()
    await world.run(world.call("nobody:has"))
    CallAudit(log).record(world.sink.calls[0])
    assert [entry.attempts for entry in log.entries] == [0]


# -- who, in whose name, by which decision


class Only:
    """A policy that shows agents one tool of a server, and others everything."""

    def __init__(self, server: str, tool: str) -> None:
        self.server, self.tool = server, tool

    def grants(self, principal):
        return self if principal.role is Role.AGENT else None

    def of(self, kind, server):
        return (lambda name: name == self.tool) if server == self.server else None


def audited(world: World) -> list[Entry]:
    """The entries that the calls made so far leave."""
    log = DeniedLog()
    for ended in world.sink.calls:
        CallAudit(log).record(ended)
    return log.entries


class DeniedLog(Log):
    """A log that has denials, all of them recorded."""

    def __init__(self) -> None:
        super().__init__()
        self.denials = Denials(self.record)
        self.denials._timer = object()  # nothing is flushed later


def world_of(principal: Principal) -> World:
    world = World(FakeUpstream("one", ["echo", "rm"]))
    scopes = Scopes(Only("one", "echo"))
    world.session = Session(principal, names.STDIO, world.sent.append, scopes=scopes)
    return world


BOT = Principal("bot", Role.AGENT)


@pytest.mark.req("REQ-MCP-OBS-002")
async def test_a_name_that_is_hidden_is_denied_in_the_audit_and_unknown_to_the_agent():
    world = world_of(BOT)
    hidden = await world.run(world.call("one:rm"))
    unknown = await world.run(world.call("one:xx"))
    assert bytes(hidden.payload).replace(b"one:rm", b"one:xx") == bytes(unknown.payload)
    denied, nowhere = audited(world)
    assert (denied.decision, denied.rule, denied.outcome) == ("DENY", "default", "denied")
    assert (denied.target, denied.tool_name) == ("one:rm", "rm")
    assert (nowhere.decision, nowhere.rule, nowhere.outcome) == ("unknown", None, "error")
    assert (nowhere.target, nowhere.tool_name, nowhere.server_id) == ("one:xx", None, None)


@pytest.mark.req("REQ-MCP-OBS-002")
async def test_unknown_and_hidden_names_leave_equally_many_rows():
    world = world_of(BOT)
    for name in ("one:rm", "one:xx") * 3:
        await world.run(world.call(name))
    assert [entry.decision for entry in audited(world)] == ["DENY", "unknown"]


async def test_what_the_agent_may_use_is_never_hidden():
    world = world_of(BOT)
    call = world.call("one:echo")
    assert find_hidden(call) is None


@pytest.mark.req("REQ-MCP-OBS-002")
@pytest.mark.parametrize(
    ("principal", "agent"),
    [
        (Principal("boss", Role.ADMIN), "bot"),
        (Principal("conductor", Role.ORCHESTRATOR), "bot"),
        (Principal("other", Role.AGENT), None),
        (Principal("bot", Role.ADMIN), None),
    ],
    ids=lambda value: str(value)[:30],
)
async def test_the_acting_agent_is_whom_one_who_may_has_named(principal, agent):
    world = World(FakeUpstream("one", ["echo"]))
    world.session = Session(principal, names.STDIO, world.sent.append)
    decision = PolicyDecision(True, "grant:g1", "because", "bot", cached=True)
    call = world.call("one:echo")
    call.carried = Carried("bot", "c-1", "T-1", "task-1")
    call.decision = decision

    async def last(call):
        return outcomes.result(b"{}").counted(2, "two:echo")

    log = Log()
    sinks = [CallAudit(log).record]
    await compose([RecordCall(world.clock, world.deadlines, sinks), resolve], last)(call)
    (entry,) = log.entries
    assert (entry.actor, entry.agent_id, entry.decision) == (principal.id, agent, "ALLOW")
    assert (entry.rule, entry.cached, entry.correlation_id) == ("grant:g1", True, "c-1")
    assert (entry.ticket_id, entry.task_id) == ("T-1", "task-1")
    assert (entry.attempts, entry.tool_name, entry.target) == (2, "echo", "two:echo")


async def test_a_call_without_a_correlation_id_gets_one_and_keeps_it():
    world = World(FakeUpstream("one", ["echo"]))
    one, two = world.call("one:nothing"), world.call("one:nothing")
    assert one.correlation_id == one.correlation_id != two.correlation_id
    await world.run(one)
    assert world.sink.calls[0].correlation_id == one.correlation_id
