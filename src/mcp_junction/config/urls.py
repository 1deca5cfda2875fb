"""Parses outgoing URLs and checks headers strictly, so that all parsers agree on the target."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from typing import Final, NamedTuple
from urllib.parse import SplitResult, urlsplit

_RESERVED = {
    "host", "content-length", "transfer-encoding", "connection", "content-type", "accept",
    "mcp-session-id", "mcp-protocol-version", "last-event-id",
}  # fmt: skip
_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")


def check_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Lower-case the names of headers. Raises ValueError for one that is invalid or reserved."""
    found: dict[str, str] = {}
    for name, value in headers.items():
        key = name.lower().strip()
        fault = (
            "is set by Junction itself; remove it" if key in _RESERVED else header_fault(key, value)
        )
        if fault is not None:
            raise ValueError(f"the header {name!r} {fault}")
        found[key] = value
    return found


def header_fault(name: str, value: str) -> str | None:
    """Return why a header cannot be sent, without its value: it may be a secret."""
    if not _NAME.fullmatch(name.strip()):
        return "has a name that cannot be sent: letters, digits and '-' can"
    if not value.isprintable() or max(value, default="") > "\xff":
        return "has a value that cannot be sent: it holds a line break or another odd character"
    return None


MAX_LENGTH: Final = 8_192
_LABEL = re.compile(r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
_QUAD = re.compile(r"(0|[1-9][0-9]{0,2})(\.(0|[1-9][0-9]{0,2})){3}")


class AmbiguousUrl(ValueError):
    """A url that other parsers may read differently."""


class UrlTarget(NamedTuple):
    """The host, port and path of a url."""

    host: str
    port: int
    path: str
    tls: bool

    @property
    def authority(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.tls else 80) else f"{host}:{self.port}"

    @property
    def origin(self) -> tuple[str, int, bool]:
        return self.host, self.port, self.tls


def parse_url(url: str) -> UrlTarget:
    """Parse a url. Raises ValueError, which does not quote the url: it may hold a secret."""
    if len(url) > MAX_LENGTH:
        raise ValueError("the url is too long")
    if any(char <= " " for char in url):
        raise ValueError("the url holds white space; percent-encode it")
    if not url.isascii() or "\x7f" in url:
        raise AmbiguousUrl(
            "the url holds characters that must be percent-encoded, or xn-- in a host"
        )
    if "\\" in url:
        raise ValueError("the url holds a backslash")
    try:
        parts = urlsplit(url)
        host = parts.hostname
    except ValueError:
        raise ValueError("the url names a host that makes no sense") from None
    if parts.scheme not in ("http", "https") or not host or not parts.netloc:
        raise ValueError("the url must begin with http:// or https:// and name a host")
    if "@" in parts.netloc:
        raise AmbiguousUrl("the url holds a user name or password; put credentials into headers")
    tls = parts.scheme == "https"
    path = parts.path or "/"
    if parts.query:
        path = f"{path}?{parts.query}"
    return UrlTarget(_host(host, parts), _port(parts, tls), path, tls)


def parse_address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Parse a host as an IP address; None when it is a name."""
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def _port(parts: SplitResult, tls: bool) -> int:
    try:
        port = parts.port
    except ValueError:
        port = 0
    if port == 0:
        raise ValueError("the url names a port that does not exist")
    return port or (443 if tls else 80)


def _host(host: str, parts: SplitResult) -> str:
    """Check a host. Raises ValueError for all but plain names and addresses."""
    if "[" in parts.netloc:
        address = parse_address(host)
        if not isinstance(address, ipaddress.IPv6Address) or address.scope_id is not None:
            raise ValueError("the url names an IPv6 address that makes no sense")
        return str(address)
    if "%" in host:
        raise ValueError("the url percent-encodes its host")
    labels = host.split(".")
    if _NUMBER.fullmatch(labels[-1] or labels[-2 if len(labels) > 1 else -1]):
        if not _QUAD.fullmatch(host) or parse_address(host) is None:
            raise ValueError("the url's address must be four decimal numbers, like 192.0.2.1")
        return host
    name = labels[:-1] if not labels[-1] else labels  # one dot at the end is the root's
    if len(host) > 253 or not all(_LABEL.fullmatch(label) for label in name):
        raise ValueError("the url names a host that cannot exist")
    return host
