"""How the programs under measurement are started, and how they are all ended again."""

import asyncio
import json
import shlex
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

import procs
from client import Http, HttpSession, McpError, StdioSession

HERE = Path(__file__).parent
OUR_PROGRAM = str(Path(sys.executable).parent / "mcp-junction")
CONFIG, PORT, DATA = "{config}", "{port}", "{data}"
FLOOR = [sys.executable, str(HERE / "rawproxy.py"), CONFIG, "--stdio"]
FLOOR_HTTP = [sys.executable, str(HERE / "rawproxy.py"), CONFIG, "--http", PORT]
OURS = [OUR_PROGRAM, "--config", CONFIG]
OURS_HTTP = [OUR_PROGRAM, "serve", *OURS[1:], "--port", PORT, "--data-dir", DATA, "--require-key"]
READY_SECONDS = 60

Servers = dict[str, dict[str, object]]


def ours(override: str | None, front: str) -> list[str]:
    """The command line of our program, with placeholders for what is known only later."""
    if not override:
        return OURS_HTTP if front == "http" else OURS
    words = shlex.split(override)
    return words if CONFIG in words else [*words, "--config", CONFIG]


def front_of(override: str) -> str:
    """What an `--ours` speaks: one that takes a port speaks HTTP."""
    return "http" if PORT in shlex.split(override) else "stdio"


def server(script: str = "upstream.py", *args: str) -> dict[str, object]:
    """One entry of `mcpServers`."""
    return {"command": sys.executable, "args": [str(HERE / script), *args]}


def fast_servers(count: int, tools: int) -> Servers:
    return {
        f"s{n:02d}": server("upstream.py", "--stdio", "--tools", str(tools)) for n in range(count)
    }


def command_line(entry: dict[str, object]) -> list[str]:
    return [str(entry["command"]), *map(str, entry["args"])]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return found.getsockname()[1]


@dataclass
class Target:
    """A started program."""

    name: str
    servers: int
    prefix: str
    log: Path

    session: StdioSession | HttpSession = field(init=False)
    _spent: dict[int, float] = field(default_factory=dict, init=False)

    @property
    def pid(self) -> int:
        raise NotImplementedError

    async def open(self) -> "Target":
        await self.session.open()
        return self

    async def close(self) -> None:
        raise NotImplementedError

    async def end(self) -> None:
        """Close it and wait until the servers behind it are gone too, so that none disturbs."""
        pids = procs.everything(self.pid)
        await self.close()
        procs.wait_gone(pids, 2)

    def tool(self, name: str) -> str:
        # Ours lists `server:tool` and the floor `server__tool`; both take this spelling on a call.
        return self.prefix + name

    def pids(self) -> list[int]:
        """Its processes without the servers behind it; refuses a tree it cannot tell apart."""
        own, upstreams = procs.split_tree(self.pid)
        if len(upstreams) != self.servers:
            raise McpError(
                f"{self.name}: {len(upstreams)} server processes where {self.servers} are meant: "
                'is there one of its own with "upstream.py" on its command line?'
            )
        return own

    def cpu(self) -> float:
        """Seconds of all its processes so far, those that have ended since the last look included.

        A worker that ends in the middle of a round would else take what it had used out of it.
        """
        for pid in self.pids():
            self._spent[pid] = max(procs.cpu_seconds([pid]), self._spent.get(pid, 0.0))
        return sum(self._spent.values())

    def describe_end(self) -> str:
        """The end of its stderr, for the report of a failure."""
        lines = self.log.read_text(errors="replace").strip().splitlines()
        return " / ".join(lines[-3:])


@dataclass
class StdioTarget(Target):
    """A program spoken to over its stdio."""

    session: StdioSession

    @property
    def pid(self) -> int:
        return self.session.proc.pid

    async def close(self) -> None:
        await self.session.close()


