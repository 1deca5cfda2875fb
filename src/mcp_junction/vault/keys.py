"""The credential key: from ``MCP_CREDENTIAL_KEY``, or from a file made at the first start.

Either holds one key or several: the first seals, the others only open what was sealed before. The
file is for its owner only.
"""

from __future__ import annotations

import base64
import binascii
import os
import re
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from mcp_junction.errors import UsageError

VARIABLE: Final = "MCP_CREDENTIAL_KEY"
FILE: Final = "credential.key"
LENGTH: Final = 32
_HOW: Final = "it must be 32 bytes in base64 or hex; `openssl rand -base64 32` makes one"


def credential_keys(environ: Mapping[str, str], data_dir: Path) -> list[bytes]:
    """All keys, the sealing one first. Makes the file when there is none."""
    if text := environ.get(VARIABLE, "").strip():
        return _parsed(text, VARIABLE)
    path = data_dir / FILE
    try:
        return _parsed(_read_or_make(path), str(path))
    except OSError as error:
        raise UsageError(f"{path} cannot be used: {error.strerror}") from None


def _read_or_make(path: Path) -> str:
    """Two processes may start at once: only one makes the file, both read it."""
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


def _parsed(text: str, source: str) -> list[bytes]:
    keys = [_key(word) for word in re.split(r"[\s,]+", text.strip())]
    if not keys or None in keys:
        raise UsageError(f"{source} holds no usable key: {_HOW}")
    return [key for key in keys if key is not None]


def _key(word: str) -> bytes | None:
    try:
        found = (
            bytes.fromhex(word)
            if re.fullmatch(r"[0-9a-fA-F]{64}", word)
            else base64.b64decode(word.replace("-", "+").replace("_", "/"), validate=True)
        )
    except (ValueError, binascii.Error):
        return None
    return found if len(found) == LENGTH else None
