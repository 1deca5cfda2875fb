"""ServerCertificate: the certificate that ``serve`` shows, read again when its files change.

Connections that are open keep the one they were made with; new ones get the new one. A pair of
files that does not fit together is reported, and the certificate before it stays.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from typing import Final

from mcp_junction.errors import UsageError
from mcp_junction.upstream.http.dialer import fingerprint, refuse_password

log = logging.getLogger("mcp_junction.http")

EVERY: Final = 1.0
"""Seconds between looks at the files."""


class ServerCertificate:
    """A certificate with its key, and the TLS context that shows it."""

    def __init__(self, certificate: str, key: str) -> None:
        """Raises UsageError for files that cannot be used."""
        self._files = certificate, key
        self._rejected: tuple[object, ...] = ()
        self._seen = self._fingerprint()
        try:
            self.context = self._load()
        except OSError as error:  # errors of TLS, too
            raise UsageError(_explain(self._files, error)) from None

    def refresh(self) -> bool:
        """Show the files' certificate from now on, if they have changed; whether it is another."""
        seen = self._fingerprint()
        if seen == self._seen or None in seen:
            return False
        try:
            self._load()  # the context that is in use must not be left with half of a pair
            self.context.load_cert_chain(*self._files)
        except OSError as error:
            if seen != self._rejected:
                log.error("%s; the certificate before it stays", _explain(self._files, error))
            self._rejected = seen
            return False
        self._seen = seen
        log.warning("the certificate of %s is shown from now on", self._files[0])
        return True

    async def run(self) -> None:
        """Follow the files until cancelled."""
        while True:
            await asyncio.sleep(EVERY)
            self.refresh()

    def _load(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_cert_chain(*self._files, password=refuse_password)
        return context

    def _fingerprint(self) -> tuple[object, ...]:
        return tuple(map(fingerprint, self._files))


def make_certificate(certificate: str, key: str) -> ServerCertificate | None:
    """Make the certificate of a service; None where it has none. Raises UsageError."""
    if not certificate and not key:
        return None
    if not certificate or not key:
        raise UsageError("--tls-cert and --tls-key belong together; give both")
    return ServerCertificate(certificate, key)


def _explain(files: tuple[str, str], error: OSError) -> str:
    why = error.reason if isinstance(error, ssl.SSLError) and error.reason else error.strerror
    return f"the TLS certificate {files[0]} with the key {files[1]} cannot be used: {why or error}"
