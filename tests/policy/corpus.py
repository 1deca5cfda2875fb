"""URLs that try to reach what they must not, and a world in which they would.

The resolver here is as gullible as real ones: it reads octal, hexadecimal, short and integer
spellings of addresses, and it knows names of an attacker's that lead inside.
"""

import ipaddress
import re
from itertools import product

from mcp_junction.config.urls import UrlTarget

V4 = [
    "0.0.0.0", "0.1.2.3", "10.0.0.1", "10.255.255.255", "100.64.0.1", "100.100.100.200",
    "100.127.255.254", "169.254.0.1", "169.254.169.254", "169.254.170.2", "172.16.0.1",
    "172.31.255.254", "192.0.0.192", "192.0.2.1", "192.168.0.1", "192.168.255.254", "198.18.0.1",
    "198.51.100.7", "203.0.113.9", "224.0.0.1", "239.255.255.250", "240.0.0.1", "255.255.255.255",
    "168.63.129.16",
]  # fmt: skip
V6 = [
    "::", "fc00::1", "fd00:ec2::254", "fd12:3456::1", "fe80::1", "fe80::a9fe:a9fe", "fec0::1",
    "ff02::1", "ff05::2", "2001:db8::1", "100::1", "3fff::1", "4000::1", "::ffff:10.0.0.1",
    "::ffff:169.254.169.254", "::ffff:a9fe:a9fe", "::10.0.0.1", "::169.254.169.254",
    "::ffff:0:10.0.0.1", "64:ff9b::10.0.0.1", "64:ff9b::169.254.169.254", "64:ff9b:1::1",
    "64:ff9b::127.0.0.1", "2002:0a00:0001::1", "2002:a9fe:a9fe::1", "2002:7f00:0001::1",
    "2002:0808:0808::1", "2001:0:4136:e378:8000:63bf:3fff:fdd2",
    "2001:0:4136:e378:8000:63bf:5601:5601", "2001:10::1", "::ffff:0.0.0.0", "::ffff:192.168.1.1",
    "2606:4700::5efe:a00:1", "2606:4700::200:5efe:a9fe:a9fe", "::127.0.0.1",
]  # fmt: skip
NAMES = {
    "inside.attacker.test": ["10.0.0.1"],
    "meta.attacker.test": ["169.254.169.254"],
    "meta6.attacker.test": ["fd00:ec2::254"],
    "mapped.attacker.test": ["::ffff:169.254.169.254"],
    "scoped.attacker.test": ["fe80::1%eth0"],
    "nat64.attacker.test": ["64:ff9b::a00:1"],
    "tunnel.attacker.test": ["2002:a00:1::1"],
    "zero.attacker.test": ["0.0.0.0"],
    "many.attacker.test": ["192.168.0.1", "10.0.0.1", "fd00::1"],
    "metadata.google.internal": ["169.254.169.254"],
    "169.254.169.254.nip.test": ["169.254.169.254"],
    "10-0-0-1.nip.test": ["10.0.0.1"],
}
DISGUISED = [
    "１６９.254.169.254", "169。254。169。254", "169．254．169．254", "①⑥⑨.254.169.254",
    "meta.ａttacker.test", "ⓜeta.attacker.test", "mеta.attacker.test", "meta.attacker.test%00.x",
    "%31%36%39.254.169.254", "169.254.169.254%2e", "169.254.169.254..", ".169.254.169.254",
    "169.254..169.254", "169.254.169.254\t", "169.254.169.254\n", "169.254.169.254 ",
    "169.254.169.254\\", "169.254.169.254\\@ok.test", "ok.test\\@169.254.169.254",
    "169.254.169.254\u200b", "169.254.169.254\u3002", "[::ffff:169.254.169.254%25eth0]",
    "[fe80::1%eth0]", "[fe80::1%25eth0]", "[::ffff:a9fe:a9fe", "[169.254.169.254]", "[v1.x]",
    "[::ffff:0251.0376.0251.0376]", "169.254.169.254:0", "169.254.169.254:99999",
    "169.254.169.254:80:80", "169.254.169.254:-80", "ok.test:0", "a_b..test", "-.test",
]  # fmt: skip