@dataclass
class HttpTarget(Target):
    """A program spoken to over HTTP, by any number of clients; `session` is the first of them."""

    proc: subprocess.Popen
    port: int
    headers: dict[str, str]
    has_readyz: bool
    argv: list[str] = field(default_factory=list)
    clients: list[HttpSession] = field(default_factory=list)
    spawned: float = field(default_factory=time.perf_counter)

    def __post_init__(self) -> None:
        self.session = self.new_client()
        self.clients.append(self.session)

    @property
    def pid(self) -> int:
        return self.proc.pid

    def new_client(self) -> HttpSession:
        return HttpSession(self.port, headers=self.headers)

    async def open(self, clients: int = 1) -> "HttpTarget":
        """Wait until it is ready, and open as many sessions, each on a connection of its own."""
        await self.retry(self.is_ready if self.has_readyz else self.is_listing)
        self.clients += [self.new_client() for _ in range(clients - len(self.clients))]
        for client in self.clients:
            if client.http.conn is None:
                await client.open()
        return self

    async def is_ready(self) -> None:
        probe = Http("127.0.0.1", self.port)
        try:
            request = f"GET /readyz HTTP/1.1\r\nhost: 127.0.0.1:{self.port}\r\n\r\n"
            head, _ = await probe.exchange(request.encode())
        finally:
            probe.close()
        if not head.startswith(b"HTTP/1.1 200"):
            raise McpError("it does not become ready")

    async def is_listing(self) -> None:
        probe = self.new_client()
        try:
            await probe.open()
            await probe.request("tools/list", {})
        finally:
            await probe.close()

    async def retry(self, attempt: Callable[[], Awaitable[object]]) -> None:
        """Attempt until it succeeds, the program ends, or the time is over."""
        try:
            async with asyncio.timeout(READY_SECONDS):
                while not await succeeds(attempt):
                    if self.proc.poll() is not None:
                        raise McpError(f"{self.name} ended with {self.proc.returncode}")
                    await asyncio.sleep(0.01)
        except TimeoutError:
            raise McpError(f"{self.name} was not ready within {READY_SECONDS} s") from None

    async def close(self) -> None:
        """Hang up; SIGTERM and ten seconds to finish in, then SIGKILL."""
        for client in self.clients:
            client.http.close()
        for ask, seconds in ((self.proc.terminate, 10), (self.proc.kill, 5)):
            ask()
            try:
                await asyncio.to_thread(self.proc.wait, seconds)
            except subprocess.TimeoutExpired:
                continue
            return


