"""Subscribe: keeps Subscriptions, so that a server is unsubscribed from after its last subscriber.

It is on the path of subscribing and unsubscribing alone. All subscribers share the server's own
link, which has the operator's credential: where each agent has one of its own, only the operator
and who has a link of its own can subscribe.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Final

from mcp_junction.calls.call import Call, Handler
from mcp_junction.protocol.versions import HANDSHAKE, INVALID_REQUEST, RATE_LIMITED
from mcp_junction.upstream import outcome as outcomes
from mcp_junction.upstream.outcome import Delivery, Outcome, OutcomeKind
from mcp_junction.upstream.upstream import Upstream

MAX_SUBSCRIPTIONS: Final = 1000
"""Resources that one client may be subscribed to: each is remembered, here and at its server."""
_TOO_MANY: Final = (
    f"you are subscribed to {MAX_SUBSCRIPTIONS} resources, as many as one client may be;"
    " unsubscribe from some of them first"
)


class Subscriptions:
    """The subscribers by server and URI, each with the URI that it subscribed to."""

    def __init__(self) -> None:
        self._wanted: dict[tuple[str, str], dict[object, str]] = {}
        self._of_each: dict[object, dict[tuple[str, str], None]] = {}
        """The same by subscriber."""

    def add(self, server: str, uri: str, session: object, name: str) -> None:
        self._wanted.setdefault((server, uri), {})[session] = name
        self._of_each.setdefault(session, {})[server, uri] = None

    def remove(self, server: str, uri: str, session: object) -> bool:
        """Remove one subscription; return whether it was the last."""
        sessions = self._wanted.get((server, uri))
        if sessions is None:
            return True
        if sessions.pop(session, None) is not None:
            self._forget(session, (server, uri))
        if sessions:
            return False
        del self._wanted[server, uri]
        return True

    def drop(self, session: object) -> list[tuple[str, str]]:
        """Remove a session; return the resources that nobody else wants."""
        return [key for key in self.of_subscriber(session) if self.remove(*key, session)]

    def of_subscriber(self, subscriber: object) -> list[tuple[str, str]]:
        """The server and the URI of all that one has subscribed to."""
        return list(self._of_each.get(subscriber, ()))

    def has_room(self, subscriber: object) -> bool:
        """Whether a subscriber may have one more."""
        return len(self._of_each.get(subscriber, ())) < MAX_SUBSCRIPTIONS

    @property
    def subscribers(self) -> set[object]:
        """All that have subscribed to something."""
        return set(self._of_each)

    def of(self, server: str, session: object = None) -> list[str]:
        """Every URI of a server that someone subscribed to, or that one session did."""
        known = self._wanted if session is None else self._of_each.get(session, ())
        return [uri for key, uri in known if key == server]

    def rename(self, old: str, new: str) -> None:
        """Move the subscriptions of a server to its new key."""
        for key, uri in [known for known in self._wanted if known[0] == old]:
            for session, name in self._wanted.pop((key, uri)).items():
                self._forget(session, (key, uri))
                self.add(new, uri, session, name)

    def forget(self, server: str) -> None:
        """Remove the subscriptions to a server that is gone."""
        for known in [known for known in self._wanted if known[0] == server]:
            for session in self._wanted.pop(known):
                self._forget(session, known)

    def names(self, server: str, uri: str) -> dict[object, str]:
        """The subscribers of an address, and the name each uses for it."""
        return dict(self._wanted.get((server, uri), ()))

    def _forget(self, session: object, key: tuple[str, str]) -> None:
        own = self._of_each[session]
        del own[key]
        if not own:
            del self._of_each[session]


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
        if not had and not self._register.has_room(call.caller):
            return outcomes.failed(RATE_LIMITED, _TOO_MANY, Delivery.NOT_SENT)
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
