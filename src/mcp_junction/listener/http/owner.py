"""OwnerCheck: whether a request without a key comes from the person who runs this process.

The kernel says whose process is at the other end of a loopback connection.
"""

from __future__ import annotations

import errno
import logging
import os
import socket
import struct
import sys
from pathlib import Path
from typing import Any, Final

from mcp_junction.listener.http.forwarded import PROXIED, PROXY_HEADERS
from mcp_junction.listener.http.guard import Address, is_local_host, parse_address

log = logging.getLogger("mcp_junction.http")

_SOCK_DIAG: Final = 4
_BY_FAMILY: Final = 20
_REQUEST: Final = 1
_HEAD: Final = struct.Struct("=IHHII")
_ASKED: Final = struct.Struct("=BBBBI")
_PORTS: Final = struct.Struct("!HH")
_NO_COOKIE: Final = struct.pack("=III", 0, 0xFFFFFFFF, 0xFFFFFFFF)
_OWNER: Final = struct.Struct("=II")
_OWNER_AT: Final = _HEAD.size + 4 + 48 + 12
_ALL_STATES: Final = 0xFFFFFFFF
_TABLES: Final = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))


def is_own_peer(ours: Any, theirs: Any) -> bool:
    """Whether a connection between these addresses is from a process of our own user here."""
    here, there = _address(ours), _address(theirs)
    if here is None or there is None or not (here.is_loopback and there.is_loopback):
        return False
    if sys.platform != "linux":
        return True
    return uid_of_peer((here, ours[1]), (there, theirs[1])) == os.geteuid()


def uid_of_peer(ours: tuple[Address, int], theirs: tuple[Address, int]) -> int | None:
    """The user who owns the other end of a TCP connection of this machine.

    None when that is not known, and when nobody has the socket open any more: the kernel may then
    name root, whoever it was.
    """
    try:
        return _uid_by_netlink(ours, theirs)
    except OSError as error:
        if error.errno == errno.ENOENT:
            return None
    try:
        return _uid_in_tables(ours, theirs)
    except (OSError, ValueError):
        log.warning(
            "which user owns a connection cannot be found out here (no netlink, no /proc/net/tcp);"
            " requests without a key are refused: use a key, see mcp-junction keys create"
        )
        return None


def _uid_by_netlink(ours: tuple[Address, int], theirs: tuple[Address, int]) -> int | None:
    """Ask the kernel for the owner of the peer's socket, in some microseconds. Raises OSError."""
    family = socket.AF_INET if theirs[0].version == 4 else socket.AF_INET6
    ends = theirs[0].packed.ljust(16, b"\0") + ours[0].packed.ljust(16, b"\0")
    body = _ASKED.pack(family, socket.IPPROTO_TCP, 0, 0, _ALL_STATES)
    body += _PORTS.pack(theirs[1], ours[1]) + ends + _NO_COOKIE
    head = _HEAD.pack(_HEAD.size + len(body), _BY_FAMILY, _REQUEST, 1, 0)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, _SOCK_DIAG) as link:
        link.setblocking(False)  # the answer is there when the question was taken
        link.sendto(head + body, (0, 0))
        answer = link.recv(4096)
    if len(answer) < _OWNER_AT + _OWNER.size or _HEAD.unpack_from(answer)[1] != _BY_FAMILY:
        code = struct.unpack_from("=i", answer, _HEAD.size)[0]
        raise OSError(-code, "the kernel does not say")
    uid, inode = _OWNER.unpack_from(answer, _OWNER_AT)
    return int(uid) if inode else None


def _uid_in_tables(ours: tuple[Address, int], theirs: tuple[Address, int]) -> int | None:
    """Look for the socket in ``/proc/net``. Raises OSError, or ValueError for a bad line."""
    wanted = {
        (_format_end(packed(theirs[0]), theirs[1]), _format_end(packed(ours[0]), ours[1]))
        for packed in (_as_packed, _as_ipv6)
    }
    for table in _TABLES:
        if table == _TABLES[1] and not table.exists():
            continue  # without IPv6
        for line in table.read_text("ascii").splitlines()[1:]:
            fields = line.split()
            if (fields[1], fields[2]) in wanted:
                return int(fields[7]) if int(fields[9]) else None
    return None


def _format_end(packed: bytes, port: int) -> str:
    """Format an address and port as ``/proc/net/tcp`` does: words in the machine's byte order."""
    step = -1 if sys.byteorder == "little" else 1
    words = (packed[at : at + 4][::step] for at in range(0, len(packed), 4))
    return f"{b''.join(words).hex().upper()}:{port:04X}"


def _as_packed(address: Address) -> bytes:
    return address.packed


def _as_ipv6(address: Address) -> bytes:
    """Return an address as the 16 bytes of IPv6; IPv4 as IPv4-mapped."""
    return bytes(10) + b"\xff\xff" + address.packed if address.version == 4 else address.packed


def _address(end: Any) -> Address | None:
    """Return the address of one end of a connection; IPv4-mapped IPv6 as IPv4."""
    try:
        return parse_address(end[0].partition("%")[0])
    except (TypeError, IndexError, AttributeError):
        return None  # a socket of another kind, or none


_MAX_REMEMBERED: Final = 256


class OwnerCheck:
    """Tells the owner's requests from others; caches which Hosts are local."""

    def __init__(self) -> None:
        self._hosts: dict[bytes, bool] = {}

    def is_owner_request(self, scope: dict[str, Any], headers: dict[bytes, bytes]) -> bool:
        """Whether this request comes from the owner."""
        if PROXIED in scope or not headers.keys().isdisjoint(PROXY_HEADERS):
            return False
        if not self._is_local(headers.get(b"host", b"")):
            return False
        exchange = scope.get("exchange")
        if exchange is not None:
            return bool(exchange.is_own_peer)
        return is_own_peer(scope.get("server"), scope.get("client"))

    def _is_local(self, host: bytes) -> bool:
        found = self._hosts.get(host)
        if found is None:
            found = is_local_host(host)
            if len(self._hosts) < _MAX_REMEMBERED:
                self._hosts[host] = found
        return found
