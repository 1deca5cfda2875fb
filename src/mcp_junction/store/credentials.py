"""CredentialTables: credentials for servers, clients registered at issuers, and sign-ins under way.

What is secret is sealed with the identity of its row, so that an edited or moved row does not open.
A credential is changed by compare-and-set on its version, and renewed by whoever has its lease.
When that is done is decided in ``credentials/``.
"""

from __future__ import annotations

import time
from functools import partial
from typing import Any, Final, TypeVar
from uuid import uuid4

import msgspec

from mcp_junction.errors import VersionConflict
from mcp_junction.store.database import Compute, Database, Dialect, Query, Script, bump
from mcp_junction.store.protected import StoreVault, sealed_rows
from mcp_junction.store.table import StoreTable, Table, transaction

CREDENTIALS_TOPIC: Final = "credentials"
_NOW: Final = {
    Dialect.SQLITE: "(julianday('now') - 2440587.5) * 86400.0",
    Dialect.POSTGRES: "EXTRACT(EPOCH FROM clock_timestamp())::double precision",
}


class CredentialRecord(msgspec.Struct, frozen=True):
    """A credential as it is stored."""

    id: str
    server_id: str
    subject: str
    server_url: str
    issuer: str = ""
    client_id: str = ""
    resource: str = ""
    scopes: list[str] = []
    state: str = ""
    expires_at: float | None = None
    version: int = 0
    updated_at: float = 0.0
    sealed: bytes | None = None

    @property
    def identity(self) -> str:
        """What its sealed part is bound to."""
        named = self.server_id, self.subject, self.server_url, self.issuer, self.version
        return "/".join(("credential", self.id, *map(str, named)))


class ClientRecord(msgspec.Struct, frozen=True):
    """A client that we registered at an issuer."""

    issuer: str
    redirect_uri: str
    client_id: str
    method: str
    secret_expires_at: float
    sealed: bytes

    @property
    def identity(self) -> str:
        return f"oauth_client/{self.issuer}/{self.redirect_uri}/{self.client_id}"


class LoginRecord(msgspec.Struct, frozen=True):
    """A sign-in: open, completed or refused."""

    id: str
    state_hash: str
    server_id: str
    subject: str
    status: str
    reason: str
    expires_at: float
    sealed: bytes | None = None

    @property
    def identity(self) -> str:
        return f"login/{self.id}/{self.server_id}/{self.subject}"


_CREDENTIALS: Final = Table("credentials", CredentialRecord, json={"scopes"})
_CLIENTS: Final = Table("oauth_clients", ClientRecord, key=("issuer", "redirect_uri"))
_LOGINS: Final = Table("logins", LoginRecord)
_BY_SUBJECT: Final = "WHERE server_id = ? AND subject = ?"
_FORGET_CLIENT: Final = "DELETE FROM oauth_clients WHERE issuer = ? AND redirect_uri = ?"
R = TypeVar("R", CredentialRecord, ClientRecord, LoginRecord)
OPEN: Final = "open"
MOST_CLIENTS: Final = 100
"""How many clients of ours are kept for one issuer."""
MOST_LOGINS: Final = 20
"""How many sign-ins to one server are kept for one subject."""


