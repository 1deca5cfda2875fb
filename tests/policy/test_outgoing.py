"""Where Junction may connect to."""

import ipaddress
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.policy.corpus import V4, V6, World, spellings, urls

from mcp_junction.config.urls import parse_address, parse_url
from mcp_junction.errors import AddressRefused
from mcp_junction.policy.outgoing import (
    STRICT,
    Permissions,
    Reach,
    address_refusal,
    classify_address,
    filter_addresses,
    url_refusal,
)
from mcp_junction.upstream.http.dialer import Dialer

HTTPS = parse_url("https://ok.test/mcp")
HTTP = parse_url("http://ok.test/mcp")
ANYTHING = Permissions(allow_private=True, allow_http=True)


def reach(address: str) -> Reach:
    return classify_address(ipaddress.ip_address(address)).reach


def test_the_corpus_is_as_large_as_promised():
    assert len(urls()) >= 200


@pytest.mark.parametrize("address", [*V4, *V6])
def test_what_is_not_the_public_internet_is_refused(address):
    assert address_refusal(HTTPS, ipaddress.ip_address(address), STRICT)


@pytest.mark.parametrize(
    "address",
    ["1.1.1.1", "93.184.215.14", "172.32.0.1", "100.128.0.1", "11.0.0.1", "223.255.255.255",
     "2606:4700::1111", "2a00:1450::1", "64:ff9b::101:101", "::ffff:1.1.1.1", "2001:4860::8888"],
)  # fmt: skip
def test_the_public_internet_is_open_by_tls(address):
    assert reach(address) is Reach.PUBLIC
    assert address_refusal(HTTPS, ipaddress.ip_address(address), STRICT) is None
    assert "plain http" in (address_refusal(HTTP, ipaddress.ip_address(address), STRICT) or "")
    assert (
        address_refusal(HTTP, ipaddress.ip_address(address), Permissions(allow_http=True)) is None
    )


@pytest.mark.parametrize("address", ["127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1"])
def test_loopback_is_open(address):
    assert address_refusal(HTTP, ipaddress.ip_address(address), STRICT) is None


@pytest.mark.parametrize(
    "address", ["10.0.0.1", "192.168.1.1", "100.64.0.1", "fd12::1", "fe80::1", "0.0.0.0", "::"]
)
def test_private_places_can_be_allowed(address):
    assert (
        address_refusal(HTTPS, ipaddress.ip_address(address), Permissions(allow_private=True))
        is None
    )
    assert address_refusal(HTTP, ipaddress.ip_address(address), Permissions(allow_private=True))
    assert address_refusal(HTTP, ipaddress.ip_address(address), ANYTHING) is None


@pytest.mark.parametrize(
    "address",
    ["169.254.169.254", "::ffff:169.254.169.254", "64:ff9b::a9fe:a9fe", "2002:a9fe:a9fe::1",
     "fe80::a9fe:a9fe%eth0",
     "fd00:ec2::254", "224.0.0.1", "255.255.255.255", "ff02::1", "64:ff9b::127.0.0.1", "0.1.2.3"],
)  # fmt: skip
def test_some_places_cannot_be_allowed(address):
    assert reach(address) is Reach.NEVER
    assert "no server may be there" in (
        address_refusal(HTTPS, ipaddress.ip_address(address), ANYTHING)
    )


@pytest.mark.parametrize(
    "v4", ["169.254.169.254", "169.254.42.42", "169.254.170.2", "100.100.100.200", "168.63.129.16"]
)
def test_a_metadata_service_cannot_be_allowed_however_it_is_wrapped(v4):
    number = int(ipaddress.IPv4Address(v4))
    prefixes = ["::ffff:0:0", "::", "::ffff:0:0:0", "64:ff9b::", "64:ff9b:1::", "fd64::",
                "2606:4700::5efe:0:0", "2606:4700::200:5efe:0:0"]  # fmt: skip
    wrapped = [int(ipaddress.IPv6Address(prefix)) | number for prefix in prefixes]
    wrapped.append((0x2002 << 112) | (number << 80) | 1)  # 6to4
    wrapped.append((0x20010000 << 96) | (0x08080808 << 64) | (number ^ 0xFFFFFFFF))  # Teredo
    local = int(ipaddress.IPv6Address("64:ff9b:1::"))
    wrapped.append(local | (number >> 16) << 64 | (number & 0xFFFF) << 40)  # NAT64, 48 bits
    for address in [v4, *(str(ipaddress.IPv6Address(one)) for one in wrapped)]:
        assert reach(address) is Reach.NEVER, address


@pytest.mark.parametrize(
    "address", ["fd00:42::42", "fd00:ec2::254", "fd20:ce::254", "fd00:ec2::23"]
)
def test_a_metadata_service_over_ipv6_cannot_be_allowed(address):
    assert reach(address) is Reach.NEVER


