"""RecordCall: every call leaves exactly one event, and every call gets an outcome, come what may.

The calls in flight of a principal are counted here too, where every call of every front comes by.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from mcp_junction.calls.call import Call
from mcp_junction.calls.outcome_names import outcome_name
from mcp_junction.calls.snapshot import Handler
from mcp_junction.protocol.versions import INTERNAL_ERROR
from mcp_junction.resilience.clock import Clock
from mcp_junction.telemetry.events import CallCompleted, Sink
from mcp_junction.upstream import outcome as outcomes
from mcp_junction.upstream.outcome import Outcome

log = logging.getLogger("mcp_junction.calls")

Watcher = Callable[[Call, Outcome, float], None]
"""Is shown every call with its outcome and the seconds it took; must cost next to nothing."""


class RecordCall:
    """The outermost stage."""

    def __init__(self, clock: Clock, sink: Sink | None, watchers: Sequence[Watcher] = ()) -> None:
        self._clock = clock
        self._sink = sink
        self._watchers = watchers

    async def __call__(self, call: Call, following: Handler) -> Outcome:
        began = self._clock.now()
        usage = call.caller.usage
        usage.calls += 1
        try:
            if usage.calls <= usage.quota.calls:
                outcome = await following(call)
            else:
                outcome = outcomes.over_quota(usage.quota.calls)
        except Exception:  # a fault of ours must still be answered
            log.exception("a call failed inside Junction")
            delivery = call.flight.delivery if call.flight is not None else None
            outcome = outcomes.failed(INTERNAL_ERROR, "an internal error of Junction", delivery)
        finally:
            usage.calls -= 1
        seconds = self._clock.now() - began
        if self._sink is not None:
            self._emit(self._sink, call, outcome, seconds)
        for watcher in self._watchers:
            try:
                watcher(call, outcome, seconds)
            except Exception:  # a call is answered whatever becomes of the news of it
                log.exception("a watcher of calls failed")
        return outcome

    @staticmethod
    def _emit(sink: Sink, call: Call, outcome: Outcome, seconds: float) -> None:
        sink(
            CallCompleted(
                principal=call.caller.principal.id,
                method=call.method,
                server=call.route.pair.server if call.route is not None else None,
                name=call.route.canonical if call.route is not None else call.name,
                outcome=outcome_name(call, outcome).value,
                delivery=outcome.delivery.value if outcome.delivery is not None else None,
                seconds=seconds,
            )
        )
