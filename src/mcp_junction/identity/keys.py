"""KeyRing: bearer keys, hashed at rest in the store, checked in memory.

A key is ``jct_<id>_<secret>``, or, for the administrator's, whatever they have given us. Only the
SHA-256 of the secret is kept, in a signed row, and it is compared in constant time; a header that
was found good is looked up until the keys change. A revocation holds at once in the process that
took it; the others ``refresh`` and see that the keys' generation has changed. When that has not
succeeded for a while, for whatever reason, no key is good.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable
from hashlib import sha256
from hmac import compare_digest
from typing import Final, NamedTuple

from mcp_junction.errors import NotFound, StoreUnavailable, UsageError
from mcp_junction.policy.principal import Principal, Role
from mcp_junction.policy.roles import KEY_ROLES
from mcp_junction.store.keys import StoredKeys
from mcp_junction.store.records import KeyRecord
from mcp_junction.store.store import Store

PREFIX: Final = "jct"
BLIND_AFTER: Final = 5.0
"""Seconds without the store after which no key is good any more."""
_BEARER: Final = b"bearer "
_PREFIX: Final = PREFIX.encode()
_NOBODY: Final = bytes(32)
_SEEN: Final = 1_000
_SHOWN: Final = 20
log = logging.getLogger("mcp_junction.identity")
LEAST: Final = 24
"""Characters that a key of somebody's own making has at least."""


class _Known(NamedTuple):
    """A key in force, as it is looked up."""

    digest: bytes
    principal: Principal


class KeyRing:
    """The keys of a store."""

    def __init__(self, store: Store, now: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._now = now
        self._in_force: dict[bytes, _Known] = {}
        self._seen: dict[bytes, Principal] = {}  # headers that were checked, until the keys change
        self._has_issued_client_keys = True
        self._generation = -1
        self._read_at = now()
        """When the store was last asked what the keys are, and answered."""

    @classmethod
    async def open(cls, store: Store) -> KeyRing:
        ring = cls(store)
        if await store.keys.unsigned() == []:
            await store.keys.sign_existing(())  # a new store: none of its rows is from before
        if await store.keys.renew_signatures():
            log.warning("keys were signed anew with the vault's new key")
        await ring._load()
        return ring

    # -- asking

    def principal(self, authorization: bytes) -> Principal | None:
        """Who an Authorization header speaks for; None when for nobody."""
        if self.is_blind:
            return None
        seen = self._seen.get(authorization)
        if seen is not None:
            return seen
        if authorization[:7].lower() != _BEARER:
            return None
        key_id, digest = _read(authorization[7:].strip())
        found = self._in_force.get(key_id)
        if not compare_digest(digest, found.digest if found is not None else _NOBODY):
            return None
        if found is None:
            return None
        if len(self._seen) >= _SEEN:
            self._seen.clear()
        self._seen[authorization] = found.principal
        return found.principal

    @property
    def has_any(self) -> bool:
        """Whether any key is in force, as far as we know."""
        return bool(self._in_force)

    @property
    def has_issued_client_keys(self) -> bool:
        """Whether a key for anybody but an administrator was ever made in this store."""
        return self._has_issued_client_keys

    @property
    def has_admin(self) -> bool:
        return any(known.principal.role is Role.ADMIN for known in self._in_force.values())

    def is_in_force(self, principal: Principal) -> bool:
        """Whether the key that someone has shown is still good; any key of theirs, where it is
        not known which that was."""
        if principal.key:
            found = self._in_force.get(principal.key.encode())
            return found is not None and found.principal == principal
        whose = principal.id, principal.role
        return any((k.principal.id, k.principal.role) == whose for k in self._in_force.values())

    @property
    def is_blind(self) -> bool:
        """Whether the keys were not read for so long that a revocation may have been missed."""
        return self._now() - self._read_at >= BLIND_AFTER

    @property
    def generation(self) -> object:
        """Another one when the keys have changed."""
        return self._generation

    async def all(self) -> list[KeyRecord]:
        return await self._store.keys.all()

    # -- changing

    async def refresh(self) -> None:
        """Read what other processes have changed. Raises nothing: see ``is_blind``."""
        try:
            await self._load()
        except StoreUnavailable:
            pass  # the time since the last success tells it

    async def create(self, role: Role, agent: str, by: str) -> tuple[KeyRecord, str]:
        """A new key; the second value is the key itself, which is never seen again."""
        secret = secrets.token_urlsafe(32)
        key = KeyRecord(
            id=secrets.token_hex(6),
            role=role.value,
            agent=agent,
            sha256=sha256(secret.encode()).hexdigest(),
            created_at=time.time(),
            created_by=by,
        )
        key = await self._store.keys.add(key)
        await self._load()
        return key, f"{PREFIX}_{key.id}_{secret}"

    async def adopt(self, text: str, by: str) -> None:
        """Take a key of the administrator's own making; those taken so before end.

        Raises UsageError for one that can be guessed.
        """
        if len(text) < LEAST or not text.isascii() or not text.isprintable() or " " in text:
            raise UsageError(
                f"{by} must be at least {LEAST} printable ASCII characters without spaces"
            )
        key_id, digest = _read(text.encode())
        known = {key.id: key for key in await self._store.keys.all()}
        there = known.pop(key_id.decode(), None)
        if there is not None and (there.revoked_at or there.role != Role.ADMIN):
            raise UsageError(f"{by} is a key that is revoked, or no administrator's; give another")
        for key in known.values():
            if key.created_by == by and key.revoked_at is None:
                await self._store.keys.revoke(key.id, time.time(), by)
        if there is None:
            role, now = Role.ADMIN, time.time()
            made = KeyRecord(key_id.decode(), role.value, role.value, digest.hex(), now, by)
            await self._store.keys.add(made)
        await self._load()

    async def revoke(self, key_id: str, by: str) -> KeyRecord:
        """Raises UsageError when there is no such key."""
        try:
            key = await self._store.keys.revoke(key_id, time.time(), by)
        except NotFound:
            raise UsageError(f"there is no key {key_id!r}; see: mcp-junction keys list") from None
        self._in_force.pop(key_id.encode(), None)
        self._seen.clear()
        await self._load()
        return key

    async def _load(self) -> None:
        began = self._now()
        generation = (await self._store.generations()).get("keys", 0)
        if generation != self._generation:
            self._use(await self._store.keys.read())
            self._generation = generation
        self._read_at = began

    def _use(self, found: StoredKeys) -> None:
        """Use these keys from now on."""
        if found.rejected:
            log.error(
                "%d rows of the table of keys carry no valid signature and are ignored: %s;"
                " if the store's key was changed, give both: MCP_CREDENTIAL_KEY='NEW OLD'",
                len(found.rejected),
                ", ".join(found.rejected[:_SHOWN]),
            )
        good = [key for key in found.keys if key.revoked_at is None and key.role in KEY_ROLES]
        self._in_force = {key.id.encode(): _known(key) for key in good}
        self._has_issued_client_keys = found.has_issued_client_keys
        self._seen.clear()


def _known(key: KeyRecord) -> _Known:
    return _Known(bytes.fromhex(key.sha256), Principal(key.agent, Role(key.role), key.id))


def _read(key: bytes) -> tuple[bytes, bytes]:
    """The id of a key, and the hash of its secret; a foreign one is found by its own hash."""
    parts = key.split(b"_", 2)
    if len(parts) == 3 and parts[0] == _PREFIX:
        return parts[1], sha256(parts[2]).digest()
    digest = sha256(key).digest()
    return b"own-" + digest.hex()[:12].encode(), digest
