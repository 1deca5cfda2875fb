"""SignIns: begins and finishes sign-ins for callers of REST and of our pages, with their checks.

Who a caller is has been found out before. A credential that all share is the operator's to sign in
to; an agent's own is the agent's, and the operator's.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Final

from mcp_junction.config.auth import OAUTH, effective_auth
from mcp_junction.config.servers import ServerDefinition
from mcp_junction.credentials.credentials import Credentials, server_id_of
from mcp_junction.credentials.kinds import StoredSource
from mcp_junction.credentials.logins import StartedLogin
from mcp_junction.credentials.subjects import SHARED, agent_of, agent_subject
from mcp_junction.errors import NotFound, NotPermitted, OAuthError
from mcp_junction.oauth.sign_in import read_callback
from mcp_junction.policy.principal import Principal, Role
from mcp_junction.store.credentials import LoginRecord


class SignIns:
    """Sign-ins to the servers of one gateway."""

    def __init__(
        self, credentials: Credentials, definitions: Callable[[], Iterable[ServerDefinition]]
    ) -> None:
        self.credentials = credentials
        self._definitions = definitions

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
        credentials = self.credentials
        logins = await credentials.logins()
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
        logins = await self.credentials.logins()
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
