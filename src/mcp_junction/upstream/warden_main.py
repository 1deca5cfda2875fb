"""The warden process: the parent of every stdio server, which ends their process trees.

It is started by ``headstart.py`` with one end of a socket, and a token to mark its children. On
request it starts a program on three file descriptors that it is sent, so no byte of a server's
traffic passes through here. It is a subreaper: orphans of a server become its children. When the
socket closes, for whatever reason, it ends all its descendants and exits.

It runs isolated (``python -I -S``), imports nothing of ours and little else: the servers cannot
start before it has. So it forks by hand, and messages, length-prefixed, are encoded by ``marshal``,
which is part of the interpreter; both ends run the same one.

When it has no file descriptor left it refuses to start a program, and goes on. To end one, it needs
a descriptor to read the process table, for which it keeps a spare one.
"""

from __future__ import annotations

import array
import ctypes
import errno
import marshal
import os
import select
import signal
import socket
import struct
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:  # importing typing would double the time this takes to start
    from typing import Any, NoReturn

MARK = "MCP_JUNCTION_CHILD"
DUMPABLE = "JUNCTION_DUMPABLE"
GRACE_AT_END = 0.5
_FULL = "too many files are open in the process that starts servers"
_SET_PDEATHSIG, _SET_DUMPABLE, _SET_CHILD_SUBREAPER = 1, 4, 36
_IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
_IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)
_LINUX = sys.platform.startswith("linux")
_prctl = ctypes.CDLL(None, use_errno=True).prctl if _LINUX else None