def test_of_several_addresses_only_the_good_ones_are_left():
    found = ["10.0.0.1", "1.1.1.1", "fe80::1%eth0", "nonsense", "2606:4700::1111"]
    assert filter_addresses(HTTPS, found, STRICT) == (["1.1.1.1", "2606:4700::1111"], "")
    assert filter_addresses(HTTPS, found[:1], STRICT)[0] == []
    assert filter_addresses(HTTPS, [], STRICT) == ([], "its name has no address")


@pytest.mark.parametrize("host", [*spellings("127.0.0.1"), *spellings("93.184.215.14")])
def test_an_address_has_one_spelling(host):
    with pytest.raises(ValueError, match="four decimal numbers"):
        parse_url(f"https://{host}/")


@given(st.text("0123456789abcdefxX.", min_size=1, max_size=20))
def test_no_name_is_an_address_to_someone_else(host):
    try:
        place = parse_url(f"https://{host}/")
    except ValueError:
        return
    if parse_address(place.host) is None:
        with pytest.raises(OSError, match="illegal IP"):
            socket.inet_aton(place.host)


@given(st.integers(0, 2**128 - 1))
def test_every_address_has_a_verdict_and_wrapping_opens_nothing(number):
    assert classify_address(ipaddress.IPv6Address(number)).reach in Reach
    inner = ipaddress.IPv4Address(number & 0xFFFFFFFF)
    open_inside = address_refusal(HTTPS, inner, STRICT) is None
    for prefix in ("::ffff:0:0", "::", "::ffff:0:0:0", "64:ff9b::"):
        wrapped = ipaddress.IPv6Address(int(ipaddress.IPv6Address(prefix)) | int(inner))
        if int(wrapped) > 1 and address_refusal(HTTPS, wrapped, STRICT) is None:
            assert open_inside


@pytest.mark.parametrize(
    ("url", "authority"),
    [
        ("http://127.0.0.1:8000/mcp", "127.0.0.1:8000"),
        ("https://[2606:4700:0::1111]/", "[2606:4700::1111]"),
        ("https://Example.COM/x?y=1", "example.com"),
        ("https://my_host-1.internal.:8443", "my_host-1.internal.:8443"),
        ("http://localhost:/", "localhost"),
        ("https://1password.test/", "1password.test"),
        ("https://xn--mnchen-3ya.test/", "xn--mnchen-3ya.test"),
    ],
)
def test_ordinary_urls_are_read(url, authority):
    assert parse_url(url).authority == authority


def test_no_reason_quotes_the_url():
    reasons = [url_refusal(url.replace("mcp", "s3cret")) for url in urls()]
    assert not [reason for reason in reasons if reason and "s3cret" in reason]


@pytest.mark.parametrize(
    ("url", "word"),
    [("http://ok.test/", "plain http"), ("https://10.0.0.1/", "private"), ("ftp://x/", "https://"),
     ("https://a:b@ok.test/", "headers"), ("https://ok.test:0/", "port")],
)  # fmt: skip
def test_a_url_is_refused_before_its_name_is_looked_up(url, word):
    assert word in (url_refusal(url) or "")


@pytest.mark.parametrize("url", ["https://ok.test/", "http://localhost:1/", "http://127.0.0.1/"])
def test_nothing_is_said_against_an_ordinary_url(url):
    assert url_refusal(url) is None


@pytest.mark.req("S-05")
@pytest.mark.parametrize("url", urls())
async def test_no_url_of_the_corpus_is_connected_to(url):
    world = World()
    with pytest.raises((ValueError, OSError, AddressRefused)):
        await Dialer(STRICT, world.resolve, world.connect).dial(parse_url(url), lambda: None)
    assert world.reached == []


async def test_the_world_of_the_corpus_would_notice():
    world = World()
    with pytest.raises(ConnectionRefusedError):
        await Dialer(STRICT, world.resolve, world.connect).dial(HTTPS, lambda: None)
    assert world.reached == ["93.184.215.14"]
    for host in spellings("169.254.169.254"):
        assert await world.resolve(host, 80) == ["169.254.169.254"]


async def test_a_name_that_changes_its_mind_gains_nothing():
    world = World()
    dialer = Dialer(STRICT, world.resolve, world.connect)
    for answer in (["93.184.215.14"], ["10.0.0.1"], ["93.184.215.14", "169.254.169.254"]):
        world.names["ok.test"] = answer
        with pytest.raises((ConnectionRefusedError, AddressRefused)):
            await dialer.dial(HTTPS, lambda: None)
    assert world.asked == ["ok.test"] * 3, "asked anew for each connection"
    assert world.reached == ["93.184.215.14"] * 2


async def test_the_next_address_is_tried_when_one_does_not_answer():
    world = World()
    world.names["ok.test"] = ["1.1.1.1", "10.0.0.1", "2606:4700::1111"]
    with pytest.raises(ConnectionRefusedError):
        await Dialer(STRICT, world.resolve, world.connect).dial(HTTPS, lambda: None)
    assert world.reached == ["1.1.1.1", "2606:4700::1111"]
