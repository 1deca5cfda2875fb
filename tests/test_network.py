"""The guard of plugin_network.py bites: what connects off loopback fails its test."""

import asyncio
import socket

import pytest
from tests import plugin_network

ELSEWHERE = ["192.0.2.1", "2001:db8::1"]


@pytest.mark.parametrize("host", ELSEWHERE)
@pytest.mark.parametrize("ask", ["connect", "connect_ex", "sendto"])
def test_a_socket_that_leaves_the_machine_fails_its_test_even_if_the_error_is_caught(host, ask):
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as made:
        made.setblocking(False)
        address = (host, 9)
        with pytest.raises(PermissionError, match="do not leave"):
            made.sendto(b"", address) if ask == "sendto" else getattr(made, ask)(address)
    with pytest.raises(pytest.fail.Exception, match=host):
        plugin_network.check()
    plugin_network.check()  # once told, it is nothing to the next test


async def test_a_connection_of_asyncio_that_leaves_the_machine_fails_its_test():
    with pytest.raises(PermissionError):
        await asyncio.open_connection("192.0.2.1", 9)
    with pytest.raises(pytest.fail.Exception):
        plugin_network.check()


def test_loopback_and_unix_sockets_pass(tmp_path):
    path = str(tmp_path / "s")
    for family, address in ((socket.AF_INET, ("127.0.0.2", 0)), (socket.AF_UNIX, path)):
        with socket.socket(family) as server, socket.socket(family) as client:
            server.bind(address)
            server.listen()
            client.connect(server.getsockname())
    with socket.socket(socket.AF_INET6) as client:
        assert client.connect_ex(("::1", 9)) != 0  # by the system, not by the guard
    plugin_network.check()