class WardenLoop:
    """Starts and ends programs on request, and reports how they ended."""

    def __init__(self, sock: socket.socket, token: str) -> None:
        self.sock = sock
        self.token = token
        self.pid = os.getpid()
        self.buffer = b""
        self.received: list[list[int]] = []
        """The descriptors of each start that is not carried out yet: one message has those of one.
        If they could not all be received, some or all are missing."""
        self.spare: int | None = None
        self.children: dict[int, int] = {}  # pid -> the number the gateway knows it by
        self.starting: dict[int, int] = {}  # pid -> the pipe that closes when its program runs
        self.poll = select.poll()

    def run(self, wakeup: int) -> None:
        for fd in (self.sock.fileno(), wakeup):
            self.poll.register(fd, select.POLLIN)
        self.keep_spare()
        while True:
            ready = dict(self.poll.poll())
            for pid in [pid for pid, pipe in self.starting.items() if pipe in ready]:
                self.report_start(pid)
            if wakeup in ready:
                os.read(wakeup, 4096)
                self.reap()
            gateway = ready.get(self.sock.fileno(), 0)
            if gateway & select.POLLHUP:  # it has ended: pending orders are not carried out
                break
            if gateway and not self.receive():
                break
        self.use_spare()
        end_everything(GRACE_AT_END, list(self.children))

    def receive(self) -> bool:
        space = socket.CMSG_SPACE(3 * array.array("i").itemsize)
        try:
            data, ancillary, flags, _ = self.sock.recvmsg(65536, space)
        except OSError:
            return False
        received = array.array("i")
        for level, kind, payload in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                received.frombytes(payload)
        for fd in received:
            os.set_inheritable(fd, False)
        if received or flags & socket.MSG_CTRUNC:
            self.received.append(received.tolist())
        if not data:
            return False
        self.buffer += data
        while len(self.buffer) >= 4:
            (size,) = struct.unpack("!I", self.buffer[:4])
            if len(self.buffer) < 4 + size:
                break
            message = marshal.loads(self.buffer[4 : 4 + size])
            self.buffer = self.buffer[4 + size :]
            self.handle(message)
        return True

    def handle(self, message: dict[str, Any]) -> None:
        number = message["child"]
        if message["do"] == "start":
            self.start(number, message)
            return
        for pid in [pid for pid, child in self.children.items() if child == number]:
            self.report_start(pid)  # before that it has no group and no mark
            if message["do"] == "kill":
                self.kill(pid, number)
            else:
                signal_group(pid, message["signal"])

    def start(self, number: int, message: dict[str, Any]) -> None:
        """Begin to start a program, without waiting until it runs.

        All our descriptors close when it runs; that of the pipe shows it.
        """
        fds = self.received.pop(0) if self.received else []
        try:
            pid, pipe = self.fork(number, message, fds)
        except OSError as error:
            self.send(child=number, errno=error.errno, error=error.strerror)
            return
        finally:
            for fd in fds:
                os.close(fd)
        self.children[pid] = number
        self.starting[pid] = pipe
        self.poll.register(pipe, select.POLLIN)

    def fork(self, number: int, message: dict[str, Any], fds: list[int]) -> tuple[int, int]:
        """Fork a program's process; return its pid, and the pipe. Raises OSError."""
        if len(fds) < 3:
            raise OSError(errno.EMFILE, _FULL)
        try:
            readable, writable = os.pipe()
        except OSError as error:
            raise OSError(error.errno, _FULL) from None
        try:
            pid = os.fork()
            if pid == 0:
                env = {**message["env"], MARK: self.mark(number)}
                self.become(message["argv"], env, message["cwd"], fds, writable)
        except OSError:
            os.close(readable)
            raise
        finally:
            os.close(writable)
        return pid, readable

    def kill(self, pid: int, number: int) -> None:
        """Kill a server and all that it started."""
        self.use_spare()
        kill_tree(pid, self.mark(number))
        self.keep_spare()

    def use_spare(self) -> None:
        """Close the spare descriptor, so that the process table can be read."""
        if self.spare is not None:
            os.close(self.spare)
            self.spare = None

    def keep_spare(self) -> None:
        try:
            self.spare = os.dup(self.sock.fileno())
        except OSError:  # the whole system has none left; it is tried again after the next use
            self.spare = None

    def report_start(self, pid: int) -> None:
        """Report whether a program was started, unless that was reported already."""
        pipe = self.starting.pop(pid, None)
        if pipe is None:
            return
        self.poll.unregister(pipe)
        with os.fdopen(pipe, "rb") as file:
            failure = file.read()
        if failure:
            number, error = self.children.pop(pid), marshal.loads(failure)
            self.send(child=number, errno=error[0], error=error[1])
        else:
            self.send(child=self.children[pid], pid=pid)

    def become(
        self, argv: list[str], env: dict[str, str], cwd: str | None, fds: list[int], report: int
    ) -> NoReturn:
        """In the child: execute the program, or write to ``report`` why that is not possible."""
        try:
            os.setsid()
            self.reset_signals()
            for number, fd in enumerate(fds):
                os.dup2(fd, number)
            if cwd is not None:
                os.chdir(cwd)
            os.execve(argv[0], argv, env)
        except OSError as error:
            os.write(report, marshal.dumps((error.errno, error.strerror)))
        except ValueError as error:
            os.write(report, marshal.dumps((0, str(error))))
        finally:  # whatever happens, there must not be two wardens
            os._exit(1)

    def reap(self) -> None:
        while True:
            try:
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if ended is None:
                return
            self.report_start(ended.si_pid)
            number = self.children.pop(ended.si_pid, None)
            if number is not None:
                # Before its pid is free again: processes it left would keep its pipes open.
                self.kill(ended.si_pid, number)
            _, status = os.waitpid(ended.si_pid, 0)
            if number is not None:
                self.send(child=number, exit=os.waitstatus_to_exitcode(status))

    def send(self, **message: object) -> None:
        data = marshal.dumps(message)
        try:
            self.sock.sendall(struct.pack("!I", len(data)) + data)
        except OSError:
            pass  # the gateway has ended; the next read shows it

    def mark(self, number: int) -> str:
        return f"{self.token}.{number}"

    def reset_signals(self) -> None:
        """In the child: set default signals, and end with the warden if that is killed."""
        for number in (*_IGNORED, *_IGNORED_BY_PYTHON, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        if _prctl is not None:
            _prctl(_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            if os.getppid() != self.pid:  # it died before that was set
                os._exit(1)


def signal_group(pid: int, number: int) -> None:
    try:
        os.killpg(pid, number)
    except (ProcessLookupError, PermissionError):
        pass


def process_table() -> dict[int, tuple[int, int]]:
    """Map the pid of every visible process to its parent and session."""
    found = {}
    try:
        names = os.listdir("/proc") if _LINUX else []
    except OSError:  # no descriptor is left: what is known otherwise has to do
        names = []
    for name in names:
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    fields = file.read().rpartition(b")")[2].split()
            except OSError:
                continue
            if fields[0] not in (b"Z", b"X"):
                found[int(name)] = (int(fields[1]), int(fields[3]))
    return found


def descendants(root: int, table: dict[int, tuple[int, int]]) -> set[int]:
    """Find every descendant of ``root``."""
    kids: dict[int, list[int]] = {}
    for pid, (parent, _) in table.items():
        kids.setdefault(parent, []).append(pid)
    found: set[int] = set()
    todo = list(kids.get(root, ()))
    while todo:
        pid = todo.pop()
        if pid not in found:
            found.add(pid)
            todo += kids.get(pid, ())
    return found


def mark_of(pid: int) -> str:
    """Read from a process's environment which server it belongs to."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            entries = file.read().split(b"\0")
    except OSError:
        return ""
    head = f"{MARK}=".encode()
    return next(
        (e[len(head) :].decode("ascii", "replace") for e in entries if e.startswith(head)), ""
    )


def kill_tree(pid: int, mark: str) -> None:
    """Kill a server and every process it started, also in another session or without a parent."""
    signal_group(pid, signal.SIGKILL)
    for _ in range(20):
        table = process_table()
        mine = descendants(os.getpid(), table)
        doomed = descendants(pid, table) & mine
        doomed |= {p for p in mine if table[p][1] == pid or mark_of(p) == mark}
        if not doomed:
            return
        kill_each(doomed)
        time.sleep(0.001)


def kill_marked(token: str) -> None:
    """Kill every process with a mark of a warden that was killed itself.

    A process that cleared its environment is not found: only its parent could have known it.
    """
    for _ in range(50):
        doomed = {pid for pid in process_table() if mark_of(pid).startswith(f"{token}.")}
        if not doomed:
            return
        kill_each(doomed)
        time.sleep(0.001)


def kill_each(pids: set[int]) -> None:
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass


def end_everything(grace: float, groups: list[int]) -> None:
    """Wait for servers to end by themselves (their stdin is closed), then kill them."""
    patience = time.monotonic() + grace
    limit = patience + 5
    while time.monotonic() < limit:
        while True:
            try:
                if os.waitpid(-1, os.WNOHANG)[0] == 0:
                    break
            except ChildProcessError:
                if not descendants(os.getpid(), process_table()):
                    return
                break
        if time.monotonic() > patience:
            for pid in groups:
                signal_group(pid, signal.SIGKILL)
            kill_each(descendants(os.getpid(), process_table()))
        time.sleep(0.01)


def main() -> None:
    if _prctl is not None:
        _prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        if os.environ.get(DUMPABLE) != "1":  # servers' secrets are in its memory; exec resets it
            _prctl(_SET_DUMPABLE, 0, 0, 0, 0)
    for number in _IGNORED:
        signal.signal(number, signal.SIG_IGN)  # it ends when its socket closes, not before
    readable, writable = os.pipe()
    os.set_blocking(writable, False)
    os.set_blocking(readable, False)
    signal.set_wakeup_fd(writable, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    os.set_inheritable(int(sys.argv[1]), False)
    WardenLoop(socket.socket(fileno=int(sys.argv[1])), sys.argv[2]).run(readable)


if __name__ == "__main__":
    main()
