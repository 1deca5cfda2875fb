"""Vault: encrypts stored values with AES-256-GCM, and makes MACs.

A row's identity is the associated data: a value that is moved to another row cannot be decrypted.
Keys can change while it is used: when it meets a value of a key that it does not know, it reads the
key file again. Where that is, and what it holds, is ``key_file.py``.
"""

from __future__ import annotations

import hmac
import logging
import os
from collections.abc import Mapping, Sequence
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from mcp_junction.errors import MissingKey, UsageError, VaultError
from mcp_junction.vault.key_file import KeyFile, VaultKeys

log = logging.getLogger("mcp_junction.vault")

_FORMAT: Final = b"\x01"
_ID: Final = 4
_NONCE: Final = 12
_HEAD: Final = 1 + _ID + _NONCE


class _KnownKeys:
    """The keys at one moment. Never changes: threads use it while another takes its place."""

    def __init__(self, keys: VaultKeys) -> None:
        self.active = {_key_id(key): key for key in keys.active}
        self.first = _key_id(keys.active[0])
        self.retired = keys.retired
        self._derived: dict[str, list[bytes]] = {}

    def derive(self, purpose: str) -> list[bytes]:
        found = self._derived.get(purpose)
        if found is None:
            ours = (*self.active.values(), *self.retired)
            found = list(dict.fromkeys(_derive(key, purpose) for key in ours))
            self._derived[purpose] = found
        return found

    @cached_property
    def ciphers(self) -> dict[bytes, Any]:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # costs 40 ms to load

        return {key_id: AESGCM(key) for key_id, key in self.active.items()}


class Vault:
    """Encrypts and signs with the first key; decrypts and verifies with any that is not retired."""

    def __init__(
        self, keys: Sequence[bytes], retired: Sequence[bytes] = (), file: KeyFile | None = None
    ) -> None:
        self._known = _KnownKeys(VaultKeys(tuple(keys), tuple(retired)))
        self._file = file

    @classmethod
    def from_environment(cls, environ: Mapping[str, str], data_dir: Path) -> Vault:
        """Make the vault of a data directory. Raises UsageError."""
        file = KeyFile(environ, data_dir)
        keys = file.read()
        return cls(keys.active, keys.retired, file)

    def __repr__(self) -> str:
        return f"Vault({', '.join(self.key_ids)})"

    def seal(self, plain: bytes, identity: str) -> bytes:
        """Encrypt a value for the row with this identity."""
        self.refresh()  # never with a key that was replaced meanwhile
        known, nonce = self._known, os.urandom(_NONCE)
        text: bytes = known.ciphers[known.first].encrypt(nonce, plain, identity.encode())
        return _FORMAT + known.first + nonce + text

    def open(self, sealed: bytes, identity: str) -> bytes:
        """Decrypt a value. Raises VaultError: another key, another row, or changed bytes."""
        from cryptography.exceptions import InvalidTag

        if sealed[:1] != _FORMAT or len(sealed) < _HEAD:
            raise VaultError(f"what is stored as {identity} was not sealed by this program")
        key_id = sealed[1 : 1 + _ID]
        if key_id not in self._known.active:
            self._reload_for_unknown_key(key_id)
        cipher = self._known.ciphers.get(key_id)
        if cipher is None:
            raise MissingKey(
                f"{identity} was sealed with a key that is not here;"
                " set MCP_CREDENTIAL_KEY to it, or put the old key file back"
            )
        try:
            plain: bytes = cipher.decrypt(
                sealed[1 + _ID : _HEAD], sealed[_HEAD:], identity.encode()
            )
        except InvalidTag:
            raise VaultError(f"{identity} was changed, or moved from another row") from None
        return plain

    def is_sealed_by_current_key(self, sealed: bytes) -> bool:
        """Whether the first key, the one that seals now, sealed this value."""
        return sealed[1 : 1 + _ID] == self._known.first

    # -- MACs: the id of the key, and HMAC-SHA-256 with a key derived from it for the purpose

    def sign(self, message: bytes, purpose: str) -> bytes:
        """Make a MAC of a message for one purpose, with the first key."""
        self.refresh()
        known = self._known
        return known.first + _mac(known.active[known.first], purpose, message)

    def verify(self, message: bytes, mac: bytes, purpose: str) -> bool:
        """Whether one of our keys made this MAC of the message for that purpose."""
        key_id = mac[:_ID]
        if key_id not in self._known.active:
            self._reload_for_unknown_key(key_id)
        key = self._known.active.get(key_id)
        return key is not None and hmac.compare_digest(_mac(key, purpose, message), mac[_ID:])

    def is_by_current_key(self, mac: bytes) -> bool:
        """Whether the first key, the one that signs now, made this MAC."""
        return mac[:_ID] == self._known.first

    # -- its keys

    @property
    def key_id(self) -> str:
        """The id of the current key."""
        return self._known.first.hex()

    @property
    def key_ids(self) -> list[str]:
        """The ids of the keys that open, the current one first."""
        return [key_id.hex() for key_id in self._known.active]

    @property
    def retired_ids(self) -> list[str]:
        """The ids of the keys that open nothing any more, but chains of the audit."""
        return [_key_id(key).hex() for key in self._known.retired]

    def derive_keys(self, purpose: str) -> list[bytes]:
        """Derive keys for another purpose, one from each of ours, the current one first.

        From retired ones, too. The same list until the keys change.
        """
        return self._known.derive(purpose)

    def refresh(self) -> bool:
        """Take over the keys of the file if that has changed; whether these are other keys."""
        if self._file is None or not self._file.has_changed:
            return False
        try:
            known = _KnownKeys(self._file.read())
        except UsageError as error:  # the keys that are known go on to be used
            log.error("the vault's keys cannot be read again: %s", error)
            return False
        before, self._known = self._known, known
        return (known.active, known.retired) != (before.active, before.retired) or (
            known.first != before.first
        )

    def _reload_for_unknown_key(self, key_id: bytes) -> None:
        """Read the file again, if it has changed, because of a key that is not known."""
        if self.refresh() and key_id in self._known.active:
            log.warning("the vault has a new key: %s", key_id.hex())


def _key_id(key: bytes) -> bytes:
    return sha256(b"mcp-junction/key-id" + key).digest()[:_ID]


def key_id_of(key: bytes) -> str:
    """Return the id of a key, which is no secret."""
    return _key_id(key).hex()


def _derive(key: bytes, purpose: str) -> bytes:
    return hmac.digest(key, b"mcp-junction/" + purpose.encode(), "sha256")


def _mac(key: bytes, purpose: str, message: bytes) -> bytes:
    return hmac.digest(_derive(key, f"mac/{purpose}"), message, "sha256")
