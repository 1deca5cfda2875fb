"""IssuerKeys: the public keys of the door's issuer, fetched, cached and renewed.

They are read every ten minutes; a key that is not known is a reason to read them at once, but at
most every 30 seconds. While the issuer is away the keys that are known serve for a day; then there
are none. They are fetched under the rules for outgoing connections.
"""

from __future__ import annotations

import asyncio
import logging
import time
import warnings
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import msgspec

from mcp_junction.config.door import DoorConfig
from mcp_junction.config.urls import parse_url
from mcp_junction.errors import AddressRefused, IssuerUnavailable
from mcp_junction.oauth.discovery import issuer_metadata_urls
from mcp_junction.policy.outgoing import Permissions
from mcp_junction.tasks import TaskScope

if TYPE_CHECKING:
    from joserfc.jwk import ECKey, OKPKey, RSAKey

    PublicKey = RSAKey | ECKey | OKPKey

log = logging.getLogger("mcp_junction.identity")

EVERY: Final = 600.0
AGAIN: Final = 30.0
"""Seconds between two fetches because of a key that is not known, and after one that failed."""
SERVES_FOR: Final = 24 * 3600.0
"""Seconds that the keys last fetched are used while the issuer is away."""
LEAST_RSA_BITS: Final = 2048
_MAX_KEYS: Final = 100
_KTY: Final = {"RS256": "RSA", "PS256": "RSA", "ES256": "EC", "Ed25519": "OKP"}
_CURVES: Final = {"ES256": "P-256", "Ed25519": "Ed25519"}

Fetch = Callable[[str], Awaitable[bytes]]
"""Fetches a document. Raises OSError, ValueError or AddressRefused."""


class IssuerKeys:
    """The keys of one issuer."""

    def __init__(
        self,
        door: DoorConfig,
        fetch: Fetch | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._door = door
        self._fetch = fetch or fetch_document
        self._now = now
        self._keys: list[tuple[dict[str, Any], PublicKey]] = []
        self._fetched_at = float("-inf")
        self._tried_at = float("-inf")
        self._fetching: asyncio.Task[None] | None = None
        self._is_failing = False
        self._tasks = TaskScope("issuer keys")

    @property
    def is_known(self) -> bool:
        """Whether there are keys that may be used."""
        return bool(self._keys) and self._now() - self._fetched_at < SERVES_FOR

    def find(self, kid: str | None, algorithm: str) -> list[PublicKey]:
        """Return the keys that may have made a signature; without a key id all that fit."""
        if not self.is_known:
            return []
        return [key for jwk, key in self._keys if _fits(jwk, kid, algorithm)]

    async def find_or_fetch(self, kid: str | None, algorithm: str) -> list[PublicKey]:
        """Do the same, and fetch the keys if none fits and they were not fetched just now.

        Raises IssuerUnavailable when there are no keys to verify with.
        """
        found = self.find(kid, algorithm)
        if not found and (self._fetching is not None or self._now() - self._tried_at >= AGAIN):
            await self.refresh()
            found = self.find(kid, algorithm)
        if not found and not self.is_known:
            raise IssuerUnavailable("the keys of the issuer cannot be read now")
        return found

    async def refresh(self) -> None:
        """Fetch the keys; whoever asks meanwhile waits for the same fetch. Never fails."""
        if self._fetching is None:
            self._tried_at = self._now()
            self._fetching = self._tasks.spawn(self._load())
        await asyncio.shield(self._fetching)

    async def run(self, sleep: Callable[[float], Awaitable[None]]) -> None:
        """Fetch the keys now, and again and again."""
        while True:
            await self.refresh()
            await sleep(AGAIN if self._is_failing else EVERY)

    async def _load(self) -> None:
        try:
            uri = self._door.jwks_uri or await self._discover()
            document = _read_object(await self._fetch(uri))
            keys = await asyncio.to_thread(_import_keys, document)
            if not keys:
                raise ValueError("there is no key in it that can be used")
        except (OSError, ValueError, AddressRefused) as error:
            level = logging.DEBUG if self._is_failing else logging.ERROR
            self._is_failing = True
            log.log(level, "the keys of the issuer %s cannot be read: %s", self._door.issuer, error)
        else:
            if self._is_failing:
                log.warning("the keys of the issuer %s can be read again", self._door.issuer)
            self._keys, self._fetched_at, self._is_failing = keys, self._now(), False
        finally:
            self._fetching = None

    async def _discover(self) -> str:
        """Find where the keys are in the issuer's metadata, which must be the issuer's own."""
        issuer, last = self._door.issuer, "no answer"
        for url in issuer_metadata_urls(issuer):
            try:
                found = _read_object(await self._fetch(url))
            except (OSError, ValueError, AddressRefused) as error:
                last = str(error)
                continue
            if found.get("issuer") != issuer:
                raise ValueError("its metadata names another issuer")
            uri = found.get("jwks_uri")
            if isinstance(uri, str) and parse_url(uri).tls >= parse_url(issuer).tls:
                return uri
            raise ValueError("its metadata has no jwks_uri that can be used; set door.jwks_uri")
        raise ValueError(f"its metadata is nowhere ({last})")


async def fetch_document(url: str) -> bytes:
    """Fetch a document of the issuer. Raises OSError, ValueError and AddressRefused."""
    # Imported where they are used: few have a door.
    from mcp_junction.upstream.http.dialer import Dialer
    from mcp_junction.upstream.http.fetch import fetch

    # The operator named the issuer: it may be in a private network, but not at plain http there.
    response = await fetch(url, Dialer(Permissions(allow_private=True)))
    if response.status != 200:
        raise ValueError(f"{urlsplit(url).path} was answered with status {response.status}")
    return response.body


def _read_object(body: bytes) -> dict[str, Any]:
    try:
        return msgspec.json.decode(body, type=dict[str, Any])
    except (msgspec.MsgspecError, RecursionError):
        raise ValueError("it is no JSON object") from None


def _import_keys(document: dict[str, Any]) -> list[tuple[dict[str, Any], PublicKey]]:
    """Import the public keys of a set that can verify signatures; others are left out."""
    from joserfc.errors import JoseError
    from joserfc.jwk import ECKey, OKPKey, RSAKey

    kinds: dict[str, Any] = {"RSA": RSAKey, "EC": ECKey, "OKP": OKPKey}
    found = []
    listed = document.get("keys")
    for jwk in listed[:_MAX_KEYS] if isinstance(listed, list) else []:
        if not isinstance(jwk, dict) or jwk.get("kty") not in kinds or "d" in jwk:
            continue
        if jwk.get("use", "sig") != "sig":
            continue
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of short RSA keys, which are left out below
                key = kinds[jwk["kty"]].import_key(jwk)
                if jwk["kty"] == "RSA" and key.public_key.key_size < LEAST_RSA_BITS:
                    log.warning("the issuer has an RSA key that is too short and is not used")
                    continue
        except (JoseError, ValueError, TypeError, KeyError):
            continue
        found.append((jwk, key))
    return found


def _fits(jwk: dict[str, Any], kid: str | None, algorithm: str) -> bool:
    if kid is not None and jwk.get("kid") != kid:
        return False
    if jwk.get("kty") != _KTY[algorithm] or jwk.get("crv") != _CURVES.get(algorithm):
        return False
    named = jwk.get("alg", algorithm)
    return named == algorithm or (named == "EdDSA" and algorithm == "Ed25519")
