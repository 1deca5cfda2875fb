"""Signs the keys that an older version stored unsigned: once in the life of a store, and audited.

That it was done is noted in the store, under a MAC, and in a file of the data directory: somebody
who can write to the database, and deletes the note there, still gets no row of their own signed.
New keys and revocations are signed by ``store/keys.py``.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Final

from mcp_junction.audit.log import AuditLog
from mcp_junction.policy.principal import LOCAL_OWNER
from mcp_junction.store.store import Store

FILE: Final = "keys.signed"
_SHOWN: Final = 20
log = logging.getLogger("mcp_junction.identity")


async def sign_existing_keys(store: Store, audit: AuditLog, folder: Path) -> int:
    """Sign the keys that an older version stored, unless that was done before; how many."""
    ids = await store.keys.unsigned()
    note = folder / FILE
    if ids and note.exists():
        log.error(
            "%d rows of the table of keys are not signed and are ignored: the keys of this data"
            " directory were signed before. If the store was restored from a backup of an older"
            " version, delete %s and start again",
            len(ids),
            note,
        )
        return 0
    count = 0
    if ids:
        me, detail = LOCAL_OWNER, {"keys": len(ids), "ids": ids[:_SHOWN]}
        async with audit.act(me.id, me.role, "keys.sign", detail=detail):
            count = await store.keys.sign_existing(ids)
        log.warning("%d keys that an older version had stored were signed", count)
    if not note.exists():
        note.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        note.touch(mode=0o600)
    return count
