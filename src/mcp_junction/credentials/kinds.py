"""The kinds of CredentialSource: stored ones, those of a client alone, and fixed tokens.

A stored credential is renewed by one process at a time, which has its lease; the new tokens are
durable before they are used. What another process has stored is taken over before anything is sent.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import Any, Final

import msgspec

from mcp_junction.config.auth import KEY, ServerAuth
from mcp_junction.config.servers import ServerDefinition
from mcp_junction.credentials.flow import OAuthFlow
from mcp_junction.credentials.source import AuthState, CredentialSource, CredentialsOwner
from mcp_junction.credentials.subjects import SHARED
from mcp_junction.errors import (
    OAuthError,
    StoreError,
    StoreUnavailable,
    VaultError,
    VersionConflict,
)
from mcp_junction.oauth.discovery import BearerChallenge
from mcp_junction.oauth.registration import OAuthClient
from mcp_junction.oauth.sign_in import step_up
from mcp_junction.oauth.tokens import STEP, TokenAnswer, is_client_unknown, is_grant_over
from mcp_junction.store.credentials import CredentialRecord, CredentialTables
from mcp_junction.tasks import wait_until_set
from mcp_junction.upstream.outcome import Outcome
from mcp_junction.upstream.tokens import AccessToken

LEASE: Final = 5.0
"""Seconds for which one process alone may renew a credential; it extends them while it is at it.

Less than a call waits (``WAIT``), so that calls outlive a process that was killed meanwhile.
"""
_EXTENSIONS: Final = 5
"""How often a lease is extended in its time: others take over when all of these have failed."""
_WAIT_FOR_OTHERS: Final = 30.0
_LOOK: Final = 0.1


class StoredSecret(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is sealed of a credential: the tokens, and what renewing them needs."""

    access: str = ""
    refresh: str = ""
    issued_at: float = 0.0
    token_endpoint: str = ""
    revocation_endpoint: str = ""
    redirect_uri: str = ""
    method: str = "none"
    secret: str = ""

    def __repr__(self) -> str:
        """Without any of it."""
        return "StoredSecret(…)"


