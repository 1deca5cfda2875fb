"""KeyRing: bearer keys, hashed at rest, in one small file that only its owner can read.

A key is ``jct_<id>_<secret>``. Only the SHA-256 of the secret is kept, and it is compared in
constant time. The file is read again when it has changed, so that a revocation by another process
holds at once.
"""

from __future__ import annotations

import os
import secrets
import time
from hashlib import sha256
from hmac import compare_digest
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from mcp_junction.errors import UsageError
from mcp_junction.policy.principal import Principal, Role

PREFIX: Final = "jct"
_CHECK_EVERY: Final = 0.5
_BEARER: Final = b"bearer "
_PREFIX: Final = PREFIX.encode()
_NOBODY: Final = bytes(32)


class Key(msgspec.Struct, frozen=True):
    """What is kept of a key."""

    id: str
    role: Role
    agent: str
    sha256: str
    created_at: str
    revoked_at: str | None = None


class _Known(NamedTuple):
    """A key in force, as it is looked up."""

    digest: bytes
    principal: Principal


class KeyRing:
    """The keys of a data directory."""

    def __init__(self, data_dir: Path) -> None:
        self._path = data_dir / "keys.json"
        self._keys: dict[str, Key] = {}
        self._in_force: dict[bytes, _Known] = {}
        self._stamp: tuple[int, int] | None = None
        self._checked = 0.0
        self._load()

    # -- asking

    def principal(self, authorization: bytes) -> Principal | None:
        """Who an Authorization header speaks for; None when for nobody."""
        if authorization[:7].lower() != _BEARER:
            return None
        self._refresh()
        parts = authorization[7:].strip().split(b"_", 2)
        if len(parts) != 3 or parts[0] != _PREFIX:
            return None
        found = self._in_force.get(parts[1])
        digest = sha256(parts[2]).digest()
        if not compare_digest(digest, found.digest if found is not None else _NOBODY):
            return None
        return found.principal if found is not None else None

    @property
    def has_any(self) -> bool:
        """Whether any key is in force."""
        self._refresh()
        return bool(self._in_force)

    def is_in_force(self, principal: Principal) -> bool:
        """Whether any key still speaks for someone."""
        self._refresh()
        return any(known.principal == principal for known in self._in_force.values())

    @property
    def generation(self) -> object:
        """Another one when the keys have changed."""
        self._refresh()
        return self._stamp

    def all(self) -> list[Key]:
        self._refresh(now=True)
        return list(self._keys.values())

    # -- changing

    def create(self, role: Role, agent: str) -> tuple[Key, str]:
        """A new key; the second value is the key itself, which is never seen again."""
        self._refresh(now=True)
        secret = secrets.token_urlsafe(32)
        key = Key(
            id=secrets.token_hex(6),
            role=role,
            agent=agent,
            sha256=sha256(secret.encode()).hexdigest(),
            created_at=_now(),
        )
        self._keys[key.id] = key
        self._save()
        return key, f"{PREFIX}_{key.id}_{secret}"

    def revoke(self, key_id: str) -> Key:
        """Raises UsageError when there is no such key."""
        self._refresh(now=True)
        key = self._keys.get(key_id)
        if key is None:
            raise UsageError(f"there is no key {key_id!r}; see: mcp-junction keys list")
        if key.revoked_at is None:
            key = msgspec.structs.replace(key, revoked_at=_now())
            self._keys[key_id] = key
            self._save()
        return key

    # -- the file

    def _refresh(self, *, now: bool = False) -> None:
        moment = time.monotonic()
        if now or moment - self._checked >= _CHECK_EVERY:
            self._checked = moment
            if self._seen() != self._stamp:
                self._load()

    def _seen(self) -> tuple[int, int] | None:
        try:
            found = self._path.stat()
        except FileNotFoundError:
            return None
        return found.st_mtime_ns, found.st_ino

    def _load(self) -> None:
        stamp = self._seen()
        try:
            keys = msgspec.json.decode(self._path.read_bytes(), type=list[Key])
        except FileNotFoundError:
            keys = []
        except (msgspec.MsgspecError, OSError) as error:
            raise UsageError(f"{self._path} cannot be read: {error}") from None
        self._keys = {key.id: key for key in keys}
        self._in_force = {
            key.id.encode(): _Known(bytes.fromhex(key.sha256), Principal(key.agent, key.role))
            for key in keys
            if key.revoked_at is None
        }
        self._stamp = stamp

    def _save(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        draft = self._path.with_suffix(f".{os.getpid()}.tmp")
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(msgspec.json.format(msgspec.json.encode(list(self._keys.values()))))
            file.flush()
            os.fsync(file.fileno())
        draft.replace(self._path)
        self._load()


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
