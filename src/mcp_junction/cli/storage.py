"""Opens the store for a command, with its vault and audit."""

from __future__ import annotations

import argparse
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path
from typing import NamedTuple
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from mcp_junction.audit.checkpoints import CheckpointDirectory
from mcp_junction.audit.log import AuditLog
from mcp_junction.cli.environment import hidden_values, variables
from mcp_junction.cli.options import data_dir, read_service_dotenv
from mcp_junction.config.variables import is_own_variable, is_secret_variable
from mcp_junction.errors import UsageError
from mcp_junction.redaction.texts import KNOWN
from mcp_junction.store.store import Store, default_url, hold_serving_lock, open_store, sqlite_file
from mcp_junction.vault.key_file import KeyFile
from mcp_junction.vault.vault import Vault

AUDIT = "audit"


class Storage(NamedTuple):
    """An open store, its vault and the data directory."""

    store: Store
    vault: Vault
    folder: Path
    key_file: KeyFile
    """Where the vault's keys are."""

    @property
    def checkpoints(self) -> CheckpointDirectory:
        return CheckpointDirectory(self.folder)

    @property
    def audit_keys(self) -> list[bytes]:
        return self.vault.derive_keys(AUDIT)

    def audit_log(self) -> AuditLog:
        """Make an AuditLog; the caller enters it."""
        return AuditLog(self.store.audit, self.audit_keys[0], self.vault.key_id, self.checkpoints)


@asynccontextmanager
async def open_storage(
    args: argparse.Namespace, *, serving: bool = False, must_exist: bool = False
) -> AsyncIterator[Storage]:
    """Open the store that the options, or else the environment or ``.env``, name.

    ``serving``: take the serving lock. Raises UsageError when another process has it, and where
    there is no store that ``must_exist``; any other is made.
    """
    folder, dotenv = data_dir(args), read_service_dotenv(args)
    environ = {**dotenv, **variables()}
    url = args.store or environ.get("JUNCTION_STORE") or default_url(folder)
    url = _add_password(url, environ.get("PGPASSWORD"))
    if must_exist:
        _check_existence(url)
    key_file = KeyFile(environ, folder)
    keys = key_file.read()
    vault = Vault(keys.active, keys.retired, key_file)
    KNOWN.learn_url(url)
    for value in (*hidden_values(), *_secrets_of(dotenv)):
        KNOWN.learn_value(value)
    file = sqlite_file(url) if serving else None
    with hold_serving_lock(file) if file is not None else nullcontext():
        async with await open_store(url, vault) as store:
            yield Storage(store, vault, folder, key_file)


def _check_existence(url: str) -> None:
    """Raise UsageError where a store would have to be made first."""
    file = sqlite_file(url)
    if file is not None and not file.exists():
        raise UsageError(f"there is no store at {file}; name yours with --data-dir or --store")


def _secrets_of(dotenv: dict[str, str]) -> Iterator[str]:
    """Return the secrets of a ``.env`` that are our own: those of servers are learned with them."""
    for name, value in dotenv.items():
        if is_own_variable(name) and is_secret_variable(name, value):
            yield value


def _add_password(url: str, password: str | None) -> str:
    """Add the password of PGPASSWORD to a PostgreSQL url that has none."""
    parts = urlsplit(url)
    given = dict(parse_qsl(parts.query))
    if not password or not parts.scheme.startswith("postgres") or parts.password:
        return url
    query = urlencode({"password": password, **given})
    return urlunsplit(parts._replace(query=query))
