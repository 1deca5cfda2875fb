"""RequestParser: httptools' parser of requests, with which an offered upgrade changes nothing.

httptools ends a request that offers an upgrade at its head, and takes its body for the beginning of
the other protocol. There is none here: another parser is given the head without the offer, and goes
on with what follows it. The receiver, which is told the parts of requests, is told those of such a
head twice; ``is_upgrading`` says so when it is told that the first is complete.
"""

from __future__ import annotations

from typing import Any, Final, Protocol
from urllib.parse import unquote

import httptools

from mcp_junction.listener.http.heads import Fields

_OFFERS: Final = frozenset((b"upgrade", b"http2-settings"))
"""Headers that offer another protocol, and tokens of Connection that name them."""


class RequestReceiver(Protocol):
    """What httptools tells the parts of requests; it keeps those of the head."""

    url: bytes
    fields: Fields
    owes_continue: bool
    """Whether the client is still to be told to send the body."""


class RequestParser:
    """Parses the requests of one connection."""

    __slots__ = ("_parser", "_receiver")

    def __init__(self, receiver: RequestReceiver) -> None:
        self._receiver = receiver
        self._parser = httptools.HttpRequestParser(receiver)

    def feed(self, data: bytes | memoryview) -> None:
        """Parse what has come. Raises HttpParserError for what is no request, or a tunnel."""
        left: memoryview | None = memoryview(data)
        while left is not None:
            left = self._feed(left)

    def _feed(self, data: memoryview) -> memoryview | None:
        """Parse until a request offers an upgrade; return what follows its head."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            parsed: int = upgrade.args[0]
        else:
            return None
        head = self._rewrite_head()
        self._parser = httptools.HttpRequestParser(self._receiver)
        self._parser.feed_data(head)
        return data[parsed:]

    def _rewrite_head(self) -> bytes:
        """Write the head of a request anew, without the upgrade that it offers."""
        receiver, fields = self._receiver, self._receiver.fields
        if self.method == "CONNECT" or any(b"\r" in v or b"\n" in v for _, v in fields):
            raise httptools.HttpParserError("there are no tunnels here")
        dropped = _OFFERS if receiver.owes_continue else _OFFERS | {b"expect"}
        lines = [b"%b %b HTTP/%b" % (self.method.encode(), receiver.url, self.version.encode())]
        for name, value in fields:
            if name == b"connection":
                tokens = [token.strip() for token in value.split(b",")]
                value = b", ".join(token for token in tokens if token.lower() not in _OFFERS)
            if name not in dropped:
                lines.append(b"%b: %b" % (name, value))
        return b"\r\n".join([*lines, b"", b""])

    # -- the request that is complete

    @property
    def is_upgrading(self) -> bool:
        """Whether it offers an upgrade: then it is not complete, and comes once more."""
        upgrading: bool = self._parser.should_upgrade()
        return upgrading

    @property
    def keeps_alive(self) -> bool:
        keeps: bool = self._parser.should_keep_alive()
        return keeps

    @property
    def method(self) -> str:
        name: bytes = self._parser.get_method()
        return name.decode("ascii")

    @property
    def version(self) -> str:
        version: str = self._parser.get_http_version()
        return version

    def scope(self) -> dict[str, Any]:
        """The request's own part of its ASGI scope."""
        raw, _, query = self._receiver.url.partition(b"?")
        path = raw.decode("latin-1")
        return {
            "http_version": self.version,
            "method": self.method,
            "path": unquote(path) if "%" in path else path,
            "raw_path": raw,
            "query_string": query,
            "headers": self._receiver.fields,
        }