def spellings(address: str) -> list[str]:
    """Other ways to write an IPv4 address that resolvers are known to read."""
    a, b, c, d = (int(part) for part in address.split("."))
    number = int(ipaddress.IPv4Address(address))
    return [
        f"{number}", f"{number:#x}", f"0{number:o}", f"{a:#x}.{b:#x}.{c:#x}.{d:#x}",
        f"0{a:o}.0{b:o}.0{c:o}.0{d:o}", f"{a}.{b}.{(c << 8) | d}",
        f"{a}.{(b << 16) | (c << 8) | d}", f"{a:03}.{b:03}.{c:03}.{d:03}", f"{address}.",
        f"0x{a:010x}.{b}.{c}.{d}",
    ]  # fmt: skip


def urls() -> list[str]:
    """Every one of them leads where nothing may be connected to, if it leads anywhere."""
    hosts = [*V4, *(f"[{address}]" for address in V6), *NAMES, *DISGUISED]
    hosts += [f"[{ipaddress.IPv6Address(address).exploded}]" for address in V6]
    hosts += [host for a in ("169.254.169.254", "10.0.0.1", "0.0.0.0") for host in spellings(a)]
    hosts += [f"user:pass@{host}" for host in ("169.254.169.254", "ok.test", "meta.attacker.test")]
    hosts += ["ok.test:80@169.254.169.254", "169.254.169.254@ok.test", "ok.test@[::ffff:a00:1]"]
    hosts += [f"{name}." for name in NAMES] + [name.upper() for name in NAMES]
    made = [f"{scheme}://{host}/mcp" for scheme, host in product(("http", "https"), hosts)]
    odd = [
        "file:///etc/passwd", "gopher://169.254.169.254/", "ftp://10.0.0.1/", "//169.254.169.254/",
        "http:169.254.169.254", "http:/169.254.169.254/", "http:///169.254.169.254/",
        "https:\\\\169.254.169.254\\", "HTTP://meta.attacker.test:8080/#@ok.test",
        "http://meta.attacker.test?@ok.test", "http://meta.attacker.test#ok.test", "javascript:1",
        "data:text/plain,x", "unix:/run/docker.sock", "http+unix://%2frun%2fdocker.sock/", "",
        "http://ok.test/\r\nHost: inside", "http://", "https://:443/", "dict://10.0.0.1:11211/",
        "http://ok.test/plain", "http://93.184.215.14/plain", "http://[2606:2800:21f::1]/plain",
    ]  # fmt: skip
    return list(dict.fromkeys(made + odd))


_PART = re.compile(r"0x[0-9a-f]*|0[0-7]*|[1-9][0-9]*")


class World:
    """A resolver and a connector that record where they would have gone."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.reached: list[str] = []
        self.names: dict[str, list[str]] = {**NAMES, "ok.test": ["93.184.215.14"]}

    async def resolve(self, host: str, port: int) -> list[str]:
        self.asked.append(host)
        name = host.lower().rstrip(".")
        if name in self.names:
            return self.names[name]
        parts = name.split(".")
        if all(_PART.fullmatch(part) for part in parts) and len(parts) <= 4:
            numbers = [int(part, 8 if part[0] == "0" and part[1:2] not in ("", "x") else 0)
                       for part in parts]  # fmt: skip
            *heads, tail = numbers
            whole = sum(head << (24 - 8 * place) for place, head in enumerate(heads)) + tail
            return [str(ipaddress.IPv4Address(whole & 0xFFFFFFFF))]
        raise OSError("no such name")

    async def connect(self, make: object, address: str, place: UrlTarget) -> object:
        self.reached.append(address)
        raise ConnectionRefusedError("nothing is there")
