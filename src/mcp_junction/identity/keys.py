"""KeyRing: authenticates bearer keys in memory; also makes and adopts the administrator's key.

Keys that an older version stored unsigned are signed once in the life of a store, and audited.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping
from hashlib import sha256
from hmac import compare_digest
from pathlib import Path
from typing import Final, NamedTuple

from mcp_junction.audit.log import AuditLog
from mcp_junction.errors import NotFound, StoreError, StoreUnavailable, UsageError
from mcp_junction.identity.tokens import AccessTokens, TokenLife
from mcp_junction.policy.principal import KEY_ROLES, LOCAL_OWNER, Principal, Role
from mcp_junction.store.keys import StoredKeys
from mcp_junction.store.records import KeyRecord
from mcp_junction.store.store import Store

PREFIX: Final = "jct"
BLIND_AFTER: Final = 5.0
"""Seconds without the store after which no key is accepted."""
_LOOK_AGAIN: Final = 0.1
"""Seconds from the end of a look for unknown keys to the next one."""
_LOOKERS: Final = 32
"""Requests that wait for one; more are refused at once."""
_BEARER: Final = b"bearer "
_PREFIX: Final = PREFIX.encode()
_NOBODY: Final = bytes(32)
_SEEN: Final = 1_000
_SHOWN: Final = 20
log = logging.getLogger("mcp_junction.identity")
LEAST: Final = 24
"""Characters that a key has at least that the administrator has chosen."""


class _KeyInForce(NamedTuple):
    """A key in force: the hash of its secret, and its principal."""

    digest: bytes
    principal: Principal


class KeyRing:
    """The keys in force of one store."""

    def __init__(
        self,
        store: Store,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._store = store
        self._now = now
        self._sleep = sleep
        self._in_force: dict[bytes, _KeyInForce] = {}
        self._seen: dict[bytes, Principal] = {}  # headers that were checked, until the keys change
        self.has_issued_client_keys = True
        """Whether a key for a role other than admin was ever made in this store."""
        self._generation = -1
        self.tokens: AccessTokens | None = None
        """Verifies access tokens, where there is an issuer of them."""
        self._read_at = now()
        """When the keys were last read from the store."""
        self._reading = asyncio.Lock()
        self._looking = asyncio.Lock()
        self._looked_at = -_LOOK_AGAIN
        """When a look for unknown keys last ended."""
        self._looks_begun = 0
        self._last_look = 0
        """The number of the last look that ended."""
        self._lookers = 0

    @classmethod
    async def open(cls, store: Store) -> KeyRing:
        ring = cls(store)
        if await store.keys.unsigned() == []:
            await store.keys.sign_existing(())  # a new store: none of its rows is from before
        await ring._load()
        return ring

    # -- reading

    def principal(self, authorization: bytes) -> Principal | None:
        """Return the principal of an Authorization header; None when its key is not valid."""
        if self._now() - self._read_at >= BLIND_AFTER:  # ``is_blind``, on the path of every call
            return None
        seen = self._seen.get(authorization)
        if seen is not None:
            return seen
        if self.tokens is not None:
            seen = self.tokens.verified.get(authorization)
            if seen is not None:
                return seen
        if authorization[:7].lower() != _BEARER:
            return None
        key_id, digest = _parse_key(authorization[7:].strip())
        found = self._in_force.get(key_id)
        is_equal = compare_digest(digest, found.digest if found is not None else _NOBODY)
        if found is None or not is_equal:
            return None
        if len(self._seen) >= _SEEN:
            self._seen.clear()
        self._seen[authorization] = found.principal
        return found.principal

    async def verify(self, authorization: bytes) -> Principal | None:
        """Verify an access token; ``principal`` knows it then. None where none is accepted.

        Raises TokenRefused and IssuerUnavailable.
        """
        if self.tokens is None or self.is_blind:
            return None
        return await self.tokens.verify(authorization)

    async def find_new(
        self, authorization: bytes, refresh: Callable[[], Awaitable[object]]
    ) -> Principal | None:
        """Return the principal of a key that was made since the keys were read.

        ``refresh`` reads keys and grants again. Only a run that begins after the request has come
        is sure to find its key, so the request waits for one. All that wait share it; it rests in
        between, so that guessing keys does not load the store.
        """
        if self.is_blind or self._lookers >= _LOOKERS or not _looks_like_key(authorization):
            return None
        begun = self._looks_begun
        self._lookers += 1
        try:
            async with self._looking:
                if self._last_look <= begun:
                    await self._look(refresh)
        finally:
            self._lookers -= 1
        return self.principal(authorization)

    async def _look(self, refresh: Callable[[], Awaitable[object]]) -> None:
        """Read the keys again, no sooner than the store is to be asked again."""
        rest = self._looked_at + _LOOK_AGAIN - self._now()
        if rest > 0:
            await self._sleep(rest)
        self._looks_begun = number = self._looks_begun + 1
        try:
            await refresh()
        except StoreError as error:
            log.warning("a key cannot be looked for: %s", error)
        finally:
            self._looked_at = self._now()
        self._last_look = number

    @property
    def has_any(self) -> bool:
        """Whether any key is in force."""
        return bool(self._in_force)

    @property
    def has_admin(self) -> bool:
        return any(known.principal.role is Role.ADMIN for known in self._in_force.values())

    def is_in_force(self, principal: Principal) -> bool:
        """Whether a principal's key is still in force; any key of its agent if it names none."""
        if self.tokens is not None and self.tokens.is_own(principal):
            return self.tokens.is_in_force(principal)
        if principal.key:
            found = self._in_force.get(principal.key.encode())
            return found is not None and found.principal == principal
        whose = principal.id, principal.role
        return any((k.principal.id, k.principal.role) == whose for k in self._in_force.values())

    def find_life(self, authorization: bytes) -> TokenLife | None:
        """Return what a session may keep of an access token that is verified; None for a key."""
        return None if self.tokens is None else self.tokens.find_life(authorization)

    def is_session_good(self, principal: Principal, life: TokenLife | None) -> bool:
        """Whether what was shown for a session in a browser still stands for its principal."""
        if life is None:
            return self.is_in_force(principal)
        return self.tokens is not None and self.tokens.is_alive(principal, life)

    @property
    def is_blind(self) -> bool:
        """Whether the keys were read so long ago that a revocation may have been missed."""
        return self._now() - self._read_at >= BLIND_AFTER

    @property
    def generation(self) -> object:
        """A value that differs whenever keys were changed, or access tokens revoked."""
        return self._generation, self.tokens.generation if self.tokens is not None else 0

    async def all(self) -> list[KeyRecord]:
        """Read all keys, revoked ones too."""
        return await self._store.keys.all()

    # -- changing

    async def refresh(self) -> Mapping[str, int] | None:
        """Read what other processes have changed; return the generations of all topics.

        An outage raises nothing, and there are none: see ``is_blind``.
        """
        try:
            return await self._load()
        except StoreUnavailable:
            return None  # ``is_blind`` tells

    async def create(self, role: Role, agent: str, by: str) -> tuple[KeyRecord, str]:
        """Make a new key; return its record, and the key itself, which is not stored."""
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
        """Accept a key that the administrator has chosen, and revoke the one before it.

        Raises UsageError for a key that is too short.
        """
        if len(text) < LEAST or not text.isascii() or not text.isprintable() or " " in text:
            raise UsageError(
                f"{by} must be at least {LEAST} printable ASCII characters without spaces"
            )
        key_id, digest = _parse_key(text.encode())
        known = {key.id: key for key in await self._store.keys.all()}
        existing = known.pop(key_id.decode(), None)
        if existing is not None and (existing.revoked_at or existing.role != Role.ADMIN):
            raise UsageError(f"{by} is a key that is revoked, or no administrator's; give another")
        for key in known.values():
            if key.created_by == by and key.revoked_at is None:
                await self._store.keys.revoke(key.id, time.time(), by)
        if existing is None:
            role, now = Role.ADMIN, time.time()
            made = KeyRecord(key_id.decode(), role.value, role.value, digest.hex(), now, by)
            await self._store.keys.add(made)
        await self._load()

    async def revoke(self, key_id: str, by: str) -> KeyRecord:
        """Revoke a key. Raises UsageError when there is no such key."""
        try:
            key = await self._store.keys.revoke(key_id, time.time(), by)
        except NotFound:
            raise UsageError(f"there is no key {key_id!r}; see: mcp-junction keys list") from None
        self._in_force.pop(key_id.encode(), None)
        self._seen.clear()
        await self._load()
        return key

    async def _load(self) -> Mapping[str, int]:
        async with self._reading:  # or older keys could take the place of newer ones
            began = self._now()
            generations = await self._store.generations()
            generation = generations.get("keys", 0)
            if generation != self._generation:
                self._use(await self._store.keys.read())
                self._generation = generation
            if self.tokens is not None:
                await self.tokens.follow(generations)
            self._read_at = began
            return generations

    def _use(self, found: StoredKeys) -> None:
        """Use these keys from now on."""
        if found.rejected:
            log.error(
                "%d rows of the table of keys carry no valid signature and are ignored: %s;"
                " if the store's key was changed, give both: MCP_CREDENTIAL_KEY='NEW OLD'",
                len(found.rejected),
                ", ".join(found.rejected[:_SHOWN]),
            )
        self._in_force = {
            key.id.encode(): _KeyInForce(
                bytes.fromhex(key.sha256), Principal(key.agent, Role(key.role), key.id)
            )
            for key in found.keys
            if key.revoked_at is None and key.role in KEY_ROLES
        }
        self.has_issued_client_keys = found.has_issued_client_keys
        self._seen.clear()


