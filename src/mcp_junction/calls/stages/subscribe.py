"""Subscribe: counts subscribers, so that a server is unsubscribed from after the last one.

Everything but subscribing and unsubscribing passes.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Protocol

from mcp_junction.calls.call import Call, Handler
from mcp_junction.upstream import outcome as outcomes
from mcp_junction.upstream.outcome import Outcome, OutcomeKind


class Register(Protocol):
    """The register of subscriptions."""

    def add(self, server: str, uri: str, session: object, name: str) -> None: ...

    def remove(self, server: str, uri: str, session: object) -> bool: ...

    def names(self, server: str, uri: str) -> dict[object, str]: ...


class Subscribe:
    """The stage that keeps the register of subscriptions."""

    def __init__(self, register: Register) -> None:
        self._register = register

    def __call__(self, call: Call, following: Handler) -> Awaitable[Outcome]:
        if call.method == "resources/subscribe":
            return self._subscribe(call, following)
        if call.method == "resources/unsubscribe":
            return self._unsubscribe(call, following)
        return following(call)

    async def _subscribe(self, call: Call, following: Handler) -> Outcome:
        assert call.route is not None
        had = call.caller in self._register.names(*call.route.pair)
        # Before the server is told: nobody who leaves meanwhile is then the last to want it.
        self._register.add(*call.route.pair, call.caller, call.name)
        outcome = await following(call)
        if outcome.kind is not OutcomeKind.RESULT and not had:
            self._register.remove(*call.route.pair, call.caller)
        return outcome

    async def _unsubscribe(self, call: Call, following: Handler) -> Outcome:
        assert call.route is not None
        last = self._register.remove(*call.route.pair, call.caller)
        if not last and not call.route.upstream.is_isolated:
            return outcomes.result(b"{}")  # others still want it
        return await following(call)
