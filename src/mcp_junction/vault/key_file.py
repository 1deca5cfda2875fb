"""KeyFile: where the vault's keys come from: ``MCP_CREDENTIAL_KEY``, or a file made at the start.

Both hold keys as words, the current one first. The others open what they have sealed. A word that
begins with ``retired:`` is a key that opens no row any more: it is kept for chains of the audit.
"""

from __future__ import annotations

import base64
import binascii
import os
import re
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from mcp_junction.errors import UsageError

VARIABLE: Final = "MCP_CREDENTIAL_KEY"
FILE: Final = "credential.key"
LENGTH: Final = 32
_RETIRED: Final = "retired:"
_HOW: Final = "it must be 32 bytes in base64 or hex; `openssl rand -base64 32` makes one"


class VaultKeys(NamedTuple):
    """The keys of a vault."""

    active: tuple[bytes, ...]
    """The one that seals, and others that open."""
    retired: tuple[bytes, ...] = ()
    """Those that are only good for chains of the audit."""


class KeyFile:
    """The keys of one data directory."""

    def __init__(self, environ: Mapping[str, str], data_dir: Path) -> None:
        self._given = environ.get(VARIABLE, "").strip()
        self.path = data_dir / FILE
        self._seen: object = None
        """What the file was when it was read."""

    @property
    def is_file(self) -> bool:
        """Whether the keys are in the file, rather than in the environment."""
        return not self._given

    @property
    def source(self) -> str:
        return str(self.path) if self.is_file else VARIABLE

    def read(self) -> VaultKeys:
        """Read the keys; create the file when there is none. Raises UsageError."""
        if self._given:
            return parse_keys(self._given, VARIABLE)
        try:
            _create_missing(self.path)
            self._seen = self._fingerprint()  # first: it may be replaced while it is read
            text = self.path.read_text("ascii", errors="replace")
            return parse_keys(text, str(self.path))
        except OSError as error:
            raise UsageError(f"{self.path} cannot be used: {error.strerror}") from None

    @property
    def has_changed(self) -> bool:
        """Whether the file is not what was read."""
        return self.is_file and self._seen != self._fingerprint()

    def write(self, keys: VaultKeys) -> None:
        """Replace the file. Raises UsageError."""
        lines = [_encode(key) for key in keys.active]
        lines += [_RETIRED + _encode(key) for key in keys.retired]
        draft = self.path.with_suffix(f".{secrets.token_hex(4)}.tmp")
        try:
            try:
                _write_private(draft, "\n".join(lines) + "\n")
                draft.replace(self.path)
            finally:
                draft.unlink(missing_ok=True)
            folder = os.open(self.path.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        except OSError as error:
            raise UsageError(f"{self.path} cannot be written: {error.strerror}") from None

    def _fingerprint(self) -> object:
        try:
            found = self.path.stat()
        except OSError:
            return None
        return found.st_mtime_ns, found.st_ino, found.st_size


def new_key() -> bytes:
    """Make a key."""
    return secrets.token_bytes(LENGTH)


def parse_keys(text: str, source: str) -> VaultKeys:
    """Read keys from words. Raises UsageError."""
    words = re.split(r"[\s,]+", text.strip())
    active = [_parse_key(word) for word in words if not word.startswith(_RETIRED)]
    retired = [
        _parse_key(word.removeprefix(_RETIRED)) for word in words if word.startswith(_RETIRED)
    ]
    if not active or None in active or None in retired:
        raise UsageError(f"{source} holds no usable key: {_HOW}")
    return VaultKeys(_known(active), _known(retired))


def _known(keys: Sequence[bytes | None]) -> tuple[bytes, ...]:
    return tuple(dict.fromkeys(key for key in keys if key is not None))


def _create_missing(path: Path) -> None:
    """Make the key file if there is none. Two processes may do so at once: one file wins."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        draft = path.with_suffix(f".{secrets.token_hex(4)}.tmp")
        try:
            _write_private(draft, _encode(new_key()) + "\n")
            os.link(draft, path)
        except FileExistsError:
            pass
        finally:
            draft.unlink(missing_ok=True)
    if path.stat().st_mode & 0o077:
        path.chmod(0o600)


def _write_private(path: Path, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="ascii") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def _encode(key: bytes) -> str:
    return base64.b64encode(key).decode("ascii")


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
