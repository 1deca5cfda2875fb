"""Manners: how a server wants to be addressed, as far as its lives so far have shown."""

from __future__ import annotations

from mcp_junction.protocol.versions import Era
from mcp_junction.upstream.hello import Greeting, Hello
from mcp_junction.upstream.link import OwnedLink
from mcp_junction.upstream.negotiation import Negotiation, Refusal
from mcp_junction.upstream.terms import Terms


class Manners:
    """What is kept of one server from life to life."""

    def __init__(self, transport: str, like: Manners | None = None) -> None:
        self.refused: frozenset[Era] = frozenset()
        """The eras that it refused in this life."""
        self.speaks_older: bool = like is not None and like.speaks_older
        """Whether it refused the newer HTTP transport as a server of the older one does."""
        self._transport = transport
        self._asked_older = False
        self._is_probing = False
        self._is_wary: bool = like is not None and like._is_wary

    async def greet(self, link: OwnedLink, hello: Hello, terms: Terms) -> Greeting | Refusal:
        """Be greeted on a link that has just been opened, and remember how."""
        first, alone = self._first(hello)
        if hello.only and first is not hello.prefers:
            return Refusal("its transport is older than the stateless era", of_era=True)
        self._is_probing = first is Era.STATELESS and not alone
        talk = Negotiation(link, hello, terms.name, terms.version, terms.start_timeout)
        greeting = await talk.greet(first, alone=alone)
        self.speaks_older = talk.speaks_older
        if link.closed.done():
            of_era = alone and first is Era.STATELESS and self._transport == "stdio"
            return Refusal("it exits on server/discover", of_era=of_era)
        self._is_probing = False
        if isinstance(greeting, Greeting):
            self._is_wary = talk.was_silent and greeting.era is Era.HANDSHAKE
            is_too_old = alone and not hello.only
            self.refused = frozenset({Era.STATELESS} if is_too_old else talk.refused)
            await link.opened(greeting.protocol_version)
            talk.tidy()
        return greeting

    def _first(self, hello: Hello) -> tuple[Era, bool]:
        """The era to address it in first, and whether there is no other."""
        if self.speaks_older or self._transport == "sse":
            return Era.HANDSHAKE, True
        if hello.only:
            return hello.prefers, True
        return (Era.HANDSHAKE if self._is_wary else hello.prefers), False

    def try_otherwise(self) -> bool:
        """Whether to begin again at once, in another way, before it counts as a failure.

        Some servers exit when they are first asked something other than initialize; one that
        refused the newer HTTP transport may speak the older one.
        """
        if self._is_probing and self._transport == "stdio":
            self._is_probing, self._is_wary = False, True
            return True
        if self._asked_older or self._transport != "http":
            return False
        self._asked_older = self.speaks_older
        return self._asked_older
