"""How the programs under measurement are started, and how they are all ended again."""

import json
import shlex
import sys
import tempfile
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import procs
from client import McpError, StdioSession

HERE = Path(__file__).parent
CONFIG = "{config}"
FLOOR = [sys.executable, str(HERE / "rawproxy.py"), CONFIG, "--stdio"]

Servers = dict[str, dict[str, object]]


def ours(override: str | None) -> list[str]:
    """The command line of our program, with a placeholder for the config file."""
    if not override:
        return [str(Path(sys.executable).parent / "mcp-junction"), "--config", CONFIG]
    words = shlex.split(override)
    return words if CONFIG in words else [*words, "--config", CONFIG]


def server(script: str = "upstream.py", *args: str) -> dict[str, object]:
    """One entry of `mcpServers`."""
    return {"command": sys.executable, "args": [str(HERE / script), *args]}


def fast_servers(count: int, tools: int) -> Servers:
    return {
        f"s{n:02d}": server("upstream.py", "--stdio", "--tools", str(tools)) for n in range(count)
    }


def command_line(entry: dict[str, object]) -> list[str]:
    return [str(entry["command"]), *map(str, entry["args"])]


@dataclass
class Target:
    """A started program, spoken to over its stdio."""

    name: str
    session: StdioSession
    servers: int
    prefix: str
    log: Path

    @property
    def pid(self) -> int:
        return self.session.proc.pid

    async def open(self) -> "Target":
        await self.session.open()
        return self

    async def end(self) -> None:
        """Close it and wait until the servers behind it are gone too, so that none disturbs."""
        pids = procs.everything(self.pid)
        await self.session.close()
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
        return procs.cpu_seconds(self.pids())

    def last_words(self) -> str:
        """The end of its stderr, for the report of a failure."""
        lines = self.log.read_text(errors="replace").strip().splitlines()
        return " / ".join(lines[-3:])


class Lab(AsyncExitStack):
    """One case's programs and files; leaving it ends and removes them."""

    def __init__(self, our_command: list[str], quick: bool) -> None:
        super().__init__()
        self.our_command, self.quick = our_command, quick
        self.rounds = 6 if quick else 24
        self.targets: list[Target] = []

    async def __aenter__(self) -> "Lab":
        await super().__aenter__()
        self.folder = Path(self.enter_context(tempfile.TemporaryDirectory(prefix="bench-")))
        return self

    def calls(self, number: int) -> int:
        """How many calls a round takes: `number`, less in a quick run."""
        return max(number // 5, 2) if self.quick else number

    async def start(self, name: str, servers: Servers) -> Target:
        """Spawn `ours` or `floor` in front of these servers; nothing is said to it yet."""
        command = self.our_command if name == "ours" else FLOOR
        config = self.folder / f"{len(self.targets)}.json"
        config.write_text(json.dumps({"mcpServers": servers}))
        argv = [str(config) if word == CONFIG else word for word in command]
        prefix = f"{next(iter(servers))}__"
        return await self.spawn(name, argv, len(servers), prefix)

    async def start_direct(self, entry: dict[str, object]) -> Target:
        """Spawn a server itself, with nothing in between."""
        return await self.spawn("direct", command_line(entry), 0, "")

    async def spawn(self, name: str, argv: list[str], servers: int, prefix: str) -> Target:
        log = self.folder / f"{len(self.targets)}.log"
        with log.open("wb") as stderr:
            session = StdioSession(argv, stderr=stderr)
            self.push_async_callback(session.close)
            await session.spawn()
        target = Target(name, session, servers, prefix, log)
        self.targets.append(target)
        return target

    async def open_pair(self, servers: Servers) -> tuple[Target, Target]:
        """(floor, ours), both past their handshake and first list."""
        pair = await self.start("floor", servers), await self.start("ours", servers)
        for target in pair:
            await target.open()
            await target.session.request("tools/list", {})
        return pair

    def last_words(self) -> str:
        return "; ".join(
            f"{target.name} said: {words}"
            for target in self.targets
            if (words := target.last_words())
        )
