"""The first administrator's key: taken from the environment, or made at the first start.

A key that is made is printed once and kept hashed; beside the store's own secrets in the data
directory it also lies in a file that only its owner can read, so that the commands on this machine
find it. Who deletes that file loses nothing but this convenience.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from mcp_junction.identity.keys import KeyRing
from mcp_junction.policy.principal import LOCAL_OWNER, Role

VARIABLE: Final = "JUNCTION_ADMIN_KEY"
FILE: Final = "admin.key"


async def take_admin_key(keys: KeyRing, environ: Mapping[str, str]) -> bool:
    """Let the key of the environment, if there is one, be the administrator's."""
    given = environ.get(VARIABLE, "")
    if given:
        await keys.adopt(given, VARIABLE)
    return bool(given)


async def make_admin_key(keys: KeyRing, folder: Path) -> str:
    """A key for the first administrator; it is written down for the commands of this machine."""
    _, text = await keys.create(Role.ADMIN, Role.ADMIN.value, LOCAL_OWNER.id)
    _write(folder / FILE, text)
    return text


def kept_admin_key(folder: Path) -> str | None:
    """The key as it was written down, if it still is."""
    try:
        return (folder / FILE).read_text("utf-8").strip() or None
    except (OSError, UnicodeDecodeError):
        return None


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    path.unlink(missing_ok=True)  # never write into a file that others may have open
    number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(number, "w", encoding="utf-8") as file:
        file.write(text + "\n")
