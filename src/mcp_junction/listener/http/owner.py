"""Owner: whether a request without a key is made by the person who runs this process.

It is when its connection is from a process of the same user on this machine, its Host is the
loopback's own name, and no proxy has passed it on. Whether the owner needs a key at all is decided
elsewhere.
"""

from __future__ import annotations

from typing import Any, Final

from mcp_junction.listener.http.forwarded import FORWARDING, PROXIED
from mcp_junction.listener.http.guard import is_local_host
from mcp_junction.listener.http.peers import is_own_peer

_MAX_REMEMBERED: Final = 256


class LocalOwner:
    """Tells the owner's requests from others; remembers the Hosts that it has read."""

    def __init__(self) -> None:
        self._hosts: dict[bytes, bool] = {}

    def makes(self, scope: dict[str, Any], headers: dict[bytes, bytes]) -> bool:
        """Whether the owner makes this request."""
        if PROXIED in scope or not headers.keys().isdisjoint(FORWARDING):
            return False
        if not self._is_local(headers.get(b"host", b"")):
            return False
        exchange = scope.get("exchange")
        if exchange is not None:
            return bool(exchange.is_own_peer)
        return is_own_peer(scope.get("server"), scope.get("client"))

    def _is_local(self, host: bytes) -> bool:
        found = self._hosts.get(host)
        if found is None:
            found = is_local_host(host)
            if len(self._hosts) < _MAX_REMEMBERED:
                self._hosts[host] = found
        return found
