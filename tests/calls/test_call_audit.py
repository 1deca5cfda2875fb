"""CallAudit: what is told of a call that ends with a question."""

import pytest
from tests.calls.world import World

from mcp_junction.audit.chain import Entry
from mcp_junction.calls.pipeline import compose
from mcp_junction.calls.stages.audit import CallAudit
from mcp_junction.calls.stages.record import RecordCall
from mcp_junction.testing.link import FakeUpstream
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
