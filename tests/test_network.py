"""The guard of plugin_network.py bites: what connects off loopback fails its test."""

import asyncio
import json
import os
import shutil
import socket
import subprocess
import sys

import pytest
import uvloop
from tests import plugin_network, preloaded

ELSEWHERE = ["192.0.2.1", "2001:db8::1"]
PLAIN = """
import socket
print(socket.socket(socket.AF_INET, socket.SOCK_DGRAM).connect_ex(("192.0.2.1", 9)))
"""
OF_UVLOOP = """
import asyncio, uvloop
async def main():
    try:
        await asyncio.open_connection("192.0.2.1", 9)
    except OSError as error:
        print(error.errno)
uvloop.run(main())
"""
BY_LIBRARIES = """
import ctypes, struct
system = ctypes.CDLL(None, use_errno=True)
address = struct.pack("=H", 2) + struct.pack("!H4B", 9, 192, 0, 2, 1) + bytes(8)
system.sendto(system.socket(2, 2, 0), b"x", 1, 0, address, 16)
print(ctypes.get_errno())
"""
EVERYWHERE = pytest.mark.skipif(
    plugin_network.Watched.log is None, reason="this system does not let us watch other processes"
)


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


@EVERYWHERE
@pytest.mark.parametrize("program", [PLAIN, OF_UVLOOP, BY_LIBRARIES], ids=["plain", "uvloop", "C"])
def test_a_started_program_that_leaves_the_machine_fails_the_test(program):
    done = subprocess.run([sys.executable, "-I", "-c", program], capture_output=True, timeout=60)
    assert done.stdout == b"13\n", "permission denied"
    with pytest.raises(pytest.fail.Exception, match=r"192\.0\.2\.1 port 9"):
        plugin_network.check()
    plugin_network.check()


@EVERYWHERE
def test_so_does_one_that_is_no_python_and_was_started_by_another(tmp_path):
    bash = shutil.which("bash") or pytest.skip("there is no bash")
    script = "bash -c 'echo x > /dev/tcp/192.0.2.1/9' || true"
    subprocess.run([bash, "-c", script], capture_output=True, timeout=60, check=True)
    with pytest.raises(pytest.fail.Exception, match="bash -c echo x"):
        plugin_network.check()


@EVERYWHERE
def test_so_does_one_that_was_preloaded(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(PLAIN)
    done = subprocess.run([*preloaded.command(), program], capture_output=True, timeout=60)
    assert done.stdout == b"13\n"
    with pytest.raises(pytest.fail.Exception, match=r"192\.0\.2\.1 port 9"):
        plugin_network.check()


@EVERYWHERE
def test_so_does_a_library_in_this_process_whatever_loop_it_uses():
    async def leave():
        with pytest.raises(PermissionError):
            await asyncio.open_connection("192.0.2.1", 9)

    uvloop.run(leave())
    with pytest.raises(pytest.fail.Exception, match=r"192\.0\.2\.1 port 9"):
        plugin_network.check()


def test_what_programs_of_other_tests_did_is_not_held_against_this_one(tmp_path, monkeypatch):
    path = tmp_path / "log"
    path.touch()
    log = plugin_network.WatchLog(path)
    monkeypatch.setenv("TESTS_NETWORK_SESSION", "7")
    for pids in ([99, 8, 7], [98, os.getpid(), 7], [97]):
        with path.open("a") as told:
            told.write(json.dumps({"to": "there", "by": str(pids[0]), "pids": pids}) + "\n")
    assert log.take() == ["98: there", "97: there"], "ours, and one whose parents have ended"
    assert log.take() == []


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
