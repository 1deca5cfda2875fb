"""A gateway that asks for keys, as a process that a test may end, in front of a server of each era.

`Guarded.park` makes a call that asks and leaves it waiting for its client.
"""

import json
import os
import signal
import subprocess
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.conformance.processes import SAYS_WHERE, end, loaded_junction, wait_until_ready
from tests.journeys_eras.ledger import Ledger
from tests.journeys_eras.stacks import Stacks
from tests.journeys_eras.wire import Answer, Wire
from tests.plugin_journeys import own_environment

BOUND = 20.0
ANSWER = {"action": "accept", "content": {"name": "Ada"}}


@dataclass(frozen=True)
class Key:
    id: str
    secret: str


@dataclass
class Parked:
    """A call that waits: whose it is, its nonce, and what the client was answered."""

    wire: Wire
    tool: str
    nonce: str
    asked: dict[str, Any]

    @property
    def state(self) -> str:
        return self.asked["requestState"]

    @property
    def replies(self) -> dict[str, Any]:
        return dict.fromkeys(self.asked["inputRequests"], ANSWER)

    def params(self, **changes: Any) -> dict[str, Any]:
        """What the client comes back with; `changes` instead of what is right."""
        return {
            "name": self.tool,
            "arguments": {"nonce": self.nonce},
            "inputResponses": self.replies,
            "requestState": self.state,
            **changes,
        }

    def resume(self, **changes: Any) -> Answer:
        return self.wire.ask("tools/call", self.params(**changes))


@dataclass
class Guarded:
    """The running gateway."""

    url: str
    data: Path
    ledgers: dict[str, Ledger]
    process: "subprocess.Popen[str]"
    keys: dict[str, Key] = field(default_factory=dict)

    def wire(self, agent: str, path: str = "") -> Wire:
        return Wire(self.url + path, self.keys[agent].secret)

    def add_key(self, agent: str) -> None:
        words = ["create", "--json", "--role", "agent", "--agent", agent, "--grant", "*"]
        made = keys(*words, "--data-dir", str(self.data))
        self.keys[agent] = Key(made["id"], made["key"])

    def revoke(self, agent: str) -> None:
        keys("revoke", self.keys[agent].id, "--json", "--data-dir", str(self.data))

    def park(self, agent: str, server: str = "older", own: str = "ask_user") -> Parked:
        """A call of a tool that was answered with its question."""
        wire, nonce = self.wire(agent), uuid.uuid4().hex[:8]
        tool = f"{server}.{own}"
        asked = wire.call(tool, {"nonce": nonce}).result
        assert asked["resultType"] == "input_required", asked
        return Parked(wire, tool, nonce, asked)


def keys(*words: str) -> Any:
    ended = subprocess.run(
        [*loaded_junction(), "keys", *words], capture_output=True, text=True, timeout=BOUND
    )
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)


@contextmanager
def guarded(
    stacks: Stacks,
    name: str,
    transport: str = "http",
    older: dict[str, Any] | None = None,
    **settings: Any,
) -> Iterator[Guarded]:
    """The gateway, with keys for `ada` and `bob`.

    `transport` is that of the older server, `older` what the config says of it beside.
    """
    entry = {**stacks.entry("old", transport), "junction": older or {}}
    servers = {"older": entry, "newer": stacks.entry("new", "http")}
    config = stacks.config(name, servers, **settings)
    data = config.parent / "data"
    ledgers = {"older": stacks.ledger("old", transport), "newer": stacks.ledger("new", "http")}
    made = Guarded("", data, ledgers, None)  # type: ignore[arg-type]
    for agent in ("ada", "bob"):
        made.add_key(agent)
    command = [*loaded_junction(), "serve", "--config", str(config), "--port", "0", "--require-key"]
    log = config.parent / "stderr"
    with log.open("w") as stderr:
        made.process = subprocess.Popen(
            [*command, "--data-dir", str(data)],
            env=own_environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=stderr,
            start_new_session=True,
            text=True,
        )
    try:
        made.url = _url(log, made.process)
        wait_until_ready(made.url)
        yield made
        _reveals_nothing(log, made)
    finally:
        end(made.process)


def _url(log: Path, process: "subprocess.Popen[str]") -> str:
    until = time.monotonic() + BOUND
    while True:
        if match := SAYS_WHERE.search(log.read_text()):
            return match[1]
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < until, log.read_text()
        time.sleep(0.02)


def _reveals_nothing(log: Path, made: Guarded) -> None:
    """No key is in what the gateway printed, nor a trace of its insides."""
    printed = log.read_text()
    assert "Traceback" not in printed, printed
    for key in made.keys.values():
        assert key.secret.split("_", 2)[2] not in printed


def stop(process: "subprocess.Popen[str]") -> int:
    """SIGTERM; the status it ends with."""
    os.kill(process.pid, signal.SIGTERM)
    return process.wait(BOUND)
