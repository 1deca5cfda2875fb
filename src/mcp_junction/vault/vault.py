"""Vault: encrypts stored values with AES-256-GCM, and makes MACs; also finds or creates its key.

A row's identity is the associated data: a value that is moved to another row cannot be decrypted.
The key is ``MCP_CREDENTIAL_KEY``, or a file created at the first start.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import os
import re
import secrets
from collections.abc import Mapping, Sequence
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from mcp_junction.errors import MissingKey, UsageError, VaultError

VARIABLE: Final = "MCP_CREDENTIAL_KEY"
FILE: Final = "credential.key"
LENGTH: Final = 32
_HOW: Final = "it must be 32 bytes in base64 or hex; `openssl rand -base64 32` makes one"


def read_keys(environ: Mapping[str, str], data_dir: Path) -> list[bytes]:
    """Read all keys, the current one first; create the file when there is none."""
    if text := environ.get(VARIABLE, "").strip():
        return _parse_keys(text, VARIABLE)
    path = data_dir / FILE
    try:
        return _parse_keys(_read_or_create(path), str(path))
    except OSError as error:
        raise UsageError(f"{path} cannot be used: {error.strerror}") from None


def _read_or_create(path: Path) -> str:
    """Read the key file, creating it first. Two processes may do so at once: one file wins."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        draft = path.with_suffix(f".{secrets.token_hex(4)}.tmp")
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(base64.b64encode(secrets.token_bytes(LENGTH)) + b"\n")
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(draft, path)
        except FileExistsError:
            pass
        finally:
            draft.unlink()
    if path.stat().st_mode & 0o077:
        path.chmod(0o600)
    return path.read_text("ascii", errors="replace")


def _parse_keys(text: str, source: str) -> list[bytes]:
    keys = [_parse_key(word) for word in re.split(r"[\s,]+", text.strip())]
    if not keys or None in keys:
        raise UsageError(f"{source} holds no usable key: {_HOW}")
    return [key for key in keys if key is not None]


def _parse_key(word: str) -> bytes | None:
    try:
        found = (
            bytes.fromhex(word)
            if re.fullmatch(r"[0-9a-fA-F]{64}", word)
            else base64.b64decode(word.replace("-", "+").replace("_", "/"), validate=True)
        )
    except (ValueError, binascii.Error):
        return None
    return found if len(found) == LENGTH else None


_FORMAT: Final = b"\x01"
_ID: Final = 4
_NONCE: Final = 12
_HEAD: Final = 1 + _ID + _NONCE


class Vault:
    """Encrypts and signs with the first key; decrypts and verifies with any."""

    def __init__(self, keys: Sequence[bytes]) -> None:
        self._keys = {_key_id(key): key for key in keys}
        self._first = _key_id(keys[0])

    @classmethod
    def from_environment(cls, environ: Mapping[str, str], data_dir: Path) -> Vault:
        """Make the vault of a data directory. Raises UsageError."""
        return cls(read_keys(environ, data_dir))

    def __repr__(self) -> str:
        return f"Vault({', '.join(key.hex() for key in self._keys)})"

    def seal(self, plain: bytes, identity: str) -> bytes:
        """Encrypt a value for the row with this identity."""
        nonce = os.urandom(_NONCE)
        text: bytes = self._ciphers[self._first].encrypt(nonce, plain, identity.encode())
        return _FORMAT + self._first + nonce + text

    def open(self, sealed: bytes, identity: str) -> bytes:
        """Decrypt a value. Raises VaultError: another key, another row, or changed bytes."""
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

    # -- MACs: the id of the key, and HMAC-SHA-256 with a key derived from it for the purpose

    def sign(self, message: bytes, purpose: str) -> bytes:
        """Make a MAC of a message for one purpose, with the first key."""
        return self._first + _mac(self._keys[self._first], purpose, message)

    def verify(self, message: bytes, mac: bytes, purpose: str) -> bool:
        """Whether one of our keys made this MAC of the message for that purpose."""
        key = self._keys.get(mac[:_ID])
        return key is not None and hmac.compare_digest(_mac(key, purpose, message), mac[_ID:])

    def is_by_current_key(self, mac: bytes) -> bool:
        """Whether the first key, the one that signs now, made this MAC."""
        return mac[:_ID] == self._first

    @property
    def key_id(self) -> str:
        """The id of the current key."""
        return self._first.hex()

    def derive_keys(self, purpose: str) -> list[bytes]:
        """Derive keys for another purpose, one from each of ours, the current one first."""
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