class StoredSource(CredentialSource):
    """A credential in the store: of a sign-in, or a key that somebody gave."""

    def __init__(
        self,
        owner: CredentialsOwner,
        definition: ServerDefinition,
        auth: ServerAuth,
        server_id: str,
        subject: str,
    ) -> None:
        super().__init__(owner, definition, auth, subject)
        self.server_id = server_id
        self.lease_seconds = LEASE
        self.record: CredentialRecord | None = None
        self.secret = StoredSecret()
        self._unsaved: tuple[CredentialRecord, StoredSecret] | None = None
        self._lease_over = asyncio.Event()
        if subject != SHARED or auth.type == KEY:  # without a credential nothing is sent
            self.must_wait = True
            self.state = AuthState.NEEDS_SIGN_IN

    async def reload(self) -> None:
        tables = await self.owner.open_tables()
        if tables is not None:
            before = self.record
            found = await tables.find(self.server_id, self.subject)
            if self.record is before:  # else this was read before what is known now
                self.take(tables, found)

    def take(self, tables: CredentialTables, record: CredentialRecord | None) -> None:
        """Take over a row of the store, if it is newer than what is known."""
        if record is None or record.server_url != self.definition.url:
            if self.record is not None:
                self.record, self.secret = None, StoredSecret()
                self._drop(AuthState.NEEDS_SIGN_IN, "nobody is signed in")
            return
        if self.record is not None and record.version <= self.record.version:
            return
        try:
            secret = msgspec.convert(tables.open(record), StoredSecret)
        except (VaultError, msgspec.ValidationError):
            self.record = record
            self._drop(AuthState.NEEDS_SIGN_IN, "its stored credential cannot be opened")
            return
        self.record, self.secret = record, secret
        self.issuer, self.scopes = record.issuer, tuple(record.scopes)
        if record.state == AuthState.SIGNED_IN and secret.access:
            self._adopt(record.version, secret.access, record.expires_at, secret.issued_at)
        else:
            self._drop(AuthState.NEEDS_SIGN_IN, "its sign-in is good no more; sign in again")

    @property
    def _can_renew(self) -> bool:
        return bool(self.secret.refresh)

    async def _renew(self, version: int) -> None:
        tables = await self.owner.open_tables()
        if tables is None:
            self._drop(AuthState.NEEDS_SIGN_IN, _ASKS)
            return
        if self._unsaved is not None:
            await self._save(tables, *self._unsaved)
            return
        await self.reload()
        record = self.record
        if record is None or self._has_moved(version):
            if record is None:
                self._drop(AuthState.NEEDS_SIGN_IN, _ASKS)
            return
        if not self.secret.refresh:
            why = "the key that is given for it is refused" if self.auth.type == KEY else _ENDED
            self._drop(AuthState.NEEDS_SIGN_IN, why)
            return
        if await self._take_lease(tables, record):
            self._lease_over = asyncio.Event()
            self.owner.tasks.spawn(self._extend_lease(tables, record, self._lease_over))
            try:
                await self._refresh(tables, record)
            finally:
                if self._unsaved is None:
                    self._lease_over.set()

    def _has_moved(self, version: int) -> bool:
        is_other = self.current.version != version and bool(self.current.line)
        return is_other and not self.must_wait

    async def _take_lease(self, tables: CredentialTables, record: CredentialRecord) -> bool:
        """Take the lease; False when another process has renewed the credential meanwhile."""
        give_up = time.monotonic() + _WAIT_FOR_OTHERS
        while not await self._lease(tables, record):
            await asyncio.sleep(_LOOK)
            await self.reload()
            if self.record is None or self.record.version != record.version:
                return False
            if time.monotonic() > give_up:
                raise StoreUnavailable("another process renews the credential and does not end")
        return True

    async def _lease(self, tables: CredentialTables, record: CredentialRecord) -> bool:
        """Take or extend the lease; False, too, when this took so long that it may be over."""
        asked = time.monotonic()
        is_ours = await tables.lease(record, self.owner.process_id, self.lease_seconds)
        return is_ours and time.monotonic() - asked < self.lease_seconds / 2

    async def _extend_lease(
        self, tables: CredentialTables, record: CredentialRecord, over: asyncio.Event
    ) -> None:
        """Extend the lease while the issuer is asked, and until its answer is stored.

        Both may take longer than it lasts, and nobody else may use what we have used up.
        """
        while not await wait_until_set(over, self.lease_seconds / _EXTENSIONS):
            with suppress(StoreError):  # the next one may succeed
                await self._lease(tables, record)
                if self._unsaved is not None:
                    await self._save(tables, *self._unsaved)

    async def _refresh(self, tables: CredentialTables, record: CredentialRecord) -> None:
        secret = self.secret
        form = {"grant_type": "refresh_token", "refresh_token": secret.refresh}
        if record.resource:
            form["resource"] = record.resource
        client = OAuthClient(record.client_id, secret.method, secret.secret)
        flow = OAuthFlow(self.definition)
        try:
            answer = await flow.request_token(
                secret.token_endpoint, client, form,
                issuer=record.issuer, refresh=secret.refresh, scopes=tuple(record.scopes),
            )  # fmt: skip
        except OAuthError as error:
            if not (is_grant_over(error) or is_client_unknown(error)):
                await tables.end_lease(record.id, self.owner.process_id)
                raise
            await self._end_grant(tables, record, error)
            return
        renewed = msgspec.structs.replace(record, expires_at=answer.expires_at)
        await self._save(tables, renewed, renew_secret(secret, answer))

    async def _save(
        self, tables: CredentialTables, record: CredentialRecord, secret: StoredSecret
    ) -> None:
        """Store renewed tokens, durably, and only then use them."""
        self._unsaved = record, secret
        try:
            saved = await tables.save(record, msgspec.to_builtins(secret), expected=record.version)
        except VersionConflict:  # somebody signed in anew meanwhile
            self._forget_unsaved()
            await self.reload()
            return
        self._forget_unsaved()
        self.take(tables, saved)
        self.owner.note(self, "refreshed", "")

    def _forget_unsaved(self) -> None:
        self._unsaved = None
        self._lease_over.set()

    def close(self) -> None:
        super().close()
        self._lease_over.set()

    async def _end_grant(
        self, tables: CredentialTables, record: CredentialRecord, error: OAuthError
    ) -> None:
        """Forget tokens that their issuer does not know any more, unless there are others."""
        await self.reload()
        if self.record is None or self.record.version != record.version:
            return
        if is_client_unknown(error):
            await tables.forget_client(record.issuer, self.secret.redirect_uri)
        ended = msgspec.structs.replace(
            record, state=AuthState.NEEDS_SIGN_IN.value, expires_at=None
        )
        try:
            saved = await tables.save(ended, {}, expected=record.version)
        except VersionConflict:
            await self.reload()
            return
        self.record, self.secret = saved, StoredSecret()
        self._drop(AuthState.NEEDS_SIGN_IN, f"{error.host} ended its sign-in ({error.code})")
        self.owner.note(self, "refresh_failed", str(error))


_ASKS: Final = "it asks for one"
_ENDED: Final = "its token has ended, and the issuer gave none to renew it with"


def renew_secret(secret: StoredSecret, answer: TokenAnswer) -> StoredSecret:
    """Return a secret with renewed tokens."""
    return msgspec.structs.replace(
        secret, access=answer.access, refresh=answer.refresh, issued_at=time.time()
    )


class ClientSource(CredentialSource):
    """A token that a client gets for itself, by its secret or its key. It is not stored."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.must_wait = True
        self.scopes = self.auth.scopes

    async def renew(
        self, refused: AccessToken, challenge: BearerChallenge | None, *, is_again: bool
    ) -> Outcome | None:
        if challenge is not None and challenge.wants_scope and not is_again:
            wider = step_up(self.scopes, challenge.scopes)
            if wider is not None:
                self.scopes, challenge = wider, None
        return await super().renew(refused, challenge, is_again=is_again)

    async def _renew(self, version: int) -> None:
        flow = OAuthFlow(self.definition)
        challenged = self.challenge.scopes if self.challenge is not None else ()
        try:
            answer, found = await flow.request_own_token(
                self.challenge, self.scopes or challenged, self.issuer
            )
        except OAuthError as error:
            if error.step != STEP or error.status not in (400, 401):
                raise
            self.must_wait = True
            self._set_state(AuthState.REFUSED, str(error))
            return
        self.issuer = found.issuer.issuer
        self._adopt(version + 1, answer.access, answer.expires_at, time.time())
        self.owner.note(self, "refreshed", "")


class FixedSource(CredentialSource):
    """A token that the operator gave."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.current = AccessToken(1, self._header_line(self.auth.token))
        self.state = AuthState.SIGNED_IN

    async def _renew(self, version: int) -> None:
        self._set_state(AuthState.REFUSED, "it refuses the token that is given in its `auth`")
