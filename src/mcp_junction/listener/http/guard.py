"""Guard: checks Host and Origin headers, against DNS rebinding.

A page in a browser must not reach us by a name that was made to point here. What is refused, here
or elsewhere, is described for the audit by ``describe_denial``.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterable
from urllib.parse import urlsplit

from mcp_junction.audit.denials import ANONYMOUS, Denial
from mcp_junction.config.settings import Settings
from mcp_junction.listener.acceptance import find_repeated
from mcp_junction.listener.http.host import Scope
from mcp_junction.policy.principal import Principal

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_MAX_REMEMBERED = 1024


def parse_address(text: str) -> Address | None:
    """Parse an address, IPv4-mapped IPv6 as IPv4; None for what is no address."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    mapped = address.ipv4_mapped if address.version == 6 else None
    return mapped or address


def is_loopback(host: str) -> bool:
    """Whether ``host`` is an address of this machine alone."""
    address = parse_address(host)
    return host == "localhost" or (address is not None and address.is_loopback)


def is_local_host(host: bytes) -> bool:
    """Whether a Host header names the loopback itself; other names may be allowed, too."""
    name = _hostname(f"//{host.decode('latin-1')}")
    return name is not None and is_loopback(name)


class Guard:
    """Checks Host and Origin headers, and caches the answers."""

    def __init__(self, host: str, allowed_hosts: Iterable[str], origins: Iterable[str]) -> None:
        self._hosts = {name.lower() for name in allowed_hosts}
        self._any_address = not is_loopback(host)
        self._hosts.update(_LOOPBACK)
        if self._any_address:
            self._hosts.update({host.lower(), socket.gethostname().lower()})
        self._origins = {origin.lower().rstrip("/") for origin in origins}
        self._cache: dict[tuple[bytes, bytes], bool] = {}

    def admits(self, host: bytes, origin: bytes) -> bool:
        """Whether a request with these headers may pass. An absent Origin is an empty one."""
        is_admitted = self._cache.get((host, origin))
        if is_admitted is None:
            is_admitted = self._admits_host(host) and self._admits_origin(origin)
            if len(self._cache) < _MAX_REMEMBERED:
                self._cache[host, origin] = is_admitted
        return is_admitted

    def _admits_host(self, host: bytes) -> bool:
        name = _hostname(f"//{host.decode('latin-1')}")
        return name is not None and self._is_ours(name)

    def _admits_origin(self, origin: bytes) -> bool:
        if not origin:
            return True
        text = origin.decode("latin-1").lower()
        if text.rstrip("/") in self._origins:
            return True
        if not text.startswith(("http://", "https://")):
            return False
        name = _hostname(text)
        return name is not None and self._is_ours(name)

    def _is_ours(self, name: str) -> bool:
        return name in self._hosts or (self._any_address and parse_address(name) is not None)


def guard_for(host: str, settings: Settings) -> Guard:
    """Make the guard of a service that listens at a host."""
    public = urlsplit(settings.public_url).hostname
    hosts = [*_split(settings.allowed_hosts), *([public] if public else ())]
    return Guard(host, hosts, _split(settings.allowed_origins))


def _split(text: str) -> list[str]:
    return [word for word in text.replace(",", " ").split() if word]


def _hostname(url: str) -> str | None:
    try:
        parts = urlsplit(url)
        _ = parts.port  # raises for a port that is none
    except ValueError:
        return None
    if parts.path.strip("/") or parts.query or parts.username is not None:
        return None
    return parts.hostname


def describe_denial(scope: Scope, reason: str, principal: Principal | None = None) -> Denial:
    """Describe a refused request, of a principal or of somebody without a valid key, for the audit.

    Its query, headers and body are left out: they may hold secrets.
    """
    method, path = scope["method"], scope["path"]
    if principal is not None:
        return Denial("request", principal.id, method, path, reason, principal.role)
    client = scope.get("client") or ("unknown",)
    return Denial("request", ANONYMOUS, method, path, reason, address=str(client[0]))


def has_two_hosts(given: list[tuple[bytes, bytes]]) -> bool:
    """Whether there are two Hosts or Origins: a proxy may have read the other one."""
    return find_repeated(given, (b"host", b"origin")) is not None
