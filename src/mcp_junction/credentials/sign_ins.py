"""SignIns: begins and finishes sign-ins for callers of REST and of our pages, with their checks.

Who a caller is has been found out before. A credential that all share is the operator's to sign in
to; an agent's own is the agent's, and the operator's. Logins takes each from the link that somebody
opens to the stored credential: it is used up by its first answer, and ends after ten minutes. Which
browser may open its link is checked by whoever serves the pages.
"""

from __future__ import annotations

import hashlib
import re
import secrets
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple

import msgspec

from mcp_junction.config.auth import OAUTH, effective_auth
from mcp_junction.config.servers import ServerDefinition
from mcp_junction.config.urls import parse_url
from mcp_junction.credentials.credentials import Credentials, server_id_of
from mcp_junction.credentials.flow import Discovery, OAuthFlow
from mcp_junction.credentials.kinds import StoredSecret, StoredSource
from mcp_junction.credentials.source import AuthState
from mcp_junction.credentials.subjects import SHARED, agent_of, agent_subject
from mcp_junction.errors import NotFound, NotPermitted, OAuthError
from mcp_junction.oauth.discovery import check_code_flow
from mcp_junction.oauth.registration import (
    ClientKind,
    OAuthClient,
    choose_kind,
    registered_client,
)
from mcp_junction.oauth.sign_in import (
    SignInRequest,
    authorization_url,
    choose_scopes,
    make_pkce,
    read_callback,
    take_code,
)
from mcp_junction.oauth.tokens import is_client_unknown
from mcp_junction.policy.principal import Principal, Role
from mcp_junction.store.credentials import (
    OPEN,
    ClientRecord,
    CredentialRecord,
    CredentialTables,
    LoginRecord,
)

LIFE: Final = 600.0
COMPLETED: Final = "completed"
REFUSED: Final = "refused"


class _LoginSecret(msgspec.Struct, frozen=True):
    """What is sealed of a sign-in."""

    verifier: str
    state: str
    issuer: str
    host: str
    names_itself: bool
    token_endpoint: str
    revocation_endpoint: str
    redirect_uri: str
    scopes: list[str]
    resource: str
    server_url: str
    client_id: str
    method: str
    secret: str
    is_dynamic: bool
    url: str


class StartedLogin(NamedTuple):
    """A sign-in that was begun."""

    id: str
    authorization_url: str
    """Where the browser is sent, with the state: only for the person that it was made for."""
    state: str
    expires_at: float
    scopes: tuple[str, ...]
    host: str


