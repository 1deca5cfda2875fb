"""OwnerCheck: whether a request without a key comes from the person who runs this process.

It does when its connection is from a process of the same user on this machine, its Host is a name
of the loopback, and no proxy has passed it on. Whether the owner needs a key is decided elsewhere.
"""

from __future__ import annotations

from typing import Any, Final

from mcp_junction.listener.http.forwarded import PROXIED, PROXY_HEADERS
from mcp_junction.listener.http.guard import is_local_host
from mcp_junction.listener.http.peers import is_own_peer

_MAX_REMEMBERED: Final = 256


class OwnerCheck:
    """Tells the owner's requests from others; caches which Hosts are local."""

    def __init__(self) -> None:
        self._hosts: dict[bytes, bool] = {}

    def is_owner_request(self, scope: dict[str, Any], headers: dict[bytes, bytes]) -> bool:
        """Whether this request comes from the owner."""
        if PROXIED in scope or not headers.keys().isdisjoint(PROXY_HEADERS):
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
