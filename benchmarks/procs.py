"""CPU time and memory of a process tree on Linux, and the means to leave none behind."""

import ctypes
import os
import resource
import signal
import time

TICK = os.sysconf("SC_CLK_TCK")
UPSTREAM_MARK = b"upstream.py"
PR_SET_CHILD_SUBREAPER = 36
CPUCLOCK_SCHED = 2

os.environ.setdefault("JUNCTION_DUMPABLE", "1")  # its exact memory is its own to know otherwise


def children_map():
    """Every living process by its parent. Zombies are left out: they have nothing to measure."""
    kids = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as f:
                rest = f.read().rpartition(b")")[2].split()
        except OSError:
            continue
        if rest[0] != b"Z":
            kids.setdefault(int(rest[1]), []).append(int(name))
    return kids


def is_upstream(pid):
    """Whether a word of the command line names one of the bench's own servers."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as f:
            return any(UPSTREAM_MARK in word for word in f.read().split(b"\0"))
    except OSError:
        return False


def split_tree(root):
    """(the pids of the tree without upstream servers and what is below them, those servers).

    Servers may hang anywhere below the root, e.g. under a helper process of the program.
    """
    kids, todo, found, servers = children_map(), [root], [], []
    while todo:
        pid = todo.pop()
        if pid != root and is_upstream(pid):
            servers.append(pid)
            continue
        found.append(pid)
        todo += kids.get(pid, [])
    return found, servers


def tree(root):
    """The pids of the tree, without upstream servers (and what is below them)."""
    return split_tree(root)[0]


def everything(root):
    """The pids of the whole tree, the root first."""
    kids, todo, found = children_map(), [root], []
    while todo:
        pid = todo.pop()
        found.append(pid)
        todo += kids.get(pid, [])
    return found


def wait_gone(pids, seconds):
    """Wait until none of the pids is there any more; false when one still is after `seconds`."""
    until = time.monotonic() + seconds
    while any(pid in pids for kids in children_map().values() for pid in kids):
        if time.monotonic() > until:
            return False
        time.sleep(0.01)
    return True


def cpu_seconds(pids):
    """(user+system) seconds that these processes have used so far."""
    return sum(map(_cpu_of, pids))


def _cpu_of(pid):
    # The kernel's CPU clock of another process counts nanoseconds and keeps the time of threads
    # that have ended; /proc/PID/stat counts ticks of 10 ms, and schedstat living threads only.
    try:
        return time.clock_gettime(~pid << 3 | CPUCLOCK_SCHED)
    except OSError:
        return _ticks_of(pid) / TICK


def _ticks_of(pid):
    try:
        with open(f"/proc/{pid}/stat", "rb") as f:
            rest = f.read().rpartition(b")")[2].split()
    except OSError:
        return 0
    return int(rest[11]) + int(rest[12])


def rss_mib(pids):
    """Resident memory; pages that two of the processes share are counted twice."""
    total = 0
    for pid in pids:
        try:
            with open(f"/proc/{pid}/status", "rb") as f:
                for line in f:
                    if line.startswith(b"VmRSS:"):
                        total += int(line.split()[1])
        except OSError:
            continue
    return total / 1024


def rss_kib(pid):
    """Resident memory of one process, exactly; `status` is late by up to some hundred KiB."""
    with open(f"/proc/{pid}/smaps_rollup", "rb") as f:
        return next(int(line.split()[1]) for line in f if line.startswith(b"Rss:"))


def raise_file_limit():
    """Let this process, and those it starts from now on, open as many files as it may."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    return most


def adopt_orphans():
    """Have orphaned descendants fall to this process, so that it can find and end them."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def end_descendants(grace=0.0):
    """Kill whatever this process started, directly or not; answers how many there were.

    Those that go by themselves within `grace` seconds are neither killed nor counted.
    """
    wait_gone(everything(os.getpid())[1:], grace)
    ended = 0
    # A process killed in one pass may have started another meanwhile: look until none is left.
    while pids := everything(os.getpid())[1:]:
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
                ended += 1
            except ProcessLookupError:
                pass
        time.sleep(0.01)  # a killed process takes a moment to go
        _reap()
    _reap()
    return ended


def _reap():
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass
