"""Dialer: opens connections, only to addresses that the rules for outgoing connections permit.

Every new connection resolves the name and checks the rules again, and is made to exactly an address
that was checked; the name stays in the Host header and in the TLS handshake. No proxies. Single
requests are made by ``fetch.py``.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import ssl
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from mcp_junction.config.servers import ServerDefinition
from mcp_junction.config.urls import UrlTarget, parse_address
from mcp_junction.errors import AddressRefused
from mcp_junction.policy.outgoing import STRICT, Permissions, filter_addresses
from mcp_junction.upstream.http.connection import Connection

Resolve = Callable[[str, int], Awaitable[list[str]]]
"""Resolves a name and a port to addresses, best first. Raises OSError."""
MakeConnection = Callable[[], Connection]
Connect = Callable[[MakeConnection, str, UrlTarget], Awaitable[Connection]]
"""Connects to one address of a place. Raises OSError."""


async def resolve(host: str, port: int) -> list[str]:
    """Ask the system's resolver."""
    found = await asyncio.get_running_loop().getaddrinfo(
        host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP
    )
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


class TlsFiles(NamedTuple):
    """Files that a server's operator gives for TLS; empty ones are not given."""

    ca: str = ""
    """The only certificates that may vouch for the server."""
    cert: str = ""
    """The certificate that we show."""
    key: str = ""

    def load(self) -> ssl.SSLContext:
        """Make a context of them. Raises OSError that names the file."""
        name, path = "tls_ca", self.ca
        try:
            context = ssl.create_default_context(cafile=self.ca or None)
            name, path = "tls_cert", self.cert
            if self.key and not self.cert:
                raise OSError(errno.EINVAL, "tls_key needs tls_cert beside it")
            if self.cert:
                context.load_cert_chain(self.cert, self.key or None, password=refuse_password)
        except OSError as error:  # errors of TLS, too
            why = error.reason if isinstance(error, ssl.SSLError) else error.strerror
            words = f"{name} {path} cannot be used: {why or error}"
            raise OSError(errno.EINVAL, words) from None
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        return context


def refuse_password() -> bytes:
    """Give no password, rather than have OpenSSL ask for one at the terminal."""
    return b""


def fingerprint(path: str) -> object:
    """Return what tells a file from a changed one; None when it is not there."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino, found.st_size


class Sockets:
    """Opens sockets; TLS 1.2 or newer, with certificates and names checked."""

    def __init__(self, files: TlsFiles | None = None) -> None:
        self._files = files or TlsFiles()
        self._tls: ssl.SSLContext | None = None
        self._seen: list[object] = []

    async def connect(self, make: MakeConnection, address: str, place: UrlTarget) -> Connection:
        _, connection = await asyncio.get_running_loop().create_connection(
            make,
            address,
            place.port,
            ssl=self._tls_context() if place.tls else None,
            server_hostname=place.host.removesuffix(".") if place.tls else None,
        )
        return connection

    def _tls_context(self) -> ssl.SSLContext:
        """Return the context; make it anew when files have changed. Raises OSError."""
        seen = [fingerprint(path) for path in self._files if path]
        if self._tls is None or seen != self._seen:  # reading the root certificates takes a while
            self._tls, self._seen = self._files.load(), seen
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

    async def dial(self, place: UrlTarget, make: MakeConnection) -> Connection:
        """Connect to ``place``. Raises OSError, or AddressRefused when the rules forbid it."""
        try:
            return await self._dial(place, make)
        except (socket.gaierror, ssl.SSLCertVerificationError) as error:
            raise type(error)(error.errno, _explain(error, place.host)) from None

    async def _dial(self, place: UrlTarget, make: MakeConnection) -> Connection:
        if parse_address(place.host) is not None:
            found = [place.host]
        else:
            found = await self._resolve(place.host, place.port)
        addresses, why = filter_addresses(place, found, self._permissions)
        if not addresses:
            raise AddressRefused(f"it may not be connected to: {why}")
        for address in addresses[:-1]:
            try:
                return await self._connect(make, address, place)
            except OSError:
                continue
        return await self._connect(make, addresses[-1], place)


def _explain(error: socket.gaierror | ssl.SSLCertVerificationError, host: str) -> str:
    """Name the host in an error of the resolver or of TLS, which does not."""
    if isinstance(error, ssl.SSLCertVerificationError):
        why = error.verify_message or error.reason
        return f"certificate verify failed for {host!r}: {why}"
    return f"the name {host!r} cannot be resolved: {error.strerror or error}"


def dialer_for(definition: ServerDefinition) -> Dialer:
    """Make a dialer with what the operator allows and gives for a server."""
    files = TlsFiles(definition.tls_ca, definition.tls_cert, definition.tls_key)
    allowed = Permissions(definition.allow_private, definition.allow_http)
    return Dialer(allowed, connect=Sockets(files).connect)