def _looks_like_key(authorization: bytes) -> bool:
    """Whether a header has a key of our making, known or not."""
    key = authorization[len(_BEARER) :].strip()
    return authorization[:7].lower() == _BEARER and key.startswith(_PREFIX + b"_")


def _parse_key(key: bytes) -> tuple[bytes, bytes]:
    """Return the id of a key and the hash of its secret; a chosen key's id is from its hash."""
    parts = key.split(b"_", 2)
    if len(parts) == 3 and parts[0] == _PREFIX:
        return parts[1], sha256(parts[2]).digest()
    digest = sha256(key).digest()
    return b"own-" + digest.hex()[:12].encode(), digest


SIGNED_FILE: Final = "keys.signed"


async def sign_existing_keys(store: Store, audit: AuditLog, folder: Path) -> int:
    """Sign the keys that an older version stored, unless that was done before; return how many."""
    ids = await store.keys.unsigned()
    marker = folder / SIGNED_FILE
    if ids and marker.exists():
        log.error(
            "%d rows of the table of keys are not signed and are ignored: the keys of this data"
            " directory were signed before. If the store was restored from a backup of an older"
            " version, delete %s and start again",
            len(ids),
            marker,
        )
        return 0
    count = 0
    if ids:
        me, detail = LOCAL_OWNER, {"keys": len(ids), "ids": ids[:_SHOWN]}
        async with audit.act(me.id, me.role, "keys.sign", detail=detail):
            count = await store.keys.sign_existing(ids)
        log.warning("%d keys that an older version had stored were signed", count)
    if not marker.exists():
        marker.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        marker.touch(mode=0o600)
    return count


VARIABLE: Final = "JUNCTION_ADMIN_KEY"
ADMIN_KEY_FILE: Final = "admin.key"


async def adopt_admin_key(keys: KeyRing, environ: Mapping[str, str]) -> bool:
    """Accept the administrator's key of the environment, if there is one."""
    given = environ.get(VARIABLE, "")
    if given:
        await keys.adopt(given, VARIABLE)
    return bool(given)


async def make_admin_key(keys: KeyRing, folder: Path) -> str:
    """Make the first administrator's key, and store it in a file for commands of this machine."""
    _, text = await keys.create(Role.ADMIN, Role.ADMIN.value, LOCAL_OWNER.id)
    _write_private(folder / ADMIN_KEY_FILE, text)
    return text


def read_admin_key(folder: Path) -> str | None:
    """Read the administrator's key from its file, if there is one."""
    try:
        return (folder / ADMIN_KEY_FILE).read_text("utf-8").strip() or None
    except (OSError, UnicodeDecodeError):
        return None


def _write_private(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    path.unlink(missing_ok=True)  # never write into a file that others may have open
    number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(number, "w", encoding="utf-8") as file:
        file.write(text + "\n")
