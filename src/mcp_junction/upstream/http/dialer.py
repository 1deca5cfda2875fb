"""Dialer: makes connections to a place, only to addresses that were resolved and judged for it.

Every new connection asks the resolver and the rules again, and is made to exactly an address that
they let through; the name stays in the Host header and in the TLS handshake. No proxies.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable

from mcp_junction.config.servers import ServerDefinition
from mcp_junction.config.urls import Place, literal
from mcp_junction.errors import RefusedError
from mcp_junction.policy.outgoing import STRICT, Permissions, filter_addresses
from mcp_junction.upstream.http.connection import Connection

Resolve = Callable[[str, int], Awaitable[list[str]]]
"""A name and a port to addresses, best first. Raises OSError."""
MakeConnection = Callable[[], Connection]
Connect = Callable[[MakeConnection, str, Place], Awaitable[Connection]]
"""A connection to one address, speaking for a place. Raises OSError."""


async def resolve(host: str, port: int) -> list[str]:
    """What the system's resolver says."""
    found = await asyncio.get_running_loop().getaddrinfo(
        host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP
    )
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


class Sockets:
    """Makes real connections: certificates and names are checked, TLS 1.2 or newer."""

    def __init__(self) -> None:
        self._tls: ssl.SSLContext | None = None

    async def connect(self, make: MakeConnection, address: str, place: Place) -> Connection:
        _, connection = await asyncio.get_running_loop().create_connection(
            make,
            address,
            place.port,
            ssl=self._verifying() if place.tls else None,
            server_hostname=place.host.removesuffix(".") if place.tls else None,
        )
        return connection

    def _verifying(self) -> ssl.SSLContext:
        if self._tls is None:  # reading the roots takes a while
            self._tls = ssl.create_default_context()
            self._tls.minimum_version = ssl.TLSVersion.TLSv1_2
        return self._tls


class Dialer:
    """Connects under one server's permissions."""

    def __init__(
        self,
        permissions: Permissions = STRICT,
        resolve: Resolve = resolve,
        connect: Connect | None = None,
    ) -> None:
        self._permissions = permissions
        self._resolve = resolve
        self._connect = connect or Sockets().connect

    async def dial(self, place: Place, make: MakeConnection) -> Connection:
        """A connection to ``place``. Raises OSError, or RefusedError when the rules forbid it."""
        try:
            return await self._dial(place, make)
        except (socket.gaierror, ssl.SSLCertVerificationError) as error:
            raise type(error)(error.errno, _explain(error, place.host)) from None

    async def _dial(self, place: Place, make: MakeConnection) -> Connection:
        if literal(place.host) is not None:
            found = [place.host]
        else:
            found = await self._resolve(place.host, place.port)
        addresses, why = filter_addresses(place, found, self._permissions)
        if not addresses:
            raise RefusedError(f"it may not be connected to: {why}")
        for address in addresses[:-1]:
            try:
                return await self._connect(make, address, place)
            except OSError:
                continue
        return await self._connect(make, addresses[-1], place)


def _explain(error: socket.gaierror | ssl.SSLCertVerificationError, host: str) -> str:
    """What is wrong with a host, by its name: the system does not say which it was."""
    if isinstance(error, ssl.SSLCertVerificationError):
        why = error.verify_message or error.reason
        return f"certificate verify failed for {host!r}: {why}"
    return f"the name {host!r} cannot be resolved: {error.strerror or error}"


def dialer_for(definition: ServerDefinition) -> Dialer:
    """A dialer with what the operator allows for a server."""
    return Dialer(Permissions(definition.allow_private, definition.allow_http))