class Logins:
    """Begins and finishes sign-ins."""

    def __init__(self, tables: CredentialTables, client_name: str, metadata_url: str) -> None:
        self._tables = tables
        self._client_name = client_name
        self._metadata_url = metadata_url

    async def begin(self, source: StoredSource, redirect_uri: str) -> StartedLogin:
        """Find where to sign in, as whom, and for what. Raises OAuthError."""
        flow, auth = OAuthFlow(source.definition), source.auth
        found = await flow.discover(source.challenge)
        issuer = found.issuer
        host = _host(issuer.authorization_endpoint or issuer.issuer)
        check_code_flow(issuer, host)
        own = auth.client_metadata_url or self._metadata_url
        kind = choose_kind(issuer, host, client_id=auth.client_id, metadata_url=own)
        if kind is ClientKind.REGISTERED:
            url = source.definition.url
            flow.check_issuer(found, await self._tables.issuers_of(source.server_id, url))
            client = registered_client(auth.client_id, auth.client_secret, auth.method, issuer)
        elif kind is ClientKind.METADATA:
            client = OAuthClient(own)
        else:
            client = await self._find_or_register(flow, found, redirect_uri)
        challenged = source.challenge.scopes if source.challenge is not None else ()
        wanted = source.scopes if source.wants_scopes else auth.scopes
        scopes = choose_scopes(wanted, challenged, found.scopes, issuer)
        pkce, state = make_pkce(), secrets.token_urlsafe(32)
        request = SignInRequest(
            client.client_id, redirect_uri, state, pkce.challenge, scopes, found.resource
        )
        url = authorization_url(issuer.authorization_endpoint, request)
        expires_at = time.time() + LIFE
        record = LoginRecord(
            secrets.token_urlsafe(16), hash_state(state), source.server_id, source.subject,
            OPEN, "", expires_at,
        )  # fmt: skip
        secret = _LoginSecret(
            pkce.verifier, state, issuer.issuer, host, issuer.names_itself,
            issuer.token_endpoint, issuer.revocation_endpoint, redirect_uri, list(scopes),
            found.resource, source.definition.url, client.client_id, client.method,
            client.secret, kind is ClientKind.DYNAMIC, url,
        )  # fmt: skip
        await self._tables.begin_login(record, msgspec.to_builtins(secret))
        return StartedLogin(record.id, url, state, expires_at, scopes, host)

    async def _find_or_register(
        self, flow: OAuthFlow, found: Discovery, redirect_uri: str
    ) -> OAuthClient:
        issuer = found.issuer.issuer
        known = await self._tables.find_client(issuer, redirect_uri)
        if known is not None:
            until = known.secret_expires_at
            if not until or until > time.time() + LIFE:
                secret = self._tables.open(known).get("secret", "")
                return OAuthClient(known.client_id, known.method, secret, until)
        client = await flow.register(found, self._client_name, redirect_uri)
        record = ClientRecord(
            issuer, redirect_uri, client.client_id, client.method, client.secret_expires_at, b""
        )
        await self._tables.put_client(record, {"secret": client.secret})
        return client

    async def find(self, login_id: str) -> LoginRecord:
        """Read a sign-in. Raises NotFound."""
        found = await self._tables.find_login(login_id)
        if found is None:
            raise NotFound("there is no such sign-in; begin it again")
        return found

    async def find_by_state(self, state: str) -> LoginRecord:
        """Read the sign-in that an answer belongs to. Raises NotFound."""
        found = await self._tables.find_login_by_state(hash_state(state)) if state else None
        if found is None:
            raise NotFound("there is no such sign-in; begin it again")
        return found

    def reopen(self, record: LoginRecord) -> StartedLogin:
        """Return a sign-in that is under way as it was begun. Raises NotFound when it is over."""
        if record.status != OPEN or record.expires_at < time.time():
            raise NotFound("this sign-in is over; begin it again")
        secret = msgspec.convert(self._tables.open(record), _LoginSecret)
        return StartedLogin(
            record.id, secret.url, secret.state, record.expires_at, tuple(secret.scopes),
            secret.host,
        )  # fmt: skip

    async def finish(
        self, source: StoredSource, record: LoginRecord, answer: Mapping[str, str]
    ) -> None:
        """Take the answer of an issuer, and store the credential. Raises OAuthError, NotFound.

        The sign-in is used up whatever comes of it.
        """
        if not await self._tables.take_login(record.id, time.time()):
            raise NotFound("this sign-in is over; begin it again")
        secret = msgspec.convert(self._tables.open(record), _LoginSecret)
        try:
            if source.definition.url != secret.server_url:
                raise OAuthError("sign-in", secret.host, "the server's url has changed meanwhile")
            code = take_code(answer, secret.issuer, secret.host, names_itself=secret.names_itself)
            await self._exchange(source, secret, code)
        except OAuthError as error:
            if is_client_unknown(error) and secret.is_dynamic:
                await self._tables.forget_client(secret.issuer, secret.redirect_uri)
            await self._tables.end_login(record.id, REFUSED, str(error))
            raise
        await self._tables.end_login(record.id, COMPLETED)

    async def _exchange(self, source: StoredSource, secret: _LoginSecret, code: str) -> None:
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": secret.redirect_uri,
            "code_verifier": secret.verifier,
        }
        if secret.resource:
            form["resource"] = secret.resource
        client = OAuthClient(secret.client_id, secret.method, secret.secret)
        answer = await OAuthFlow(source.definition).request_token(
            secret.token_endpoint, client, form, issuer=secret.issuer, scopes=tuple(secret.scopes)
        )
        record = CredentialRecord(
            "", source.server_id, source.subject, secret.server_url, secret.issuer,
            secret.client_id, secret.resource, secret.scopes, AuthState.SIGNED_IN.value,
            answer.expires_at,
        )  # fmt: skip
        kept = StoredSecret(
            answer.access, answer.refresh, time.time(), secret.token_endpoint,
            secret.revocation_endpoint, secret.redirect_uri, secret.method, secret.secret,
        )  # fmt: skip
        saved = await self._tables.save(record, msgspec.to_builtins(kept))
        source.take(self._tables, saved)


