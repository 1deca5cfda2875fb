"""``mcp-junction vault``: shows the keys that seal the store, and replaces the current one.

A rotation gives the new key to every running service first, then lets them seal with it, then seals
and signs every row anew, and only then retires the old key. Each step waits until all services have
taken the one before; a rotation that was interrupted is finished by the next.
"""

from __future__ import annotations

import argparse
import asyncio
import fcntl
import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from mcp_junction.audit.log import AuditLog
from mcp_junction.cli.options import action, add_actions, add_json, add_store_options, make_parser
from mcp_junction.cli.printing import print_table
from mcp_junction.cli.runner import run_async
from mcp_junction.cli.storage import Storage, open_storage
from mcp_junction.errors import UsageError
from mcp_junction.policy.principal import LOCAL_OWNER
from mcp_junction.store.protected import RenewedRows, VaultUser
from mcp_junction.vault.key_file import VARIABLE, VaultKeys, new_key
from mcp_junction.vault.vault import key_id_of

WAIT: Final = 30.0
"""Seconds that running services have to take a key."""
_POLL: Final = 0.2
_PASSES: Final = 50
_ENVIRONMENT: Final = (
    f"the key is in {VARIABLE}, which only you can change. Give all services 'OLD NEW' and restart"
    " them, then 'NEW OLD' and restart them, then run this command with 'NEW OLD': it seals and"
    " signs everything with NEW. Afterwards give them 'NEW retired:OLD'"
)


def run(argv: list[str]) -> int:
    parser = make_parser(
        "mcp-junction vault",
        "Show and replace the key that seals and signs what is stored.",
        "example:\n  mcp-junction vault rotate\n",
    )
    add_actions(parser, _ACTIONS, add_store_options, add_json)
    args = parser.parse_args(argv)
    return run_async(args.act(args))


async def _status(args: argparse.Namespace) -> int:
    async with open_storage(args, must_exist=True) as storage:
        found = await storage.store.protected.count()
        users = await storage.store.vault_users.alive()
        vault = storage.vault
        shown = {
            "source": storage.key_file.source,
            "current": vault.key_id,
            "others": vault.key_ids[1:],
            "retired": vault.retired_ids,
            "tables": [_to_dict(one) for one in found],
            "services": [{"host": u.host, "pid": u.pid, "keys": list(u.keys)} for u in users],
        }
    if args.json:
        print(json.dumps(shown))
        return 0
    print(f"current key {vault.key_id}, from {shown['source']}")
    for name, ids in (("others", vault.key_ids[1:]), ("retired", vault.retired_ids)):
        if ids:
            print(f"{name}: {', '.join(ids)}")
    for user in users:
        print(f"service {user.pid} on {user.host} seals with {user.keys[0]}")
    headings = ("table", "rows", "by an older key", "not valid")
    rows = [(one.table, one.seen, one.stale, one.invalid) for one in found]
    return print_table(args, shown["tables"], headings, rows, "Nothing is sealed yet.")


async def _rotate(args: argparse.Namespace) -> int:
    async with open_storage(args, must_exist=True) as storage:
        with _alone(storage.folder):
            async with storage.audit_log() as log:
                rotation = Rotation(storage, log, quiet=args.json)
                done = await rotation.run()
    if args.json:
        print(json.dumps(done))
    else:
        print(f"The vault's key is {done['to']} now; {done['rows']} rows were renewed.")
    return 0


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Let one rotation run at a time. Raises UsageError."""
    with (folder / "credential.lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise UsageError("another rotation is under way") from None
        yield


class Rotation:
    """Replaces the current key of a vault."""

    def __init__(self, storage: Storage, log: AuditLog, *, quiet: bool = False) -> None:
        self._storage = storage
        self._log = log
        self._quiet = quiet

    async def run(self) -> dict[str, Any]:
        """Rotate; return what was done. Raises UsageError when a service does not follow."""
        me, vault = LOCAL_OWNER, self._storage.vault
        before = vault.key_id
        detail: dict[str, Any] = {"from": before}
        async with self._log.act(me.id, me.role, "vault.rotated", detail=detail):
            rows = 0
            if len(vault.key_ids) > 1:
                self._say("finishing an earlier rotation")
                rows += await self._finish()
            if self._storage.key_file.is_file:
                await self._begin()
                rows += await self._finish()
            elif not rows and len(vault.key_ids) == 1:
                raise UsageError(_ENVIRONMENT)
            detail |= {"to": vault.key_id, "rows": rows}
        return detail

    async def _begin(self) -> None:
        """Let all services know a new key, and then seal with it."""
        file, key = self._storage.key_file, new_key()
        keys, name = file.read(), key_id_of(key)
        self._write(VaultKeys((*keys.active, key), keys.retired))
        self._say(f"new key {name}: waiting until every service knows it")
        await self._wait(lambda user: name in user.keys)
        self._write(VaultKeys((key, *keys.active), keys.retired))

    async def _finish(self) -> int:
        """Renew everything by the current key, and retire the others; return how many rows."""
        vault, file = self._storage.vault, self._storage.key_file
        await self._wait(lambda user: user.keys[0] == vault.key_id)
        self._say("sealing and signing everything with it")
        rows = await self._renew()
        if file.is_file:
            keys = file.read()
            self._write(VaultKeys(keys.active[:1], (*keys.active[1:], *keys.retired)))
            await self._wait(lambda user: user.keys == (vault.key_id,))
        return rows

    async def _renew(self) -> int:
        """Go through all tables until nothing of an older key is left."""
        rows, clean = 0, 0
        for _ in range(_PASSES):
            found = await self._storage.store.protected.renew()
            renewed = sum(one.renewed for one in found)
            rows += renewed
            clean = 0 if renewed or any(one.stale for one in found) else clean + 1
            if clean == 2:  # nobody has written with an older key since the pass before
                return rows
            await asyncio.sleep(_POLL)
        raise UsageError("rows of the older key keep coming; run this again when it is quieter")

    def _write(self, keys: VaultKeys) -> None:
        self._storage.key_file.write(keys)
        self._storage.vault.refresh()

    async def _wait(self, has_followed: Callable[[VaultUser], bool]) -> None:
        """Wait until all running services have taken over the key file."""
        deadline = time.monotonic() + WAIT
        while True:
            users = await self._storage.store.vault_users.alive()
            late = [user for user in users if not has_followed(user)]
            if not late:
                return
            if time.monotonic() > deadline:
                names = ", ".join(f"{user.pid} on {user.host}" for user in late)
                raise UsageError(
                    f"these services have not taken the new key: {names}. Nothing is lost: give"
                    f" them {self._storage.key_file.source}, or restart them, and run this again"
                )
            await asyncio.sleep(_POLL)

    def _say(self, words: str) -> None:
        if not self._quiet:
            print(words, file=sys.stderr, flush=True)


def _to_dict(one: RenewedRows) -> dict[str, Any]:
    return {"table": one.table, "rows": one.seen, "older": one.stale, "invalid": one.invalid}


_ACTIONS: Final = {
    "status": action(_status, "show the keys, and what each of them protects"),
    "rotate": action(
        _rotate,
        "replace the key, while services run",
        description="Make a new key, give it to all running services, seal and sign everything with"
        "\nit, and retire the old one, which is kept for the audit. Calls go on meanwhile.",
    ),
}
