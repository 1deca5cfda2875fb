"""A pytest plugin that keeps the tests on this machine: a test that connects elsewhere fails.

It sees what this process does by Python's sockets, plain or of asyncio, whoever catches the error:
not the programs that tests start, nor what a library connects or looks up by itself in C.
"""

import errno
import ipaddress
import socket
import sys
from collections.abc import Generator
from typing import Any

import pytest

ELSEWHERE: list[str] = []
"""Where the running test wanted to connect to."""
_EVENTS = {"socket.connect", "socket.sendto", "socket.sendmsg"}


def _is_here(made: socket.socket, address: object) -> bool:
    if made.family not in (socket.AF_INET, socket.AF_INET6) or not isinstance(address, tuple):
        return True
    host = str(address[0]).partition("%")[0].removeprefix("::ffff:")
    try:
        return host == "" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _watch(event: str, args: tuple[Any, ...]) -> None:
    if event in _EVENTS and not _is_here(*args[:2]):
        ELSEWHERE.append(f"{event}: {args[1]}")
        raise PermissionError(errno.EACCES, f"tests do not leave this machine: {args[1]}")


def check() -> None:
    """Fail the running test if it wanted to leave the machine."""
    if ELSEWHERE:
        wanted = ", ".join(ELSEWHERE)
        ELSEWHERE.clear()
        pytest.fail(f"the test left this machine: {wanted}", pytrace=False)


def pytest_configure() -> None:
    sys.addaudithook(_watch)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown() -> Generator[None, object, object]:
    told = yield
    check()
    return told
