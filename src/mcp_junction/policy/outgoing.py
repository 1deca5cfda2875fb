"""The rules for outgoing connections: which addresses Junction may connect to for a server.

They are applied to the resolved addresses of a name on every new connection, which is then made to
exactly such an address (``upstream/http/dialer.py``): rebinding a name gains nothing. Loopback is
permitted, since most servers run there; other addresses outside the public internet need
``allow_private``. Some addresses, such as cloud metadata services, are never permitted.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from ipaddress import (
    IPv4Address,
    IPv4Network,
    IPv6Address,
    IPv6Network,
    ip_address,
    ip_network,
)
from typing import Final

import msgspec

from mcp_junction.config.urls import UrlTarget, parse_address, parse_url

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network


class Permissions(msgspec.Struct, frozen=True):
    """What the operator allows for one server."""

    allow_private: bool = False
    allow_http: bool = False
    allow_loopback: bool = True


STRICT: Final = Permissions()


class Reach(StrEnum):
    """From where an address can be reached."""

    LOOPBACK = "loopback"
    PUBLIC = "public"
    PRIVATE = "private"
    NEVER = "never"


class AddressClass(msgspec.Struct, frozen=True):
    """The class of an address, and its description."""

    reach: Reach
    what: str


_LOOPBACK = AddressClass(Reach.LOOPBACK, "a loopback address")
_PUBLIC = AddressClass(Reach.PUBLIC, "a public address")
_METADATA = frozenset(
    map(
        ip_address,
        [
            "169.254.169.254",  # most clouds
            "169.254.170.2",  # containers' credentials
            "169.254.170.23",
            "169.254.169.253",
            "169.254.169.123",
            "169.254.0.23",  # Tencent
            "169.254.42.42",  # Scaleway
            "100.100.100.200",  # Alibaba
            "192.0.0.192",  # Oracle
            "168.63.129.16",  # Azure
            "fd00:ec2::254",  # Amazon
            "fd00:ec2::253",
            "fd00:ec2::123",
            "fd00:ec2::23",
            "fd20:ce::254",  # Google
            "fd00:42::42",  # Scaleway
            "fd00:c1::a9fe:a9fe",  # Oracle
            "fe80::a9fe:a9fe",
        ],
    )
)


def _table(reach: Reach, **kinds: str) -> list[tuple[Network, AddressClass]]:
    return [
        (ip_network(network), AddressClass(reach, kind.replace("_", " ")))
        for kind, networks in kinds.items()
        for network in networks.split()
    ]


_V4: Final = (
    *_table(
        Reach.PRIVATE,
        the_unspecified_address="0.0.0.0/32",
        a_private_address="10.0.0.0/8 172.16.0.0/12 192.168.0.0/16",
        a_link_local_address="169.254.0.0/16",
        an_address_shared_behind_a_carrier="100.64.0.0/10",
        a_special_purpose_address="192.0.0.0/24 192.0.2.0/24 192.88.99.0/24 198.18.0.0/15 "
        "198.51.100.0/24 203.0.113.0/24",
    ),
    *_table(
        Reach.NEVER,
        an_address_of_no_host="0.0.0.0/8",
        a_multicast_address="224.0.0.0/4",
        a_reserved_address="240.0.0.0/4",
    ),
)
_V6: Final = (
    *_table(
        Reach.PRIVATE,
        the_unspecified_address="::/128",
        a_private_address="fc00::/7",
        a_link_local_address="fe80::/10 fec0::/10",
        a_tunnel_address="2002::/16 2001::/32",
        a_special_purpose_address="64:ff9b:1::/48 100::/64 2001::/23 2001:db8::/32 3fff::/20 "
        "5f00::/16",
    ),
    *_table(Reach.NEVER, a_multicast_address="ff00::/8"),
)
_GLOBAL_V6: Final = IPv6Network("2000::/3")
# Where the last four bytes are an IPv4 address: mapped, compatible, translated, NAT64.
_WITH_V4: Final = tuple(
    IPv6Network(net) for net in ("::ffff:0:0/96", "::/96", "::ffff:0:0:0/96", "64:ff9b::/96")
)
_MAPPED: Final = _WITH_V4[0]
_LOCAL_NAT64: Final = IPv6Network("64:ff9b:1::/48")
_ISATAP: Final = (0x00005EFE, 0x02005EFE)


def classify_address(address: Address) -> AddressClass:
    """Classify an address; an IPv4 address inside an IPv6 address counts."""
    if isinstance(address, IPv6Address) and address.scope_id is not None:
        address = IPv6Address(int(address))
    if address in _METADATA or not _METADATA.isdisjoint(_nat64_targets(address)):
        return AddressClass(Reach.NEVER, "an address of a cloud's metadata service")
    if isinstance(address, IPv4Address):
        return _LOOPBACK if address.is_loopback else _look_up(address, _V4) or _PUBLIC
    if address == IPv6Address("::1"):
        return _LOOPBACK
    if int(address) == 0:
        return _look_up(address, _V6) or _PUBLIC
    inner = _embedded_v4(address)
    if inner is not None:
        return _classify_embedding(address, inner)
    found = _look_up(address, _V6)
    if found is None and address not in _GLOBAL_V6:
        return AddressClass(Reach.NEVER, "a reserved address")
    return found or _PUBLIC


def address_refusal(place: UrlTarget, address: Address, permissions: Permissions) -> str | None:
    """Say why an address of a place may not be connected to; None when it may."""
    judged = classify_address(address)
    if judged.reach is Reach.NEVER:
        return f"it is at {judged.what}, and no server may be there"
    if judged.reach is Reach.PRIVATE and not permissions.allow_private:
        return f"it is at {judged.what}; allow_private would allow that for this server"
    if judged.reach is Reach.LOOPBACK and not permissions.allow_loopback:
        return "it is at a loopback address, and the server that names it is not"
    if judged.reach is not Reach.LOOPBACK and not place.tls and not permissions.allow_http:
        return "plain http is for loopback only; use https, or allow_http for this server"
    return None


def filter_addresses(
    place: UrlTarget, addresses: Iterable[str], permissions: Permissions
) -> tuple[list[str], str]:
    """Keep the addresses that may be connected to; and, when there is none, say why."""
    permitted: list[str] = []
    why = "its name has no address"
    for text in addresses:
        try:
            words = address_refusal(place, ip_address(text), permissions)
        except ValueError:
            words = "its name has an address that makes no sense"
        if words is None:
            permitted.append(text)
        else:
            why = words
    return permitted, "" if permitted else why


def url_refusal(url: str, permissions: Permissions = STRICT) -> str | None:
    """Check a url when it is registered, without resolving its name; None when it is acceptable.

    Every connection is checked again.
    """
    try:
        place = parse_url(url)
    except ValueError as error:
        return str(error)
    address = parse_address(place.host)
    if address is not None:
        return address_refusal(place, address, permissions)
    is_local = place.host.removesuffix(".") == "localhost" or place.host.endswith(".localhost")
    if not place.tls and not permissions.allow_http and not is_local:
        return "plain http is for loopback only; use https, or allow_http for this server"
    return None


def _look_up(
    address: Address, table: tuple[tuple[Network, AddressClass], ...]
) -> AddressClass | None:
    return next((judged for network, judged in table if address in network), None)


def _embedded_v4(address: IPv6Address) -> IPv4Address | None:
    """Extract the IPv4 address that an IPv6 address embeds, if it is of such a kind."""
    number = int(address)
    if any(address in network for network in _WITH_V4):
        return IPv4Address(number & 0xFFFFFFFF)
    if address.sixtofour is not None:
        return address.sixtofour
    if address.teredo is not None:
        return address.teredo[1]
    if (number >> 32) & 0xFFFFFFFF in _ISATAP:
        return IPv4Address(number & 0xFFFFFFFF)
    return None


def _nat64_targets(address: Address) -> list[IPv4Address]:
    """The IPv4 addresses that a NAT64 gateway may connect to for an address (RFC 6052).

    Any prefix of 96 bits can be an operator's own, so the last four bytes always count. In the
    local-use prefix of 48 bits, byte 8 stands between the two halves.
    """
    if isinstance(address, IPv4Address):
        return []
    number = int(address)
    found = [IPv4Address(number & 0xFFFFFFFF)]
    if address in _LOCAL_NAT64:
        found.append(IPv4Address((number >> 64 & 0xFFFF) << 16 | number >> 40 & 0xFFFF))
    return found


def _classify_embedding(address: IPv6Address, inner: IPv4Address) -> AddressClass:
    """Classify an address by the one it embeds; a tunnel is never public."""
    judged = classify_address(inner)
    if address in _MAPPED or judged.reach is Reach.NEVER:
        return judged
    if judged.reach is Reach.LOOPBACK:
        return AddressClass(Reach.NEVER, "a loopback address in disguise")
    outer = _look_up(address, _V6)
    if outer is not None:
        return outer
    is_nat64 = address in _WITH_V4[3]
    if is_nat64 or judged.reach is Reach.PRIVATE:
        return judged
    return AddressClass(Reach.PRIVATE, "a tunnel address")
