"""The store as commands open it: where it is, its vault, and the audit of what they do to it."""

from __future__ import annotations

import argparse
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

from mcp_junction.audit.checkpoints import Checkpoints
from mcp_junction.audit.log import AuditLog
from mcp_junction.cli.options import data_dir
from mcp_junction.store.store import Store, default_url, open_store
from mcp_junction.vault.vault import Vault

AUDIT = "audit"


class Storage(NamedTuple):
    """What a command works with."""

    store: Store
    vault: Vault
    folder: Path

    @property
    def checkpoints(self) -> Checkpoints:
        return Checkpoints(self.folder)

    @property
    def audit_keys(self) -> list[bytes]:
        return self.vault.derived(AUDIT)

    def audit_log(self) -> AuditLog:
        """A writer of the audit, still to be entered."""
        return AuditLog(self.store.audit, self.audit_keys[0], self.vault.key_id, self.checkpoints)


@asynccontextmanager
async def opened(given: argparse.Namespace) -> AsyncIterator[Storage]:
    """The store that the options, or else the environment, name."""
    folder = data_dir(given)
    url = given.store or os.environ.get("JUNCTION_STORE") or default_url(folder)
    vault = Vault.of(os.environ, folder)
    async with await open_store(url, vault) as store:
        yield Storage(store, vault, folder)
