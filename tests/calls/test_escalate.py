"""Which ends of calls are escalated: only those that say something against the server."""

import pytest

from mcp_junction.calls.events import CallEnded
from mcp_junction.calls.failures import EscalateFailures
from mcp_junction.policy.principal import LOCAL_OWNER
from mcp_junction.protocol.versions import DENIED, INVALID_PARAMS
from mcp_junction.testing.link import FakeUpstream, catalog_of
from mcp_junction.upstream import outcome as outcomes
from mcp_junction.upstream.outcome import Delivery, Outcome


class Raised:
    """Escalations that are only noted."""

    def __init__(self) -> None:
        self.calls = []

    def escalate(self, failed) -> None:
        self.calls.append(failed)


def end(outcome: Outcome, method: str = "tools/call") -> CallEnded:
    catalog = catalog_of(FakeUpstream("one"))
    route = catalog.view(catalog.canonical).find("one:echo")
    return CallEnded(
        LOCAL_OWNER, method, "one:echo", route, False, None, outcome, 0.1, correlation_id="c"
    )


@pytest.mark.req("REQ-MCP-CALL-004")
@pytest.mark.parametrize(
    ("outcome", "failure"),
    [
        (outcomes.link_lost("one", Delivery.UNKNOWN, "cut"), "link"),
        (outcomes.timed_out("one", Delivery.UNKNOWN, 1.0), "timeout"),
        (outcomes.unavailable("one", "away"), "unavailable"),
    ],
)
async def test_what_failed_at_the_server_is_escalated(outcome, failure):
    raised = Raised()
    EscalateFailures(raised)(end(outcome.counted(3, "one:echo")))
    (call,) = raised.calls
    assert (call.failure, call.attempts, call.delivery) == (failure, 3, outcome.delivery)
    assert (call.server_id, call.tool_name, call.agent_id) == ("id-one", "echo", LOCAL_OWNER.id)
    assert call.correlation_id == "c"


@pytest.mark.parametrize(
    "outcome",
    [
        outcomes.result(b'{"isError":true}'),
        outcomes.refused(b'{"code":-32602,"message":"no"}'),
        outcomes.failed(DENIED, "no", Delivery.NOT_SENT),
        outcomes.failed(INVALID_PARAMS, "no", Delivery.NOT_SENT),
        outcomes.cancelled("never mind", Delivery.UNKNOWN),
        outcomes.timed_out("one", Delivery.UNKNOWN, 1.0, outcomes.CALLER_DEADLINE),
    ],
)
async def test_what_says_nothing_against_the_server_is_not(outcome):
    raised = Raised()
    EscalateFailures(raised)(end(outcome))
    assert raised.calls == []


async def test_only_calls_of_tools_are_escalated():
    raised = Raised()
    EscalateFailures(raised)(end(outcomes.unavailable("one", "away"), "prompts/get"))
    assert raised.calls == []