class CredentialTables(StoreTable):
    """Credentials, clients and sign-ins."""

    def __init__(self, database: Database, vault: StoreVault) -> None:
        super().__init__(database)
        self._vault = vault
        database.protected += [
            sealed_rows(_CREDENTIALS, vault, lambda record: record.identity),
            sealed_rows(_CLIENTS, vault, lambda record: record.identity),
            sealed_rows(_LOGINS, vault, lambda record: record.identity),
        ]

    # -- credentials

    async def all(self) -> list[CredentialRecord]:
        """Read all credentials."""
        return await self._read(_CREDENTIALS, "ORDER BY server_id, subject")

    async def find(self, server_id: str, subject: str) -> CredentialRecord | None:
        """Read the credential of exactly this subject for a server."""
        return await self._read_first(_CREDENTIALS, _BY_SUBJECT, server_id, subject)

    async def issuers_of(self, server_id: str, server_url: str) -> set[str]:
        """Read the issuers at which anybody has signed in to a server at its address."""
        which = "WHERE server_id = ? AND server_url = ? AND issuer <> ''"
        sql = f"SELECT DISTINCT issuer FROM credentials {which}"
        return set(await self._read_rows(lambda row: str(row[0]), sql, server_id, server_url))

    def open(self, record: CredentialRecord | ClientRecord | LoginRecord) -> dict[str, Any]:
        """Decrypt what is sealed in a row. Raises VaultError: the row was edited or moved."""
        if record.sealed is None:
            return {}
        opened = self._vault.open(record.sealed, record.identity)
        return msgspec.json.decode(opened, type=dict[str, Any])

    @transaction(durable=False)
    def lease(self, record: CredentialRecord, owner: str, seconds: float) -> Script[bool]:
        """Take the lease on a credential of this version; False while another has it."""
        now = _NOW[self._database.dialect]
        rows = yield Query(
            f"UPDATE credentials SET lease_owner = ?, lease_until = {now} + ?"
            " WHERE id = ? AND version = ? AND (lease_owner IS NULL OR lease_owner = ?"
            f" OR lease_until < {now}) RETURNING id",
            (owner, seconds, record.id, record.version, owner),
        )
        return bool(rows)

    @transaction(durable=False)
    def end_lease(self, record_id: str, owner: str) -> Script[None]:
        """Give a lease back that led to nothing."""
        yield Query(
            "UPDATE credentials SET lease_owner = NULL WHERE id = ? AND lease_owner = ?",
            (record_id, owner),
        )

    @transaction()
    def save(
        self, record: CredentialRecord, secret: dict[str, Any], *, expected: int | None = None
    ) -> Script[CredentialRecord]:
        """Store a credential, its next version, and return it with the secret sealed.

        ``expected`` is the version that it replaces; None replaces any. Raises VersionConflict.
        """
        rows = yield Query(
            f"SELECT id, version FROM credentials {_BY_SUBJECT}",
            (record.server_id, record.subject),
        )
        found = (str(rows[0][0]), int(rows[0][1])) if rows else (str(uuid4()), 0)
        if expected is not None and found[1] != expected:
            raise VersionConflict("the credential", found[1])
        record = msgspec.structs.replace(
            record, id=found[0], version=found[1] + 1, updated_at=time.time()
        )
        record = yield from self._seal(record, secret)
        if rows:
            done = yield _CREDENTIALS.update(
                msgspec.structs.asdict(record),
                ", lease_owner = NULL WHERE id = ? AND version = ? RETURNING id",
                *found,
            )
            if not done:
                raise VersionConflict("the credential", found[1])
        else:
            yield _CREDENTIALS.add(record)
        yield bump(CREDENTIALS_TOPIC)
        return record

    @transaction()
    def remove(self, server_id: str, subject: str) -> Script[None]:
        """Remove the credential of a subject for a server."""
        yield Query(f"DELETE FROM credentials {_BY_SUBJECT}", (server_id, subject))
        yield bump(CREDENTIALS_TOPIC)

    def drop_server(self, server_id: str) -> Script[None]:
        """Remove the credentials and sign-ins of a server, inside a transaction."""
        yield Query("DELETE FROM credentials WHERE server_id = ?", (server_id,))
        yield Query("DELETE FROM logins WHERE server_id = ?", (server_id,))
        yield bump(CREDENTIALS_TOPIC)

    def _seal(self, record: R, secret: dict[str, Any]) -> Script[R]:
        """Return a record with a secret sealed in it."""
        work = partial(self._vault.seal, msgspec.json.encode(secret), record.identity)
        ((sealed,),) = yield Compute(work)
        return msgspec.structs.replace(record, sealed=sealed)

    # -- clients

    async def find_client(self, issuer: str, redirect_uri: str) -> ClientRecord | None:
        """Read the client that we registered at an issuer for a redirect."""
        where = "WHERE issuer = ? AND redirect_uri = ?"
        return await self._read_first(_CLIENTS, where, issuer, redirect_uri)

    @transaction()
    def put_client(self, record: ClientRecord, secret: dict[str, Any]) -> Script[None]:
        """Store a client in place of the one before it.

        Whoever signs in may choose the port of the redirect, and each makes a client. When an
        issuer has many of them all are removed: credentials have what they need of theirs.
        """
        yield Query(_FORGET_CLIENT, (record.issuer, record.redirect_uri))
        of_issuer = "WHERE issuer = ?"
        ((count,),) = yield Query(
            f"SELECT count(*) FROM oauth_clients {of_issuer}", (record.issuer,)
        )
        if int(count) >= MOST_CLIENTS:
            yield Query(f"DELETE FROM oauth_clients {of_issuer}", (record.issuer,))
        record = yield from self._seal(record, secret)
        yield _CLIENTS.add(record)

    @transaction()
    def forget_client(self, issuer: str, redirect_uri: str) -> Script[None]:
        """Remove a client that its issuer no longer knows."""
        yield Query(_FORGET_CLIENT, (issuer, redirect_uri))

    # -- sign-ins

    @transaction()
    def begin_login(self, record: LoginRecord, secret: dict[str, Any]) -> Script[None]:
        """Store a sign-in that begins; those that ended an hour ago are removed.

        Of those that one subject leaves open for a server, the oldest end when there are many.
        """
        yield Query("DELETE FROM logins WHERE expires_at < ?", (time.time() - 3600,))
        whose = record.server_id, record.subject
        yield Query(
            f"DELETE FROM logins {_BY_SUBJECT} AND id NOT IN"
            f" (SELECT id FROM logins {_BY_SUBJECT} ORDER BY expires_at DESC LIMIT ?)",
            (*whose, *whose, MOST_LOGINS - 1),
        )
        record = yield from self._seal(record, secret)
        yield _LOGINS.add(record)

    async def find_login(self, login_id: str) -> LoginRecord | None:
        """Read a sign-in by its id."""
        return await self._read_first(_LOGINS, "WHERE id = ?", login_id)

    async def find_login_by_state(self, state_hash: str) -> LoginRecord | None:
        """Read a sign-in by the hash of its state."""
        return await self._read_first(_LOGINS, "WHERE state_hash = ?", state_hash)

    @transaction()
    def take_login(self, login_id: str, now: float) -> Script[bool]:
        """Use a sign-in up: of two answers with its state, one gets True."""
        rows = yield Query(
            "UPDATE logins SET status = 'finishing' WHERE id = ? AND status = ?"
            " AND expires_at > ? RETURNING id",
            (login_id, OPEN, now),
        )
        return bool(rows)

    @transaction()
    def end_login(self, login_id: str, status: str, reason: str = "") -> Script[None]:
        """Store how a sign-in ended; nothing secret of it is kept."""
        yield Query(
            "UPDATE logins SET status = ?, reason = ?, sealed = NULL WHERE id = ?",
            (status, reason, login_id),
        )
