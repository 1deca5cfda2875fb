"""Forwarded: takes the client's address, scheme and host from the headers of trusted proxies.

An ASGI app before the listener, there only when proxies are trusted: it puts what their
``X-Forwarded-Host``, ``-Proto`` and ``-For`` say in place of what the connection itself shows. From
anyone else these headers are not looked at. It lets nobody in and keeps nobody out: that is the
Guard's part, which then checks the Host the client meant.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from typing import Final

from mcp_junction.listener.http.guard import Address, parse_address
from mcp_junction.listener.http.host import App, Receive, Scope, Send

PROXIED: Final = "mcp_junction.proxied"
"""The key in the scope of a request that came through a trusted proxy."""
PROXY_HEADERS: Final = frozenset(
    (
        b"forwarded",
        b"via",
        b"x-forwarded",
        b"x-forwarded-for",
        b"x-forwarded-host",
        b"x-forwarded-port",
        b"x-forwarded-prefix",
        b"x-forwarded-proto",
        b"x-forwarded-scheme",
        b"x-forwarded-server",
        b"x-forwarded-ssl",
        b"x-original-forwarded-for",
        b"x-original-host",
        b"x-real-ip",
        # What the proxies of clouds and the ends of tunnels on this machine add.
        b"cdn-loop",
        b"cf-connecting-ip",
        b"cf-ray",
        b"fastly-client-ip",
        b"fly-client-ip",
        b"tailscale-user-login",
        b"true-client-ip",
        b"x-amzn-trace-id",
        b"x-azure-clientip",
        b"x-client-ip",
        b"x-cluster-client-ip",
        b"x-envoy-external-address",
    )
)
"""Headers that proxies add to the requests they pass on."""
_HOST, _PROTO, _FOR = b"x-forwarded-host", b"x-forwarded-proto", b"x-forwarded-for"
_SCHEMES = {b"http": "http", b"https": "https"}
_MAX_REMEMBERED = 1024
_MAX_HOPS = 32


class Forwarded:
    """ASGI middleware that trusts the forwarding headers of proxies in the given networks."""

    def __init__(self, app: App, proxies: Iterable[str]) -> None:
        self._app = app
        self._networks = [ipaddress.ip_network(proxy, strict=False) for proxy in proxies]
        self._cache: dict[str, bool] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        client = scope.get("client")
        if client and self._trusts(client[0]):
            scope[PROXIED] = True
            self._apply_headers(scope)
        await self._app(scope, receive, send)

    def _apply_headers(self, scope: Scope) -> None:
        headers: list[tuple[bytes, bytes]] = scope["headers"]
        hosts, schemes, clients = (_values(headers, name) for name in (_HOST, _PROTO, _FOR))
        if hosts:
            # In place of each: a request with two Hosts still has two.
            host = hosts[-1]
            scope["headers"] = [(n, host if n == b"host" else value) for n, value in headers]
        if schemes:
            scope["scheme"] = _SCHEMES.get(schemes[-1].lower(), scope["scheme"])
        found = self._client(clients)
        if found is not None:
            scope["client"] = (found, 0)

    def _client(self, hops: list[bytes]) -> str | None:
        """Find the nearest hop that is not a trusted proxy; anyone can write what precedes it."""
        found = None
        for hop in reversed(hops[-_MAX_HOPS:]):
            address = _address(hop.decode("latin-1"))
            if address is None:
                break
            found = str(address)
            if not self._trusts(found):
                break
        return found

    def _trusts(self, text: str) -> bool:
        found = self._cache.get(text)
        if found is None:
            address = _address(text)
            found = address is not None and any(address in n for n in self._networks)
            if len(self._cache) < _MAX_REMEMBERED:
                self._cache[text] = found
        return found


def _values(headers: list[tuple[bytes, bytes]], name: bytes) -> list[bytes]:
    """Collect the values of a header that may be a list, and may be repeated or absent."""
    lines = [value for found, value in headers if found == name]
    return [word.strip() for line in lines for word in line.split(b",")]


def _address(text: str) -> Address | None:
    """Parse the address of a hop, with or without a port; None when it is not an address."""
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    return parse_address(text.partition("%")[0])