class Lab(AsyncExitStack):
    """One case's programs and files; leaving it ends and removes them."""

    def __init__(self, override: str | None, quick: bool) -> None:
        super().__init__()
        self.our_command, self.our_http = ours(override, "stdio"), ours(override, "http")
        self.quick = quick
        self.rounds = 6 if quick else 24
        self.targets: list[Target] = []

    async def __aenter__(self) -> "Lab":
        await super().__aenter__()
        self.folder = Path(self.enter_context(tempfile.TemporaryDirectory(prefix="bench-")))
        return self

    def calls(self, number: int) -> int:
        """How many calls a round takes: `number`, less in a quick run."""
        return max(number // 5, 2) if self.quick else number

    def file(self, ending: str) -> Path:
        """A file for the next target."""
        return self.folder / f"{len(self.targets)}.{ending}"

    def written(self, servers: Servers, **settings: object) -> str:
        """The path of a config with these servers, and these settings of ours."""
        config = self.file("json")
        config.write_text(json.dumps({"mcpServers": servers, "junction": settings}))
        return str(config)

    # -- over stdio

    async def start(
        self, name: str, servers: Servers, client: type[StdioSession] = StdioSession
    ) -> StdioTarget:
        """Spawn `ours` or `floor` in front of these servers; nothing is said to it yet."""
        command = self.our_command if name == "ours" else FLOOR
        argv = filled(command, {CONFIG: self.written(servers)})
        return await self.spawn(name, argv, servers, client)

    async def start_direct(self, entry: dict[str, object]) -> StdioTarget:
        """Spawn a server itself, with nothing in between."""
        return await self.spawn("direct", command_line(entry), {})

    async def spawn(
        self,
        name: str,
        argv: list[str],
        servers: Servers,
        client: type[StdioSession] = StdioSession,
    ) -> StdioTarget:
        log = self.file("log")
        with log.open("wb") as stderr:
            session = client(argv, stderr=stderr)
            self.push_async_callback(session.close)
            await session.spawn()
        target = StdioTarget(name, children(servers), prefix(servers), log, session)
        self.targets.append(target)
        return target

    async def open_pair(self, servers: Servers) -> tuple[StdioTarget, StdioTarget]:
        """(floor, ours), both past their handshake and first list."""
        pair = await self.start("floor", servers), await self.start("ours", servers)
        for target in pair:
            await target.open()
            await target.session.request("tools/list", {})
        return pair

    # -- over HTTP

    def serve(
        self, name: str, servers: Servers, *, role: str = "agent", **settings: object
    ) -> HttpTarget:
        """Spawn `ours` (with a key to be shown, of this role) or `floor` on a free port.

        The key of an agent comes with a grant of everything.
        """
        command = self.our_http if name == "ours" else FLOOR_HTTP
        values = {CONFIG: self.written(servers, **settings), DATA: str(self.file("data"))}
        grants = ("*",) if role == "agent" else ()
        place = store_options(values[DATA], settings)
        key = self.new_key(place, role, grants) if DATA in command else None
        return self.listen(name, filled(command, values), servers, key)

    async def serve_governed(
        self, servers: Servers, grants: Sequence[str], clients: int = 1, **settings: object
    ) -> HttpTarget:
        """Spawn ours and open it to as many clients of an agent that has these grants alone."""
        target = await self.serve("ours", servers, role="viewer", **settings).open()
        await target.session.close()
        data_dir = target.argv[target.argv.index("--data-dir") + 1]
        key = self.new_key(store_options(data_dir, settings), "agent", grants)
        target.headers = {"authorization": f"Bearer {key}"}
        target.clients = [target.new_client() for _ in range(clients)]
        target.session = target.clients[0]
        await target.retry(target.session.open)  # once it has heard of the key
        return await target.open(clients)

    async def again(self, target: HttpTarget) -> HttpTarget:
        """End a program and spawn it once more, with all it has stored, on another port."""
        await target.close()
        log, port = self.file("log"), free_port()
        now, proc = time.perf_counter(), spawned(filled(target.argv, {PORT: str(port)}), log)
        return self.kept(replace(target, log=log, proc=proc, port=port, clients=[], spawned=now))

    def serve_direct(self, *args: str) -> HttpTarget:
        """Spawn `upstream.py` itself on a free port."""
        argv = [*command_line(server("upstream.py", *args)), "--http", PORT]
        return self.listen("direct", argv, {}, None)

    def serve_script(self, script: str) -> HttpTarget:
        """Spawn another server itself, which takes the port as its argument."""
        return self.listen("direct", command_line(server(script, PORT)), {}, None)

    def listen(self, name: str, argv: list[str], servers: Servers, key: str | None) -> HttpTarget:
        log, port = self.file("log"), free_port()
        proc = spawned(filled(argv, {PORT: str(port)}), log)
        headers = {"authorization": f"Bearer {key}"} if key else {}
        known = name, children(servers), prefix(servers), log
        return self.kept(HttpTarget(*known, proc, port, headers, bool(key), argv))

    def kept(self, target: HttpTarget) -> HttpTarget:
        """A target that is ended with the case."""
        self.push_async_callback(target.close)
        self.targets.append(target)
        return target

    def new_key(self, place: Sequence[str], role: str, grants: Sequence[str] = ()) -> str:
        words = ["keys", "create", "--role", role, "--agent", "bench", *place]
        words += [word for grant in grants for word in ("--grant", grant)]
        done = subprocess.run(
            [self.our_http[0], *words], capture_output=True, text=True, timeout=60, check=False
        )
        if done.returncode:
            raise McpError(f"keys create ended with {done.returncode}: {done.stderr[-300:]}")
        return done.stdout.strip()

    async def open_http_pair(
        self, servers: Servers, clients: int = 1
    ) -> tuple[HttpTarget, HttpTarget]:
        """(floor, ours), each with as many clients, past their handshakes and a first list."""
        pair = self.serve("floor", servers), self.serve("ours", servers)
        for target in pair:
            await target.open(clients)
            await target.session.request("tools/list", {})
        return pair

    def describe_end(self) -> str:
        return "; ".join(
            f"{target.name} said: {words}"
            for target in self.targets
            if (words := target.describe_end())
        )


async def succeeds(attempt: Callable[[], Awaitable[object]]) -> bool:
    try:
        await attempt()
    except (OSError, McpError):
        return False
    return True


def spawned(argv: list[str], log: Path) -> subprocess.Popen:
    """A program that listens; what it says on stderr is in `log`."""
    with log.open("wb") as stderr:
        return subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=stderr,
            start_new_session=True,  # as for those over stdio
        )


def filled(command: list[str], values: dict[str, str]) -> list[str]:
    """The command line with its placeholders replaced."""
    return [values.get(word, word) for word in command]


def store_options(data_dir: str, settings: Mapping[str, object]) -> list[str]:
    """The words by which a command finds the store of a service with these settings."""
    store = settings.get("store")
    return ["--data-dir", data_dir, *(["--store", str(store)] if store else [])]


def children(servers: Servers) -> int:
    """How many processes the servers are, that the program starts itself."""
    return sum("command" in entry for entry in servers.values())


def prefix(servers: Servers) -> str:
    return f"{next(iter(servers))}__" if servers else ""
