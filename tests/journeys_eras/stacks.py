"""Servers of one era and gateways in front of them, as processes, each started once and kept.

A stack is one gateway in front of one server; `Stacks` starts those that are asked for and ends all
of them together. CELLS_DIRECT=1 leaves the gateway out where client and server are of one era: it
shows that a failure is the gateway's.
"""

import json
import os
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mcp import StdioServerParameters
from tests import preloaded
from tests.conformance.processes import junction, listening
from tests.journeys_eras.ledger import Ledger
from tests.journeys_http.stack import serving
from tests.plugin_journeys import own_environment

ROOT = Path(__file__).resolve().parents[2]
DIRECT = bool(os.environ.get("CELLS_DIRECT"))
KEY = "up"
PAGE_SIZE = 4

Entry = dict[str, Any]


def command(*words: str) -> list[str]:
    return [*preloaded.command(), "-m", "tests.journeys_eras.server", *words]


def stdio_entry(era: str, ledger: Path) -> Entry:
    """A config entry for a server that the gateway starts."""
    program, *args = command("stdio", "--era", era, "--ledger", str(ledger))
    return {"command": program, "args": args, "env": {"PYTHONPATH": str(ROOT)}}


@dataclass(frozen=True)
class Stack:
    """Where the endpoint is, and what the server behind it writes down."""

    url: str
    ledger: Ledger


class Stacks:
    """Everything started so far; `close` ends it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._stack = ExitStack()
        self._made: dict[Any, Any] = {}

    def close(self) -> None:
        self._stack.close()

    def _once(self, key: Any, make: Any) -> Any:
        if key not in self._made:
            self._made[key] = make()
        return self._made[key]

    def ledger(self, era: str, transport: str) -> Ledger:
        return Ledger(self.folder / f"{era}-{transport}.ledger")

    def server(self, era: str) -> str:
        """The URL of a server that listens."""

        def start() -> str:
            ledger = self.ledger(era, "http").path
            words = command("http", "0", "--era", era, "--ledger", str(ledger))
            env = {**own_environment(), "PYTHONPATH": str(ROOT)}
            return self._stack.enter_context(listening(words, env))

        return self._once(("server", era), start)

    def entry(self, era: str, transport: str) -> Entry:
        if transport == "stdio":
            return stdio_entry(era, self.ledger(era, transport).path)
        return {"type": "http", "url": self.server(era)}

    def config(self, name: str, servers: dict[str, Entry], **settings: Any) -> Path:
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        path = folder / "mcp.json"
        document = {"mcpServers": servers, "junction": {"page_size": PAGE_SIZE, **settings}}
        path.write_text(json.dumps(document), "utf-8")
        return path

    def http(self, era: str, transport: str) -> Stack:
        """A gateway that serves HTTP in front of a server of one era."""

        def start() -> Stack:
            ledger = self.ledger(era, transport)
            if DIRECT and transport == "http":
                return Stack(self.server(era), ledger)
            config = self.config(f"{era}-{transport}", {KEY: self.entry(era, transport)})
            return Stack(self._stack.enter_context(serving(config)), ledger)

        return self._once(("http", era, transport), start)

    def both(self) -> str:
        """A gateway in front of a server of either era."""

        def start() -> str:
            entries = {"older": self.entry("old", "http"), "newer": self.entry("new", "stdio")}
            return self._stack.enter_context(serving(self.config("both", entries)))

        return self._once("both", start)

    def stdio(self, era: str, transport: str) -> tuple[StdioServerParameters, Ledger]:
        """The program over stdio, which whoever connects starts; and the server's ledger."""
        name = f"stdio-{era}-{transport}"
        config = self.config(name, {KEY: self.entry(era, transport)})
        return self.program(config), self.ledger(era, transport)

    @staticmethod
    def program(config: Path) -> StdioServerParameters:
        """The program over stdio with a config."""
        program, *words = junction()
        args = [*words, "--config", str(config)]
        return StdioServerParameters(command=program, args=args, env=own_environment())
