"""Subscribe: keeps Subscriptions, so that a server is unsubscribed from after its last subscriber.

It is on the path of subscribing and unsubscribing alone. All subscribers share the server's own
link, which has the operator's credential: where each agent has one of its own, only the operator
and who has a link of its own can subscribe.
"""

from __future__ import annotations

from collections.abc import Awaitable

from mcp_junction.calls.call import Call, Handler
from mcp_junction.protocol.versions import HANDSHAKE, INVALID_REQUEST
from mcp_junction.upstream import outcome as outcomes
from mcp_junction.upstream.outcome import Delivery, Outcome, OutcomeKind
from mcp_junction.upstream.upstream import Upstream


class Subscriptions:
    """The subscribers by server and URI, each with the URI that it subscribed to."""

    def __init__(self) -> None:
        self._wanted: dict[tuple[str, str], dict[object, str]] = {}

    def add(self, server: str, uri: str, session: object, name: str) -> None:
        self._wanted.setdefault((server, uri), {})[session] = name

    def remove(self, server: str, uri: str, session: object) -> bool:
        """Remove one subscription; return whether it was the last."""
        sessions = self._wanted.get((server, uri))
        if sessions is None:
            return True
        sessions.pop(session, None)
        if sessions:
            return False
        del self._wanted[server, uri]
        return True

    def drop(self, session: object) -> list[tuple[str, str]]:
        """Remove a session; return the resources that nobody else wants."""
        return [key for key in self.of_subscriber(session) if self.remove(*key, session)]

    def of_subscriber(self, subscriber: object) -> list[tuple[str, str]]:
        """The server and the URI of all that one has subscribed to."""
        return [key for key, subscribers in self._wanted.items() if subscriber in subscribers]

    @property
    def subscribers(self) -> set[object]:
        """All that have subscribed to something."""
        return {one for subscribers in self._wanted.values() for one in subscribers}

    def of(self, server: str, session: object = None) -> list[str]:
        """Every URI of a server that someone subscribed to, or that one session did."""
        return [
            uri
            for (key, uri), sessions in self._wanted.items()
            if key == server and (session is None or session in sessions)
        ]

    def rename(self, old: str, new: str) -> None:
        """Move the subscriptions of a server to its new key."""
        for key, uri in [known for known in self._wanted if known[0] == old]:
            self._wanted[new, uri] = self._wanted.pop((key, uri))

    def forget(self, server: str) -> None:
        """Remove the subscriptions to a server that is gone."""
        for known in [known for known in self._wanted if known[0] == server]:
            del self._wanted[known]

    def names(self, server: str, uri: str) -> dict[object, str]:
        """The subscribers of an address, and the name each uses for it."""
        return dict(self._wanted.get((server, uri), ()))


class Subscribe:
    """The stage that keeps the register of subscriptions."""

    def __init__(self, register: Subscriptions) -> None:
        self._register = register

    def __call__(self, call: Call, following: Handler) -> Awaitable[Outcome]:
        is_new = call.method == "resources/subscribe"
        return (self._subscribe if is_new else self._unsubscribe)(call, following)

    async def _subscribe(self, call: Call, following: Handler) -> Outcome:
        assert call.route is not None
        upstream = call.route.upstream
        if not _has_credential_of(upstream, call):
            words = (
                f"server {upstream.key!r} has a credential for each agent, and all subscriptions of"
                " clients without a session share the operator's, so that you cannot subscribe:"
                " read the resource again from time to time, or connect by initialize"
                " (2025-11-25), where you have a connection of your own"
            )
            return outcomes.failed(INVALID_REQUEST, words, Delivery.NOT_SENT, server=upstream.key)
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


def _has_credential_of(upstream: Upstream, call: Call) -> bool:
    """Whether the link that a subscription takes has the credential of the one who calls."""
    tokens = upstream.tokens
    if tokens is None or (upstream.is_isolated and call.caller.era is HANDSHAKE):
        return True  # a link of the session's own
    return tokens.for_principal(call.user) is tokens
