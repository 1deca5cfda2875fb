"""Programs as processes, without the second that loading the MCP SDK or the REST API takes.

`command` gives what to start instead of `python`: a small process that stands for the program. It
hands its arguments, environment and streams to a keeper, which has all of that loaded and forks; it
passes on signals, and ends as the program ends, or the other way round. For servers and clients
that are only something to talk to, and for gateways whose protocol is the subject: what a start, a
tree of processes or a limit of the system does to a program is not seen here. A worker of the tests
has one keeper, which ends with it. Where coverage follows programs, it follows these, too.
"""

import json
import os
import signal
import socket
import subprocess
import sys

LOADED = (
    "coverage",
    "httptools",
    "mcp.client.subscriptions",
    "mcp.server.caching",
    "mcp.server.mcpserver",
    "mcp.server.request_state",
    "mcp.server.stdio",
    "mcp.server.subscriptions",
    "mcp_junction.api.app",
    "mcp_junction.audit.maintenance",
    "mcp_junction.calls.stages.audit",
    "mcp_junction.cli.audit",
    "mcp_junction.cli.call",
    "mcp_junction.cli.inspect",
    "mcp_junction.cli.keys",
    "mcp_junction.cli.serve",
    "mcp_junction.cli.servers",
    "mcp_junction.cli.skills",
    "mcp_junction.cli.state",
    "mcp_junction.cli.stdio",
    "mcp_junction.cli.storage",
    "mcp_junction.cli.tools",
    "mcp_junction.demo.wire",
    "mcp_junction.registry.reload",
    "mcp_junction.search.index_updater",
    "mcp_junction.service",
    "mcp_junction.store.sqlite",
    "mcp_junction.upstream.http.link",
    "uvicorn.lifespan.on",
    "uvicorn.loops.auto",
    "uvicorn.protocols.http.h11_impl",
    "uvloop",
)
PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
LARGEST = 256 * 1024  # bytes of arguments and environment

_KEEPERS: dict[int, str] = {}


def command() -> list[str]:
    """What stands where `python` would: a script and its arguments follow, or `-m` and a module."""
    if os.getpid() not in _KEEPERS:
        _KEEPERS[os.getpid()] = _start_keeper()
    return [sys.executable, "-I", "-S", __file__, _KEEPERS[os.getpid()]]


def program() -> list[str]:
    """What stands where `mcp-junction` would."""
    return [*command(), "-m", "mcp_junction"]


def _start_keeper() -> str:
    """The address of a keeper, which lives as long as this process has its standard input open."""
    import atexit

    address = f"\0preloaded-{os.getpid()}-{os.urandom(8).hex()}"
    # Coverage begins where a program does: what the keeper loads is no part of it.
    environ = {name: value for name, value in os.environ.items() if "COVERAGE_" not in name}
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
        listening.bind(address)
        listening.listen(64)
        keeper = subprocess.Popen(
            [sys.executable, "-P", __file__, "--keep", str(listening.fileno())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,  # a stream of Python's remembers whether it could seek
            env=environ,
            pass_fds=[listening.fileno()],
            start_new_session=True,
        )
    atexit.register(keeper.communicate)
    return address[1:]


# In the process that stands for a program


def stand_for(address: str, arguments: list[str]) -> int:
    """Have a program run with our streams; how it ended, less than 0 for a signal."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as keeper:
        for number in PASSED_ON:
            signal.signal(number, lambda number, _: keeper.send(bytes([number])))
        keeper.connect(f"\0{address}")
        started = {"arguments": arguments, "environ": dict(os.environ), "folder": os.getcwd()}
        socket.send_fds(keeper, [json.dumps(started).encode()], [0, 1, 2])
        nothing = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):  # or nobody would see that the program has closed one
            os.dup2(nothing, stream)
        return int(keeper.recv(16) or -signal.SIGKILL)


def end_as(status: int) -> None:
    if status < 0:
        if -status != signal.SIGKILL:
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status)


# In the keeper


def keep(listening: socket.socket) -> None:
    """Fork a program for everyone who connects, until nobody can connect any more."""
    import gc
    import importlib
    import select

    for name in LOADED:
        importlib.import_module(name)
    gc.freeze()
    waking, woken = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(woken)
    running: dict[int, socket.socket] = {}
    while True:
        ready = select.select([0, waking, listening], [], [])[0]
        if 0 in ready:
            return
        if listening in ready:
            caller, _ = listening.accept()
            pid = os.fork()
            if pid == 0:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                listening.close()
                for other in running.values():
                    other.close()
                become(caller)
                return
            running[pid] = caller
        if waking in ready:
            os.read(waking, 4096)
            _tell_of_ended(running)


def _tell_of_ended(running: dict[int, socket.socket]) -> None:
    while running:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        with running.pop(pid) as caller:
            try:
                caller.send(b"%d" % os.waitstatus_to_exitcode(status))
            except OSError:
                pass  # it is gone


# In the program


def become(caller: socket.socket) -> None:
    """Run what the caller asks for, as Python would."""
    import threading

    import coverage

    message, streams, _, _ = socket.recv_fds(caller, LARGEST, 3)
    started = json.loads(message)
    os.setsid()
    for stream, given in enumerate(streams):
        os.dup2(given, stream)
        os.close(given)
    os.chdir(started["folder"])
    os.environ.clear()
    os.environ.update(started["environ"])
    coverage.process_startup()
    threading.Thread(target=_obey, args=[caller], daemon=True).start()
    try:
        _run(started["arguments"])
    except SystemExit as ended:
        _leave(ended.code)
    _leave(None)


def _run(arguments: list[str]) -> None:
    import runpy

    program, *rest = arguments
    if program == "-m":
        sys.path[:0] = ["", *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
        sys.argv = rest
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    else:
        sys.path.insert(0, os.path.dirname(program))
        sys.argv = arguments
        runpy.run_path(program, run_name="__main__")


def _leave(code: object) -> None:
    """End as Python does, but for taking apart all that was loaded, which takes 0.1 s."""
    import atexit
    import threading

    if code is not None and not isinstance(code, int):
        print(code, file=sys.stderr)
        code = 1
    threading._shutdown()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            code = code or 120
    os._exit(code or 0)


def _obey(caller: socket.socket) -> None:
    """Take the signals that are passed on, and end at once when who stands for us has."""
    while number := caller.recv(1):
        os.kill(os.getpid(), number[0])
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    if sys.argv[1] == "--keep":
        with socket.socket(fileno=int(sys.argv[2])) as given:
            keep(given)
    else:
        end_as(stand_for(sys.argv[1], sys.argv[2:]))
