"""RecordCall: every call leaves exactly one event, and every call gets an outcome, come what may.

The calls in flight of a principal are counted here too, where every call of every front comes by.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from msgspec.structs import replace

from mcp_junction.calls.call import Call, Handler
from mcp_junction.calls.deadlines import Deadlines
from mcp_junction.calls.events import CALL_TOOL, CallEnded, CallSink, log_call
from mcp_junction.calls.events import log as call_log
from mcp_junction.calls.methods import OWN
from mcp_junction.calls.stages.resolve import find_hidden
from mcp_junction.protocol.envelope import is_tool_error
from mcp_junction.protocol.versions import INTERNAL_ERROR
from mcp_junction.resilience.clock import Clock
from mcp_junction.upstream import outcome as outcomes
from mcp_junction.upstream.outcome import ERROR, RESULT, Outcome

log = logging.getLogger("mcp_junction.calls")


class RecordCall:
    """The outermost stage."""

    def __init__(
        self,
        clock: Clock,
        deadlines: Deadlines,
        sinks: Sequence[CallSink] = (),
        ask_client: Callable[[Call, Outcome], Outcome] | None = None,
    ) -> None:
        """``ask_client`` says how a refused call ends whose client can have it mended."""
        self._ask_client = ask_client
        self._now = clock.now
        self._deadlines = deadlines
        self._sinks = (*sinks, log_call) if call_log.isEnabledFor(logging.DEBUG) else tuple(sinks)

    def bind(self, following: Handler) -> Handler:
        now, sinks, emit, deadlines = self._now, self._sinks, self._emit, self._deadlines
        ask_client = self._ask_client

        async def record(call: Call) -> Outcome:
            began = now()
            usage = call.usage or call.caller.usage
            usage.calls += 1
            if call.timeout:
                deadlines.watch(call, call.timeout)
            try:
                if usage.calls <= usage.quota.calls:
                    outcome = await following(call)
                else:
                    outcome = outcomes.over_quota(usage.quota.calls)
            except Exception:  # a fault of ours must still be answered
                log.exception("a call failed inside Junction")
                delivery = call.delivery if call.flight is not None else None
                failed = outcomes.failed(INTERNAL_ERROR, "an internal error of Junction", delivery)
                outcome = failed.counted(call.attempts, "")
            finally:
                usage.calls -= 1
                if call.deadline:
                    deadlines.forget(call)
            if sinks:
                emit(call, outcome, began)
            if outcome.kind is ERROR and ask_client is not None:
                return ask_client(call, outcome)
            return outcome

        return record

    def _emit(self, call: Call, outcome: Outcome, began: float) -> None:
        address, method, route, sent_at = call.address, call.method, call.route, call.sent_at
        ended = CallEnded(
            call.caller.principal,
            method,
            address.name,
            route,
            route is None and address.kind is OWN,
            call.params.get("arguments"),
            outcome,
            self._now() - began,
            call.waited,
            call.denial,
            call.intent,
            call.decision,
            call.carried,
            call.own_correlation_id or call.correlation_id,
            sent_at - began if sent_at else -1.0,
            # Here, because several sinks want to know it.
            outcome.kind is RESULT and method == CALL_TOOL and is_tool_error(outcome.payload),
            call.arguments,
        )
        if route is None and ended.is_unknown:
            ended = _note_hidden(call, ended)
        for sink in self._sinks:
            try:
                sink(ended)
            except Exception:  # a call is answered whatever becomes of the news of it
                log.exception("a sink of calls failed")


def _note_hidden(call: Call, ended: CallEnded) -> CallEnded:
    try:
        return replace(ended, hidden=find_hidden(call))
    except Exception:  # the call is answered whatever happens here
        log.exception("what an unknown name leads to cannot be looked up")
        return ended
