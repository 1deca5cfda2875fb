"""Vault: AES-256-GCM with the row's identity as associated data.

A sealed value is: format (1 byte), key id (4), nonce (12), ciphertext and tag. The identity is not
in it: a value that was moved to another row does not open. Other keys that the program needs are
derived here, so that there is one secret to keep.
"""

from __future__ import annotations

import hmac
import os
from collections.abc import Mapping, Sequence
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from mcp_junction.errors import MissingKey, VaultError
from mcp_junction.vault.keys import credential_keys

_FORMAT: Final = b"\x01"
_ID: Final = 4
_NONCE: Final = 12
_HEAD: Final = 1 + _ID + _NONCE


class Vault:
    """Seals with the first key, opens with any."""

    def __init__(self, keys: Sequence[bytes]) -> None:
        self._keys = {_key_id(key): key for key in keys}
        self._first = _key_id(keys[0])

    @classmethod
    def of(cls, environ: Mapping[str, str], data_dir: Path) -> Vault:
        """The vault of a data directory. Raises UsageError."""
        return cls(credential_keys(environ, data_dir))

    def __repr__(self) -> str:
        return f"Vault({', '.join(key.hex() for key in self._keys)})"

    def seal(self, plain: bytes, identity: str) -> bytes:
        nonce = os.urandom(_NONCE)
        text: bytes = self._ciphers[self._first].encrypt(nonce, plain, identity.encode())
        return _FORMAT + self._first + nonce + text

    def open(self, sealed: bytes, identity: str) -> bytes:
        """Raises VaultError: another key, another row, or changed bytes."""
        from cryptography.exceptions import InvalidTag

        if sealed[:1] != _FORMAT or len(sealed) < _HEAD:
            raise VaultError(f"what is stored as {identity} was not sealed by this program")
        cipher = self._ciphers.get(sealed[1 : 1 + _ID])
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

    # -- MACs: the id of the key, and HMAC-SHA-256 under what is derived from it for the purpose

    def sign(self, message: bytes, purpose: str) -> bytes:
        """Make a MAC of a message for one purpose, with the first key."""
        return self._first + _mac(self._keys[self._first], purpose, message)

    def verifies(self, message: bytes, mac: bytes, purpose: str) -> bool:
        """Whether one of our keys made this MAC of the message for that purpose."""
        key = self._keys.get(mac[:_ID])
        return key is not None and hmac.compare_digest(_mac(key, purpose, message), mac[_ID:])

    def is_by_current_key(self, mac: bytes) -> bool:
        """Whether the first key, the one that signs now, made this MAC."""
        return mac[:_ID] == self._first

    @property
    def key_id(self) -> str:
        """Which key seals now."""
        return self._first.hex()

    def derived(self, purpose: str) -> list[bytes]:
        """Keys for something else, one for each of ours; the first is the one to use now."""
        ours = [self._keys[self._first], *self._keys.values()]
        return list(dict.fromkeys(_derive(key, purpose) for key in ours))

    @cached_property
    def _ciphers(self) -> dict[bytes, Any]:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # costs 40 ms to load

        return {key_id: AESGCM(key) for key_id, key in self._keys.items()}


def _key_id(key: bytes) -> bytes:
    return sha256(b"mcp-junction/key-id" + key).digest()[:_ID]


def _derive(key: bytes, purpose: str) -> bytes:
    return hmac.digest(key, b"mcp-junction/" + purpose.encode(), "sha256")


def _mac(key: bytes, purpose: str, message: bytes) -> bytes:
    return hmac.digest(_derive(key, f"mac/{purpose}"), message, "sha256")
