"""Requests to ``/mcp`` in either era, with the key of a role: what S-04 sends there."""

import json
from typing import Any

import httpx
from tests.plugin_rest import Served

HELLO = {
    "protocolVersion": "2025-11-25",
    "capabilities": {"roots": {"listChanged": True}},
    "clientInfo": {"name": "t", "version": "1"},
}
ACCEPTED = {"accept": "application/json, text/event-stream"}
ERAS = ("handshake", "stateless")
NEWER = "2026-07-28"
META = {
    "io.modelcontextprotocol/protocolVersion": NEWER,
    "io.modelcontextprotocol/clientInfo": {"name": "t", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {},
}

Json = dict[str, Any]


def frame(method: str, params: Json | None = None, number: int | None = 7) -> Json:
    """One JSON-RPC message; without a number a notification."""
    numbered = {} if number is None else {"id": number}
    return {"jsonrpc": "2.0", **numbered, "method": method, "params": params or {}}


async def post(
    served: Served, role: str | None, message: Any, path: str = "/mcp", **headers: str
) -> httpx.Response:
    """Send one body to an endpoint; names of headers are written with underscores."""
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    return await served.client(role).post(path, json=message, headers={**ACCEPTED, **given})


class Handshake:
    """A client with a session."""

    def __init__(self, served: Served, role: str | None, path: str, session: str) -> None:
        self.served = served
        self.role = role
        self.path = path
        self.session = session

    @classmethod
    async def open(cls, served: Served, role: str | None, path: str = "/mcp") -> "Handshake":
        answer = await post(served, role, frame("initialize", HELLO), path)
        assert answer.status_code == 200, answer.text
        return cls(served, role, path, answer.headers["mcp-session-id"])

    async def send(self, method: str, params: Json | None = None) -> Json:
        answer = await post(
            self.served, self.role, frame(method, params), self.path, mcp_session_id=self.session
        )
        return last_frame(answer)

    async def notify(self, method: str, params: Json | None = None) -> None:
        message = frame(method, params, number=None)
        answer = await post(self.served, self.role, message, self.path, mcp_session_id=self.session)
        assert answer.status_code == 202


class Stateless:
    """A client of the newer era, which opens nothing."""

    def __init__(self, served: Served, role: str | None, path: str) -> None:
        self.served = served
        self.role = role
        self.path = path

    @classmethod
    async def open(cls, served: Served, role: str | None, path: str = "/mcp") -> "Stateless":
        return cls(served, role, path)

    async def send(self, method: str, params: Json | None = None) -> Json:
        given = {**(params or {}), "_meta": META}
        headers = {"mcp_protocol_version": NEWER, "mcp_method": method}
        name = given.get("name") or given.get("uri")
        if name is not None:
            headers["mcp_name"] = name
        return last_frame(
            await post(self.served, self.role, frame(method, given), self.path, **headers)
        )


def client_of(era: str) -> Any:
    """The kind of client that speaks an era."""
    return Handshake if era == "handshake" else Stateless


def last_frame(answer: httpx.Response) -> Json:
    """The answer to a request, as JSON or as the last event of a stream."""
    if answer.headers.get("content-type", "").startswith("text/event-stream"):
        lines = [line[5:] for line in answer.text.splitlines() if line.startswith("data:")]
        return json.loads([line for line in lines if line.strip()][-1])
    return answer.json()
