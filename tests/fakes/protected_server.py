"""ProtectedServer: an MCP server of either era that wants the tokens of a FakeIssuer.

It answers requests that were read; the connections are the issuer's.
"""

from __future__ import annotations

import json
import secrets
import time
from dataclasses import dataclass
from ssl import SSLContext
from typing import Any

from tests.fakes.http_ledger import LedgerRequest

Json = dict[str, Any]
Response = tuple[int, Json | str | bytes | None, dict[str, str]]
_TOOLS = [
    {"name": "whoami", "description": "The account.", "inputSchema": {"type": "object"}},
    {"name": "write", "description": "Needs a scope.", "inputSchema": {"type": "object"}},
]


@dataclass
class IssuedToken:
    """A token that was given out."""

    account: str
    client: str
    scopes: str
    resource: str
    ends: float
    family: str = ""
    is_spent_since: float | None = None


class ProtectedServer:
    """The server, and who has which token."""

    def __init__(self, era: str) -> None:
        self.era = era
        self.port = 0
        self.tls: SSLContext | None = None
        """With which it is served over https."""
        self.needs_scope: dict[str, str] = {}
        """The scope that a tool needs."""
        self.is_open = False
        """Whether the server takes requests without a token."""
        self.challenge: str | None = None
        self.access: dict[str, IssuedToken] = {}
        self.ledger: list[tuple[str, Any]] = []

    @property
    def origin(self) -> str:
        return f"http{'' if self.tls is None else 's'}://127.0.0.1:{self.port}"

    def _serve_mcp(self, request: LedgerRequest) -> Response:
        header = request.headers.get("authorization", "")
        value = header.removeprefix("Bearer ") if header.startswith("Bearer ") else ""
        value = value or request.headers.get("x-api-key", "")
        token = self.access.get(value)
        is_good = token is not None and token.ends > time.time()
        if not is_good and not self.is_open:
            self.ledger.append(("401", value))
            challenge = f'Bearer resource_metadata="{self.origin}/meta"'
            asked = self.challenge if self.challenge is not None else challenge
            return 401, {"error": "invalid_token"}, {"www-authenticate": asked} if asked else {}
        if request.method != "POST":
            return (405 if request.method == "GET" else 200), None, {}
        frame = json.loads(request.body)
        method = frame.get("method")
        if "id" not in frame:
            return 202, None, {}
        params = frame.get("params") or {}
        if method == "tools/call":
            needed = self.needs_scope.get(params["name"])
            if needed and (token is None or needed not in token.scopes.split()):
                asked = f'Bearer error="insufficient_scope", scope="{needed}"'
                return 403, {"error": "insufficient_scope"}, {"www-authenticate": asked}
        result = self._result(method, params, token, value)
        extra = {"mcp-session-id": secrets.token_hex(8)} if method == "initialize" else {}
        if result is None:
            error = {"code": -32601, "message": f"no {method}"}
            status = 404 if method == "server/discover" else 200
            return status, {"jsonrpc": "2.0", "id": frame["id"], "error": error}, extra
        return 200, {"jsonrpc": "2.0", "id": frame["id"], "result": result}, extra

    def _result(
        self, method: str, params: Json, token: IssuedToken | None, value: str
    ) -> Json | None:
        is_stateless = self.era == "2026-07-28"
        info = {"name": "protected", "version": "1"}
        more = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}
        if method == "initialize" and not is_stateless:
            return {
                "protocolVersion": self.era,
                "capabilities": {"tools": {}},
                "serverInfo": info,
            }
        if method == "server/discover" and is_stateless:
            meta = {"io.modelcontextprotocol/serverInfo": info}
            found = {"supportedVersions": [self.era], "capabilities": {"tools": {}}, "_meta": meta}
            return {**found, **more}
        if method == "tools/list":
            return {"tools": _TOOLS, **(more if is_stateless else {})}
        if method == "tools/call":
            account = token.account if token is not None else "nobody"
            nonce = (params.get("arguments") or {}).get("nonce")
            self.ledger.append(("call", (account, nonce, value)))
            text = {"type": "text", "text": account}
            return {"content": [text], **({"resultType": "complete"} if is_stateless else {})}
        return {} if method == "ping" else None
