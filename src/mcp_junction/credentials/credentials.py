"""Credentials: the credentials of all servers, found by exact server and subject.

It is the TokenSources of the servers' links, follows what other processes store, and tells its
listeners what changes. In stdio mode the store is opened when the first server asks for a sign-in.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Final
from urllib.parse import quote, urlencode
from uuid import uuid4
from weakref import WeakSet

import msgspec

from mcp_junction.config.auth import (
    BEARER,
    CLIENT_CREDENTIALS,
    KEY,
    OAUTH,
    TOKEN_EXCHANGE,
    WIF,
    ServerAuth,
    effective_auth,
)
from mcp_junction.config.servers import ServerDefinition
from mcp_junction.credentials.exchange import ExchangeSource
from mcp_junction.credentials.flow import OAuthFlow
from mcp_junction.credentials.kinds import (
    ClientSource,
    FixedSource,
    StoredSecret,
    StoredSource,
)
from mcp_junction.credentials.source import AuthState, CredentialSource
from mcp_junction.credentials.subjects import SHARED, SubjectTokens, agent_of, exchange_subject
from mcp_junction.errors import OAuthError, StoreError
from mcp_junction.oauth.registration import OAuthClient
from mcp_junction.oauth.tokens import is_sendable
from mcp_junction.policy.principal import Principal
from mcp_junction.store.credentials import (
    CREDENTIALS_TOPIC,
    CredentialRecord,
    CredentialTables,
)
from mcp_junction.tasks import TaskScope

log = logging.getLogger("mcp_junction.credentials")

OpenTables = Callable[[], Awaitable[CredentialTables | None]]
AuthListener = Callable[[CredentialSource, str, str, str], None]
"""Is told what happened to a credential: the source, the action, details in words, and by whom."""
OURS: Final = "junction"
"""Who acts where nobody asked for it."""
STATE_CHANGED: Final = "state_changed"
CALLBACK: Final = "/oauth/callback"
START: Final = "/oauth/start/"
CLIENT_DOCUMENT: Final = "/oauth/client.json"
_SETTLE: Final = 5.0


class Credentials:
    """All credentials."""

    def __init__(self, open_tables: OpenTables, client_name: str, public_url: str = "") -> None:
        self.tasks = TaskScope("credentials")
        self.process_id = uuid4().hex
        self.open_tables = open_tables
        self.public_url = public_url
        """Where browsers reach our pages; empty where there are none."""
        self.listeners: list[AuthListener] = []
        self.subject_tokens: SubjectTokens | None = None
        """The access tokens of callers, where there is a door for them."""
        self._exchanged: WeakSet[ExchangeSource] = WeakSet()
        self.client_name = client_name
        self._sources: dict[tuple[str, str], CredentialSource] = {}
        self._rows: dict[tuple[str, str], CredentialRecord] = {}
        self._tables: CredentialTables | None = None
        self._generation: int | None = None

    # -- life

    async def load(self) -> None:
        """Read all credentials, for a service whose store is open."""
        self._tables = tables = await self.open_tables()
        if tables is None:
            return
        stored = [
            (key, source, source.record)
            for key, source in self._sources.items()
            if isinstance(source, StoredSource)
        ]
        self._rows = {(row.server_id, row.subject): row for row in await tables.all()}
        for key, source, before in stored:
            if source.record is before:  # else the rows were read before what is known now
                source.take(tables, self._rows.get(key))

    async def follow(self, generations: Mapping[str, int]) -> None:
        """Take over what other processes have changed."""
        generation = generations.get(CREDENTIALS_TOPIC, 0)
        if generation == self._generation:
            return
        try:
            await self.load()  # the first time, too: what was read before may be older
        except StoreError as error:  # it is tried again: the generation stays as it was
            log.warning("credentials cannot be read now: %s", error)
            return
        self._generation = generation

    async def close(self) -> None:
        """Let renewals end: what an issuer has given out is stored."""
        for source in self._sources.values():
            source.close()
        await self.tasks.settle(_SETTLE)
        await self.tasks.close()

    # -- the TokenSources of servers

    def source(self, definition: ServerDefinition) -> CredentialSource | None:
        auth = effective_auth(definition.auth, definition.headers)
        return None if auth is None else self.source_for(definition, auth, SHARED)

    def source_for(
        self, definition: ServerDefinition, auth: ServerAuth, subject: str
    ) -> CredentialSource:
        """The credential of exactly this subject for a server."""
        server_id = server_id_of(definition)
        found = self._sources.get((server_id, subject))
        if found is not None:
            if found.definition is definition:  # as nearly always
                return found
            if (found.definition.url, found.auth) == (definition.url, auth):
                found.definition = definition
                return found
            found.close()
        made = self._sources[server_id, subject] = self._make(definition, auth, server_id, subject)
        return made

    def _make(
        self, definition: ServerDefinition, auth: ServerAuth, server_id: str, subject: str
    ) -> CredentialSource:
        if auth.type == BEARER:
            return FixedSource(self, definition, auth, subject)
        if auth.type == TOKEN_EXCHANGE and subject != SHARED:
            exchanged = ExchangeSource(self, definition, auth, subject)
            self._exchanged.add(exchanged)
            return exchanged
        if auth.type in (CLIENT_CREDENTIALS, WIF, TOKEN_EXCHANGE):
            return ClientSource(self, definition, auth, subject)
        made = StoredSource(self, definition, auth, server_id, subject)
        row = self._rows.get((server_id, subject))
        if row is not None and self._tables is not None:
            made.take(self._tables, row)
        return made

    def sources_of(self, definition: ServerDefinition) -> list[CredentialSource]:
        """All credentials for a server that are known, the shared one first."""
        server_id, auth = server_id_of(definition), effective_auth(definition.auth, {})
        if auth is None:
            return []
        subjects = {
            subject for known, subject in (*self._sources, *self._rows) if known == server_id
        }
        ordered = sorted(subjects, key=lambda subject: (subject != SHARED, subject))
        return [self.source_for(definition, auth, subject) for subject in ordered]

    # -- what links and pages need

    def link_for(self, source: CredentialSource) -> str:
        """Where a person signs in; empty where nobody can. It holds no secret."""
        if not self.public_url or source.auth.type != OAUTH:
            return ""
        agent = agent_of(source.subject)
        query = f"?{urlencode({'agent': agent})}" if agent is not None else ""
        return f"{self.public_url}{START}{quote(server_id_of(source.definition))}{query}"

    @property
    def callback_url(self) -> str:
        return f"{self.public_url}{CALLBACK}"

    @property
    def client_url(self) -> str:
        """The URL of our client metadata document."""
        return f"{self.public_url}{CLIENT_DOCUMENT}"

    async def set_key(self, source: StoredSource, value: str) -> None:
        """Store the key of a subject. Raises ValueError for one that cannot be sent."""
        if source.auth.type != KEY:
            raise ValueError("this server takes no keys: its auth is not of the type key")
        if not is_sendable(value.replace(" ", "")):
            raise ValueError("must be visible ASCII, as a header can carry it")
        tables = await self.open_tables()
        assert tables is not None, "a service has a store"
        row = CredentialRecord(
            "", source.server_id, source.subject, source.definition.url,
            state=AuthState.SIGNED_IN.value,
        )  # fmt: skip
        saved = await tables.save(row, msgspec.to_builtins(StoredSecret(access=value)))
        source.take(tables, saved)

    async def log_out(self, source: StoredSource) -> None:
        """Remove a credential, and have its issuer forget its tokens, as far as that works."""
        await source.reload()  # another process may have renewed it
        record, secret = source.record, source.secret
        tables = await self.open_tables()
        if tables is not None:
            await tables.remove(source.server_id, source.subject)
            source.take(tables, None)
        if record is None or not secret.revocation_endpoint:
            return
        client = OAuthClient(record.client_id, secret.method, secret.secret)
        flow = OAuthFlow(source.definition)
        for token in (secret.refresh, secret.access):
            try:
                if token:
                    await flow.revoke(secret.revocation_endpoint, client, record.issuer, token)
            except OAuthError as error:
                self.note(source, "revocation_failed", str(error))

    # -- the owner of sources

    def follow_subject_tokens(self, principal: Principal | None) -> None:
        """Let go of what came of tokens that a caller, or any of them, shows no more."""
        subject = "" if principal is None else exchange_subject(principal)
        for source in list(self._exchanged):
            if principal is None or source.subject == subject:
                source.follow()

    def forget(self, source: CredentialSource) -> None:
        """Forget a source that is made anew when it is wanted."""
        key = server_id_of(source.definition), source.subject
        if self._sources.get(key) is source:
            del self._sources[key]

    def note(self, source: CredentialSource, action: str, detail: str, actor: str = OURS) -> None:
        """Tell the listeners what happened to a credential; ``detail`` holds no secret."""
        for listener in self.listeners:
            listener(source, action, detail, actor)

    def note_state(self, source: CredentialSource) -> None:
        self.note(source, STATE_CHANGED, source.reason)


def server_id_of(definition: ServerDefinition) -> str:
    """The id under which credentials for a server are kept: its own, else one of its address."""
    return definition.id or "url-" + hashlib.sha256(definition.url.encode()).hexdigest()[:24]
