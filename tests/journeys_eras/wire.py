"""A client of 2026-07-28 on the wire: each header and byte as the test wants it, nothing added.

Every request has a connection of its own, as if another process had sent it.
"""

import http.client
import itertools
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

VERSION = "2026-07-28"
BOUND = 20.0
BOTH = "application/json, text/event-stream"
VERSION_KEY = "io.modelcontextprotocol/protocolVersion"
CAPABILITIES_KEY = "io.modelcontextprotocol/clientCapabilities"
CLIENT_KEY = "io.modelcontextprotocol/clientInfo"
NAMED = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}
EVERYTHING = {"elicitation": {"form": {}}, "sampling": {}, "roots": {}}

Json = dict[str, Any]
# A header's value; None leaves it out, a list sends it several times.
Headers = Mapping[str, str | list[str] | None]

_ids = itertools.count(1)


@dataclass
class Answer:
    """What came back for one POST, whole."""

    status: int
    headers: dict[str, str]
    frames: list[Json]

    @property
    def last(self) -> Json:
        return self.frames[-1]

    @property
    def result(self) -> Json:
        assert "result" in self.last, (self.status, self.last)
        return self.last["result"]

    @property
    def text(self) -> str:
        return self.result["content"][0]["text"]

    @property
    def refusal(self) -> tuple[int, int]:
        """The status and the error's code."""
        assert "error" in self.last, self.last
        return self.status, self.last["error"]["code"]


def envelope(capabilities: Json | None = None, version: str = VERSION) -> Json:
    return {
        VERSION_KEY: version,
        CAPABILITIES_KEY: EVERYTHING if capabilities is None else capabilities,
        CLIENT_KEY: {"name": "wire", "version": "0"},
    }


class Wire:
    """An endpoint, and the key that is shown there."""

    def __init__(self, url: str, key: str | None = None) -> None:
        parts = urlsplit(url)
        self.host, self.port, self.path = str(parts.hostname), parts.port, parts.path
        self.key = key

    @property
    def authorization(self) -> dict[str, str]:
        return {} if self.key is None else {"Authorization": f"Bearer {self.key}"}

    def send(self, body: bytes, headers: Headers, method: str = "POST") -> "Stream":
        """Send one request with these headers alone; the response when its head has come."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=BOUND)
        connection.putrequest(method, self.path, skip_accept_encoding=True)
        every: dict[str, Any] = {"Content-Length": str(len(body)), **headers, **self.authorization}
        for name, values in every.items():
            for value in [values] if isinstance(values, str) else values or ():
                connection.putheader(name, value.encode("latin-1"))
        connection.endheaders(body)
        return Stream(connection, connection.getresponse())

    def exchange(self, body: bytes, headers: Headers, method: str = "POST") -> Answer:
        with self.send(body, headers, method) as stream:
            return Answer(stream.status, stream.headers, list(stream.frames()))

    def open(self, method: str, params: Json, **changes: Any) -> "Stream":
        """Send a request as the protocol wants it."""
        body, headers = request(method, params, **changes)
        return self.send(body, headers)

    def ask(self, method: str, params: Json | None = None, **changes: Any) -> Answer:
        body, headers = request(method, params or {}, **changes)
        return self.exchange(body, headers)

    def call(self, tool: str, arguments: Json | None = None, **more: Any) -> Answer:
        """Call a tool; `more` goes into the params."""
        return self.ask("tools/call", {"name": tool, "arguments": arguments or {}, **more})


class Stream:
    """A response as it comes."""

    def __init__(
        self, connection: http.client.HTTPConnection, response: http.client.HTTPResponse
    ) -> None:
        self._connection, self._response = connection, response
        self.status = response.status
        self.headers = {name.lower(): value for name, value in response.getheaders()}

    def __enter__(self) -> "Stream":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        self._response.close()
        self._connection.close()

    def frames(self) -> Iterator[Json]:
        """Each frame, of a stream or of a body."""
        if not self.headers.get("content-type", "").startswith("text/event-stream"):
            body = self._response.read()
            if body:
                yield json.loads(body)
            return
        while line := self._response.readline():
            if line.startswith(b"data:") and line[5:].strip():
                yield json.loads(line[5:])


def request(
    method: str,
    params: Json,
    *,
    headers: Headers | None = None,
    meta: Json | None = None,
    capabilities: Json | None = None,
) -> tuple[bytes, Headers]:
    """The body and headers of a request, with these `headers` changed; `meta` is all of it."""
    said = envelope(capabilities) if meta is None else meta
    body = {
        "jsonrpc": "2.0",
        "id": next(_ids),
        "method": method,
        "params": {**params, "_meta": {**said, **params.get("_meta", {})}},
    }
    every: dict[str, Any] = {
        "Content-Type": "application/json",
        "Accept": BOTH,
        "MCP-Protocol-Version": VERSION,
        "Mcp-Method": method,
    }
    if method in NAMED:
        every["Mcp-Name"] = params[NAMED[method]]
    return json.dumps(body).encode(), {**every, **(headers or {})}
