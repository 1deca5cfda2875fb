"""Watches what the tests and all programs that they start connect to, whatever they are made of.

`install` puts a filter of the system calls that name another address (connect, sendto, sendmsg) on
this process and all that come from it (seccomp). Each such call waits for the watcher, a process of
its own, which reads the address: this machine passes, everything else gets EACCES, and a line in a
log says who wanted it. Linux alone has that; elsewhere, and where the watcher may not read the
memory of others, nothing is installed.
"""

import contextlib
import ctypes
import errno
import fcntl
import ipaddress
import json
import os
import platform
import select
import socket
import struct
import subprocess
import sys
from pathlib import Path

LOG = "TESTS_NETWORK_LOG"
"""The variable with the path of the log, for all workers of a session."""
NOWHERE = "192.0.2.1"
"""An address that nobody has."""

_NUMBERS = {
    "x86_64": (0xC000003E, 317, {"connect": 42, "sendto": 44, "sendmsg": 46, "sendmmsg": 307}),
    "aarch64": (0xC00000B7, 277, {"connect": 203, "sendto": 206, "sendmsg": 211, "sendmmsg": 269}),
}
"""Of each kind of processor: its name in filters, and the numbers of system calls."""
_LOAD, _IS, _ANSWER = 0x20, 0x15, 0x06
_ALLOW, _ASK = 0x7FFF0000, 0x7FC00000
_NO_NEW_PRIVILEGES, _SET_FILTER, _WITH_LISTENER = 38, 1, 8
_RECEIVE, _SEND = 0xC0502100, 0xC0182101
_QUESTION, _REPLY = struct.Struct("=QIIiIQ6Q"), struct.Struct("=QqiI")
_GO_ON = 1
_WATCHERS: list[subprocess.Popen[bytes]] = []


def install(log: Path) -> bool:
    """Watch this process and all that it starts from now on; whether that is possible."""
    if sys.platform != "linux" or platform.machine() not in _NUMBERS:
        return False
    listener = _put_filter(*_NUMBERS[platform.machine()])
    if listener < 0:
        return False
    log.touch()
    os.environ[LOG] = str(log)
    # It ends with this process, which has the other end of its standard input.
    command = [sys.executable, "-I", "-S", __file__, str(listener), str(log)]
    watcher = subprocess.Popen(
        command, stdin=subprocess.PIPE, pass_fds=[listener], start_new_session=True
    )
    watcher.returncode = 0  # nobody waits for it
    _WATCHERS.append(watcher)
    os.close(listener)
    return _is_refused()


def _put_filter(processor: int, seccomp: int, calls: dict[str, int]) -> int:
    """Put the filter on this thread and its children; the listener, less than 0 on failure."""
    step = struct.Struct("=HBBI").pack
    # The address is the fifth argument of sendto: what is sent to nobody in particular passes.
    lines = [step(_LOAD, 0, 0, 4), step(_IS, 0, 8, processor), step(_LOAD, 0, 0, 0)]
    asked = [calls["connect"], calls["sendmsg"], calls["sendmmsg"]]
    lines += [step(_IS, 6 - n, 0, number) for n, number in enumerate(asked)]
    lines += [step(_IS, 0, 2, calls["sendto"]), step(_LOAD, 0, 0, 48), step(_IS, 0, 1, 0)]
    lines += [step(_ANSWER, 0, 0, _ALLOW), step(_ANSWER, 0, 0, _ASK)]
    code = ctypes.create_string_buffer(b"".join(lines))
    program = struct.pack("@HP", len(lines), ctypes.addressof(code))
    system = ctypes.CDLL(None, use_errno=True)
    listener = system.syscall(seccomp, _SET_FILTER, _WITH_LISTENER, program)
    if listener < 0 and ctypes.get_errno() == errno.EACCES:  # one needs to be root, or to promise
        system.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
        listener = system.syscall(seccomp, _SET_FILTER, _WITH_LISTENER, program)
    return int(listener)


def _is_refused() -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as made:  # sends nothing by connecting
        return made.connect_ex((NOWHERE, 9)) == errno.EACCES


# In the watcher


def watch(listener: int, log: Path) -> None:
    """Answer each call, until the process is gone that has the other end of standard input."""
    calls = {number: name for name, number in _NUMBERS[platform.machine()][2].items()}
    ready = select.poll()
    ready.register(listener, select.POLLIN)
    ready.register(0, select.POLLIN)
    with log.open("a") as told:
        while 0 not in (found := dict(ready.poll())):
            if not found[listener] & select.POLLIN:
                return
            question = bytearray(_QUESTION.size)
            with contextlib.suppress(FileNotFoundError):  # the one that asked was killed
                fcntl.ioctl(listener, _RECEIVE, question)
                ident, pid, _, number, _, _, *args = _QUESTION.unpack(question)
                elsewhere = _name_elsewhere(pid, calls[number], args)
                if elsewhere:
                    line = {"to": elsewhere, "by": _command(pid), "pids": _ancestors(pid)}
                    told.write(json.dumps(line) + "\n")
                    told.flush()
                answer = (0, -errno.EACCES, 0) if elsewhere else (0, 0, _GO_ON)
                fcntl.ioctl(listener, _SEND, _REPLY.pack(ident, *answer))


def _name_elsewhere(pid: int, call: str, args: list[int]) -> str:
    """The address that a call names; empty if it is on this machine, or not to be read."""
    try:
        with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
            place, length = args[1], args[2]
            if call == "sendto":
                place, length = args[4], args[5]
            elif call.endswith("msg"):  # the first members of the first message
                place, length = struct.unpack("=QI", _read(memory, args[1], 12))
            return _name(_read(memory, place, min(length, 28))) if place else ""
    except OSError:
        return ""


def _read(memory, place: int, length: int) -> bytes:
    memory.seek(place)
    return memory.read(length)


def _name(address: bytes) -> str:
    family = struct.unpack("=H", address[:2])[0] if len(address) >= 8 else socket.AF_UNSPEC
    if family == socket.AF_INET:
        host = ipaddress.ip_address(address[4:8])
    elif family == socket.AF_INET6 and len(address) >= 24:
        six = ipaddress.IPv6Address(address[8:24])
        host = six.ipv4_mapped or six
    else:
        return ""
    if host.is_loopback or host.is_unspecified:
        return ""
    return f"{host} port {int.from_bytes(address[2:4], 'big')}"


def _command(pid: int) -> str:
    with contextlib.suppress(OSError):
        said = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ")
        return said.decode(errors="replace").strip()[:200]
    return ""


def _ancestors(pid: int) -> list[int]:
    """The process, its parent, and so on."""
    found = []
    while pid > 1:
        try:
            status = Path(f"/proc/{pid}/status").read_text()
        except OSError:
            break
        said = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
        found.append(int(said["Tgid"]))
        pid = int(said["PPid"])
    return found


if __name__ == "__main__":
    watch(int(sys.argv[1]), Path(sys.argv[2]))
