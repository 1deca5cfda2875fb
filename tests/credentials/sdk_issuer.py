"""An authorization server that is not ours: the official SDK's own, with a server it protects.

What it gives out is kept in memory, rotated at each refresh, and gone once it is revoked.
"""

import asyncio
import secrets
import socket
import time

import uvicorn
from mcp.server.auth.middleware.auth_context import get_access_token
from mcp.server.auth.provider import (
    AccessToken,
    AuthorizationCode,
    RefreshToken,
    TokenError,
    construct_redirect_uri,
)
from mcp.server.auth.settings import AuthSettings, ClientRegistrationOptions, RevocationOptions
from mcp.server.mcpserver import MCPServer
from mcp.shared.auth import OAuthToken

SCOPES = ["notes"]


class MemoryProvider:
    """The provider that the SDK's routes ask."""

    def __init__(self):
        self.clients, self.codes, self.access, self.refresh = {}, {}, {}, {}
        self.said = []

    async def get_client(self, client_id):
        return self.clients.get(client_id)

    async def register_client(self, client_info):
        self.said.append("register")
        self.clients[client_info.client_id] = client_info

    async def authorize(self, client, params):
        self.said.append("authorize")
        code = AuthorizationCode(
            code=secrets.token_urlsafe(24),
            scopes=params.scopes or [],
            expires_at=time.time() + 60,
            client_id=client.client_id,
            code_challenge=params.code_challenge,
            redirect_uri=params.redirect_uri,
            redirect_uri_provided_explicitly=params.redirect_uri_provided_explicitly,
            resource=params.resource,
            subject="alice",
        )
        self.codes[code.code] = code
        return construct_redirect_uri(str(params.redirect_uri), code=code.code, state=params.state)

    async def load_authorization_code(self, client, authorization_code):
        return self.codes.get(authorization_code)

    async def exchange_authorization_code(self, client, authorization_code):
        self.said.append("code")
        del self.codes[authorization_code.code]
        return self._issue(authorization_code)

    async def load_refresh_token(self, client, refresh_token):
        return self.refresh.get(refresh_token)

    async def exchange_refresh_token(self, client, refresh_token, scopes):
        self.said.append("refresh")
        if self.refresh.pop(refresh_token.token, None) is None:
            raise TokenError("invalid_grant")
        return self._issue(refresh_token)

    def _issue(self, granted):
        told = {"client_id": granted.client_id, "scopes": granted.scopes, "subject": "alice"}
        told["resource"] = granted.resource
        until = int(time.time()) + 3600
        access = AccessToken(token=secrets.token_urlsafe(24), expires_at=until, **told)
        again = RefreshToken(token=secrets.token_urlsafe(24), **told)
        self.access[access.token], self.refresh[again.token] = access, again
        return OAuthToken(
            access_token=access.token,
            expires_in=3600,
            scope=" ".join(granted.scopes),
            refresh_token=again.token,
        )

    async def load_access_token(self, token):
        return self.access.get(token)

    async def revoke_token(self, token):
        kind = "access" if isinstance(token, AccessToken) else "refresh"
        self.said.append(f"revoke {kind}")
        getattr(self, kind).pop(token.token, None)


class SdkIssuer:
    """The SDK's server with its issuer at one address, for the length of a block."""

    def __init__(self):
        self.provider = MemoryProvider()

    async def __aenter__(self):
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.origin = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self.url = f"{self.origin}/mcp"
        settings = AuthSettings(
            issuer_url=self.origin,
            resource_server_url=self.url,
            validate_token_resource=True,
            required_scopes=SCOPES,
            client_registration_options=ClientRegistrationOptions(
                enabled=True, valid_scopes=SCOPES, default_scopes=SCOPES
            ),
            revocation_options=RevocationOptions(enabled=True),
        )
        server = MCPServer("notes", auth_server_provider=self.provider, auth=settings)
        server.tool()(whoami)
        app = server.streamable_http_app()
        config = uvicorn.Config(app, ws="none", log_level="warning", timeout_graceful_shutdown=1)
        self._server = uvicorn.Server(config)
        self._server.install_signal_handlers = lambda: None
        self._serving = asyncio.ensure_future(self._server.serve(sockets=[self._socket]))
        return self

    async def __aexit__(self, *_):
        self._server.should_exit = True
        await self._serving

    def count(self, event):
        return self.provider.said.count(event)


def whoami() -> str:
    """Say whose token a call came with."""
    return get_access_token().subject or ""