def hash_state(state: str) -> str:
    return hashlib.sha256(state.encode()).hexdigest()


def _host(url: str) -> str:
    return parse_url(url).authority


class SignIns:
    """Sign-ins to the servers of one gateway."""

    def __init__(
        self, credentials: Credentials, definitions: Callable[[], Iterable[ServerDefinition]]
    ) -> None:
        self.credentials = credentials
        self._definitions = definitions

    async def logins(self) -> Logins:
        """The sign-ins under way. Raises OAuthError where there is no store for them."""
        credentials = self.credentials
        tables = await credentials.open_tables()
        if tables is None:
            raise OAuthError("sign-in", "this machine", "there is no store for credentials")
        url = credentials.client_url if credentials.public_url else ""
        return Logins(tables, credentials.client_name, url)

    def find_source(self, definition: ServerDefinition, agent: str | None) -> StoredSource | None:
        """The credential that somebody can sign in to, or give a key for; None if there is none."""
        auth = effective_auth(definition.auth, definition.headers)
        if auth is None or definition.transport == "stdio":
            return None
        subject = SHARED if agent is None else agent_subject(agent)
        if agent is not None and not auth.is_per_agent:
            return None
        found = self.credentials.source_for(definition, auth, subject)
        return found if isinstance(found, StoredSource) else None

    def source_of(self, server_id: str, subject: str) -> StoredSource:
        """The credential of a sign-in under way. Raises NotFound.

        It is kept from then on: check first whether whoever asks may sign in for the subject.
        """
        for definition in self._definitions():
            if server_id_of(definition) == server_id:
                found = self.find_source(definition, agent_of(subject))
                if found is not None:
                    return found
        raise NotFound("the server of this sign-in is gone")

    @staticmethod
    def check_allowed(principal: Principal, subject: str) -> None:
        """Raise NotPermitted unless a principal may sign in for a subject."""
        if principal.role in (Role.OWNER, Role.ADMIN):
            return
        agent = agent_of(subject)
        if agent is None:
            raise NotPermitted("all who call share this sign-in: only an administrator may do it")
        if principal.role is not Role.AGENT or principal.id != agent:
            raise NotPermitted(f"this sign-in is for the agent {agent!r} alone")

    async def begin(
        self, source: StoredSource, principal: Principal, redirect_uri: str | None = None
    ) -> StartedLogin:
        """Begin a sign-in. Raises OAuthError, NotPermitted; ValueError where nobody signs in."""
        self.check_allowed(principal, source.subject)
        if source.auth.type != OAUTH:
            raise ValueError("nobody signs in to this server: see the type of its auth")
        if source.definition.auth is None and source.facts is None:
            raise ValueError("it has not asked for a sign-in")
        if redirect_uri is not None and not is_loopback_redirect(redirect_uri):
            raise NotPermitted("redirect_uri must be an http address of the loopback interface")
        credentials, logins = self.credentials, await self.logins()
        try:
            started = await logins.begin(source, redirect_uri or credentials.callback_url)
        except OAuthError as error:
            credentials.note(source, "login_refused", str(error), principal.id)
            raise
        credentials.note(source, "login_started", "", principal.id)
        return started

    async def finish(self, record: LoginRecord, callback_query: str, actor: str) -> StoredSource:
        """Finish a sign-in with the answer of its issuer. Raises OAuthError, NotFound."""
        source = self.source_of(record.server_id, record.subject)
        logins = await self.logins()
        try:
            await logins.finish(source, record, read_callback(callback_query))
        except OAuthError as error:
            self.credentials.note(source, "login_refused", str(error), actor)
            raise
        self.credentials.note(source, "login_completed", "", actor)
        return source


_OWN_REDIRECT: Final = re.compile(
    r"http://(127\.0\.0\.1|localhost|\[::1\])(:[0-9]{1,5})?(/[!$-\[\]_a-z~]*)?"
)
"""Without a backslash, which browsers read as a slash, and without a user's name."""


def is_loopback_redirect(url: str) -> bool:
    """Whether a redirect goes to the machine of the browser itself, however it is read."""
    return _OWN_REDIRECT.fullmatch(url) is not None
